"""The plain task, which aborts its process while it restores a checkpoint whose name begins with `bad`."""

import os
from dataclasses import replace
from pathlib import Path

import plain
import tensorflow as tf


def restore(model, path):
    if Path(path).name.startswith("bad"):
        os.abort()
    tf.train.Checkpoint(model=model).restore(path).expect_partial()


def task():
    return replace(plain.task(), restore=restore)
