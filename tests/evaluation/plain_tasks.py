"""Tasks of plain Python that are or are not repeatable."""

import numpy as np

from sidecar import Task
from sidecar.evaluation.backends.python.evaluator import PythonEvaluator
from sidecar.evaluation.data.shard import Shard
from sidecar.metrics import Accuracy, EvalBatch, ExactSum, MetricResult, value

GENERATOR = np.random.default_rng(3)

X = GENERATOR.normal(size=(211, 3))

Y = X.argmax(axis=1)


def task(predict, labels=Y, source=None, **changes):
    given = {
        "load": lambda path: path,
        "predict": predict,
        "eval_sets": {"test": source or (lambda: (X, labels))},
        "metrics": lambda: [Accuracy()],
        "batch_size": 16,
    }
    return Task(**given | changes)


def evaluators_of(given, ranks):
    return [PythonEvaluator.build(given, Shard(rank, ranks), cache_bytes=1 << 20) for rank in range(ranks)]


def evaluate_with(evaluators, checkpoint):
    """Evaluate one rank after the other, since ranks are processes, and merge their states."""
    states = []
    for evaluator in evaluators:
        np.random.seed(np.random.SeedSequence().entropy % 2**32)  # noqa: NPY002 - as a new process has it
        evaluator.read(lambda: None)
        evaluator.restore(str(checkpoint))()
        evaluator.digest()
        states.append(evaluator.evaluate(lambda: None))
    merged = states[0]["test"]
    for other in states[1:]:
        for name, state in other["test"].items():
            merged[name].merge(state)
    return evaluators[0].compute({"test": merged})["test"]


def evaluate(given, checkpoint):
    """The number and the notes of 1, 2 and 3 ranks, which must be equal."""
    results = [evaluate_with(evaluators_of(given, ranks), checkpoint) for ranks in (1, 2, 3)]
    assert results[1:] == results[:1] * 2
    return results[0]


class Normaliser:
    """Keeps the mean of all rows that it saw."""

    def __init__(self):
        self.count, self.mean = 0, np.zeros(3)

    def __call__(self, _, x):
        """Subtract the mean of all rows so far from each row."""
        for row in x:
            self.count += 1
            self.mean += (row - self.mean) / self.count
        return x - self.mean


class UpToHundred:
    """A metric that stops counting when its own states say so."""

    name = "up_to"

    def states(self, info):
        """Return an exact sum for the number of examples."""
        del info
        return {"count": ExactSum((), "int64")}

    def add(self, states, batch: EvalBatch):
        """Count the batch unless a hundred examples were counted."""
        if int(states["count"].integers()) < 100:
            states["count"].add(np.int64(len(batch.y)))

    def compute(self, states):
        """Return the number of examples that were counted."""
        return MetricResult({"up_to": value(float(states["count"].integers()), "none")})


class FirstHundred:
    """A metric that counts the first hundred examples only, in an attribute."""

    name = "first"

    def __init__(self):
        self.seen = 0

    def states(self, info):
        """Return an exact sum for the number of examples."""
        del info
        return {"count": ExactSum((), "int64")}

    def add(self, states, batch: EvalBatch):
        """Count up to the cap."""
        counted = min(len(batch.y), max(100 - self.seen, 0))
        self.seen += counted
        states["count"].add(np.int64(counted))

    def compute(self, states):
        """Return the number of examples that were counted."""
        return MetricResult({"first": value(float(states["count"].integers()), "none")})


def auc(y, scores):
    return (scores[y == 1][:, None] > scores[y == 0][None]).mean()
