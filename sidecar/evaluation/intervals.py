"""Compute 95 % confidence intervals from exact totals. Standard library only."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from typing import Final

Z: Final = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""

Interval = tuple[float, float] | tuple[None, None]
"""Lower and upper bound, or None for both."""

FEWEST: Final = 20
"""The fewest values of a mean, or effective groups of a proportion, that have an interval.

For fewer ones "95 %" would often be less than 93 %: of skewed values, or of groups whose rows share one answer.
"""

_MANY: Final = 300
"""From so many degrees of freedom on, the expansion of Student's quantile is correct to 1e-12."""


@lru_cache(maxsize=1024)
def student_t(degrees: int, probability: float = 0.975) -> float:
    """Return a quantile of Student's t distribution, of a probability of at least 0.5.

    The distribution is the finite sum 26.7.3 and 26.7.4 of M. Abramowitz and I. A. Stegun, "Handbook of Mathematical
    Functions" (1964), which is solved by halving; for many degrees of freedom it is their expansion 26.7.5. Raises
    `ValueError` for fewer degrees than 1.
    """
    if degrees < 1 or not 0.5 <= probability < 1:  # noqa: PLR2004 - the lower half mirrors it
        raise ValueError(f"Student's t has no quantile {probability} with {degrees} degrees of freedom")
    if degrees >= _MANY:
        z = NormalDist().inv_cdf(probability)
        terms = (
            (z**3 + z) / 4,
            (5 * z**5 + 16 * z**3 + 3 * z) / 96,
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
            (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
        )
        return z + math.fsum(term / degrees**power for power, term in enumerate(terms, start=1))
    low, high = 0.0, math.pi / 2  # of the angle, whose tangent is t / sqrt(degrees)
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _share_within(middle, degrees) < 2 * probability - 1 else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _share_within(angle: float, degrees: int) -> float:
    """Return the probability that Student's t lies within ± sqrt(degrees) tan(angle)."""
    cosine, odd = math.cos(angle), degrees % 2
    term, terms = (cosine if odd else 1.0), []
    for power in range(1 + odd, degrees, 2):
        terms.append(term)
        term *= cosine**2 * power / (power + 1)
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * math.fsum(terms))
    return math.sin(angle) * math.fsum(terms)


def wilson(successes: int, count: int) -> Interval:
    """Return the interval of a proportion; no interval for a count of 0.

    This is the score interval without continuity correction of E. B. Wilson, "Probable inference, the law of
    succession, and statistical inference", Journal of the American Statistical Association 22 (1927) 209-212. Raises
    `ValueError` unless 0 <= successes <= count.
    """
    if not 0 <= successes <= count:
        raise ValueError(f"{successes} successes in {count} examples are impossible: expected 0 <= successes <= count")
    if count == 0:
        return None, None
    return _score(successes, count, Z)


def _score(successes: float, count: float, z: float) -> tuple[float, float]:
    """Return the score interval for a quantile. The numbers need not be whole."""
    middle = successes + z * z / 2
    half = z * math.sqrt(successes * (count - successes) / count + z * z / 4)
    # At the ends the formula gives exactly 0 and 1, which floats would miss because of rounding.
    lower = (middle - half) / (count + z * z) if successes > 0 else 0.0
    upper = (middle + half) / (count + z * z) if successes < count else 1.0
    return lower, upper


