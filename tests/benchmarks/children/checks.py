"""Evaluate one task with and without the checks of what a user supplies, in one process: `checks.py FRAMEWORK`."""

import importlib
import sys
import time

import numpy as np
from answers import serve

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.first_batch import FirstBatchOfSet

FRAMEWORK = sys.argv[1]
TASKS = {"tensorflow": "conv", "torch": "conv_torch", "python": "dense_python"}
EVALUATIONS = 3  # the first one, and later ones
task = importlib.import_module(TASKS[FRAMEWORK]).task()


def evaluator():
    """Return a new evaluator, whose first evaluation checks everything."""
    if FRAMEWORK == "tensorflow":
        from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator

        return KerasEvaluator.build(task, Shard(0, 1), threads=2, cache_bytes=1 << 30)
    if FRAMEWORK == "torch":
        import torch

        from sidecar.evaluation.backends.torch.evaluator import TorchEvaluator

        return TorchEvaluator.build(task, Shard(0, 1), cache_bytes=1 << 30, device=torch.device("cpu"))
    from sidecar.evaluation.backends.python.evaluator import PythonEvaluator

    return PythonEvaluator.build(task, Shard(0, 1), cache_bytes=1 << 30)


def switch():
    """Return a function that switches the checks of this framework on or off."""
    if FRAMEWORK == "tensorflow":
        from sidecar.evaluation.backends.tensorflow.set_checks import SetChecks

        def ends(self, step, states, **_):
            step.measurement.dependence.add_to(states, self._name)
            return set()

        without = {"add": lambda *_, **__: None, "finish": ends, "not_sums_to_end": lambda *_: set()}
        return _switched(SetChecks, without)
    without = {
        "see": lambda *_, **__: None,
        "finish": lambda self, states: self._known.dependence.add_to(states, self._eval_set),
    }
    return _switched(FirstBatchOfSet, without)


def _switched(kind, without):
    of_kind = {name: getattr(kind, name) for name in without}

    def use(checks):
        for name, method in (of_kind if checks else without).items():
            setattr(kind, name, method)

    return use


use = switch()


def evaluate(checks, path):
    """Return the seconds of all cores that the first and a later evaluation of a process took."""
    use(checks)
    one = evaluator()
    one.read(lambda: None)
    one.restore(path)()
    one.digest()()
    seconds = []
    for _ in range(EVALUATIONS):
        begin = time.process_time()
        states = one.evaluate(lambda: None)
        one.begins_again(states)
        seconds.append(time.process_time() - begin)
    return {"first": seconds[0], "later": float(np.median(seconds[1:]))}


def save(path):
    """Write a checkpoint for the task, and return its path."""
    if FRAMEWORK == "python":
        np.save(path + ".npy", np.ones(1))
        return {"path": path + ".npy"}
    model = task.build_model()
    if FRAMEWORK == "torch":
        import torch

        torch.save(model.state_dict(), path + ".pt")
        return {"path": path + ".pt"}
    model.save_weights(path + ".weights.h5")
    return {"path": path + ".weights.h5"}


serve(lambda *, save_to=None, **command: evaluate(**command) if save_to is None else save(save_to))
