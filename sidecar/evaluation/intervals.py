"""Compute 95 % confidence intervals from exact totals. Standard library only."""

import math
from fractions import Fraction
from typing import Final

Z: Final = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""

Interval = tuple[float, float] | tuple[None, None]
"""Lower and upper bound, or None for both."""


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
    middle = successes + Z * Z / 2
    half = Z * math.sqrt(successes * (count - successes) / count + Z * Z / 4)
    # At the ends the formula gives exactly 0 and 1, which floats would miss because of rounding.
    lower = (middle - half) / (count + Z * Z) if successes > 0 else 0.0
    upper = (middle + half) / (count + Z * Z) if successes < count else 1.0
    return lower, upper


def normal(total: float, total_of_squares: float, count: int) -> Interval:
    """Return the interval of a mean by the central limit theorem; no interval for a count under 2 or infinite sums.

    The interval is mean ± z s / sqrt(n), where s² = (Σv² - (Σv)² / n) / (n - 1) is the sample variance (NIST/SEMATECH
    e-Handbook of Statistical Methods, section 1.3.5.2, with z in place of t). The difference is computed with exact
    fractions, so only the two totals are rounded.
    """
    if count < 2 or not (math.isfinite(total) and math.isfinite(total_of_squares)):  # noqa: PLR2004 - see the formula
        return None, None
    variance = (Fraction(total_of_squares) - Fraction(total) ** 2 / count) / (count - 1)
    half = Z * math.sqrt(max(variance, Fraction(0)) / count)  # cannot overflow: the variance is less than Σv²
    return total / count - half, total / count + half