def clustered(
    values: Sequence[float], weights: Sequence[float], *, is_proportion: bool = False, probability: float = 0.975
) -> Interval:
    """Return the interval of Σv / Σw, from the sums of weighted values and of weights by group; groups are independent.

    The variance is that of linearisation, k / (k - 1) Σ (v - m w)² / (Σw)², where m is the mean (W. G. Cochran,
    "Sampling Techniques", 3rd edition (1977), section 6.3; for models of a constant it is the cluster-robust one) and
    k = (Σw)² / Σw² is the effective number of groups, which have k - 1 degrees of freedom (A. V. Carter, K. T. Schnepel
    and D. G. Steigerwald, "Asymptotic behavior of a t-test robust to cluster heterogeneity", Review of Economics and
    Statistics 99 (2017) 698-709). Equal groups count in full. A group of weight 0 counts if its value is not 0, as an
    error for a label that is the mean of labels in R². The interval of a mean is that of `skewed`. That of a
    proportion is Clopper's and Pearson's for the number of independent examples that has this variance, times
    (z / t)² (E. L. Korn and B. I. Graubard, "Confidence intervals for proportions with small expected number of
    positive counts estimated from survey data", Survey Methodology 24 (1998) 193-201). No interval for fewer than two
    effective groups, or 20 of a proportion, or up to 40 if their sizes differ, infinite sums, and values that are all
    equal, unless they are a proportion. `probability`: that of the upper end of the interval of a mean.
    """
    groups = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight > 0 or value]
    total, weight = (_total(part) for part in (values, weights))
    if len(groups) < 2 or not (math.isfinite(total) and math.isfinite(weight)):  # noqa: PLR2004 - see the formula
        return None, None
    effective = 1 / math.fsum((size / weight) ** 2 for _, size in groups)
    degrees = int(effective * (1 + _ROUNDING)) - 1
    least = FEWEST * min(len(groups) / effective, _MOST_UNEQUAL) if is_proportion else 2
    if effective * (1 + _ROUNDING) < least:
        return None, None
    mean = total / weight
    residuals = [(value - mean * size) / weight for value, size in groups]
    variance = math.fsum(each * each for each in residuals) * effective / (effective - 1)
    if is_proportion:
        share = min(max(mean, 0.0), 1.0)
        count = share * (1 - share) / variance if variance > 0 and 0 < share < 1 else effective
        count *= (Z / student_t(degrees)) ** 2
        return clopper_pearson(share * count, count)
    if not 0 < variance < math.inf:
        return None, None
    return skewed(mean, math.sqrt(variance), _skewness(residuals), len(groups), student_t(degrees, probability))


def _total(numbers: Sequence[float]) -> float:
    """Return the sum; NaN if a number, or the sum, is not finite."""
    try:
        return math.fsum(numbers) if all(map(math.isfinite, numbers)) else math.nan
    except OverflowError:
        return math.nan


_ROUNDING: Final = 1e-9

_MOST_UNEQUAL: Final = 2.0
"""How many times as many effective groups a proportion of very unequal ones needs: 20 of them hold in 91 % of cases."""


def _skewness(residuals: Sequence[float]) -> float:
    """Return the third central moment over the cube of the standard deviation; 0 if they are too small."""
    size = max(map(abs, residuals))
    scaled = [each / size for each in residuals]
    second, third = (math.fsum(each**power for each in scaled) / len(scaled) for power in (2, 3))
    return third / math.sqrt(second**3)


def skewed(mean: float, error: float, skewness: float, count: int, t: float) -> tuple[float, float]:
    """Return the interval of a mean that holds for skewed values, too: mean ± t·error, made longer on one side.

    The other interval is that of P. Hall, "On the removal of skewness by transformation", Journal of the Royal
    Statistical Society B 54 (1992) 221-228, with the adjusted coefficient of skewness. For values with few large ones,
    such as losses, it is longer where Student's is too short. The longer end counts, because the skewness of few values
    is often found too small. `error`: the standard error. `skewness`: third central moment over the cube of the
    standard deviation, both divided by the number of values. `t`: the quantile of Student's t distribution.
    """
    lower, upper = mean - t * error, mean + t * error
    if count < 3 or abs(skewness) < _ROUNDING:  # noqa: PLR2004 - two values have no skewness
        return lower, upper
    adjusted = skewness * math.sqrt(count * (count - 1)) / (count - 2)
    root = math.sqrt(count)

    def moved(quantile: float) -> float:
        inner = 1 + adjusted * (quantile / root - adjusted / (6 * count))
        return mean - error * root * 3 / adjusted * (math.cbrt(inner) - 1)

    return min(lower, moved(t)), max(upper, moved(-t))


