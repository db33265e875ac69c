"""Keep the loss of each window in its own place, and turn all of them into loss, perplexities and bits per byte.

The interval of a ratio Σa / Σb over n documents is that of its linearization, ratio ± z sqrt(n / (n - 1) Σ(a - ratio
b)²) / Σb (W. G. Cochran, "Sampling techniques", 3rd edition, 1977, section 2.11). Imports numpy.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from sidecar.evaluation.intervals import Interval, clustered
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, MetricResult, value
from sidecar.evaluation.states import PerExampleValues, SetStates, state_of
from sidecar.lm.token_windows import Documents, Window
from sidecar.protocol.records import Value

_STATE: Final = "losses"


class TextNumbers:
    """Hold the losses of the windows of all documents; implements `sidecar.metrics.Metric`."""

    name = "text"

    def __init__(self, documents: Documents, windows: Sequence[Window]) -> None:
        self._documents, self._windows = documents, windows
        self._predicted = [0] * len(documents.tokens)  # tokens of each document
        for window in windows:
            self._predicted[window.document] += window.end - window.first

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states: 8 bytes for each window on every rank."""
        assert info.examples is not None, "the number of windows is known"
        return {_STATE: PerExampleValues(info.examples)}

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add the windows of one batch."""
        losses = state_of(states, _STATE, PerExampleValues)
        assert batch.first is not None, "the places of windows are known"
        losses.put(batch.first, batch.predictions)

    def compute(self, states: SetStates) -> MetricResult:
        """Return the numbers over all documents, and over those of each slice."""
        losses = state_of(states, _STATE, PerExampleValues)
        by_document: list[list[float]] = [[] for _ in self._documents.tokens]
        for window, loss in zip(self._windows, losses.values().tolist(), strict=True):
            by_document[window.document].append(loss)
        totals = [_sum(each) for each in by_document]
        everything = range(len(totals))
        classes: dict[str, dict[str, Value]] = {}
        for label in sorted(set(self._documents.slices)):
            chosen = [number for number in everything if self._documents.slices[number] == label]
            for name, number in self._numbers(totals, chosen).items():
                classes.setdefault(name, {})[label] = number
        note = f"{len(totals):,} documents with {sum(self._predicted):,} predicted tokens; examples are windows"
        return MetricResult(self._numbers(totals, everything), classes, (note,))

    def _numbers(self, totals: Sequence[float], chosen: Iterable[int]) -> dict[str, Value]:
        """Return the numbers over some documents."""
        numbers = list(chosen)
        losses = [totals[number] for number in numbers]
        loss = _ratio(losses, [self._predicted[number] for number in numbers])
        found = {"loss": _value(loss), "perplexity": _value(loss, _exp)}
        if self._documents.sizes:
            of_bytes = _ratio(losses, [self._documents.sizes[number] for number in numbers])
            of_words = _ratio(losses, [self._documents.words[number] for number in numbers])
            found["bits_per_byte"] = _value(of_bytes, lambda nats: nats / math.log(2))
            found["byte_perplexity"] = _value(of_bytes, _exp)
            found["word_perplexity"] = _value(of_words, _exp)
        return found


def _value(ratio: tuple[float, Interval], function: Callable[[float], float] = float) -> Value:
    number, (lower, upper) = ratio
    interval: Interval = (None, None) if lower is None or upper is None else (function(lower), function(upper))
    if not all(each is None or math.isfinite(each) for each in interval):
        interval = None, None
    return value(function(number), "min", interval)


def _ratio(losses: Sequence[float], sizes: Sequence[int]) -> tuple[float, Interval]:
    """Return Σ losses / Σ sizes, and its 95 % interval over documents."""
    total, size = _sum(losses), sum(sizes)
    if not size:
        return math.nan, (None, None)
    ratio = total / size
    return ratio, clustered(losses, sizes)


def _sum(losses: Sequence[float]) -> float:
    """Return the exact sum, rounded once; numpy's for infinities, which `fsum` refuses if they have two signs."""
    return math.fsum(losses) if all(map(math.isfinite, losses)) else float(np.sum(losses))


def _exp(number: float) -> float:
    try:
        return math.exp(number)
    except OverflowError:
        return math.inf
