"""An evaluation that waits for its DataLoader: every example is decompressed and normalized on the CPU."""

import zlib

import numpy as np
import torch
from conv_data import CLASSES, EXAMPLES
from conv_torch import conv_net
from torch import nn
from torch.utils.data import DataLoader, Dataset

from sidecar import Task
from sidecar.metrics import Accuracy

SIDE = 256
PACKED = [
    zlib.compress(np.random.default_rng(seed).integers(0, 64, (SIDE, SIDE, 3), np.uint8).tobytes()) for seed in range(8)
]


class Decoded(Dataset):
    """Images of 256 x 256 that are unpacked and made smaller for the net, about a millisecond each."""

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, number):
        image = np.frombuffer(zlib.decompress(PACKED[number % len(PACKED)]), np.uint8).reshape(SIDE, SIDE, 3)
        small = torch.from_numpy(image[:: SIDE // 32, :: SIDE // 32].astype(np.float32) / 64)
        return small.permute(2, 0, 1), number % CLASSES


def task():
    return Task(
        build_model=conv_net,
        eval_sets={"test": lambda: DataLoader(Decoded(), batch_size=64)},
        metrics=lambda: [Accuracy()],
        loss=nn.CrossEntropyLoss(),
    )
