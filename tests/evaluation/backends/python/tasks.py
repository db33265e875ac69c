"""Tasks of plain Python, and ranks that evaluate them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from evaluation.fake_framework import at_once

from sidecar import Task
from sidecar.errors import TaskError
from sidecar.evaluation.backends.python.evaluator import PythonEvaluator
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.rank_evaluation import RankEvaluation
from sidecar.evaluation.reduction import LocalCollective
from sidecar.evaluation.shared_folder import SharedFolderCollective
from sidecar.metrics import Accuracy, ExactSum, Mean, MetricResult, value
from sidecar.protocol.messages import Evaluate, Join
from sidecar.protocol.records import Checkpoint, Member

GENERATOR = np.random.default_rng(3)

X = GENERATOR.normal(size=(103, 5))

Y = GENERATOR.integers(0, 3, 103)


def predict(model, x):
    """Scores of three classes."""
    return x @ model


def task(source=lambda: (X, Y), **changes):
    given = {
        "load": np.load,
        "predict": predict,
        "eval_sets": {"test": source},
        "metrics": lambda: [Accuracy(), Mean(lambda _, scores: scores.max(axis=1))],
        "batch_size": 16,
    }
    return Task(**given | changes)


def run(task, checkpoint, folder, ranks=1):
    """Return what every rank's evaluation came to: Done or an error."""
    members = tuple(Member(rank, f"node-{rank}", f"w.{rank}", "") for rank in range(ranks))
    ends = [None] * ranks

    def one(rank):
        join = Join(group="group", members=members, rank=rank, task="t", framework="python", search_path="/", threads=1)
        command = Evaluate(
            plan=1,
            checkpoint=Checkpoint(name=checkpoint.name, digest="digest", step=1, format="matching_file"),
            path=str(checkpoint),
            save_to=str(folder / f"worker-{rank}-of-{ranks}"),
            save_weights="all",
            progress_seconds=10.0,
        )
        try:
            ends[rank] = RankEvaluation(
                command=command,
                join=join,
                collective=LocalCollective() if ranks == 1 else SharedFolderCollective(join),
                evaluator=PythonEvaluator.build(task, Shard(rank, ranks), cache_bytes=1 << 20),
                task_digest="t",
                profile={},
                enter=lambda _: None,
                report=lambda _: None,
                in_parallel=ThreadPoolExecutor(1),
            ).run()
        except (EvaluationError, TaskError) as error:
            ends[rank] = error

    at_once(one, ranks, 60)
    return ends


def evaluate_alone(task, checkpoint):
    """Evaluate on one rank, in this thread, so that whatever is raised is seen."""
    evaluator = PythonEvaluator.build(task, Shard(0, 1), cache_bytes=1 << 20)
    evaluator.read(lambda: None)
    evaluator.restore(str(checkpoint))()
    return evaluator.evaluate(lambda: None)


def refused(task, checkpoint, folder):
    """The sentence with which an evaluation of one rank fails."""
    (end,) = run(task, checkpoint, folder)
    assert isinstance(end, EvaluationError | TaskError), end
    return str(end)


def examples():
    yield from zip(X, Y, strict=True)


def reused_output():
    """Return a `predict` that writes to one array, as with `out=` or an IO binding."""
    buffer = np.zeros((16, 3))
    return lambda model, x: np.matmul(x, model, out=buffer[: len(x)])


def changed_input(model, x):
    scores = x @ model
    x *= -1
    return scores


def reused_example():
    buffer = np.zeros(5)
    for x, y in zip(X, Y, strict=True):
        buffer[:] = x
        yield buffer, y


def reused_batch():
    buffer = np.zeros((16, 5))
    for start in range(0, 103, 16):
        part = buffer[: len(X[start : start + 16])]
        part[:] = X[start : start + 16]
        yield part, Y[start : start + 16]


def negated_in_place(x, y):
    x *= -1
    return x, y


def masked(array):
    return np.ma.masked_array(array, mask=np.arange(array.size).reshape(array.shape) % 7 == 0)


class Confident:
    """The example of `Metric`."""

    name = "confident"

    def states(self, info):
        """Return exact sums for the confident examples and for all examples."""
        del info
        return {"above": ExactSum((), "int64"), "all": ExactSum((), "int64")}

    def add(self, states, batch):
        """Count the examples of a batch, and the confident ones among them."""
        best = batch.predictions.max(axis=-1)
        states["above"].add(np.count_nonzero(best > 0.9))
        states["all"].add(len(best))

    def compute(self, states):
        """Return the share of confident examples, divided once at the end."""
        above, count = (int(states[name].integers()) for name in ("above", "all"))
        return MetricResult({"confident": value(above / count, "none")})


def _with_nan():
    x = X.copy()
    x[20, 1], x[30, 1] = np.nan, np.inf
    return x, Y


def predict_anyway(model, x):
    """As models of trees, which take NaN for missing; infinite numbers give nothing."""
    return np.where(np.isinf(x[:, 1:2]), np.nan, np.nan_to_num(x, posinf=0) @ model)


def replace_file(path, model):
    """As a trainer does it that keeps one name."""
    np.save(f"{path}.new.npy", -model)
    Path(f"{path}.new.npy").replace(path)
