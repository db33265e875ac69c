"""Compute areas under ROC and precision-recall curves: exactly, or from a histogram of scores. Imports numpy only.

The exact ones keep the score of every example in memory until the end, the others need constant memory. Both take the
weights of positives and of negatives by score, from the highest score to the lowest. Equal scores share one entry, so
the order of examples with the same score does not matter.
"""

import math
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.intervals import FEWEST, Interval, by_odds, student_t
from sidecar.evaluation.metrics.clusters import add_alone, alone_states, are_alone, cluster_states, groups_of
from sidecar.evaluation.metrics.differences import is_exact_as_float
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, MetricResult, value
from sidecar.evaluation.metrics.pairs import classes, has_nan, zeros_and_ones
from sidecar.evaluation.metrics.positions import Positions
from sidecar.evaluation.metrics.tally import Tally
from sidecar.evaluation.states import PerExampleValues, SetStates, state_of
from sidecar.protocol.records import Value

_MAX_EXAMPLES: Final = 10_000_000
"""The limit by default. The states of so many examples take 160 MB on every rank, and several times that while they
are summed over the ranks."""


_NO_INTERVAL: Final[Interval] = (None, None)

Floats = NDArray[np.float64]


def check_positive(metric: str, positive: int | None) -> None:
    """Raise `TaskError` unless `positive` can be the number of a class, or is None."""
    if positive is not None and (isinstance(positive, bool) or not isinstance(positive, int) or positive < 0):
        raise TaskError(f"metric {metric!r}: positive={positive!r} must be the number of a class, or None")


def binary_scores(metric: str, batch: EvalBatch, positive: int | None) -> Positions:
    """Return labels as bool, and scores (m,): the predictions themselves, or the scores of the class `positive`.

    Raises `TaskError` if labels or shapes do not match.
    """
    if positive is None:
        if batch.predictions.ndim == batch.y.ndim + 1 and batch.predictions.shape[-1] > 1:
            raise TaskError(
                f"metric {metric!r}: predictions {batch.predictions.shape} are of several classes: name the positive "
                f"class with positive=…"
            )
        return zeros_and_ones(metric, batch)
    pairs = classes(metric, batch, "index")
    count = pairs.predicted.shape[-1]
    if positive >= count:
        raise TaskError(f"metric {metric!r}: there is no class positive={positive}, predictions have {count}")
    return replace(pairs, arrays=(pairs.actual == positive, pairs.predicted[:, positive]))


def roc_auc(positives: Floats, negatives: Floats) -> float:
    """Return how often a positive scores higher than a negative; a tie counts one half. NaN if a class has no weight.

    J. A. Hanley and B. J. McNeil, "The meaning and use of the area under a receiver operating characteristic (ROC)
    curve", Radiology 143 (1982) 29-36. The result equals the trapezoids of scikit-learn's `roc_auc_score`.
    """
    pairs = math.fsum(positives.tolist()) * math.fsum(negatives.tolist())
    higher = np.cumsum(positives) - positives / 2
    return math.fsum((higher * negatives).tolist()) / pairs if pairs else math.nan


def average_precision(positives: Floats, negatives: Floats) -> float:
    """Return the mean precision over the positives; NaN if they have no weight.

    The formula is Σ (R_k - R_k-1) P_k without interpolation, as scikit-learn's `average_precision_score`.
    """
    total = math.fsum(positives.tolist())
    true = np.cumsum(positives)
    steps = positives != 0  # elsewhere recall does not change; NaN differs from 0
    parts = positives[steps] * (true[steps] / (true + np.cumsum(negatives))[steps])
    return math.fsum(parts.tolist()) / total if total else math.nan


