"""Compute confidence intervals of means and of shares."""

import math
import statistics
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.evaluation.intervals import Z, clopper_pearson, clustered, normal, skewed, student_t, wilson


def test_z_is_the_quantile():
    """The constant is the 97.5 % quantile of the standard normal distribution."""
    assert pytest.approx(statistics.NormalDist().inv_cdf(0.975), abs=1e-14) == Z


@pytest.mark.parametrize(
    ("successes", "count", "lower", "upper"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_matches_newcombe(successes, count, lower, upper):
    """The published examples: R. G. Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3."""
    assert wilson(successes, count) == pytest.approx((lower, upper), abs=5e-5)


@given(st.integers(1, 10**12).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_wilson_solves_the_score_equation(counts):
    """The bounds enclose the proportion inside 0 to 1, and the bounds of the failures mirror those of the successes."""
    successes, count = counts
    lower, upper = wilson(successes, count)
    assert 0 <= lower <= successes / count <= upper <= 1
    mirrored = wilson(count - successes, count)
    assert (1 - upper, 1 - lower) == pytest.approx(mirrored, abs=1e-12)
    for bound in (lower, upper):
        distance, error = bound - successes / count, Z * math.sqrt(bound * (1 - bound) / count)
        assert abs(distance) == pytest.approx(error, rel=1e-3, abs=1e-9)


def test_wilson_without_examples_is_unknown():
    """Nothing seen, nothing said."""
    assert wilson(0, 0) == (None, None)


@pytest.mark.parametrize(("successes", "count"), [(-1, 3), (4, 3), (0, -1)])
def test_wilson_refuses_impossible_counts(successes, count):
    """More successes than examples are a mistake of the caller."""
    with pytest.raises(ValueError, match="are impossible"):
        wilson(successes, count)


def test_normal_matches_a_calculation_by_hand():
    """The values 1, 2, 3, 4 have mean 2.5 and sample variance 5/3."""
    half = 3.182446305284263 * math.sqrt(5 / 3 / 4)
    assert normal(10.0, 30.0, 4) == pytest.approx((2.5 - half, 2.5 + half), rel=1e-12)


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=50))
def test_normal_matches_the_standard_library(values):
    """Mean and sample variance are those of `statistics`."""
    lower, upper = normal(float(sum(values)), float(sum(value * value for value in values)), len(values))
    half = student_t(len(values) - 1) * math.sqrt(statistics.variance(values) / len(values))
    assert (upper + lower) / 2 == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert (upper - lower) / 2 == pytest.approx(half, abs=1e-9)


def test_normal_of_equal_values_has_no_width():
    """A variance that rounding made negative is none."""
    assert normal(0.3, 0.03, 3) == pytest.approx((0.1, 0.1))
    below = math.nextafter(3.0, 0.0)
    assert normal(3.0, below, 3) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("total", "total_of_squares", "count"),
    [
        (1.0, 1.0, 1),
        (0.0, 0.0, 0),
        (math.nan, 1.0, 5),
        (math.inf, 1.0, 5),
        (1.0, math.inf, 5),
        (-1e308, 1.7e308, 1),
    ],
)
def test_normal_is_unknown_where_it_has_no_number(total, total_of_squares, count):
    """Fewer than two values, or a total that is not finite, give no interval."""
    assert normal(total, total_of_squares, count) == (None, None)


def test_normal_does_not_overflow_on_the_way():
    """The square of a total may be beyond float64, the interval of its mean still is not."""
    assert normal(2e200, 1e300, 2) == (1e200, 1e200)
    lower, upper = normal(1e308, 1.7e308, 2)
    assert math.isfinite(lower)
    assert math.isfinite(upper)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 30, 299, 300, 1001, 10**7])
