"""Read real handwritten digits: 1,400 to learn, and 397 others for the tasks of this folder.

    python torch_digits.py

Real handwritten digits of scikit-learn are the data.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset


def digits(*, training: bool) -> TensorDataset:
    """Return pairs of image (1, 8, 8), with values from 0 to 1, and label. The order is the same in every process."""
    read = load_digits()
    order = np.random.default_rng(seed=1).permutation(len(read.target))[slice(1400) if training else slice(1400, None)]
    images = torch.from_numpy(read.images[order, np.newaxis] / 16).float()
    return TensorDataset(images, torch.from_numpy(read.target[order]))


if __name__ == "__main__":
    for training in (True, False):
        print(len(digits(training=training)), "digits")
