"""The same evaluation of Keras with and without intervals from a sample of the examples, in one process."""

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


def metrics():
    return [keras.metrics.F1Score(average="macro"), keras.metrics.AUC()]


task = replace(conv.task(), eval_sets={"test": arrays}, metrics=metrics, loss=None, restore=lambda *_: None)
evaluators = {}
for wanted in (False, None, True):
    evaluators[wanted] = KerasEvaluator.build(
        replace(task, intervals=wanted), Shard(0, 1), threads=1, cache_bytes=1 << 30
    )
    evaluators[wanted].read(lambda: None)
    evaluators[wanted].restore("nowhere")()


def evaluate(wanted):
    evaluator, begin = evaluators[wanted], time.process_time()
    numbers = evaluator.compute(evaluator.evaluate(lambda: None))["test"].values
    shown = sum(number.lower is not None for number in numbers.values())
    return {"seconds": time.process_time() - begin, "intervals": shown}


serve(evaluate)
