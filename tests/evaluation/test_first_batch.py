"""Evaluate the first batches several times, to find what is not repeatable."""

import numpy as np
import pytest
from evaluation.plain_tasks import (
    FirstHundred,
    UpToHundred,
    evaluate_with,
    evaluators_of,
    task,
)

from sidecar.evaluation.backends.python.evaluator import PythonEvaluator
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import Mean


@pytest.mark.parametrize(("limit", "batch_size"), [(7, None), (40, 1)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_what_changes_after_some_batches_is_refused_with_any_number_of_workers(model_text, ranks, limit, batch_size):
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
        evaluator.restore(str(model_text))()
        evaluator.digest()
        with pytest.raises(EvaluationError, match="after all others"):
            evaluator.evaluate(lambda: None)


@pytest.mark.parametrize("period", [2, 7, 10])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_changes_now_and_then_is_refused_with_any_number_of_workers(model_text, ranks, period):
    """The first example alone is evaluated often enough, one time after the other."""
    for rank in range(ranks):
        calls = []

        def now_and_then(_, x, calls=calls):
            calls.append(0)
            return x + (len(calls) % period == 0)

        given = task(now_and_then, batch_size=16)
        evaluator = PythonEvaluator.build(given, Shard(rank, ranks), cache_bytes=1 << 20)
        evaluator.read(lambda: None)
        evaluator.restore(str(model_text))()
        evaluator.digest()
        with pytest.raises(EvaluationError, match="gives different numbers"):
            evaluator.evaluate(lambda: None)


@pytest.mark.parametrize("batch_size", [2, 5, 16, 64])
@pytest.mark.parametrize("key", [np.shape, len, lambda _: 0, id])
def test_predictions_for_other_inputs_are_refused(model_text, key, batch_size):
    """Although each batch gets the same predictions each time, or those of an `id` used again. Positions are fine."""
    kept = {}
    given = task(lambda _, x: kept.setdefault(key(x), x * 2), batch_size=batch_size)
    with pytest.raises(EvaluationError, match=r"the shape|one row|again|different numbers|examples first"):
        evaluate_with(evaluators_of(given, 1), model_text)
    positions = {}
    fine = task(lambda _, x: x + positions.setdefault(x.shape[1:], np.linspace(0, 1, 3)), batch_size=batch_size)
    assert evaluate_with(evaluators_of(fine, 1), model_text).notes == ()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_changes_late_is_found_in_sets_that_divide_themselves(model_text, ranks):
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
        evaluator.restore(str(model_text))()
        evaluator.digest()
        with pytest.raises(EvaluationError, match="after all others"):
            evaluator.evaluate(lambda: None)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize(("kind", "match"), [(FirstHundred, "'first'"), (UpToHundred, "reads its states")])
def test_a_metric_that_keeps_something_is_refused(model_text, ranks, kind, match):
    """It may be in an attribute, or in states that hold the batches of one worker."""
    given = task(lambda _, x: x, metrics=lambda: [kind()])
    with pytest.raises(EvaluationError, match=match):
        evaluate_with(evaluators_of(given, ranks), model_text)