def test_student_t_is_the_quantile(degrees):
    """As scipy has it."""
    scipy = pytest.importorskip("scipy.stats")
    for probability in (0.5, 0.6, 0.975, 0.9995):
        assert student_t(degrees, probability) == pytest.approx(scipy.t.ppf(probability, degrees), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize(("degrees", "probability"), [(0, 0.975), (5, 0.3), (5, 1.0)])
def test_student_t_has_no_such_quantile(degrees, probability):
    """A caller's mistake."""
    with pytest.raises(ValueError, match="no quantile"):
        student_t(degrees, probability)


@pytest.mark.parametrize(("successes", "count"), [(0, 20), (1, 20), (10, 20), (20, 20), (3, 1000), (49_000, 98_765)])
def test_clopper_pearson_is_that_of_scipy(successes, count):
    """The exact interval of a binomial test."""
    scipy = pytest.importorskip("scipy.stats")
    wanted = scipy.binomtest(successes, count).proportion_ci(method="exact")
    assert clopper_pearson(successes, count) == pytest.approx((wanted.low, wanted.high), rel=1e-10)


@pytest.mark.parametrize(
    ("counts", "of_wilson", "of_beta"),
    [
        ((0, 20), (0.0, 0.1611251580528194), (0.0, 0.16843347098308534)),
        ((1, 29), (0.006113214292762667, 0.17175521879320294), (0.000872646883579922, 0.17764429548872293)),
        ((81, 263), (0.2552885198782742, 0.36620957698280004), (0.25273674558527126, 0.3676219226013514)),
        ((199, 200), (0.9722262956021069, 0.9991168312843989), (0.9724581015427943, 0.999873418972133)),
    ],
)
def test_shares_have_the_intervals_of_statsmodels(counts, of_wilson, of_beta):
    """Version 0.15.0 returned these: `proportion_confint(*counts, method=…)` with "wilson" and "beta"."""
    assert wilson(*counts) == pytest.approx(of_wilson, rel=1e-10)
    assert clopper_pearson(*counts) == pytest.approx(of_beta, rel=1e-10)


def test_means_have_the_intervals_of_statsmodels():
    """Version 0.15.0 returned these, for values that are not skewed.

    `DescrStatsW(values).tconfint_mean()`, and `OLS(values, ones)` or `WLS(values, ones, weights=…)` with
    `fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True).conf_int()`, each row of three being a group.
    """
    half = [3.0, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4]
    values = half + [10 - value for value in half]
    squares, cubes = (math.fsum(value**power for value in values) for power in (2, 3))
    found = normal(math.fsum(values), squares, len(values), cubes)
    assert found == pytest.approx((4.263952425459166, 5.736047574540834), rel=1e-10)
    for weights, wanted in (
        ((1.0, 1.0, 1.0), (4.035817342145481, 5.964182657854525)),
        ((1.0, 2.0, 0.5), (4.035505762671244, 5.964494237328758)),
    ):
        groups = [values[first : first + 3] for first in range(0, len(values), 3)]
        sums = [sum(value * weight for value, weight in zip(group, weights, strict=True)) for group in groups]
        assert clustered(sums, [sum(weights)] * len(sums)) == pytest.approx(wanted, rel=1e-10)


def test_skewed_values_have_a_longer_end():
    """The end that few large values would move; moments are those of scipy, and far from 0 they are unknown."""
    np, scipy = pytest.importorskip("numpy"), pytest.importorskip("scipy.stats")
    values = np.random.default_rng(2).lognormal(size=40)
    sums = [math.fsum(values**power) for power in (1, 2, 3)]
    lower, upper = normal(sums[0], sums[1], 40, sums[2])
    usual = normal(sums[0], sums[1], 40)
    assert lower == usual[0]
    assert upper > usual[1] + 0.2 * (usual[1] - usual[0])
    error, skewness = values.std(ddof=1) / math.sqrt(40), scipy.skew(values)
    assert (lower, upper) == pytest.approx(skewed(values.mean(), error, skewness, 40, student_t(39)), rel=1e-10)
    mirrored = normal(-sums[0], sums[1], 40, -sums[2])
    assert mirrored == pytest.approx((-upper, -lower), rel=1e-12)
    moved = values + 1e9
    assert normal(math.fsum(moved), math.fsum(moved**2), 40, math.fsum(moved**3)) == normal(
        math.fsum(moved), math.fsum(moved**2), 40
    )


def test_values_far_from_0_have_no_interval_that_rounding_made():
    """The last bits of squares around 1e15 are lost, so an interval would be much too short."""
    for offset, is_known in ((1e3, True), (1e5, True), (3e7, False)):
        values = [offset + statistics.NormalDist().inv_cdf((at + 0.5) / 50) for at in range(50)]
        totals = [float(sum(Fraction(value) ** power for value in values)) for power in (1, 2, 3)]
        lower, upper = normal(*totals[:2], 50, totals[2])
        if is_known:
            half = student_t(49) * statistics.stdev(values) / math.sqrt(50)
            assert upper - lower == pytest.approx(2 * half, rel=0.05)
        else:
            assert lower is None


@pytest.mark.parametrize("values", [[1e300, -1e300] * 15, [1e308] * 30, [1e308, -1e308] * 15])
def test_sums_of_groups_that_are_too_large_have_no_interval(values):
    """A sum or variance beyond a float was an error, or made an interval of infinite length."""
    assert clustered(values, [1.0] * 30) == (None, None)
