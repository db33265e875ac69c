"""Check that changes, added up batch by batch, give what a metric keeps that gets the same batches one by one.

A few batches are evaluated once more for this, from the states that the batches before them left behind: in the traced
step itself, so that nothing is traced anew. They are those whose numbers are powers of two, and any batch that changes
a state which few of these changed: a largest value says nothing of itself before there is one. A batch that is the
first to change a state comes twice. That is log2 n batches of n, and at most four more for each state; in the first
evaluation alone, unless a state had not changed so often by its end. Four of these batches are evaluated by halves as
well, unless the model takes whole ones only: a number that depends on the batches, such as a mean of batch means, is
found by that.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from sidecar.evaluation.backends.tensorflow.batch_means import BatchMeans
from sidecar.evaluation.backends.tensorflow.data import examples_in
from sidecar.evaluation.backends.tensorflow.keras_metric import KerasMetric
from sidecar.evaluation.backends.tensorflow.mergeability import OF_SIZE, divided

_ENOUGH: Final = 3
"""Batches that change a state, before nothing more is expected of it."""

_DIVIDED: Final = 4
"""Batches that are evaluated by halves; in one alone the halves may be alike by chance."""

Changes = dict[str, list[Any]]
"""Of each metric the states after one batch, or several."""


class Replay:
    """The states of some metrics after batches in turn, and what they should be.

    Args:
        metrics: By name, as in `Changes`.
        tolerance: How far the states after a batch may be from those of its halves, see `rounding.is_near`.
        by_batch: Is told the name of each metric that depends on the batches.
        divides: Whether batches are evaluated by halves as well.
    """

    def __init__(
        self, metrics: Mapping[str, KerasMetric], tolerance: float, by_batch: BatchMeans, *, divides: bool
    ) -> None:
        self._metrics, self._tolerance, self._by_batch = metrics, tolerance, by_batch
        self._seen = 0
        self._divided = 0 if divides else _DIVIDED
        self._changed = {name: [0] * len(metric.identity) for name, metric in metrics.items()}
        self._in_turn: Changes | None = None
        self._changes: list[Changes] = []
        self._is_over = False

    def look(self, batch: Any, changes: Changes, run: Callable[[Any, Changes | None], Changes]) -> None:
        """Look at one batch.

        Args:
            batch: As `probe.divided` takes it.
            changes: From the identity to the states after it alone.
            run: Evaluates a batch from the states given, None: identity.
        """
        if not self._metrics or not self._is_wanted(changes):
            return
        times = 1
        for name, arrays in changes.items():
            for index, array in enumerate(arrays):
                if self._has_changed(name, index, array):
                    times = 2 if self._changed[name][index] == 0 else times
                    self._changed[name][index] += 1
        for _ in range(times):
            self._in_turn = run(batch, self._in_turn)
            self._changes.append(changes)
        if self._divided < _DIVIDED:
            self._divided += 1
            self._divide(batch, changes, run)

    def _divide(self, batch: Any, changes: Changes, run: Callable[[Any, Changes | None], Changes]) -> None:
        whole, *halves = divided(batch)
        try:
            after = changes if examples_in(batch) > 1 else run(whole, None)
            first, second = (run(half, None) for half in halves)
        except OF_SIZE:  # whole batches went well
            self._by_batch.add_unknown()
            return
        for name, metric in self._metrics.items():
            if metric.depends_on_batches(after[name], (first[name], second[name]), self._tolerance):
                self._by_batch.add(name)

    def finish(self) -> None:
        """Raise `EvaluationError` for a metric whose states are not what its changes add up to."""
        if self._in_turn is not None:
            for name, metric in self._metrics.items():
                metric.require_additive(self._in_turn[name], [each[name] for each in self._changes])
        self._in_turn, self._changes = None, []
        self._is_over = True

    def _is_wanted(self, changes: Changes) -> bool:
        number, self._seen = self._seen, self._seen + 1
        if not self._is_over and number & (number - 1) == 0:  # 0 and powers of two
            return True
        return any(
            self._changed[name][index] < _ENOUGH and self._has_changed(name, index, array)
            for name, arrays in changes.items()
            for index, array in enumerate(arrays)
        )

    def _has_changed(self, name: str, index: int, array: Any) -> bool:
        return bool(np.any(array != self._metrics[name].identity[index]))
