"""Train on handwritten digits with Keras and MultiWorkerMirroredStrategy, without any code for the evaluation.

Run it in one process:

    python digits_train.py

or once for each task of a cluster, each with its own TF_CONFIG. The chief saves into ckpts/; the others must save, too,
because saving is collective, and save into a folder of their own.
"""

import json
import os
import sys
from pathlib import Path

import keras
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before all else: collectives are set up at the first operation

from digits_task import build_model, training_set  # noqa: E402

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 3


def folder() -> Path:
    """Return the folder in which this process saves."""
    index = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
    return Path("ckpts") if index == 0 else Path(f"ckpts-of-worker-{index}")


def main() -> None:
    """Train, and save a checkpoint after each epoch."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = build_model()
        model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
    data = tf.data.Dataset.from_tensor_slices(training_set()).shuffle(1400, seed=1).batch(64)
    save = keras.callbacks.ModelCheckpoint(folder() / "epoch-{epoch:02d}.weights.h5", save_weights_only=True)
    model.fit(data, epochs=EPOCHS, verbose=2, callbacks=[save])


if __name__ == "__main__":
    main()
