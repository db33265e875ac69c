"""`predict` and metrics of plain Python with hostile eyes: the same number for any number of workers, or a refusal."""

from pathlib import Path

import numpy as np
import pytest

from sidecar import EvalSet, Task
from sidecar.evaluation.backends.python.evaluator import PythonEvaluator
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import AUC, Accuracy, EvalBatch, ExactSum, Mean, MetricResult, Sums, value

GENERATOR = np.random.default_rng(3)
X = GENERATOR.normal(size=(211, 3))
Y = X.argmax(axis=1)
BINARY = (X[:, 0] + GENERATOR.normal(size=211) > 0).astype(int)


def task(predict, labels=Y, source=None, **changes):
    given = {
        "load": lambda path: path,
        "predict": predict,
        "eval_sets": {"test": source or (lambda: (X, labels))},
        "metrics": lambda: [Accuracy()],
        "batch_size": 16,
    }
    return Task(**given | changes)


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "model-1.txt"
    path.write_text("1")
    return path


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
        """Subtract the mean."""
        for row in x:
            self.count += 1
            self.mean += (row - self.mean) / self.count
        return x - self.mean


class FirstHundred:
    """A metric that counts the first hundred examples only, in an attribute."""

    name = "first"

    def __init__(self):
        self.seen = 0

    def states(self, info):
        """One sum."""
        del info
        return {"count": ExactSum((), "int64")}

    def add(self, states, batch: EvalBatch):
        """Count up to the cap."""
        counted = min(len(batch.y), max(100 - self.seen, 0))
        self.seen += counted
        states["count"].add(np.int64(counted))

    def compute(self, states):
        """The sum."""
        return MetricResult({"first": value(float(states["count"].integers()), "none")})


def test_random_numbers_of_predict_are_seeded(checkpoint):
    """Generators of numpy and Python give the same bits each time, and a note says that they are drawn."""
    import random

    for draw in (lambda x: np.random.normal(size=x.shape), lambda x: x * random.random()):  # noqa: NPY002
        given = task(lambda _, x, draw=draw: x + draw(x))
        result = evaluate(given, checkpoint)
        assert result == evaluate(given, checkpoint)
        (note,) = result.notes
        assert "random numbers" in note


def test_other_weights_draw_other_numbers(checkpoint):
    given = task(lambda _, x: x + np.random.normal(size=x.shape))  # noqa: NPY002
    before = evaluate(given, checkpoint)
    checkpoint.write_text("2")
    assert evaluate(given, checkpoint).values != before.values


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("kind", ["generator", "state", "late state"])
def test_what_is_not_repeatable_is_refused(checkpoint, kind, ranks):
    own, calls = np.random.default_rng(), []

    def late(_, x):
        calls.append(0)
        return x + (len(calls) > 3)

    predict = {"generator": lambda _, x: x + own.normal(size=x.shape), "state": Normaliser(), "late state": late}[kind]
    with pytest.raises(EvaluationError, match="first batch evaluated"):
        evaluate_with(evaluators_of(task(predict), ranks), checkpoint)


