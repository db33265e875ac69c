"""Intervals of any number of labels and predictions, from a sample of the examples."""

import numpy as np
import pytest

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.intervals import wilson
from sidecar.evaluation.metrics.example_sample import add_to_sample, new_sample, require_fast, with_intervals
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult, value
from sidecar.metrics import Mean

EXAMPLES = 1500


@pytest.fixture(scope="module")
def drawn():
    return np.random.default_rng(8).exponential(size=EXAMPLES)


def mean(arrays, _times):
    return {"number": float(arrays[0].mean())}


def sampled(numbers_of, values, *, intervals=True, groups=None, seconds=None, ranks=1):
    """The number of all values with its interval; every rank has each of its batches of 50."""
    infos = [EvalSetInfo(len(values), Shard(rank, ranks), groups, intervals=intervals) for rank in range(ranks)]
    states = [new_sample(info, ["number"]) for info in infos]
    for number, first in enumerate(range(0, len(values), 50)):
        add_to_sample(states[number % ranks], first, [values[first : first + 50]])
    if seconds is not None:
        require_fast(states[0], {"number": numbers_of}, seconds)
    for other in states[1:]:
        for name, state in states[0].items():
            state.merge(other[name])
    result = MetricResult({"number": value(numbers_of([values], 1)["number"], "none")})
    return with_intervals(result, states[0], {"number": numbers_of}, "number")


@pytest.mark.parametrize("count", [400, EXAMPLES])
def test_the_interval_of_a_mean_is_nearly_that_of_its_formula(drawn, measure, count):
    """All examples are in the sample, or about a thousand of them. Groups of equal rows count once."""
    known = measure(Mean(), drawn[:count], drawn[:count]).values["mean"]
    found = sampled(mean, drawn[:count]).values["number"]
    width = known.upper - known.lower
    assert (found.lower, found.upper) == pytest.approx((known.lower, known.upper), abs=0.25 * width)
    rows = sampled(mean, np.repeat(drawn[:500], 3), groups=np.arange(EXAMPLES) // 3).values["number"]
    once = sampled(mean, drawn[:500]).values["number"]
    assert rows.upper - rows.lower == pytest.approx(once.upper - once.lower, rel=0.4)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_the_bits_do_not_depend_on_workers(drawn, ranks):
    """The sample is read in the order of the data."""
    assert sampled(mean, drawn, ranks=ranks) == sampled(mean, drawn)


@pytest.mark.parametrize(
    "numbers_of",
    [
        lambda arrays, times: {"number": float(arrays[0].sum()) * times},
        lambda arrays, _: {"number": 1 / (len(arrays[0]) - 300) if len(arrays[0]) != 400 else 1.0},
        lambda arrays, _: {"number": abs(float((arrays[0] - 1).mean())) ** 2 + 5 / len(arrays[0]) ** 0.5},
        lambda arrays, _: {"number": 1.0} if len(arrays[0]) == 400 else {},
    ],
    ids=["total", "other", "biased", "of all only"],
)
def test_other_numbers_have_no_interval(drawn, numbers_of):
    """Nor has a number that depends on how many examples there are."""
    assert sampled(numbers_of, drawn[:400]).values["number"].lower is None


def test_rounding_is_no_spread():
    """Without a single error an F1 score in float32 is 1, or nearly so, by chance: it has no interval."""
    values = np.ones(400)
    found = sampled(lambda arrays, _: {"number": 1 - 6e-8 * (len(arrays[0]) % 2)}, values)
    assert found.values["number"].lower is None


def test_few_errors_lengthen_one_side_only_so_far():
    """With 3 errors of 100 examples the interval of an accuracy begins where Wilson's does."""
    found = sampled(lambda arrays, _: {"number": float((arrays[0] * 37 % 100 >= 3).mean())}, np.arange(100))
    assert found.values["number"].lower == pytest.approx(wilson(97, 100)[0], abs=0.02)


@pytest.mark.parametrize("few", [19, 20])
def test_a_rare_label_leaves_too_few_examples(few):
    """An area under a curve of two labels, one of which 19 examples have, has no interval."""
    labels = (np.arange(400) < few).astype(float)
    found = sampled(mean, labels).values["number"]
    assert (found.lower is None) == (few < 20)


def test_few_examples_and_settings_have_none(drawn):
    """An interval that would take long is named in the notes, unless the task asks for it."""
    assert sampled(mean, drawn[:99]).values["number"].lower is None
    assert sampled(mean, drawn, intervals=False).values["number"].lower is None
    slow = sampled(mean, drawn, intervals=None, seconds=-2.0)
    assert slow.values["number"].lower is None
    assert "intervals=True" in slow.notes[0]
    assert sampled(mean, drawn, intervals=None, seconds=1000.0).values["number"].lower is not None
    assert sampled(mean, drawn, seconds=-2.0).values["number"].lower is not None
