"""Update metrics of Keras in turn, outside of the traced step, with the arguments that they get within it.

Within the step their `update_state` only notes its arguments, so a batch can be evaluated several times. Afterwards the
metric is updated once, eagerly and in the order of the data, so it may keep Python lists, and compute new states from
old ones.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.keras_metric import goal_of, named_numbers
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.metrics.in_turn import ResultsInTurn, held_by
from sidecar.evaluation.metrics.metric import MetricResult, value
from sidecar.evaluation.states import SetStates

Calls = dict[str, list[Any]]
"""For each metric the arguments of its updates by one batch: positional, by name, and the masks of all of them."""

MASK: Final = "_keras_mask"
"""The attribute of a tensor in which Keras keeps its mask."""

LATE: Final = "does not add up what it sees from batch to batch"
"""The reason for a metric that looks like a sum on the first batches only."""


class MetricsInTurn:
    """Hold the metrics of one step that are updated in turn."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._labels: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._reset_well: set[str] = set()  # metrics that were seen to forget when they are reset
        self.found: set[str] = set()
        """Metrics that have proved to be no sums in the present evaluation, on this worker."""

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def __contains__(self, name: str) -> bool:
        return name in self._metrics

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield name and metric of each."""
        yield from self._metrics.items()

    def name_of(self, name: str) -> str:
        """Return the name that the metric itself has."""
        return str(self._metrics[name].name)

    def add(self, name: str, metric: Any, label: str, reason: str) -> None:
        """Add a metric. `reason` completes a sentence that begins with its name; empty: the task asks for it."""
        self._metrics[name], self._labels[name], self._reasons[name] = metric, label, reason

    def note(self, name: str, reason: str = "") -> None:
        """Name a metric in the notes that is not updated here: the task wants it in turn, or the reason says why."""
        self._labels[name], self._reasons[name] = f"metric {name!r}", reason

    def reset(self) -> None:
        """Reset all metrics, as at the beginning of an evaluation."""
        for metric in self._metrics.values():
            metric.reset_state()

    @contextmanager
    def noted(self) -> Iterator[Calls]:
        """Let the metrics only note what they are updated with, and yield the notes. This works within a trace."""
        calls: Calls = {name: [] for name in self._metrics}
        with ExitStack() as changed:
            for name, metric in self._metrics.items():
                changed.enter_context(replaced(metric, "update_state", _noting(calls[name])))
                changed.enter_context(replaced(metric, "result", lambda: tf.constant(0.0)))
            yield calls

    def update(self, calls: Calls) -> None:
        """Update the metrics with the notes about one batch.

        Raises `EvaluationError` for a metric whose `reset_state` does not forget the batches before.
        """
        for name, of_metric in calls.items():
            if name not in self._reset_well and of_metric:
                self._require_reset(name, of_metric)
            self._update(name, of_metric)

    def _update(self, name: str, calls: list[Any]) -> None:
        for arguments, named, masks in calls:
            attach_masks(masks, [arguments, named])
            self._metrics[name].update_state(*arguments, **named)

    def _require_reset(self, name: str, calls: list[Any]) -> None:
        """Update a new metric with its first batch, reset it, and compare what it holds with the state before."""
        metric = self._metrics[name]
        before = held_by(metric)
        self._update(name, calls)
        metric.reset_state()
        if kept := [key for key, content in held_by(metric).items() if content != before.get(key)]:
            raise task_error(
                f"{self._labels[name]} keeps {', '.join(map(repr, kept))} when it is reset, so each evaluation would "
                f"count the batches of those before: give it a reset_state() that sets them as __init__ does"
            )
        self._reset_well.add(name)

    def states(self, mergeable: list[str], shard: Any) -> SetStates:
        """Return the empty states, given the names of the other metrics that keep states."""
        return self._in_states(mergeable).states(shard)

    def conclude(self, states: SetStates, mergeable: list[str], *, is_first: bool) -> None:
        """Put the results into the states if this is worker 0, and the metrics of `found` on every worker."""
        in_states = self._in_states(mergeable)
        in_states.add_found(states, self.found)
        if self._metrics and is_first:
            in_states.put(states, {name: self._result(name) for name in self._metrics})

    def results(self, states: SetStates) -> dict[str, MetricResult]:
        """Return the results by metric; nothing before the end of an evaluation."""
        return self._in_states([]).results(states)

    def found_in(self, states: SetStates, mergeable: list[str]) -> list[str]:
        """Return the metrics that have proved to be no sums on any worker."""
        return self._in_states(mergeable).found(states)

    def notes(self, states: SetStates, shown: Mapping[str, str]) -> tuple[str, ...]:
        """Return a note about the metrics in turn, given the names under which people know them."""
        return self._in_states([]).notes(states, shown)

    def why(self) -> str:
        """Return the reason for readers of a message about a set that cannot be evaluated in turn."""
        name = next(iter(self._reasons))
        return f"{self._labels[name]} {self._reasons[name] or 'is in Task(in_turn=…)'}"

    def _in_states(self, mergeable: list[str]) -> ResultsInTurn:
        return ResultsInTurn(self._reasons, mergeable)

    def _result(self, name: str) -> MetricResult:
        metric = self._metrics[name]
        numbers = named_numbers(metric, self._labels[name], metric.result(), str(metric.name))
        metric.reset_state()
        return MetricResult({key: value(number, goal_of(metric)) for key, number in numbers.items()})


def found_late(found: Container[str], name: str) -> str:
    """Return the reason for a metric that proved to be no sum in an earlier evaluation; empty for others."""
    return LATE if name in found else ""


def mask_of(tensor: Any) -> Any:
    """Return the mask that Keras attached to a tensor; `None` without one."""
    return getattr(tensor, MASK, None)


def _noting(calls: list[Any]) -> Callable[..., None]:
    def note(*arguments: Any, **named: Any) -> None:
        given = [list(arguments), named]
        calls.append([*given, tf.nest.map_structure(mask_of, given)])

    return note


def attach_masks(masks: Any, given: Any) -> None:
    """Attach masks of Keras to the tensors of the same structure: neither a trace nor an operation passes them on."""
    for mask, tensor in zip(tf.nest.flatten(masks), tf.nest.flatten(given), strict=True):
        if mask is not None:
            setattr(tensor, MASK, mask)


@contextmanager
def replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """Set an attribute of an object temporarily, bypassing the attribute tracking of Keras."""
    original = owner.__dict__.get(name)  # tf_keras stores wrapped methods in the metric object
    object.__setattr__(owner, name, replacement)
    try:
        yield
    finally:
        if original is None:
            object.__delattr__(owner, name)
        else:
            object.__setattr__(owner, name, original)
