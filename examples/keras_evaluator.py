"""Evaluate the checkpoints of digits_train.py in one process without a daemon, as SidecarEvaluator of Keras 2 did.

Start it next to training, or afterwards:

    python digits_train.py 3
    python keras_evaluator.py 3

The argument is the number of epochs: the evaluator ends after the checkpoint of the last one. `logs/validation` is for
TensorBoard, and `best/` gets each model that is better than all before it.
"""

import sys
from pathlib import Path

import keras
from digits_task import build_model, test_set

from sidecar.keras import SidecarEvaluator, SidecarEvaluatorModelExport

CHECKPOINTS = Path("ckpts")


def main(epochs: int) -> None:
    """Evaluate until the checkpoint of the last epoch, and print the accuracy of each."""
    model = build_model()
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    evaluator = SidecarEvaluator(
        model,
        data=test_set(),
        checkpoint_dir=CHECKPOINTS,
        max_evaluations=epochs,
        every=True,
        callbacks=[
            keras.callbacks.TensorBoard(log_dir="logs"),
            SidecarEvaluatorModelExport(
                "best/epoch-{epoch:02d}", CHECKPOINTS / "epoch-{epoch:02d}", monitor="accuracy"
            ),
        ],
    )
    evaluator.start()
    for result in evaluator.results:
        print(f"{result.checkpoint}, step {result.step}: accuracy {result.metrics['accuracy']:.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
