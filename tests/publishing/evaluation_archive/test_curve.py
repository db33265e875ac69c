"""A curve keeps what people look for, however many points there are."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as some
from journals import Journal

from sidecar.protocol.records import Value
from sidecar.publishing.evaluation_archive.curve import curve_json, smoothed, thinned
from sidecar.publishing.evaluation_archive.evaluations import ArchivedEvaluations


def past_of(numbers, goal="max", steps=None, data=None):
    """Evaluations with these numbers of test/accuracy."""
    journal, archive = Journal(), ArchivedEvaluations()
    for place, number in enumerate(numbers):
        step = place * 10 if steps is None else steps[place]
        value = Value(
            value=number if math.isfinite(number) else None,
            hex=number.hex(),
            lower=number - 1 if math.isfinite(number) else None,
            upper=number + 1 if math.isfinite(number) else None,
            goal=goal,
        )
        journal.evaluate(f"ckpt-{place}", step, {"accuracy": value}, data=None if data is None else data[place])
    for entry in journal.history.entries:
        archive.add(entry)
    return archive


def curve(archive, points=500, smoothing=0.0, best=None):
    found = curve_json(archive, "test", "accuracy", points=points, smoothing=smoothing, best=best)
    return json.loads(json.dumps(found, allow_nan=False))


def test_a_curve_is_broken_where_the_data_changed():
    """Smoothing begins anew there, and thinning out keeps the place."""
    numbers = [0.9, 0.8, 0.9, 0.1, 0.2, 0.1]
    found = curve(past_of(numbers, data="aaabbb"), smoothing=0.9)
    assert found["breaks"] == [False, False, False, True, False, False]
    assert found["stretches"] == [0, 0, 0, 1, 1, 1]
    assert found["smoothed"][3] == pytest.approx(0.1)
    assert found["smoothed"][:3] == pytest.approx(smoothed(numbers[:3], 0.9))
    many = curve(past_of([0.5] * 300, data="a" * 150 + "b" * 150), points=20)
    assert many["breaks"].count(True) == 1
    archive = past_of(numbers, data="aaabbb")
    found = [archive.json_of(row)["data_changed"] for row in archive.rows]
    assert [each for each in found if each] == [{"test": "the data of 'test' changed"}]


def test_a_short_curve_is_whole():
    """Every point, with the exact bits of each number."""
    numbers = [0.1, 0.30000000000000004, 0.2]
    found = curve(past_of(numbers))
    assert [float.fromhex(text) for text in found["hex"]] == found["values"] == numbers
    assert found["steps"] == [0, 10, 20]
    assert (found["downsampled"], found["evaluations"]) == (False, 3)
    assert (found["best"], found["newest"]) == (None, 3)
    assert len({len(column) for column in found.values() if isinstance(column, list)}) == 1


def test_numbers_that_json_cannot_carry():
    """They are None among the values, and words in `hex`."""
    found = curve(past_of([math.nan, math.inf, -math.inf, 0.5]))
    assert found["values"] == [None, None, None, 0.5]
    assert found["hex"][:3] == ["nan", "inf", "-inf"]
    assert found["lower"][0] is None


def test_steps_and_numbers_are_not_mixed():
    """If one checkpoint has no step, its number would stand at the left of all steps: the order counts then."""
    found = curve(past_of([0.1, 0.2, 0.3, 0.4], steps=[1000, None, 500, None]))
    assert (found["values"], found["x"]) == ([0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4])
    assert found["labels"] == ["1000", "#1", "500", "#2"]
    assert curve(past_of([0.1, 0.2, 0.3], steps=[1000, 500, 700]))["x"] == [500, 700, 1000]
    assert curve(past_of([0.1, 0.2], steps=[None, None]))["x"] == [1, 2]


def test_checkpoints_without_a_step_are_numbered():
    """By their place in the order of writing, as everywhere."""
    found = curve(past_of([0.1, 0.2], steps=[None, None]))
    assert found["steps"] == [1, 2]
    assert found["labels"] == ["#1", "#2"]


def test_a_curve_is_ordered_by_step():
    """Checkpoints that were evaluated late have their place; the newest one is the one evaluated last."""
    found = curve(past_of([0.3, 0.1, 0.2], steps=[30, 10, 20]))
    assert found["steps"] == [10, 20, 30]
    assert found["newest"] == 3


def test_no_such_curve():
    """A name that nobody measured has no curve."""
    assert curve_json(past_of([0.5]), "test", "loss", points=10, smoothing=0.0) is None


numbers = some.lists(some.floats(width=32), min_size=1, max_size=400)


@given(numbers, some.integers(10, 60), some.integers(0, 399))
def test_thinned_keeps_what_matters(values, points, one):
    """Both ends, the chosen place, the lowest and the highest number; in order, and not too many."""
    one %= len(values)
    kept = thinned(values, points, {one})
    finite = [value for value in values if math.isfinite(value)]
    assert kept == sorted(set(kept))
    assert len(kept) <= max(points, 4)
    assert {0, len(values) - 1, one} <= set(kept)
    if finite and len(values) > points:
        assert {min(finite), max(finite)} <= {values[place] for place in kept}
    if len(values) <= points:
        assert kept == list(range(len(values)))


def test_two_thousand_evaluations_are_thinned():
    """The answer says so. A peak of one point stays, and so do the best and the newest."""
    random.seed(1)
    values = [random.random() for _ in range(2000)]
    values[777] = 9.0
    found = curve(past_of(values), points=300, best=1234)
    assert found["downsampled"]
    assert found["evaluations"] == 2000
    assert 200 < len(found["values"]) <= 300
    assert max(found["values"]) == 9.0
    assert found["best"] == 1234
    assert {778, 1234, 2000} <= set(found["plans"])


def test_smoothing_is_that_of_tensorboard():
    """The bias to the start is gone: the first value is the first number, and the second weighs both."""
    assert smoothed([4.0, 8.0], 0.5) == pytest.approx([4.0, (0.5 * 0.5 * 4.0 + 0.5 * 8.0) / 0.75])
    assert smoothed([3.0] * 4, 0.9) == [3.0] * 4
    assert math.isnan(smoothed([1.0, math.nan, 2.0], 0.5)[1])


@given(some.lists(some.floats(-1e6, 1e6), min_size=1, max_size=30), some.floats(0.01, 0.99))
def test_smoothed_values_are_weighted_means(values, weight):
    """By the definition, summed anew for each point."""
    if len(set(values)) == 1:
        return
    for place, found in enumerate(smoothed(values, weight)):
        weights = [weight ** (place - at) for at in range(place + 1)]
        expected = sum(w * v for w, v in zip(weights, values, strict=False)) / sum(weights)
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_smoothing_does_not_depend_on_the_points_that_are_shown():
    """It comes before thinning out."""
    random.seed(2)
    archive = past_of([random.random() for _ in range(900)])
    whole, thin = curve(archive, 2000, 0.9), curve(archive, 50, 0.9)
    by_plan = dict(zip(whole["plans"], whole["smoothed"], strict=True))
    assert all(by_plan[plan] == value for plan, value in zip(thin["plans"], thin["smoothed"], strict=True))
