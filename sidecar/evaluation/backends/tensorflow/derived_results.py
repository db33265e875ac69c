"""Compute what a `test_step` makes of the results of metrics, such as the exponential of a mean: once, from the totals.

Such a number is not a state, and its mean over batches is another number. So after the states of all batches have been
added up, they are put into the metrics, and the step runs once more while no metric can be updated. It returns the
number that it would return after the last batch in one process.

That holds only if the number follows from metrics alone. It is tried on several batches, which must not matter, and
with several states of each metric, of which one must.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.data import array_of, examples_in, repacked
from sidecar.evaluation.backends.tensorflow.keras_metric import KerasMetric, named_numbers
from sidecar.evaluation.backends.tensorflow.mergeability import divided, map_tensors, part_of
from sidecar.evaluation.backends.tensorflow.metrics_in_turn import MetricsInTurn, replaced
from sidecar.evaluation.backends.tensorflow.recurrent import RecurrentStates
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.failures import task_error

_States = Mapping[str, Sequence[Any]]
"""The values of the variables of each metric, by its name."""


class DerivedResults:
    """Compute the results of a `test_step` that are not results of metrics.

    `metrics`: those of the compiled model, by a name; some may be put in turn later. `in_turn`: those that are updated
    outside of the step, which have no states here, but a number. `names`: the names of these results. `states`: the
    states of the metrics after the batch `first`. Raises `EvaluationError` if a result depends on the batch, or on no
    metric.
    """

    def __init__(
        self,
        model: Any,
        metrics: Mapping[str, KerasMetric],
        in_turn: MetricsInTurn,
        names: Sequence[str],
        first: Batch,
        states: _States,
    ) -> None:
        self._model, self._metrics, self._in_turn, self._names = model, metrics, in_turn, list(names)
        self._batches: list[Batch] = []
        self.sources: dict[str, set[str]] = {}
        """The names of the metrics from which each result follows."""
        if names:
            self._try_out(first, states)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def _try_out(self, first: Batch, states: _States) -> None:
        alike = _alike_batches(first)
        numbers = dict.fromkeys(self._in_turn, 0.5)
        small = [part for part in alike if examples_in(part) == 1]
        expected = self._run(first, states, numbers)
        accepted: list[Batch] = []
        for batch in alike:
            found = None
            with contextlib.suppress(Exception):  # the step may not take a batch of this size, or of zeros
                found = self._run(batch, states, numbers)
            if found is not None:
                accepted.append(batch)
                self._require_same(expected, found)
        self._batches = [batch for batch in accepted if any(batch is one for one in small)] or accepted or [first]
        self.sources = {name: set() for name in self._names}
        for source in self._metrics:
            for changed in _changed(states[source], self._metrics[source].identity):
                self._note_sources(source, expected, self._run(self._batches[0], {**states, source: changed}, numbers))
        for source in self._in_turn:
            self._note_sources(source, expected, self._run(self._batches[0], states, {**numbers, source: 0.75}))
        if constant := [name for name, sources in self.sources.items() if not sources]:
            raise task_error(_refusal(constant, "does not follow from the metrics of the model"))

    def _note_sources(self, source: str, expected: dict[str, Any], found: dict[str, Any]) -> None:
        for name in self._names:
            if not _is_same(expected[name], found[name]):
                self.sources[name].add(source)

    def _require_same(self, expected: dict[str, Any], found: dict[str, Any]) -> None:
        if other := [name for name in self._names if not _is_same(expected[name], found[name])]:
            raise task_error(_refusal(other, "depends on the batch and not on the metrics of the model alone"))

    def numbers(self, states: _States, in_turn: Mapping[str, float]) -> dict[str, dict[str, float]]:
        """Return the numbers of each result by their names, once for these states of all batches.

        `in_turn`: the numbers of those metrics in turn that have a single one. Raises `EvaluationError` if a result
        follows from another metric in turn.
        """
        if not self._names:
            return {}
        several = {name for name, _ in self._in_turn.items() if name not in in_turn}
        if unknown := [name for name in self._names if self.sources[name] & several]:
            raise task_error(
                f"test_step computes {', '.join(map(repr, unknown))} from a metric that is evaluated in turn and has "
                f"several numbers: let that metric itself return it"
            )
        one, *others = (self._run(batch, states, in_turn) for batch in self._batches)
        for other in others:
            self._require_same(one, other)
        self._batches = self._batches[:1]  # the others have shown that the batch does not matter
        return {name: named_numbers(None, f"test_step's {name!r}", one[name], name) for name in self._names}

    def _run(self, batch: Batch, states: _States, in_turn: Mapping[str, float]) -> dict[str, Any]:
        """Return the results of the step for these states of the metrics, which it cannot update."""
        for name, metric in self._metrics.items():
            metric.reset(states[name])
        before = self._values()
        with self._frozen(in_turn), RecurrentStates(self._model).preserved():
            results = flat(self._model.test_step(repacked(batch)))
        after = self._values()
        for metric in self._metrics.values():
            metric.metric.reset_state()
        if not all(map(_is_same, before, after)):
            raise task_error(_refusal(self._names, "is computed in a step that changes metrics without update_state"))
        return {name: array_of(results[name]) for name in self._names}

    def _values(self) -> list[Any]:
        return [array for metric in self._metrics.values() for array in metric.values()]

    @contextmanager
    def _frozen(self, in_turn: Mapping[str, float]) -> Iterator[None]:
        """Let no metric be updated. Functions are not traced, since a trace would keep the updates."""
        was_eager = tf.config.functions_run_eagerly()
        with ExitStack() as changed:
            for metric in (*(one.metric for one in self._metrics.values()), *(one for _, one in self._in_turn.items())):
                changed.enter_context(replaced(metric, "update_state", _ignore))
            for name, metric in self._in_turn.items():
                changed.enter_context(
                    replaced(metric, "result", lambda name=name: tf.constant(in_turn.get(name, math.nan)))
                )
            changed.callback(tf.config.run_functions_eagerly, was_eager)
            tf.config.run_functions_eagerly(True)
            yield


def flat(results: Any) -> dict[str, Any]:
    """Return results by name with nested dicts flattened, as `evaluate` of Keras does."""
    found: dict[str, Any] = {}
    for name, result in results.items():
        found |= flat(result) if isinstance(result, dict) else {name: result}
    return found


def _ignore(*_: Any, **__: Any) -> None:
    """Update nothing."""


def _is_same(one: Any, other: Any) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool(np.array_equal(one, other, equal_nan=True))


def _changed(states: Sequence[Any], identity: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield other states of one metric than these: results may hide some of the changes."""
    yield list(identity)
    yield [(array + np.ones_like(array)).astype(array.dtype) for array in states]
    steps = [np.arange(1, array.size + 1).reshape(array.shape) for array in states]
    yield [(2 * array + step).astype(array.dtype) for array, step in zip(states, steps, strict=True)]


def _alike_batches(batch: Batch) -> list[Batch]:
    """Return batches with some examples of a batch, or zeros: with one example, and of its size."""
    examples = examples_in(batch)
    places = dict.fromkeys([0, examples - 1])
    single = [map_tensors(partial(part_of, place, 1), batch) for place in places]
    dense = [one for one in single if all(isinstance(tensor, tf.Tensor | None) for tensor in tf.nest.flatten(one))]
    same = [map_tensors(lambda tensor: tf.concat([tensor] * examples, 0), one) for one in dense]
    zeros = [map_tensors(tf.zeros_like, one) for one in dense[:1]]
    return [*single, *same, *divided(batch)[1:], *zeros, *(map_tensors(tf.zeros_like, one) for one in same[:1])]


def _refusal(names: Sequence[str], reason: str) -> str:
    return (
        f"test_step returns {', '.join(map(repr, names))}, which {reason}, so it cannot be computed over batches: keep "
        f"the sums and counts that it is made of in metrics that are attributes of the model (keras.metrics.Metric "
        f"with update_state), and return what follows from their result()"
    )
