"""`predict` and metrics of plain Python with hostile eyes: the same number for any number of workers, or a refusal."""

from pathlib import Path

import numpy as np
import pytest
from evaluation.plain_tasks import (
    GENERATOR,
    Normaliser,
    X,
    auc,
    evaluate,
    evaluate_with,
    evaluators_of,
    task,
)

from sidecar import EvalSet
from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import AUC, Mean, Sums

BINARY = (X[:, 0] + GENERATOR.normal(size=211) > 0).astype(int)


def test_random_numbers_of_predict_are_seeded(model_text):
    """Generators of numpy and Python give the same bits each time, and a note says that they are drawn."""
    import random

    for draw in (lambda x: np.random.normal(size=x.shape), lambda x: x * random.random()):  # noqa: NPY002
        given = task(lambda _, x, draw=draw: x + draw(x))
        result = evaluate(given, model_text)
        assert result == evaluate(given, model_text)
        (note,) = result.notes
        assert "random numbers" in note


def test_other_weights_draw_other_numbers(model_text):
    given = task(lambda _, x: x + np.random.normal(size=x.shape))  # noqa: NPY002
    before = evaluate(given, model_text)
    model_text.write_text("2")
    assert evaluate(given, model_text).values != before.values


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("kind", ["generator", "state", "late state"])
def test_what_is_not_repeatable_is_refused(model_text, kind, ranks):
    own, calls = np.random.default_rng(), []

    def late(_, x):
        calls.append(0)
        return x + (len(calls) > 3)

    predict = {"generator": lambda _, x: x + own.normal(size=x.shape), "state": Normaliser(), "late state": late}[kind]
    with pytest.raises(EvaluationError, match="first batch evaluated"):
        evaluate_with(evaluators_of(task(predict), ranks), model_text)


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
def test_predictions_that_depend_on_the_batch_are_noted(model_text, predict):
    """Also in later evaluations of the same workers; and in one of a single example per batch there is nothing."""
    given = task(predict, metrics=lambda: [Mean(lambda _, p: p.reshape(len(p), -1).max(axis=1))])
    assert any("another batch size" in note for note in evaluate(given, model_text).notes)
    evaluators = evaluators_of(given, 2)
    first, second = (evaluate_with(evaluators, model_text) for _ in range(2))
    assert first == second
    alone = task(lambda _, x: x - x.mean(axis=0), batch_size=1)
    assert evaluate_with(evaluators_of(alone, 1), model_text).notes == ()


def test_a_new_model_hides_nothing_later(model_text):
    """The halves are tried again while a model predicts the same for all examples."""
    given = task(lambda path, x: (x - x.mean(axis=0)) * int(path), load=lambda path: Path(path).read_text())
    evaluators = evaluators_of(given, 1)
    model_text.write_text("0")
    assert evaluate_with(evaluators, model_text).notes == ()
    model_text.write_text("1")
    assert len(evaluate_with(evaluators, model_text).notes) == 1


@pytest.mark.parametrize("period", [2, 3, 4, 5, 9, 12])
def test_functions_that_change_now_and_then_are_refused(model_text, period):
    """A single worker has no other to differ from."""
    calls = []

    def function(y, _):
        calls.append(0)
        return {"n": len(y) * (1 + (len(calls) % period == 0))}

    given = task(lambda _, x: x, metrics=lambda: [Sums(function, lambda totals: totals["n"])])
    with pytest.raises(EvaluationError, match="'sums'"):
        evaluate_with(evaluators_of(given, 1), model_text)


@pytest.mark.parametrize(
    "make", [Mean, lambda function: Sums(lambda y, p: {"n": function(y, p).sum()}, lambda t: t["n"])]
)
def test_values_that_are_kept_by_the_size_of_a_batch_are_refused(model_text, make):
    kept = {}

    def function(y, p):
        return kept.setdefault(len(y), (p.argmax(1) == y).astype(float))

    given = task(lambda _, x: x + 0.5 * x[:, ::-1], metrics=lambda: [make(function)])
    with pytest.raises(EvaluationError, match="shape or the id"):
        evaluate_with(evaluators_of(given, 1), model_text)


@pytest.mark.parametrize("batches", [{3}, {6, 13}, {5, 12}, {7}])
def test_values_of_some_batches_alone_are_noted(model_text, batches):
    numbered = np.concatenate([X[:, :2], np.arange(211.0)[:, None] // 16], axis=1)

    def function(_, p):
        return {"n": np.median(p[:, 0]) if int(p[0, 2]) in batches else 0.0}

    given = task(
        lambda _, x: x, source=lambda: (numbered, BINARY), metrics=lambda: [Sums(function, lambda totals: totals["n"])]
    )
    (note,) = evaluate(given, model_text).notes
    assert note.startswith("sums depends")


BY_BATCH = {
    "auc": Sums(lambda y, p: {"auc": auc(y, p[:, 0]), "n": 1}, lambda t: t["auc"] / t["n"], name="auc"),
    "median": Mean(lambda y, p: np.full(len(y), np.median(p[:, 0])), name="median"),
}


@pytest.mark.parametrize("name", BY_BATCH)
def test_values_of_a_batch_are_noted_by_name(model_text, name):
    given = task(lambda _, x: x, BINARY, metrics=lambda: [BY_BATCH[name], Mean(lambda _, p: p[:, 1])])
    (note,) = evaluate(given, model_text).notes
    assert note.startswith(f"{name} depends")
    assert "another batch size gives another number" in note


def test_what_depends_on_the_batch_is_refused_where_workers_make_batches(model_text):
    def divided(shard):
        return ((x, y) for at, (x, y) in enumerate(zip(X, BINARY, strict=True)) if at % shard.world_size == shard.rank)

    source = EvalSet(divided)
    for changes in ({"metrics": lambda: list(BY_BATCH.values())}, {"predict": lambda _, x: x - x.mean(axis=0)}):
        given = task(**{"predict": lambda _, x: x, "source": source} | changes)
        with pytest.raises(EvaluationError, match="divides itself"):
            evaluate_with(evaluators_of(given, 2), model_text)
    random = task(lambda _, x: x + np.random.normal(size=x.shape), source=source)  # noqa: NPY002
    for ranks in (1, 2, 3):
        with pytest.raises(EvaluationError, match="draws random numbers"):
            evaluate_with(evaluators_of(random, ranks), model_text)
    fine = evaluate(task(lambda _, x: x, source=source), model_text)
    assert fine.notes == ()


def test_a_model_of_one_batch_size_is_said_to_be_untested(model_text):
    def fixed(_, x):
        assert len(x) in (16, 3), "the batches of this set"
        return x

    (note,) = evaluate(task(fixed), model_text).notes
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
def test_plain_models_have_no_notes(model_text, predict):
    given = task(predict, metrics=lambda: [Mean(lambda _, p: p.reshape(len(p), -1).max(axis=1))])
    assert evaluate(given, model_text).notes == ()
    binary = task(lambda _, x: x[:, 0], BINARY, metrics=lambda: [AUC()])
    assert evaluate(binary, model_text).notes == ()


GENERATOR_MATRIX = GENERATOR.normal(size=(3, 3))