@pytest.mark.parametrize(("limit", "batch_size"), [(7, None), (40, 1)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_what_changes_after_some_batches_is_refused_with_any_number_of_workers(checkpoint, ranks, limit, batch_size):
    """Although each of many workers has only few of the batches."""
    calls = []

    def late(_, x):
        calls.append(0)
        return x + (len(calls) > limit)

    more = {} if batch_size is None else {"batch_size": batch_size}

    for rank in range(ranks):
        calls.clear()
        evaluator = PythonEvaluator.build(task(late, **more), Shard(rank, ranks), cache_bytes=1 << 20)
        evaluator.read(lambda: None)
        evaluator.restore(str(checkpoint))()
        evaluator.digest()
        with pytest.raises(EvaluationError, match="after all others"):
            evaluator.evaluate(lambda: None)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_changes_late_is_found_in_sets_that_divide_themselves(checkpoint, ranks):
    """Each worker takes the others to have as many batches as itself."""
    x = np.arange(40.0)[:, None]
    for rank in range(ranks):
        calls = []

        def late(_, x, calls=calls):
            calls.append(0)
            return x + (len(calls) > 30)

        def source(shard):
            part = x[shard.rank :: shard.world_size]
            return part, part[:, 0]

        evaluator = PythonEvaluator.build(
            task(late, eval_sets={"test": source}, metrics=lambda: [Mean(lambda _, p: p[:, 0])], batch_size=1),
            Shard(rank, ranks),
            cache_bytes=1 << 20,
        )
        evaluator.read(lambda: None)
        evaluator.restore(str(checkpoint))()
        evaluator.digest()
        with pytest.raises(EvaluationError, match="after all others"):
            evaluator.evaluate(lambda: None)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_metric_that_keeps_something_is_refused(checkpoint, ranks):
    given = task(lambda _, x: x, metrics=lambda: [FirstHundred()])
    with pytest.raises(EvaluationError, match="'first'"):
        evaluate_with(evaluators_of(given, ranks), checkpoint)


@pytest.mark.parametrize(
    "predict",
    [
        lambda _, x: x - x.mean(axis=0),
        lambda _, x: x / len(x),
        lambda _, x: (x - x.mean()).argmax(axis=1) * (x[:, 0] > x[:, 0].mean()),
        lambda _, x: x @ x.T,
    ],
    ids=["normalised", "divided", "labels", "pairs"],
)
def test_predictions_that_depend_on_the_batch_are_noted(checkpoint, predict):
    """Also in later evaluations of the same workers; and in one of a single example per batch there is nothing."""
    given = task(predict, metrics=lambda: [Mean(lambda _, p: p.reshape(len(p), -1).max(axis=1))])
    assert any("another batch size" in note for note in evaluate(given, checkpoint).notes)
    evaluators = evaluators_of(given, 2)
    first, second = (evaluate_with(evaluators, checkpoint) for _ in range(2))
    assert first == second
    alone = task(lambda _, x: x - x.mean(axis=0), batch_size=1)
    assert evaluate_with(evaluators_of(alone, 1), checkpoint).notes == ()


def test_a_new_model_hides_nothing_later(checkpoint):
    """The halves are tried again while a model predicts the same for all examples."""
    given = task(lambda path, x: (x - x.mean(axis=0)) * int(path), load=lambda path: Path(path).read_text())
    evaluators = evaluators_of(given, 1)
    checkpoint.write_text("0")
    assert evaluate_with(evaluators, checkpoint).notes == ()
    checkpoint.write_text("1")
    assert len(evaluate_with(evaluators, checkpoint).notes) == 1


def auc(y, scores):
    return (scores[y == 1][:, None] > scores[y == 0][None]).mean()


BY_BATCH = {
    "auc": Sums(lambda y, p: {"auc": auc(y, p[:, 0]), "n": 1}, lambda t: t["auc"] / t["n"], name="auc"),
    "median": Mean(lambda y, p: np.full(len(y), np.median(p[:, 0])), name="median"),
}


@pytest.mark.parametrize("name", BY_BATCH)
def test_values_of_a_batch_are_noted_by_name(checkpoint, name):
    given = task(lambda _, x: x, BINARY, metrics=lambda: [BY_BATCH[name], Mean(lambda _, p: p[:, 1])])
    (note,) = evaluate(given, checkpoint).notes
    assert note.startswith(f"{name} depends")
    assert "another batch size gives another number" in note


def test_what_depends_on_the_batch_is_refused_where_workers_make_batches(checkpoint):
    def divided(shard):
        return ((x, y) for at, (x, y) in enumerate(zip(X, BINARY, strict=True)) if at % shard.world_size == shard.rank)

    source = EvalSet(divided)
    for changes in ({"metrics": lambda: list(BY_BATCH.values())}, {"predict": lambda _, x: x - x.mean(axis=0)}):
        given = task(**{"predict": lambda _, x: x, "source": source} | changes)
        with pytest.raises(EvaluationError, match="divides itself"):
            evaluate_with(evaluators_of(given, 2), checkpoint)
    random = task(lambda _, x: x + np.random.normal(size=x.shape), source=source)  # noqa: NPY002
    for ranks in (1, 2, 3):
        with pytest.raises(EvaluationError, match="draws random numbers"):
            evaluate_with(evaluators_of(random, ranks), checkpoint)
    fine = evaluate(task(lambda _, x: x, source=source), checkpoint)
    assert fine.notes == ()


def test_a_model_of_one_batch_size_is_said_to_be_untested(checkpoint):
    def fixed(_, x):
        assert len(x) in (16, 3), "the batches of this set"
        return x

    (note,) = evaluate(task(fixed), checkpoint).notes
    assert "not known" in note


@pytest.mark.parametrize(
    "predict",
    [
        lambda _, x: x,
        lambda _, x: (x @ GENERATOR_MATRIX).astype(np.float16),
        lambda _, x: x.argmax(1),
        lambda _, x: x.T.T,
    ],
)
def test_plain_models_have_no_notes(checkpoint, predict):
    given = task(predict, metrics=lambda: [Mean(lambda _, p: p.reshape(len(p), -1).max(axis=1))])
    assert evaluate(given, checkpoint).notes == ()
    binary = task(lambda _, x: x[:, 0], BINARY, metrics=lambda: [AUC()])
    assert evaluate(binary, checkpoint).notes == ()


GENERATOR_MATRIX = GENERATOR.normal(size=(3, 3))
