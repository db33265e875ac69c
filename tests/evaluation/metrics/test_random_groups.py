"""Intervals of numbers that follow from sums, from random groups of examples."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.metrics import sliced
from sidecar.evaluation.metrics.metric import EvalSetInfo
from sidecar.evaluation.metrics.random_groups import FEWEST_EXAMPLES, RandomGroups, new_reasons
from sidecar.metrics import Mean, Sums


def in_a_set(metric):
    """A metric as evaluations measure it, with what they add; the calls for groups take no time."""

    def states(info):
        made = sliced.new_states(metric, info)
        groups = [name for name, one in made.items() if isinstance(one, RandomGroups)]
        return made | {name: RandomGroups(info.shard, info, spent=lambda: 0.0) for name in groups}

    return SimpleNamespace(
        name=metric.name,
        states=states,
        add=lambda states, batch: sliced.add(metric, states, [batch]),
        compute=partial(sliced.computed, metric),
    )


def moments(y, predictions):
    return {"n": len(y), "sum": predictions.sum(), "both": np.array([(y * predictions).sum(), (y * y).sum()])}


MEAN = in_a_set(Sums(moments, lambda totals: totals["sum"] / totals["n"], name="mean"))
SLOPE = in_a_set(Sums(moments, lambda totals: totals["both"][0] / totals["both"][1], name="slope"))


@pytest.fixture(scope="module")
def drawn():
    random = np.random.default_rng(8)
    y = random.normal(size=5000)
    return y, 2 * y + random.exponential(size=5000)


@pytest.mark.parametrize("count", [400, 5000])
def test_the_interval_of_a_mean_is_nearly_that_of_its_formula(drawn, measure, count):
    """All examples take part, or about a thousand of them."""
    _, values = (each[:count] for each in drawn)
    known = measure(Mean(), values, values).values["mean"]
    found = measure(MEAN, values, values).values["mean"]
    width = known.upper - known.lower
    assert (found.lower, found.upper) == pytest.approx((known.lower, known.upper), abs=0.15 * width)


@pytest.mark.parametrize("groups", [None, np.arange(1500) // 3])
def test_the_bits_do_not_depend_on_workers(drawn, measure, groups):
    """With groups the interval of rows that are repeated is that of one copy."""
    y, values = (each[:1500] for each in drawn)
    found = [measure(SLOPE, y, values, ranks=ranks, groups=groups) for ranks in (1, 2, 3, 5)]
    assert all(each == found[0] for each in found)
    assert found[0].values["slope"].lower is not None
    if groups is not None:
        y, values = (np.repeat(each[:500], 3) for each in (y, values))
        once = measure(SLOPE, y[::3], values[::3]).values["slope"]
        thrice, alone = (measure(SLOPE, y, values, groups=each).values["slope"] for each in (groups, None))
        assert thrice.upper - thrice.lower == pytest.approx(once.upper - once.lower, rel=0.2)
        assert alone.upper - alone.lower < 0.75 * (once.upper - once.lower)


def fails_for_parts(y, predictions):
    if len(y) < 10:
        raise ValueError(len(y))
    return moments(y, predictions)


@pytest.mark.parametrize(
    ("function", "value", "told"),
    [
        (fails_for_parts, lambda totals: totals["sum"] / totals["n"], "does not take parts"),
        (lambda y, _: {"many": np.ones(300) * len(y)}, lambda totals: totals["many"][0], "more than 256 sums"),
        (moments, lambda totals: totals["sum"], None),
        (lambda _, p: {"n": 1, "median": np.median(p)}, lambda totals: totals["median"] / totals["n"], None),
        (lambda y, _: {"n": len(y)}, lambda totals: totals["n"] / totals["n"], None),
        (moments, lambda totals: 1 / (totals["n"] - 400) if totals["n"] != 400 else 1.0, None),
    ],
    ids=["fails", "large", "total", "of batches", "constant", "of all only"],
)
def test_other_numbers_have_no_interval(drawn, measure, function, value, told):
    """A total says how large the set is, and what keeps the interval from being made is noted."""
    y, values = (each[:400] for each in drawn)
    found = measure(in_a_set(Sums(function, value)), y, values, ranks=2)
    assert found.values["sums"].lower is None
    assert len(found.notes) == bool(told)
    assert not told or told in found.notes[0]


def test_few_examples_have_none(drawn, measure):
    """Nor have those of a set whose examples have no places."""
    y, values = drawn
    few = FEWEST_EXAMPLES - 1
    assert measure(SLOPE, y[:few], values[:few]).values["slope"].lower is None
    assert measure(SLOPE, y, values, known=False).values["slope"].lower is None


def test_calls_that_take_long_end():
    """More than 0.1 s and 5 % of the evaluation, in seconds of the processor."""
    seconds = iter([0, 0.09, 0.09, 0.2])
    clock = iter([0.0, 1.0, 1.8])
    info = EvalSetInfo(100, Shard(0, 1))
    groups = RandomGroups(info.shard, info, now=lambda: next(clock), spent=lambda: next(seconds))
    why, added = new_reasons(), []
    for first in range(0, 60, 10):
        groups.add_parts(np.arange(first, first + 10), lambda rows: added.extend(rows) or {"n": len(rows)}, why)
    assert why.integers().tolist() == [1, 0, 0]
    assert len(added) == 20
