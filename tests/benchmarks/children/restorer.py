"""A model of 50 MB whose checkpoint has Adam slots, too: saves it, or restores it and counts the bytes it read."""

from pathlib import Path

import keras
import tensorflow as tf
from answers import serve

from sidecar.evaluation.backends.tensorflow.restore import restore

WIDTH = 2500
model = keras.Sequential([keras.layers.Input((WIDTH,)), keras.layers.Dense(WIDTH), keras.layers.Dense(WIDTH)])
size = sum(variable.numpy().nbytes for variable in model.weights)


def work(path, way):
    optimizer = keras.optimizers.Adam()
    if way in ("save", "all"):
        optimizer.build(model.trainable_variables)
    whole = tf.train.Checkpoint(model=model, optimizer=optimizer)
    if way == "save":
        whole.write(path)
        return {"model": size, "checkpoint": sum(each.stat().st_size for each in Path(path).parent.glob("ckpt*"))}
    ways = {
        "ours": lambda: restore(model, path, None),
        "model": lambda: tf.train.Checkpoint(model=model).restore(path).expect_partial(),
        "all": lambda: whole.restore(path).expect_partial(),
    }
    before = _read_so_far()
    ways[way]()
    return {"bytes": _read_so_far() - before}


def _read_so_far():
    """Bytes that this process asked the kernel for, from a disk or not."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


serve(work)
