"""The same evaluation without and with slices, and with an interval of `Sums`, in one process."""

import time
from dataclasses import replace

import conv_torch
import numpy as np
import torch
from answers import serve

from sidecar.evaluation.backends.torch.evaluator import TorchEvaluator
from sidecar.evaluation.data.shard import Shard
from sidecar.metrics import Accuracy, Sums


def hits(y, predictions):
    found = predictions.argmax(axis=1) == 1
    return {"both": (found & (y == 1)).sum(), "found": found.sum(), "there": (y == 1).sum()}


def f1():
    return Sums(hits, lambda totals: 2 * totals["both"] / max(totals["found"] + totals["there"], 1), name="f1")


torch.set_num_threads(1)
plain = conv_torch.task()
tasks = {
    "plain": plain,
    "slices": replace(plain, slices={"bright": lambda x, _: x.mean(axis=(1, 2, 3)) > 0, "class": lambda _, y: y}),
    "many slices": replace(plain, slices={"part": lambda x, _: np.digitize(x[:, 0, 0, 0], np.linspace(-2, 2, 29))}),
    "sums": replace(plain, metrics=lambda: [Accuracy(), f1()]),
}
evaluators = {}
for name, task in tasks.items():
    evaluators[name] = TorchEvaluator.build(task, Shard(0, 1), cache_bytes=1 << 30, device=torch.device("cpu"))
    evaluators[name].read(lambda: None)


def evaluate(name):
    evaluator, begin = evaluators[name], time.process_time()
    numbers = evaluator.compute(evaluator.evaluate(lambda: None))
    return {"seconds": time.process_time() - begin, "slices": len(numbers["test"].slices)}


serve(evaluate)
