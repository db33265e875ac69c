"""Make 95 % intervals of precision, recall and F1 from the counts of a confusion matrix. Imports numpy only.

Sums are rounded once, so that every rank has the same bits. tests/benchmarks/bench_coverage.py measures how many of the
intervals contain the truth.
"""

import math
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.intervals import FEWEST, Interval, Z, by_odds, wilson

Floats = NDArray[np.float64]

_NONE: Final[Interval] = (None, None)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Make the intervals of one matrix. `counts`: a row for each actual class; None: there are no intervals."""

    counts: Floats | None
    classes: int

    @classmethod
    def of(cls, matrix: Floats, *, are_independent: bool) -> Self:
        """Return those of independent examples of weight 1; otherwise there are none."""
        is_known = are_independent and bool(np.isfinite(matrix).all()) and bool(matrix.any())
        return cls(matrix if is_known else None, len(matrix))

    def by_class(self, name: str) -> list[Interval]:
        """Return the interval of each class.

        Those of precision and recall are Wilson's. F1 is 2J / (1 + J), where J is the share of what is right in the
        union of labels and predictions, a proportion, too: the ends of its interval are moved in the same way.
        """
        if self.counts is None:
            return [_NONE] * self.classes
        right, below = np.diagonal(self.counts), self._below(name)
        if name != "f1":
            return [wilson(int(hit), int(count)) for hit, count in zip(right, below, strict=True)]
        found = [wilson(int(hit), int(count - hit)) for hit, count in zip(right, below, strict=True)]
        return [_NONE if low is None or high is None else (_f1(low), _f1(high)) for low, high in found]

    def micro(self) -> Interval:
        """Return the interval of the share of right examples, which all numbers are if all weight counts together."""
        return _NONE if self.counts is None else wilson(int(np.trace(self.counts)), int(self.counts.sum()))

    def macro(self, name: str) -> Interval:
        """Return the interval of the mean over classes.

        For precision and recall it is united with the one that G. Y. Zou and A. Donner, "Construction of confidence
        limits about effect measures: a general approach", Statistics in Medicine 27 (2008) 1693-1702, make of the
        intervals of independent classes: that of linearisation is too short with few errors.
        """
        found = self._linearised(name, np.full(self.classes, 1 / self.classes), are_shares=False)
        if name == "f1" or self.counts is None or not self._are_enough():
            return found
        ratios = (np.diagonal(self.counts) / self._below(name)).tolist()
        mean, ends = math.fsum(ratios) / self.classes, self.by_class(name)
        distances = [
            math.sqrt(math.fsum((ratio - (each[side] or 0.0)) ** 2 for ratio, each in zip(ratios, ends, strict=True)))
            for side in (0, 1)
        ]
        lower, upper = max(mean - distances[0] / self.classes, 0.0), min(mean + distances[1] / self.classes, 1.0)
        return (lower, upper) if found[0] is None or found[1] is None else (min(lower, found[0]), max(upper, found[1]))

    def weighted(self, name: str) -> Interval:
        """Return the interval of the mean over classes, each with its share of the labels."""
        if self.counts is None or name == "recall":  # which is the share of right examples
            return self.micro()
        return self._linearised(name, self.counts.sum(axis=1) / self.counts.sum(), are_shares=True)

    def _below(self, name: str) -> Floats:
        """Return the denominator of each class."""
        assert self.counts is not None
        predicted, actual = self.counts.sum(axis=0), self.counts.sum(axis=1)
        below: Floats = {"precision": predicted, "recall": actual, "f1": predicted + actual}[name]
        return below

    def _are_enough(self) -> bool:
        """Return whether each class has enough labels and predictions.

        Of fewer ones, fewer than 93 % of the intervals of averages would contain the truth.
        """
        return self.counts is not None and min(self._below("precision").min(), self._below("recall").min()) >= FEWEST

    def _linearised(self, name: str, weights: Floats, *, are_shares: bool) -> Interval:
        """Return the interval of Σ weights·ratio, by linearisation on the scale of log-odds.

        The cells are multinomial (Y. M. M. Bishop, S. E. Fienberg and P. W. Holland, "Discrete Multivariate Analysis"
        (1975), section 14.6; for F1: K. Takahashi, K. Yamamoto, A. Kuchiba and T. Koyama, "Confidence interval for
        micro-averaged F1 and macro-averaged F1 scores", Applied Intelligence 52 (2022) 4961-4972). `are_shares`:
        whether the weights are the shares of the labels, and so uncertain, too. No interval if the number is 0 or 1.
        """
        if self.counts is None or not self._are_enough():
            return _NONE
        total, below, above = float(self.counts.sum()), self._below(name), 2.0 if name == "f1" else 1.0
        ratios = above * np.diagonal(self.counts) / below
        number = math.fsum((weights * ratios).tolist())
        rows, columns = np.nonzero(self.counts)
        counts, slope = self.counts[rows, columns], weights * ratios / below
        gradient = np.where(rows == columns, (weights * above / below)[rows], 0.0)
        if name != "recall":
            gradient -= slope[columns]
        if name != "precision":
            gradient -= slope[rows]
        if are_shares:
            gradient += (ratios[rows] - number) / total
        mean = math.fsum((counts * gradient).tolist()) / total
        error = math.sqrt(math.fsum((counts * np.square(gradient - mean)).tolist()))
        if not 0 < number < 1 or not error > 0:
            return _NONE
        return by_odds(number, Z * error)


def _f1(share: float) -> float:
    return 2 * share / (1 + share)
