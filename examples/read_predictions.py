"""Read the predictions that all workers saved in the newest evaluation, and print a confusion matrix of the digits.

    python read_predictions.py            # after `sidecar run ckpts --task digits_task.py:task --once`

This program needs numpy and no framework.
"""

from pathlib import Path

import numpy as np

from sidecar import results

EVALUATIONS = Path("ckpts/.sidecar/ckpts/evaluations")  # <checkpoint dir>/.sidecar/<run>/evaluations


def main() -> None:
    """Print the accuracy and the confusion matrix."""
    newest = max(EVALUATIONS.glob("*/result.json"), key=lambda path: path.stat().st_mtime).parent
    saved = results.read(newest).predictions["test"]  # arrays in the order of the data: place, y, predictions
    guesses = saved["predictions"].argmax(axis=1)
    confusion = np.zeros((10, 10), int)
    np.add.at(confusion, (saved["y"], guesses), 1)
    print(f"{newest.name}: {len(guesses)} examples, accuracy {(guesses == saved['y']).mean():.6f}")
    print(confusion)


if __name__ == "__main__":
    main()
