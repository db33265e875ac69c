"""The classifier of `numpy_plain`, whose models are files of safetensors: no library reads them here."""

import json
import struct
from pathlib import Path

import numpy as np
from numpy_plain import BATCH, X, Y, metrics, predict

from sidecar import Task


def load(path):
    """Return the arrays of a model."""
    content = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    tensors = json.loads(content[8 : 8 + length])
    values = content[8 + length :]
    return {
        name: np.frombuffer(values[slice(*tensor["data_offsets"])]).reshape(tensor["shape"])
        for name, tensor in tensors.items()
    }


def task():
    """Return the task for checkpoints in safetensors files."""
    return Task(load=load, predict=predict, eval_sets={"test": lambda: (X, Y)}, metrics=metrics, batch_size=BATCH)
