"""Count pairs of actual and predicted class, and derive precision, recall and F1. Imports numpy only."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.metrics.clusters import add_alone, alone_states, are_alone
from sidecar.evaluation.metrics.confusion_intervals import Intervals
from sidecar.evaluation.metrics.decisions import decisions
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, MetricResult, value
from sidecar.evaluation.metrics.pairs import Labels, check_labels
from sidecar.evaluation.metrics.tally import Tally
from sidecar.evaluation.states import SetStates
from sidecar.protocol.records import Value
from sidecar.system.plain_text import shortened

_BINARY_CLASSES: Final = 2
_MOST_CLASSES: Final = 25_000  # 20 GB of states

Floats = NDArray[np.float64]


class ConfusionMatrix:
    """Sum weights by (actual, predicted) class; compute precision, recall and F1 of each class, and averages.

    The averages are those of scikit-learn's `precision_recall_fscore_support` with all classes as its `labels`: macro
    (each class alike), micro (all weight together), weighted (by the actual weight of each class). A class without any
    label counts in macro. Among equal scores the first class wins. A NaN among the scores of a position that counts
    makes all numbers NaN, and so does a total weight of 0. Numbers of independent examples without weights have
    intervals; averages over classes only if each class has 20 labels and 20 predictions.

    Args:
        classes: Number of classes, or the names of the classes. The states of n classes take 32·n² bytes on every
            rank, or 90·n² if some weights are not whole numbers.
        labels: See `Accuracy`; "binary" needs 2 classes.
        threshold: See `Accuracy`.
        zero_division: Result of 0 / 0, such as the precision of a class that was never predicted: 0, 1 or NaN. A NaN
            is left out of macro and weighted averages.
        name: Prefix of the numbers: `<name>_precision_macro`, …; without a name `precision_macro`, ….
    """

    def __init__(
        self,
        classes: int | Sequence[str],
        labels: Labels = "index",
        *,
        threshold: float | None = None,
        zero_division: float = 0.0,
        name: str | None = None,
    ) -> None:
        self.name = "confusion_matrix" if name is None else name
        self._prefix = "" if name is None else f"{name}_"
        check_labels(self.name, labels)
        self._classes = _names(self.name, classes)
        if len(self._classes) > _MOST_CLASSES:
            raise TaskError(
                f"metric {self.name!r}: a matrix of {len(self._classes)} classes takes "
                f"{32 * len(self._classes) ** 2 / 1e9:.0f} GB on every worker, and {_MOST_CLASSES} are the most: "
                f"use Accuracy and TopK, or map the labels to fewer classes"
            )
        if labels == "binary" and len(self._classes) != _BINARY_CLASSES:
            raise TaskError(f"metric {self.name!r}: labels='binary' needs 2 classes, found {len(self._classes)}")
        if not (zero_division in (0, 1) or math.isnan(zero_division)):
            raise TaskError(f"metric {self.name!r}: zero_division={zero_division!r} must be 0, 1 or NaN")
        self._labels, self._threshold, self._zero_division = labels, threshold, zero_division
        self._tally = Tally((len(self._classes), len(self._classes)))

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states; `counts` and `weights` are the matrix, a row for each actual class."""
        return self._tally.states() | alone_states(info)

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch. Raises `TaskError` if labels, shapes or the number of classes do not match."""
        decided = decisions(self.name, batch, self._labels, self._threshold)
        if decided.classes != len(self._classes):
            raise TaskError(
                f"metric {self.name!r}: predictions have {decided.classes} classes, but the metric was made "
                f"for {len(self._classes)}: write ConfusionMatrix({decided.classes})"
            )
        cells = np.where(decided.predicted < 0, -1, decided.actual * decided.classes + decided.predicted)
        pairs = decided.pairs
        self._tally.add(states, cells, pairs.weights, pairs.examples)
        add_alone(states, len(cells), pairs.examples, one_per_example=pairs.one_per_example)

    def compute(self, states: SetStates) -> MetricResult:
        """Return `precision`, `recall` and `f1` of each class, and their `_macro`, `_micro` and `_weighted` means."""
        matrix = self._tally.totals(states)
        right, predicted, actual = np.diagonal(matrix), matrix.sum(axis=0), matrix.sum(axis=1)
        if not matrix.any():
            right = np.full(len(matrix), math.nan)
        numbers: dict[str, Value] = {}
        by_class: dict[str, Mapping[str, Value]] = {}
        intervals = Intervals.of(matrix, are_independent=self._tally.is_counted(states) and are_alone(states))
        for name, above, below in _ratios(right, predicted, actual):
            key = f"{self._prefix}{name}"
            ratios = self._divide(above, below)
            by_class[key] = {
                name_of_class: value(float(ratio), "max", interval)
                for name_of_class, ratio, interval in zip(self._classes, ratios, intervals.by_class(name), strict=True)
            }
            numbers[f"{key}_macro"] = value(_average(ratios, np.ones(len(ratios))), "max", intervals.macro(name))
            micro = float(self._divide(above.sum(), below.sum()))
            numbers[f"{key}_micro"] = value(micro, "max", intervals.micro())
            numbers[f"{key}_weighted"] = value(_average(ratios, actual), "max", intervals.weighted(name))
        return MetricResult(numbers, by_class)

    def _divide(self, above: Floats, below: Floats) -> Floats:
        with np.errstate(all="ignore"):
            ratios: Floats = np.where((below == 0) & ~np.isnan(above), self._zero_division, above / below)
        return ratios


def _ratios(right: Floats, predicted: Floats, actual: Floats) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield name, numerator and denominator of each ratio.

    Source: C. J. van Rijsbergen, "Information Retrieval", 1979, chapter 7.
    """
    yield "precision", right, predicted
    yield "recall", right, actual
    yield "f1", 2 * right, predicted + actual


def _average(numbers: Floats, weights: Floats) -> float:
    """Return the weighted mean of the numbers that are not NaN."""
    defined = ~np.isnan(numbers)
    total = math.fsum(weights[defined].tolist())
    return math.fsum((numbers[defined] * weights[defined]).tolist()) / total if total else math.nan


def _names(metric: str, classes: int | Sequence[str]) -> list[str]:
    if isinstance(classes, int) and not isinstance(classes, bool) and classes >= _BINARY_CLASSES:
        return [str(number) for number in range(classes)]
    if isinstance(classes, Sequence) and not isinstance(classes, str):
        names = [name for name in classes if isinstance(name, str)]
        if len(set(names)) == len(classes) >= _BINARY_CLASSES:
            return names
    raise TaskError(
        f"metric {metric!r}: classes must be a number from 2, or different names, found {shortened(classes)}"
    )
