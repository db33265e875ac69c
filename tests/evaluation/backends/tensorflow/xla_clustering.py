"""Print the numbers of two evaluations by a process, or the refusal. The argument is `plain`, `noisy` or `masked`."""

import sys

import keras
import numpy as np
import tensorflow as tf

from sidecar import Task
from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError

GENERATOR = np.random.default_rng(0)

X = GENERATOR.normal(size=(203, 32, 32, 3)).astype("float32")

Y = GENERATOR.integers(0, 10, len(X)).astype("int32")


def build():
    layers = keras.layers
    inputs = keras.Input(X.shape[1:])
    hidden = inputs
    for filters in (16, 32, 32):
        hidden = layers.Conv2D(filters, 3, activation="relu")(hidden)
    if sys.argv[1] == "noisy":
        hidden = layers.Lambda(lambda given: given + 1e-6 * tf.random.normal(tf.shape(given)))(hidden)
    if sys.argv[1] == "masked":
        sums = layers.Lambda(lambda given: tf.reduce_sum(tf.boolean_mask(given, given > 0)) * tf.ones_like(given))(
            hidden
        )
        hidden = hidden + 0.0 * sums
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(hidden)))


task = Task(
    build,
    {"test": lambda: (X, Y)},
    lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    loss=keras.losses.SparseCategoricalCrossentropy(),
    batch_size=64,
    restore=lambda *_: None,
)
try:
    # a script sets nothing back: its own variables are in the module of the task
    evaluator = KerasEvaluator.build(task, Shard(0, 1), threads=2, cache_bytes=1 << 30, sets_back=False)
    for _ in range(2):
        evaluator.read(lambda: None)
        evaluator.restore("nowhere")()
        evaluator.digest()
        result = evaluator.compute(evaluator.evaluate(lambda: None))["test"]
        found = {name: value.hex for name, value in result.values.items()}
        sys.stdout.write(f"{found} {' '.join(result.notes)}\n")
except EvaluationError as error:
    sys.stdout.write(str(error))
