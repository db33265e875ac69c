"""Is one evaluation better than another by more than noise? Formulas against references, and records against lies."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from sidecar.evaluation.intervals import clustered, skewed, wilson
from sidecar.protocol.records import Value
from sidecar.retention.saves.comparison import (
    Comparison,
    Difference,
    Pairs,
    compare_values,
    comparison,
    confidence_after,
    contradiction,
)


def value(number, bounds=(None, None), goal="max"):
    return Value(
        value=number if math.isfinite(number) else None,
        hex=float(number).hex(),
        lower=bounds[0],
        upper=bounds[1],
        goal=goal,
    )


def test_two_proportions_are_compared_as_newcombe_does():
    """The example of his article: 56 of 70 and 48 of 80, method 10 without continuity correction: 0.0524 to 0.3339."""
    found = compare_values(value(56 / 70, wilson(56, 70)), value(48 / 80, wilson(48, 80)))
    assert found.rule == "intervals"
    assert (found.lower, found.upper) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert found.is_better("max")
    assert not found.is_better("min")


def test_matched_proportions_are_compared_as_agresti_and_min_do():
    """Cells 794, 150, 86, 570, as in their article: 0.04 with 0.021 to 0.058 by adding half a pair to each cell."""
    new = [1] * 794 + [1] * 150 + [0] * 86 + [0] * 570
    old = [1] * 794 + [0] * 150 + [1] * 86 + [0] * 570
    pairs = Pairs()
    for start in range(0, len(new), 100):
        pairs.add(new[start : start + 100], old[start : start + 100])
    found = pairs.difference()
    assert found.number == pytest.approx(0.04)
    count, difference = 1602, 64 / 1602
    half = 1.959964 * math.sqrt((150.5 + 86.5) / count - difference**2) / math.sqrt(count)
    assert (found.lower, found.upper) == pytest.approx((difference - half, difference + half), abs=1e-6)


@pytest.mark.parametrize(
    ("lower", "upper", "goal"),
    [
        (0.01, 0.3, "max"),
        (-0.3, -0.01, "min"),
        (-0.01, 0.3, None),
        (-0.3, 0.01, None),
        (0.0, 0.3, None),
        (-0.3, 0.0, None),
    ],
)
def test_an_interval_that_holds_0_is_noise(lower, upper, goal):
    """By either goal, and whatever the sign of the difference."""
    found = Difference(rule="paired", number=(lower + upper) / 2, lower=lower, upper=upper, examples=1000)
    assert [name for name in ("max", "min") if found.is_better(name)] == ([] if goal is None else [goal])


def test_pairs_find_what_independent_intervals_cannot():
    """20 more of 1000 right, and none less: certain if the examples are the same, and noise if they are not."""
    new, old = [1.0] * 820 + [0.0] * 180, [1.0] * 800 + [0.0] * 200
    pairs = Pairs()
    pairs.add(new, old)
    assert pairs.difference().is_better("max")
    assert not compare_values(value(0.82, wilson(820, 1000)), value(0.8, wilson(800, 1000))).is_better("max")


def test_an_equal_model_is_rarely_called_better():
    """Two models of the same skill, which err on other examples: 2.5 % of the runs, give or take."""
    random_, wrong = random.Random(7), 0
    for _ in range(400):
        pairs = Pairs()
        pairs.add([random_.random() < 0.8 for _ in range(500)], [random_.random() < 0.8 for _ in range(500)])
        wrong += pairs.difference().is_better("max")
    assert wrong <= 400 * 0.025 + 3 * math.sqrt(400 * 0.025)


@pytest.mark.parametrize(
    ("new", "old", "better"),
    [
        (value(0.9), value(0.8), True),
        (value(0.8), value(0.9), False),
        (value(0.9), value(0.9), False),
        (value(0.9, (0.8, 0.95)), value(0.8), True),  # one interval alone says nothing
        (value(math.inf), value(0.8), True),
        (value(math.inf), value(math.inf), False),
        (value(math.nan), value(0.8), False),
        (value(0.9), value(math.nan), False),
        (value(0.1, goal="min"), value(0.2, goal="min"), True),
        (value(0.2, goal="none"), value(0.1, goal="none"), False),
        (value(0.9), value(0.8, goal="min"), False),
    ],
)
def test_without_known_noise_the_better_number_is_better(new, old, better):
    """Numbers that are not finite, too."""
    found = comparison("r", "test/accuracy", (2, new), (1, old), compare_values(new, old))
    assert (found.rule, found.better) == ("value", better)


NEW, OLD = value(0.82, wilson(820, 1000)), value(0.8, wilson(800, 1000))
EXPECTED = comparison("r", "test/accuracy", (2, NEW), (1, OLD), compare_values(NEW, OLD))
PAIRED = comparison(
    "r",
    "test/accuracy",
    (2, NEW),
    (1, OLD),
    Difference(rule="paired", number=0.02, lower=0.011, upper=0.029, examples=1000),
)


def test_possible_records_are_believed():
    """By the numbers alone, and by pairs."""
    assert contradiction(EXPECTED, EXPECTED, "max", 0.82) is None
    assert contradiction(PAIRED, EXPECTED, "max", 0.82) is None
    assert PAIRED.better
    assert "by 0.02 (95 % 0.011 to 0.029, paired)" in PAIRED.describe()


@pytest.mark.parametrize(
    "lie",
    [
        replace(EXPECTED, better=True),
        replace(EXPECTED, lower=0.01),
        replace(EXPECTED, rule="magic"),
        replace(PAIRED, run="another"),
        replace(PAIRED, metric="test/loss"),
        replace(PAIRED, new=3),
        replace(PAIRED, old=0),
        replace(PAIRED, difference=0.5, lower=0.4, upper=0.6),
        replace(PAIRED, lower=-0.01),
        replace(PAIRED, lower=None),
        replace(PAIRED, better=False),
        replace(PAIRED, lower=0.03, upper=0.01),
    ],
)
def test_impossible_records_are_not_believed(lie):
    """Another user may write them: what contradicts the published numbers counts for nothing."""
    assert isinstance(lie, Comparison)
    assert contradiction(lie, EXPECTED, "max", 0.82) is not None


def test_all_looks_together_err_in_at_most_5_percent():
    """The differences from one control, of equal correlation, as Dunnett computes it: for any number of looks."""
    scipy = pytest.importorskip("scipy.stats")
    shared = np.linspace(-8, 8, 401)
    density = scipy.norm.pdf(shared) * (shared[1] - shared[0])
    limits = scipy.norm.ppf([(1 + confidence_after(look)) / 2 for look in range(1, 2001)])
    none = sum(scipy.norm.logcdf(limit * math.sqrt(2) + shared) for limit in limits)
    assert 0.045 < 1 - float((density * np.exp(none)).sum()) < 0.05


def test_a_later_look_has_a_longer_interval():
    """By each rule, and the record says of which confidence it is."""
    pairs = Pairs()
    pairs.add([0.1 * at for at in range(30)], [0.0] * 30)
    for differences in (
        [pairs.difference(confidence_after(look)) for look in (1, 2, 10)],
        [compare_values(NEW, OLD, confidence_after(look)) for look in (1, 2, 10)],
    ):
        widths = [each.upper - each.lower for each in differences]
        assert widths == sorted(widths)
        assert [each.confidence for each in differences] == [confidence_after(look) for look in (1, 2, 10)]
    (first, *_) = (comparison("r", "test/accuracy", (2, NEW), (1, OLD), each) for each in differences)
    assert f"({math.floor(confidence_after(1) * 1e4) / 100:g} %" in first.describe()


@pytest.mark.parametrize("binary", [True, False])
def test_pairs_in_groups_are_not_independent(binary):
    """The interval is that of the mean of groups; parts of the pairs may come one after the other."""
    random_ = np.random.default_rng(5)
    groups = random_.integers(0, 40, 1000)
    old = random_.random(1000) < 0.8 if binary else random_.normal(size=1000)
    lift = random_.normal(0.1, 0.3, 40)[groups]
    new = random_.random(1000) < 0.8 + lift if binary else old + lift
    pairs, few, alone = Pairs(), Pairs(), Pairs()
    for part in (slice(0, 300), slice(300, None)):
        given = new[part] * 1.0, old[part] * 1.0
        pairs.add(*given, groups[part].tolist())
        few.add(*given, (groups[part] % 19).tolist())
        alone.add(*given)
    found, independent = pairs.difference(0.99), alone.difference(0.99)
    sums = [np.bincount(groups, weights) for weights in (new * 1.0 - old * 1.0, np.ones(1000))]
    wanted = clustered(*(part.tolist() for part in sums), probability=0.995)
    assert (found.number, found.examples) == (independent.number, 1000)
    assert (found.lower, found.upper) == pytest.approx(wanted, rel=1e-9)
    assert found.upper - found.lower > 1.3 * (independent.upper - independent.lower)
    assert few.difference().lower is None


@pytest.mark.parametrize("count", [2, 5, 5000])
def test_other_values_have_the_interval_of_a_mean(count):
    """As scipy computes it for the differences of the pairs, or longer on one side."""
    scipy = pytest.importorskip("scipy.stats")
    random_ = np.random.default_rng(1)
    old = random_.normal(2, 1, count)
    new = old - 0.05 + random_.normal(0, 0.1, count)
    pairs = Pairs()
    pairs.add(new.tolist(), old.tolist())
    found = pairs.difference(0.99)
    expected = scipy.ttest_rel(new, old).confidence_interval(0.99)
    differences = [after - before for after, before in zip(new, old, strict=True)]
    t, error = scipy.t.ppf(0.995, count - 1), scipy.sem(differences)
    wanted = skewed(np.mean(differences), error, scipy.skew(differences), count, t)
    assert (found.lower, found.upper) == pytest.approx(wanted, rel=1e-9)
    assert found.lower <= expected.low + 1e-9
    assert found.upper >= expected.high - 1e-9
