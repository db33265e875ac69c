"""Check that a metric is additive: the sum of the changes by single batches equals its states after these batches.

For this check, some batches are evaluated a second time, in order, each from the states after the one before. The same
traced step does that, so nothing is traced again. These batches are replayed:

- those whose numbers are powers of two, and 0;
- any batch that changes a state which fewer than three replayed batches have changed. For example, a maximum does not
  change with every batch. The first batch that changes a state is replayed twice.

These are log2 n of n batches, and at most four more for each state. Later evaluations replay batches only for states
that had not changed three times by the end of the first one.

Four of the replayed batches are also evaluated by halves, unless the model accepts whole batches only. That detects
metrics that depend on the division into batches, such as a mean of batch means.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from sidecar.evaluation.backends.tensorflow.batch_means import BatchMeans
from sidecar.evaluation.backends.tensorflow.data import examples_in
from sidecar.evaluation.backends.tensorflow.keras_metric import KerasMetric
from sidecar.evaluation.backends.tensorflow.mergeability import SIZE_ERRORS, divided
from sidecar.evaluation.failures import CannotBeMergedError

_ENOUGH: Final = 3
"""Number of replayed batches that must change a state before its check is complete."""

_DIVIDED: Final = 4
"""Number of batches that are evaluated by halves. The halves of a single batch could be equal by chance."""

Changes = dict[str, list[Any]]
"""The states of each metric, by its name, after one or several batches."""


class Replay:
    """Replay batches, and compare the states of metrics after them with the sum of the single changes.

    Args:
        metrics: The metrics by name, as in `Changes`.
        tolerance: The largest difference between the states after a batch and after its halves, see
            `rounding.is_near`.
        by_batch: Collects the name of each metric that depends on the division into batches.
        divides: Whether batches are also evaluated by halves.
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

    def add(self, batch: Any, changes: Changes, run: Callable[[Any, Changes | None], Changes]) -> None:
        """Replay one batch, if it is one of those that the check needs.

        Args:
            batch: The batch, as `mergeability.divided` takes it.
            changes: The states of the metrics after this batch alone.
            run: Evaluates a batch from the given states, and returns the states after it. None: from their identity.
        """
        if not self._metrics or not self._is_needed(changes):
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
        except SIZE_ERRORS:  # the model accepts whole batches only
            self._by_batch.add_unknown()
            return
        for name, metric in self._metrics.items():
            if metric.depends_on_batches(after[name], (first[name], second[name]), self._tolerance):
                self._by_batch.add(name)

    def finish(self) -> set[str]:
        """Return the names of the metrics whose states differ from the sum of their changes."""
        found = set()
        if self._in_turn is not None:
            for name, metric in self._metrics.items():
                try:
                    metric.require_additive(self._in_turn[name], [changes[name] for changes in self._changes])
                except CannotBeMergedError:
                    found.add(name)
        self._in_turn, self._changes = None, []
        self._is_over = True
        return found

    def _is_needed(self, changes: Changes) -> bool:
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
