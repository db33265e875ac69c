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


def clustered(values: Sequence[float], weights: Sequence[float], *, is_proportion: bool = False) -> Interval:
    """Return the interval of Σv / Σw, from the sums of weighted values and of weights by group; groups are independent.

    The variance is that of linearisation, G / (G - 1) Σ (v - m w)² / (Σw)², where m is the mean and G the number of
    groups (W. G. Cochran, "Sampling Techniques", 3rd edition (1977), section 6.3; for models of a constant it is the
    cluster-robust one). The interval of a mean is m ± t sqrt(variance), with G - 1 degrees of freedom. That of a
    proportion is Wilson's for the number of independent examples that has this variance, with t for z (E. L. Korn and
    B. I. Graubard, "Confidence intervals for proportions with small expected number of positive counts estimated from
    survey data", Survey Methodology 24 (1998) 193-201). No interval for fewer than two groups, infinite sums, and
    values that are all equal, unless they are a proportion.
    """
    groups = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight > 0]
    total, weight = (math.fsum(part) if all(map(math.isfinite, part)) else math.nan for part in (values, weights))
    if len(groups) < 2 or not (math.isfinite(total) and math.isfinite(weight)):  # noqa: PLR2004 - see the formula
        return None, None
    mean, t = total / weight, student_t(len(groups) - 1)
    squares = math.fsum(((value - mean * size) / weight) ** 2 for value, size in groups)
    variance = squares * len(groups) / (len(groups) - 1)
    if is_proportion:
        share = min(max(mean, 0.0), 1.0)
        count = share * (1 - share) / variance if variance > 0 and 0 < share < 1 else float(len(groups))
        return _score(share * count, count, t)
    return (mean - t * math.sqrt(variance), mean + t * math.sqrt(variance)) if variance > 0 else (None, None)


def normal(total: float, total_of_squares: float, count: int) -> Interval:
    """Return Student's interval of a mean; no interval for a count under 2 or infinite sums.

    The interval is mean ± t s / sqrt(n), where s² = (Σv² - (Σv)² / n) / (n - 1) is the sample variance and t has n - 1
    degrees of freedom (NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.5.2). The difference is computed
    with exact fractions, so only the two totals are rounded.
    """
    if count < 2 or not (math.isfinite(total) and math.isfinite(total_of_squares)):  # noqa: PLR2004 - see the formula
        return None, None
    variance = (Fraction(total_of_squares) - Fraction(total) ** 2 / count) / (count - 1)
    half = student_t(count - 1) * math.sqrt(
        max(variance, Fraction(0)) / count
    )  # cannot overflow: the variance is less than Σv²
    return total / count - half, total / count + half
