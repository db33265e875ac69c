"""A real TensorFlow process: writes checkpoints of every kind, and restores them, when it is asked to.

A line of input that is JSON says of which kind, and into which folder; the answer is what it says about them. Any
other line is a prefix; the answer is the values that TensorFlow restored from it.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import keras_writers
import numpy as np
import optimizer_writers
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from writer_process import OBJECTS, OPTIMIZERS

KERAS_STEPS = (2, 4, 7)
FIRST_REFERENCE = 100  # from there on types are references to the others
WIDE_TENSORS = 8000  # more than one block of 256 KB


def main() -> None:
    for line in sys.stdin:
        if line.startswith("{"):  # no path does here
            asked = json.loads(line)
            say(write(asked["kind"], Path(asked["folder"])))
        else:
            say(restore_keras(line.rstrip("\n")))


def write(kind: str, folder: Path) -> Any:
    if kind == OBJECTS:
        return {name: write_objects(folder / name) for name, write_objects in WRITERS.items()}
    if kind == OPTIMIZERS:
        return optimizer_writers.write(folder)
    return keras_writers.write(kind, folder)


def say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def build() -> tuple[keras.Model, keras.optimizers.Optimizer, tf.train.Checkpoint]:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization()])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    return model, optimizer, tf.train.Checkpoint(model=model, optimizer=optimizer)


def write_keras(folder: Path) -> dict[str, Any]:
    keras.utils.set_random_seed(1)
    model, optimizer, checkpoint = build()
    manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=3)
    values = {}
    for step in range(1, KERAS_STEPS[-1] + 1):
        optimizer.apply([tf.ones_like(variable) for variable in model.trainable_variables], model.trainable_variables)
        if step in KERAS_STEPS:
            values[Path(manager.save()).name] = [step, model.layers[0].kernel.numpy().tolist()]
    return values


def restore_keras(prefix: str) -> list[Any]:
    model, optimizer, checkpoint = build()
    checkpoint.restore(prefix).assert_existing_objects_matched()
    return [int(optimizer.iterations.numpy()), model.layers[0].kernel.numpy().tolist()]


def write_plain(folder: Path) -> dict[str, Any]:
    for step in (9, 10):
        tf.train.Checkpoint(v=tf.Variable([1.0, step])).write(str(folder / f"weights-{step}"))
    return {"weights-9": 9, "weights-10": 10}


def write_sharded(folder: Path) -> dict[str, Any]:
    checkpoint = tf.train.Checkpoint(
        step=tf.Variable(11, dtype=tf.int64), **{f"v{i}": tf.Variable(np.ones(64)) for i in range(4)}
    )
    policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=1024)
    checkpoint.save(str(folder / "ckpt"), options=tf.train.CheckpointOptions(experimental_sharding_callback=policy))
    return {"ckpt-1": 11}


def write_step(folder: Path) -> dict[str, Any]:
    keras.utils.set_random_seed(1)
    optimizer = keras.optimizers.SGD()
    optimizer.build([keras.Variable(np.ones(2))])
    optimizer.iterations.assign(30)
    everything = {
        "step": tf.Variable(10, dtype=tf.int32),
        "global_step": tf.Variable(20, dtype=tf.int64),
        "epoch": tf.Variable(5, dtype=tf.int64),
        "rate": tf.Variable(0.5),
        "steps": tf.Variable([1, 2], dtype=tf.int64),
    }
    without = {key: value for key, value in everything.items() if key not in ("step", "global_step")}
    wrote = {
        "all-1": {**everything, "trainer": tf.train.Checkpoint(optimizer=optimizer)},
        "both-1": everything,
        "global-1": {key: value for key, value in everything.items() if key != "step"},
        "none-1": without,
    }
    for prefix, tracked in wrote.items():
        tf.train.Checkpoint(**tracked).write(str(folder / prefix))
    tf.raw_ops.SaveV2(
        prefix=str(folder / "saver-1"),
        tensor_names=["global_step"],
        shape_and_slices=[""],
        tensors=[tf.constant(77, tf.int64)],
    )
    return {"all-1": 30, "both-1": 10, "global-1": 20, "none-1": 1, "saver-1": 77}


def write_keras2(folder: Path) -> dict[str, Any]:
    import tf_keras

    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(2,))])
    for name, optimizer in (("new-1", tf_keras.optimizers.SGD()), ("old-1", tf_keras.optimizers.legacy.SGD())):
        optimizer.iterations.assign(50)
        tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(folder / name))
    return {"new-1": 50, "old-1": 50}


def write_wide(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    names = [f"layer_with_weights-{i}/kernel/.ATTRIBUTES/VARIABLE_VALUE" for i in range(WIDE_TENSORS)]
    tf.raw_ops.SaveV2(
        prefix=str(folder / "wide-3"),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(float(i)) for i in range(len(names))],
    )
    return {"wide-3": 3}


def write_odd_name(folder: Path) -> dict[str, Any]:
    saved = tf.train.Checkpoint(step=tf.Variable(6)).save(str(folder / 'mod\u00e8le "x" 5%'))
    return {Path(saved).name: 6}


def write_overwritten(folder: Path) -> dict[str, Any]:
    """The same prefix twice, sizes equal; the second in a folder of its own, to be moved over the first."""
    step = tf.Variable(1, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(step=step, v=tf.Variable([1.0, 2.0]))
    for value, part in ((1, "before"), (2, "after")):
        step.assign(value)
        checkpoint.write(str(folder / part / "best"))
    return {"best": [1, 2]}


def write_types(folder: Path) -> dict[str, Any]:
    """A tensor of each type but DT_RESOURCE, on which TensorFlow aborts; empty ones, scalars, and one in two slices."""
    folder.mkdir()
    tensors: dict[str, Any] = {
        "text": tf.constant(["a", "", "x" * 200]),
        "no_text": tf.constant([], tf.string),
        "one_text": tf.constant("a"),
        "nothing": tf.zeros((0, 3)),
        "one": tf.constant(1.0),
        "variant": tf.raw_ops.TensorListReserve(element_shape=[2], num_elements=3, element_dtype=tf.float32),
    }
    for name, number in types_pb2.DataType.items():
        kind = tf.dtypes.as_dtype(number) if 0 < number < FIRST_REFERENCE else tf.string
        if kind.is_quantized:
            tensors[name] = tf.bitcast(tf.constant([1, 2, 3], kind.name.removeprefix("q").replace("qu", "u")), kind)
        elif kind not in (tf.string, tf.resource, tf.variant):
            tensors[name] = tf.constant(np.array([1, 0, 1]).astype(kind.as_numpy_dtype), kind)
    slices = dict.fromkeys(tensors, "") | {"part": "4 2 0,2:-"}
    tensors["part"] = tf.ones((2, 2))
    tf.raw_ops.SaveV2(
        prefix=str(folder / "types-1"),
        tensor_names=list(tensors),
        shape_and_slices=list(slices.values()),
        tensors=list(tensors.values()),
    )
    return {"types-1": 1}


WRITERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "keras": write_keras,
    "plain": write_plain,
    "sharded": write_sharded,
    "step": write_step,
    "wide": write_wide,
    "odd_name": write_odd_name,
    "keras2": write_keras2,
    "overwritten": write_overwritten,
    "types": write_types,
}


if __name__ == "__main__":
    main()