def by_odds(number: float, reach: float) -> tuple[float, float]:
    """Return number ± reach of a number inside 0 to 1, on the scale of log-odds, which keeps it there.

    The derivative of log-odds is 1 / (p (1 - p)).
    """
    logarithm, half = math.log(number / (1 - number)), reach / (number * (1 - number))
    lower, upper = (1 / (1 + math.exp(min(-end, _MOST))) for end in (logarithm - half, logarithm + half))
    return lower, upper


_MOST: Final = 700.0
"""The largest exponent whose power is a float."""


def clopper_pearson(successes: float, count: float) -> tuple[float, float]:
    """Return the interval of a proportion by C. J. Clopper and E. S. Pearson, Biometrika 26 (1934) 404-413.

    Its ends are quantiles of the beta distribution, so the numbers need not be whole.
    """
    lower = _beta_quantile(0.025, successes, count - successes + 1) if successes > 0 else 0.0
    upper = _beta_quantile(0.975, successes + 1, count - successes) if successes < count else 1.0
    return lower, upper


def _beta_quantile(probability: float, a: float, b: float) -> float:
    """Return a quantile of the beta distribution, by halving."""
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _beta_share(middle, a, b) < probability else (low, middle)
    return low


def _beta_share(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function, by its continued fraction (Abramowitz and Stegun, 26.5.8).

    The fraction is evaluated by the method of W. J. Lentz, Applied Optics 15 (1976) 668-671.
    """
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - _beta_share(1 - x, b, a)
    front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    value = c = 1.0
    d = 1 / (1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _MOST_TERMS):
        before = value
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + term * d)
            c = 1 + term / c
            value *= c * d
        if abs(value - before) <= abs(value) * 1e-16:
            break
    return math.exp(front) * value / a


_MOST_TERMS: Final = 100_000
"""Limit of the terms of a continued fraction, which needs about as many as the square root of its numbers."""


def normal(
    total: float,
    total_of_squares: float,
    count: int,
    total_of_cubes: float = math.nan,
    *,
    probability: float = 0.975,
) -> Interval:
    """Return the interval of a mean; no interval for a count under 2 or infinite sums.

    It is that of `skewed`, with s² = (Σv² - (Σv)² / n) / (n - 1) and n - 1 degrees of freedom (NIST/SEMATECH e-Handbook
    of Statistical Methods, section 1.3.5.2). The differences are computed with exact fractions, so only the totals are
    rounded. Values so far from 0 that this leaves s² less certain than to 5 % have no interval, and the skewness counts
    only if it is as certain. `probability`: that of the upper end.
    """
    if count < 2 or not (math.isfinite(total) and math.isfinite(total_of_squares)):  # noqa: PLR2004 - see the formula
        return None, None
    mean = Fraction(total) / count
    moment = max(Fraction(total_of_squares) / count - mean**2, Fraction(0))
    square = Fraction(total_of_squares) / count
    if moment <= square * Fraction(_EQUAL):
        return total / count, total / count
    if moment <= square * Fraction(_UNCERTAIN):
        return None, None
    error = math.sqrt(moment / (count - 1))  # cannot overflow: it is less than Σv²
    spread, skewness, t = math.sqrt(moment), 0.0, student_t(count - 1, probability)
    if math.isfinite(total_of_cubes) and (cube := Fraction(spread) ** 3):
        parts = Fraction(total_of_cubes) / count, -3 * mean * Fraction(total_of_squares) / count, 2 * mean**3
        if sum(map(abs, parts)) * Fraction(_UNCERTAIN) < cube:
            skewness = float(sum(parts) / cube)
    return skewed(total / count, error, skewness, count, t)


_EQUAL: Final = 2 * 2.0**-52
"""The largest share of a variance in the mean square that rounding alone may make, so that values may be equal."""

_UNCERTAIN: Final = 20 * 2.0**-52
"""Rounding of a total over the share of a variance or skewness that may be uncertain."""