class AUC:
    """Measure the area under the ROC curve and the average precision, with a threshold at every score that occurs.

    The metric needs one score per example, and data whose number of examples is known. Each example takes 16 bytes on
    every rank. The results are NaN if there is nothing to rank: the ROC needs both classes, the average precision needs
    a positive. A NaN score that counts makes both NaN. The area under the ROC curve has DeLong's interval, and the
    average precision that of linearisation, if there are 20 positive and 20 negative examples, or groups with some.

    Args:
        positive: None: labels are 0 or 1 (n,) with one score each; logits and probabilities give the same result. A
            number: labels are numbers of classes (n,) with scores (n, classes), and this class is the positive one.
        max_examples: Limit of examples, which protects the memory: ten million examples take 160 MB.
        name: Suffix of the numbers, which are `roc_<name>` and `pr_<name>`.
    """

    def __init__(self, positive: int | None = None, *, max_examples: int = _MAX_EXAMPLES, name: str = "auc") -> None:
        check_positive(name, positive)
        self.name = name
        self._positive, self._max_examples = positive, max_examples

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states. Raises `TaskError` if there are too many examples, or if their number is unknown."""
        if info.examples is None:
            raise TaskError(
                f"metric {self.name!r}: an exact AUC needs the number of examples, which is unknown for a set "
                f"that divides itself or is divided by file: use BinnedAUC"
            )
        if info.examples > self._max_examples:
            raise TaskError(
                f"metric {self.name!r}: an exact AUC of {info.examples} examples takes "
                f"{16 * info.examples / 1e6:.0f} MB on every rank: use BinnedAUC, or allow it with max_examples=…"
            )
        # A weight below 0 belongs to a negative example. An example of weight 0 does not count.
        states: SetStates = {name: PerExampleValues(info.examples) for name in ("scores", "weights")}
        return states | cluster_states(info)

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` if labels or shapes do not match."""
        pairs = binary_scores(self.name, batch, self._positive)
        if not pairs.one_per_example:
            raise TaskError(
                f"metric {self.name!r}: an exact AUC needs one score per example, found predictions "
                f"{batch.predictions.shape}: use BinnedAUC"
            )
        inexact = pairs.predicted[~is_exact_as_float(pairs.predicted)]
        if inexact.size:
            raise TaskError(
                f"metric {self.name!r}: scores are ranked as float64, which does not hold {inexact[0]}, so that "
                f"different scores would be equal: return them without their common offset, or as floats"
            )
        assert batch.first is not None, "the places of examples are known if their number is"
        for name, values in (
            ("scores", pairs.predicted),
            ("weights", np.where(pairs.actual, pairs.weights, -pairs.weights)),
        ):
            state = state_of(states, name, PerExampleValues)
            column = np.zeros(len(batch.y), np.float64)
            column[pairs.places] = values
            state.put(batch.first, column)

    def compute(self, states: SetStates) -> MetricResult:
        """Return `roc_auc` and `pr_auc`."""
        scores, weights = (state_of(states, name, PerExampleValues) for name in ("scores", "weights"))
        roc, precision = _areas(scores.values(), weights.values(), groups_of(states))
        return MetricResult({f"roc_{self.name}": roc, f"pr_{self.name}": precision})


def _areas(scores: Floats, weights: Floats, groups: NDArray[np.int64] | None) -> tuple[Value, Value]:
    """Return the area under the ROC curve and the average precision, with their intervals.

    Weights of negative examples are below 0. `groups`: the number of the group of each example; None: no groups.
    """
    kept = np.flatnonzero(weights)
    if not kept.size or np.isnan(scores[kept]).any():
        return value(math.nan, "max"), value(math.nan, "max")
    kept = kept[np.argsort(scores[kept], kind="stable")[::-1]]
    scores, weights = scores[kept], weights[kept]
    starts = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]]))
    positives = np.add.reduceat(np.maximum(weights, 0), starts)
    negatives = np.add.reduceat(np.maximum(-weights, 0), starts)
    area = roc_auc(positives, negatives)
    precision = average_precision(positives, negatives)
    tiers = np.repeat(np.arange(len(starts)), np.diff([*starts, len(scores)]))
    members = None if groups is None else np.unique(groups[kept], return_inverse=True)[1]

    def interval(number: float, components: tuple[Floats, Floats], *, by_class: bool) -> Interval:
        of_positives, of_negatives = components
        influences = np.where(weights > 0, of_positives[tiers], of_negatives[tiers]) * np.abs(weights)
        is_plain = members is None and bool((np.abs(weights) == 1).all())
        parts = [influences if members is None else np.bincount(members, influences).astype(np.float64)]
        own = np.arange(len(weights)) if members is None else members
        fewest = min(len(np.unique(own[of_class])) for of_class in (weights > 0, weights < 0))
        if is_plain and by_class:
            parts = [influences[weights > 0], influences[weights < 0]]
        return _of_variance(number, [(np.square(part), len(part)) for part in parts], fewest)

    of_area = interval(area, _components(area, positives, negatives), by_class=True) if 0 < area < 1 else _NO_INTERVAL
    of_precision = (
        interval(precision, _precision_components(precision, positives, negatives), by_class=False)
        if 0 < precision < 1
        else _NO_INTERVAL
    )
    return value(area, "max", of_area), value(precision, "max", of_precision)


def _components(area: float, positives: Floats, negatives: Floats) -> tuple[Floats, Floats]:
    """Return by how much a positive and a negative example of each score move the area, for each unit of their weight.

    These are DeLong's structural components, centred and divided.
    """
    of_positives, of_negatives = math.fsum(positives.tolist()), math.fsum(negatives.tolist())
    lower = (of_negatives - np.cumsum(negatives) + negatives / 2) / of_negatives  # than a positive of that score
    higher = (np.cumsum(positives) - positives / 2) / of_positives  # than a negative of that score
    return (lower - area) / of_positives, (higher - area) / of_negatives


