"""Check that a metric is additive: the sum of the changes by single batches equals its states after these batches.

For this check, some batches are evaluated a second time, in order, each from the states after the one before. The same
traced step does that, so nothing is traced again. These batches are replayed:

- those whose numbers are powers of two, and 0;
- any batch that changes a state which fewer than three replayed batches have changed. For example, a maximum does not
  change with every batch. The first batch that changes a state is replayed twice.

These are log2 n of n batches, and at most four more for each state. Later evaluations replay batches only for states
that had not changed three times by the end of the first one.

A metric may stop adding late, such as a counter with a limit or an accuracy over the first examples. So the first batch
of the set is evaluated again at the end, from states as many batches would leave them: see `not_sums_to_end`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from sidecar.evaluation.backends.tensorflow.data import examples_in
from sidecar.evaluation.backends.tensorflow.keras_metric import KerasMetric
from sidecar.evaluation.failures import CannotBeMergedError
from sidecar.evaluation.states import SetStates, within

_CHANGES_CHECKED: Final = 3
"""Number of replayed batches that must change a state before its check is complete."""

Changes = dict[str, list[Any]]
"""The states of each metric, by its name, after one or several batches."""


class Replay:
    """Replay batches, and compare the states of metrics after them with the sum of the single changes."""

    def __init__(self, metrics: Mapping[str, KerasMetric]) -> None:
        self._metrics = metrics
        self._seen = 0
        self._changed = {name: [0] * len(metric.identity) for name, metric in metrics.items()}
        self._replayed: Changes | None = None
        self._changes: list[Changes] = []
        self._is_over = False

    def add(
        self, batch: Any, changes_by_batch: Callable[[], Changes], run: Callable[[Any, Changes | None], Changes]
    ) -> None:
        """Replay one batch, if it is one of those that the check needs.

        `changes_by_batch` returns the states of the metrics after this batch alone. `run` evaluates a batch from the
        given states, and returns the states after it; None: from their identity.
        """
        number, self._seen = self._seen, self._seen + 1
        is_chosen = not self._is_over and number & (number - 1) == 0  # 0 and powers of two
        if not self._metrics or not (is_chosen or self._is_open):
            return
        changes = changes_by_batch()
        if not is_chosen and not self._changes_a_rare_state(changes):
            return
        times = 1
        for name, arrays in changes.items():
            for index, array in enumerate(arrays):
                if self._has_changed(name, index, array):
                    times = 2 if self._changed[name][index] == 0 else times
                    self._changed[name][index] += 1
        for _ in range(times):
            self._replayed = run(batch, self._replayed)
            self._changes.append(changes)

    def finish(self) -> set[str]:
        """Return the names of the metrics whose states differ from the sum of their changes."""
        found = set()
        if self._replayed is not None:
            for name, metric in self._metrics.items():
                try:
                    metric.require_additive(self._replayed[name], [changes[name] for changes in self._changes])
                except CannotBeMergedError:
                    found.add(name)
        self._replayed, self._changes = None, []
        self._is_over = True
        return found

    @property
    def _is_open(self) -> bool:
        """Return whether a state has changed less often than the check needs."""
        return any(count < _CHANGES_CHECKED for counts in self._changed.values() for count in counts)

    def _changes_a_rare_state(self, changes: Changes) -> bool:
        return any(
            self._changed[name][index] < _CHANGES_CHECKED and self._has_changed(name, index, array)
            for name, arrays in changes.items()
            for index, array in enumerate(arrays)
        )

    def _has_changed(self, name: str, index: int, array: Any) -> bool:
        return bool(np.any(array != self._metrics[name].identity[index]))


def not_sums_to_end(
    metrics: Mapping[str, KerasMetric],  # the metrics by name, as in `totals`
    totals: SetStates,  # the states over all batches of all ranks
    batch: Any,  # the first batch of the set
    examples: int,  # the number of examples in the set
    run: Callable[[Any, Changes | None], Changes],  # evaluates a batch, see `Replay.add`
) -> set[str]:
    """Return the names of the metrics that stop adding up before the end of the set.

    The first batch is evaluated from the states that it would leave behind if it came 1, 2, 4, … times, up to the
    number of examples of the set. Then it is evaluated from the states after all other batches, and must lead to the
    totals. Batch and totals are the same on all ranks and for any number of them, so all ranks decide alike.
    """
    change, size = run(batch, None), examples_in(batch)
    found = set()
    for start in _starts(metrics, totals, change, times=examples // size):
        after = run(batch, start)
        for name, metric in metrics.items():
            try:
                metric.require_additive(after[name], [start[name], change[name]], additions=size)
            except CannotBeMergedError:
                found.add(name)
    return found


def _starts(metrics: Mapping[str, KerasMetric], totals: SetStates, change: Changes, *, times: int) -> Iterator[Changes]:
    """Yield the states from which the first batch is evaluated; it comes at most `times` times."""
    repetitions = 1
    while repetitions < times:
        yield {name: metric.repeated(repetitions, change[name]) for name, metric in metrics.items()}
        repetitions *= 2
    if times:
        yield {name: metric.without(within(totals, name), change[name]) for name, metric in metrics.items()}
