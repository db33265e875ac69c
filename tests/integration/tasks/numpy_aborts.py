"""The plain numpy task, which aborts its process while it loads a checkpoint whose name holds `bad`: at the gate."""

import os
from dataclasses import replace
from pathlib import Path

import numpy_plain as plain
from gate import pass_by


def load(path):
    """Return the arrays of a good model."""
    if "bad" in Path(path).name:
        pass_by("restore")
        os.abort()
    return plain.load(path)


def task():
    """Return the plain task with a `load` that aborts the process."""
    return replace(plain.task(), load=load)
