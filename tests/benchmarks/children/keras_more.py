"""The same evaluation of Keras as it is, with intervals from a sample of the examples, and with slices, in one process.

Metrics that count, and weights, which are no whole numbers.
"""

import time
from dataclasses import replace

import conv
import conv_data
import keras
import numpy as np
import tensorflow as tf
from answers import serve

from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
from sidecar.evaluation.data.shard import Shard

tf.config.threading.set_intra_op_parallelism_threads(1)


def arrays():
    x, y = conv_data.arrays()
    return x, np.eye(conv_data.CLASSES, dtype=np.float32)[y]


def weighted():
    x, y = arrays()
    return x, y, np.random.default_rng(3).exponential(size=len(y)).astype(np.float32)


def metrics():
    return [keras.metrics.F1Score(average="macro"), keras.metrics.AUC()]


few = {"bright": lambda x, _: x.mean(axis=(1, 2, 3)) > 0, "class": lambda _, y: y.argmax(axis=1)}
many = {"part": lambda x, _: np.digitize(x[:, 0, 0, 0], np.linspace(-2, 2, 29))}
plain = replace(
    conv.task(), eval_sets={"test": arrays}, metrics=metrics, loss=None, restore=lambda *_: None, intervals=False
)
of_weights = replace(plain, eval_sets={"test": weighted})
tasks = {
    "plain": plain,
    "intervals=None": replace(plain, intervals=None),
    "intervals=True": replace(plain, intervals=True),
    "slices": replace(plain, slices=few),
    "many slices": replace(plain, slices=many),
    "weights": of_weights,
    "weights, slices": replace(of_weights, slices=few),
    "weights, many slices": replace(of_weights, slices=many),
}


def evaluating():
    """Keep evaluators where no task leads: they set back the globals of a task's module before a checkpoint."""
    evaluators = {}
    for name, task in tasks.items():
        evaluators[name] = KerasEvaluator.build(task, Shard(0, 1), threads=1, cache_bytes=1 << 30)
        evaluators[name].read(lambda: None)
        evaluators[name].restore("nowhere")()

    def evaluate(name):
        evaluator, begin = evaluators[name], time.process_time()
        numbers = evaluator.compute(evaluator.evaluate(lambda: None))["test"]
        return {"seconds": time.process_time() - begin, "slices": len(numbers.slices)}

    return evaluate


serve(evaluating())
