"""Four common ways to compute a metric on several processes, the number that each gives, and the right one.

A linear classifier says whether a handwritten digit is even. Its 597 test images are evaluated by 4 processes, in
batches of 64. Run it in an environment with scikit-learn and PyTorch, whose own sampler divides the images:

    python common_mistakes.py

It prints the table of docs/explanation/common-mistakes.md.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch.utils.data import DistributedSampler

from sidecar import Task
from sidecar.metrics import AUC, Accuracy

PROCESSES = 4
BATCH = 64
FIRST = 1200  # images from here on are the test set

digits = load_digits()
images, even = np.c_[digits.data / 16, np.ones(len(digits.data))], (digits.target % 2 == 0).astype(np.int64)
test_images, labels = images[FIRST:], even[FIRST:]


def train(path: Path) -> None:
    """Save the weights (65,) of the least squares fit of 100 images."""
    np.save(path, np.linalg.lstsq(images[:100], even[:100], rcond=1e-8)[0])


task = Task(
    load=np.load,
    predict=lambda weights, x: np.clip(x @ weights, 0, 1),
    eval_sets={"test": lambda: (test_images, labels)},
    metrics=lambda: [Accuracy("binary"), AUC()],
    batch_size=BATCH,
)


def shares(indices: Any) -> list[Any]:
    """Return the test images of each process, by indices."""
    return [np.array(list(share)) for share in indices]


def mistakes(scores: Any) -> dict[str, float]:
    """Return the number that each of the four ways gives."""
    right = (scores > 0.5) == labels  # noqa: PLR2004 - the usual threshold
    whole = range(len(labels))
    divided = shares(np.array_split(np.arange(len(labels)), PROCESSES))
    padded = shares(DistributedSampler(whole, PROCESSES, rank, shuffle=False) for rank in range(PROCESSES))
    batches = [right[at : at + BATCH].mean() for at in range(0, len(right), BATCH)]
    return {
        "accuracy: mean of the processes' means": float(np.mean([right[share].mean() for share in divided])),
        "accuracy: mean of the batches' means": float(np.mean(batches)),
        "accuracy: `DistributedSampler`, which repeats examples": float(right[np.concatenate(padded)].mean()),
        "AUC: mean of the processes' AUCs": float(
            np.mean([roc_auc_score(labels[share], scores[share]) for share in divided])
        ),
    }


def main() -> None:
    """Train, evaluate in all ways, and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model-1.npy")
        train(path)
        found = mistakes(task.predict(task.load(str(path)), test_images))  # type: ignore[misc]
        command = ["eval", str(path), "--task", f"{__file__}:task", "--replicas", str(PROCESSES), "--json"]
        evaluated = subprocess.run(
            [str(Path(sys.executable).with_name("sidecar")), *command],
            env={**os.environ, "SIDECAR_CHECKPOINT_PATTERN": "model-*.npy"},
            check=True,
            capture_output=True,
            text=True,
        )
    numbers = json.loads(evaluated.stdout)["metrics"]["test"]
    ours = {"accuracy": numbers["accuracy"]["value"], "AUC": numbers["roc_auc"]["value"]}
    print("| how | gives | exact |\n|---|---|---|")
    for name, number in found.items():
        print(f"| {name} | {number:.5f} | {ours[name.partition(':')[0]]:.5f} |")


if __name__ == "__main__":
    main()
