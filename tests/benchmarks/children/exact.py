"""The same evaluation with exact states and with float32 sums, in one process."""

import time

import conv
import numpy as np
import tensorflow as tf
from answers import serve

from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
from sidecar.evaluation.data.shard import Shard

evaluator = KerasEvaluator.build(conv.task(), Shard(0, 1), threads=2, cache_bytes=1 << 30)
evaluator.read(lambda: None)
(batches,) = evaluator._batches
step = evaluator._step_of(batches)
adding = []  # seconds of each addition in this evaluation
add_exactly = step.measurement.add


def timed(add, *arguments):
    begin = time.perf_counter()
    add(*arguments)
    adding.append(time.perf_counter() - begin)


step.measurement.add = lambda *arguments: timed(add_exactly, *arguments)


def in_float32():
    """The evaluator's own loop, with a float32 sum for each output."""
    sums = np.zeros(8, np.float32)

    def add(outputs, examples):
        for number, each in enumerate(outputs):
            sums[number] += each.sum(dtype=np.float32)
        sums[-1] += np.float32(examples)

    for *_, batch in batches.own():
        outputs = [tensor.numpy() for tensor in tf.nest.flatten(step.run(batch))]
        timed(add, outputs, len(batch[0]))


def evaluate(exact):
    adding.clear()
    begin = time.perf_counter()
    if exact:
        evaluator.evaluate(lambda: None)
    else:
        in_float32()
    return {"seconds": time.perf_counter() - begin, "adding": sum(adding)}


serve(evaluate)