def _precision_components(number: float, positives: Floats, negatives: Floats) -> tuple[Floats, Floats]:
    """Return by how much a positive and a negative example of each score move the average precision, as `_components`.

    They are its derivatives by the weights of examples: another positive is one more term, and raises the precision at
    all lower scores; another negative lowers it there.
    """
    total = math.fsum(positives.tolist())
    true, false = np.cumsum(positives), np.cumsum(negatives)
    with np.errstate(all="ignore"):  # bins before the first score are empty
        precisions, slopes = (np.nan_to_num(part) for part in (true / (true + false), positives / (true + false) ** 2))
    gains, losses = (np.cumsum((slopes * part)[::-1])[::-1] for part in (false, true))
    return (precisions - number + gains) / total, -losses / total


def _of_variance(number: float, parts: list[tuple[Floats, int]], fewest: int) -> Interval:
    """Return the interval of a number inside 0 to 1, on the scale of the logit, which keeps it there.

    The variance of an area is that of E. R. DeLong, D. M. DeLong and D. L. Clarke-Pearson, "Comparing the areas under
    two or more correlated receiver operating characteristic curves", Biometrics 44 (1988) 837-845; with weights or
    groups, and for the average precision, that of the sums of groups or examples: N. A. Obuchowski, "Nonparametric
    analysis of clustered ROC curve data", Biometrics 53 (1997) 567-578. `parts`: the squares that add up to the
    variance of each part, and the number of its members. `fewest`: the members of the smaller class, or the groups
    that have some; Student's t has one degree of freedom less. With fewer than 20, more than 97 % of the intervals
    would contain the truth, or less than 93 % of those that are shown.
    """
    if fewest < FEWEST:
        return _NO_INTERVAL
    variance = math.fsum(math.fsum(squares.tolist()) * members / (members - 1) for squares, members in parts)
    return by_odds(number, student_t(fewest - 1) * math.sqrt(variance)) if variance else _NO_INTERVAL


class BinnedAUC:
    """Measure the area under the ROC curve and the average precision of scores that are rounded down to bins.

    Both are exact for the rounded scores. The ROC-AUC differs from that of the original scores by at most half of the
    share of (positive, negative) pairs that fall into the same bin. The results are NaN as in `AUC`, and the
    intervals are the same, of independent examples without weights only.

    Args:
        positive: See `AUC`; labels and scores may have further positions, (n, …).
        bins: Number of equal parts of the range from 0 to 1.
        from_logits: Whether scores are logits. Then the metric applies the sigmoid.
        name: Suffix of the numbers, which are `roc_<name>` and `pr_<name>`.
    """

    def __init__(
        self,
        positive: int | None = None,
        *,
        bins: int = 1000,
        from_logits: bool = False,
        name: str = "binned_auc",
    ) -> None:
        check_positive(name, positive)
        if isinstance(bins, bool) or not isinstance(bins, int) or bins < 2:  # noqa: PLR2004 - one bin ranks nothing
            raise TaskError(f"metric {name!r}: BinnedAUC(bins={bins!r}) must be a number from 2")
        self.name = name
        self._positive, self._bins, self._from_logits = positive, bins, from_logits
        self._tally = Tally((2, bins))

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states: weights of negatives and of positives by bin."""
        return self._tally.states() | alone_states(info)

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` if labels or shapes do not match, or if scores are outside 0 to 1."""
        pairs = binary_scores(self.name, batch, self._positive)
        scores = pairs.predicted.astype(np.float64)
        if self._from_logits:
            with np.errstate(over="ignore"):  # the sigmoid of a number far below 0 is 0
                scores = 1 / (1 + np.exp(-scores))
        wrong = scores[(scores < 0) | (scores > 1)]
        if wrong.size:
            raise TaskError(
                f"metric {self.name!r}: scores must be from 0 to 1, found {wrong[0]:g}: give from_logits=True if the "
                f"model returns logits"
            )
        unknown = has_nan(scores)
        bins = np.minimum(np.where(unknown, 0, scores) * self._bins, self._bins - 1).astype(np.int64)
        cells = np.where(unknown, -1, pairs.actual * self._bins + bins)
        self._tally.add(states, cells, pairs.weights, pairs.examples)
        add_alone(states, len(bins), pairs.examples, one_per_example=pairs.one_per_example)

    def compute(self, states: SetStates) -> MetricResult:
        """Return `roc_binned_auc` and `pr_binned_auc`."""
        negatives, positives = self._tally.totals(states)[:, ::-1]
        area, precision = roc_auc(positives, negatives), average_precision(positives, negatives)
        of_area, of_precision = _NO_INTERVAL, _NO_INTERVAL
        if 0 < area < 1 and self._tally.is_counted(states) and are_alone(states):
            weights, counts = np.stack([positives, negatives]), (int(positives.sum()), int(negatives.sum()))
            squares = weights * np.square(_components(area, positives, negatives))
            of_area = _of_variance(area, list(zip(squares, counts, strict=True)), min(counts))
            squares = weights * np.square(_precision_components(precision, positives, negatives))
            of_precision = _of_variance(precision, [(squares.ravel(), sum(counts))], min(counts))
        return MetricResult(
            {
                f"roc_{self.name}": value(area, "max", of_area),
                f"pr_{self.name}": value(precision, "max", of_precision),
            }
        )
