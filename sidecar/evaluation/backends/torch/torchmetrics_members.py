"""Find the metrics of torchmetrics that a task lists, and measure with them. torchmetrics is never imported here."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.backends.torch.tensors import to_numpy
from sidecar.evaluation.backends.torch.torchmetrics_metric import TorchMetric
from sidecar.evaluation.backends.torch.torchmetrics_scales import as_probabilities, scale_of, takes_both
from sidecar.evaluation.failures import CannotBeMergedError, task_error
from sidecar.evaluation.metrics import sliced
from sidecar.evaluation.metrics.example_sample import (
    MOST_BYTES_OF_ROW,
    Numbers,
    add_to_sample,
    has_sample,
    new_sample,
    require_fast,
    with_intervals,
)
from sidecar.evaluation.metrics.in_turn import ResultsInTurn
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult
from sidecar.evaluation.outputs import Output, join_results, pick, shown
from sidecar.evaluation.states import SetStates, named, within


def is_torchmetric(metric: Any) -> bool:
    """Return whether an object is a metric or a collection of torchmetrics. Nobody has one before the import of it."""
    module = sys.modules.get("torchmetrics")
    return module is not None and isinstance(metric, (module.Metric, module.MetricCollection))


class TorchMetrics:
    """Hold the metrics of torchmetrics of a task.

    Raises:
        EvaluationError: Two metrics have the same name, or one cannot be evaluated by several workers.
    """

    def __init__(
        self,
        chosen: Sequence[tuple[Output, Any]],  # the metrics, with their outputs
        device: torch.device,  # device of their states
        wanted: Callable[[str], bool] = lambda _: False,  # whether the task wants the metric of this name in turn
    ) -> None:
        self._found: set[str] = set()  # metrics whose states proved, on this rank, to be no sums
        self._metrics: dict[str, TorchMetric] = {}
        for output, metric in chosen:
            for name, of_output, member in _members(output, metric):
                if name in self._metrics:
                    raise task_error(
                        f"metrics need different names, found {name!r} again: name them with "
                        f"MetricCollection({{{name!r}: …}})"
                    )
                self._metrics[name] = TorchMetric(name, of_output, member, device)
                if wanted(name):
                    self._metrics[name].put_in_turn("")
        self._outputs = list(dict.fromkeys(metric.output for metric in self._metrics.values()))
        self.most_bytes: dict[Output, float] = {}
        """The most bytes of the rows that `arrays` returns, by output; it returns none of the other outputs."""
        self._began = time.monotonic()

    @property
    def reasons(self) -> dict[str, str]:
        """For each metric that is updated in turn, the reason; empty if the task asks for it."""
        return {name: metric.reason for name, metric in self._metrics.items() if metric.reason is not None}

    def begin(self) -> None:
        """Prepare an evaluation."""
        self._found, self._began = set(), time.monotonic()
        for name in self.reasons:
            self._metrics[name].begin()

    def inputs(self, y: Any, predictions: Any) -> dict[str, tuple[Any, Any]]:
        """Return what one batch adds to the metrics in turn: labels and predictions of each."""
        return {name: self._metrics[name].inputs(y, predictions) for name in self.reasons}

    def update_in_turn(self, inputs: Mapping[str, tuple[Any, Any]], seed: Callable[[], None]) -> None:
        """Update the metrics in turn with one batch. `seed` seeds the generators for metrics that draw."""
        for name, (y, predictions) in inputs.items():
            self._metrics[name].update_in_turn(y, predictions, seed)

    def conclude(self, states: SetStates, *, is_first: bool) -> None:
        """Put the results of the metrics in turn into the states if this is worker 0, and what was found."""
        results = self._results()
        self.add_found(states)
        if self.reasons and is_first:
            results.put(states, {name: self._metrics[name].compute(None) for name in self.reasons})
        for output in self._outputs:
            require_fast(within(states, _sample(output)), self._of_sample(output), time.monotonic() - self._began)

    def add_found(self, states: SetStates) -> None:
        """Add the metrics that have proved, on this rank, to be no sums."""
        self._results().add_found(states, self._found)

    def _of_sample(self, output: Output) -> dict[str, Numbers]:
        """Return the metrics of an output whose numbers may have intervals from a sample of the examples."""
        found = {name: one for name, one in self._metrics.items() if one.output == output and one.may_have_interval}
        return {name: metric.numbers_of for name, metric in found.items()}

    def begins_again(self, of_sets: Sequence[SetStates]) -> bool:
        """Put metrics in turn whose states of all batches of a set cannot be merged; return whether there are any."""
        found: set[str] = set()
        for states in of_sets:
            found.update(self._results().found(states))
            for name, metric in self._metrics.items():
                if metric.reason is None and name not in found:
                    try:
                        metric.load(within(states, name))
                    except CannotBeMergedError:
                        found.add(name)
        for name in found:
            self._metrics[name].put_in_turn("has states that cannot be merged for some batches")
        return bool(found)

    def _results(self) -> ResultsInTurn:
        reasons = self.reasons
        return ResultsInTurn(reasons, [name for name in self._metrics if name not in reasons])

    def arrays(self, y: Any, predictions: Any, weights: Any, examples: int) -> list[NDArray[Any]]:
        """Return what one batch of so many examples adds to the states of all metrics, always in the same order.

        The last ones are labels and predictions of each output for which `states` has a sample or slices.
        """
        arrays = [array for metric in self._metrics.values() for array in metric.change(y, predictions, weights)]
        for output in self._outputs:
            parts = (y, predictions) if output is None else (pick(y, output), pick(predictions, output))
            arrays += [_rows_of(part, examples, self.most_bytes.get(output, 0)) for part in parts]
        return arrays

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all metrics."""
        return tuple(self._metrics)

    def differing(self, whole: list[NDArray[Any]], halves: Sequence[list[NDArray[Any]]], tolerance: float) -> set[str]:
        """Return the names of metrics whose numbers for a batch are not those for its halves, merged."""
        found, at = set(), 0
        for name, metric in self._metrics.items():
            own = slice(at, at := at + metric.width)
            if metric.differs(whole[own], [half[own] for half in halves], tolerance):
                found.add(name)
        return found

    @property
    def taking_both(self) -> tuple[str, ...]:
        """Names of the metrics that take a batch for probabilities if all of it is from 0 to 1, else for logits."""
        return tuple(name for name, metric in self._metrics.items() if takes_both(metric.metric))

    def within_0_and_1(self, y: Any, predictions: Any) -> list[int]:
        """Return two numbers for each of `taking_both`: 1 and 0 if a batch lies from 0 to 1, 0 and 1 otherwise."""
        counts: list[int] = []
        for name in self.taking_both:
            _, predicted = self._metrics[name].inputs(y, predictions)
            counts += scale_of(predicted)
        return counts

    @property
    def width(self) -> int:
        """Number of arrays that `arrays` returns."""
        return sum(metric.width for metric in self._metrics.values()) + 2 * len(self._outputs)

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states of all metrics, and of a sample of the examples."""
        states, self.most_bytes = self._results().states(info.shard), {}
        for output in self._outputs:
            if sample := new_sample(info, list(self._of_sample(output))):
                states |= named(_sample(output), sample)
                self.most_bytes[output] = MOST_BYTES_OF_ROW
        for name, metric in self._metrics.items():
            states |= named(name, metric.new_states(info.shard))
            if metric.reason is None and (by_slice := sliced.states_by_slice(partial(_new_states, metric), info)):
                states |= named(name, by_slice)
                self.most_bytes[metric.output] = math.inf
        return states

    def add(self, states: SetStates, arrays: list[list[NDArray[Any]]], firsts: Sequence[int | None]) -> None:
        """Add several batches; each item of `arrays` is a list with one array per batch."""
        at = 0
        for name, metric in self._metrics.items():
            try:
                metric.add(within(states, name), arrays[at : at + metric.width], firsts)
            except CannotBeMergedError:
                self._found.add(name)
            at += metric.width
        for place, output in enumerate(self._outputs):
            ys, predicted = arrays[at + 2 * place :][:2]
            own = within(states, _sample(output))
            for y, predictions, first in zip(ys, predicted, firsts, strict=True) if has_sample(own) else ():
                if len(y) == len(predictions):
                    add_to_sample(own, first, [y, predictions])
            for name, metric in self._metrics.items():
                if metric.output == output and f"{name}/{sliced.BY_SLICE}" in states:
                    _add_slices(metric, within(states, name), ys, predicted, firsts)

    def compute(self, states: SetStates) -> MetricResult:
        """Return the numbers of all metrics; raises `EvaluationError` if two have the same name."""
        results = self._results()
        in_turn = results.results(states)
        joined = join_results(
            (name, None, in_turn[name] if name in in_turn else self._computed(metric, states))
            for name, metric in self._metrics.items()
            if metric.reason is None or name in in_turn
        )
        return replace(joined, notes=(*joined.notes, *results.notes(states)))

    def _computed(self, metric: TorchMetric, states: SetStates) -> MetricResult:
        own = within(states, metric.name)
        result = sliced.with_slices(metric.compute(own), own, metric.compute)
        of_sample = within(states, _sample(metric.output))
        numbers_of = self._of_sample(metric.output)
        return with_intervals(result, of_sample, numbers_of, metric.name, is_area=metric.is_area)


def _new_states(metric: TorchMetric, info: EvalSetInfo) -> SetStates:
    return metric.new_states(info.shard)


def _add_slices(
    metric: TorchMetric,
    states: SetStates,
    ys: Sequence[NDArray[Any]],
    predicted: Sequence[NDArray[Any]],
    firsts: Sequence[int | None],
) -> None:
    """Add the examples of each slice of batches: of all at once to a metric that counts, which gives the same bits."""
    if not all(len(y) == len(predictions) > 0 for y, predictions in zip(ys, predicted, strict=True)):
        raise TaskError(
            f"metric {metric.name!r}: slices are for labels and predictions that are each one tensor with a row for "
            f"each example: leave Task(slices=…) out, or list the metric in a set without slices"
        )
    read = [as_probabilities(metric.metric, torch.from_numpy(one)).numpy() for one in predicted]
    places = [sliced.joined_places([first], [len(y)]) for y, first in zip(ys, firsts, strict=True)]
    batches = list(zip(ys, read, places, strict=True))
    if metric.counts and len({(y.dtype, y.shape[1:], one.dtype, one.shape[1:]) for y, one, _ in batches}) == 1:
        batches = [(np.concatenate(ys), np.concatenate(read), np.concatenate(places))]
    for y, predictions, of_batch in batches:
        for of_slice, chosen in sliced.slices_of(states, of_batch):
            metric.add_part(of_slice, y[chosen], predictions[chosen])


def _sample(output: Output) -> str:
    """Return the name of the states of the sample of an output."""
    return f"sample of {shown(output, 'examples')}"


def _rows_of(part: Any, examples: int, most_bytes: float) -> NDArray[Any]:
    """Return a tensor with a row for each example as an array; an empty one for anything else, and for large rows."""
    is_plain = isinstance(part, torch.Tensor) and part.ndim and len(part) == examples and not part.is_complex()
    if not is_plain or part.numel() * part.element_size() > examples * most_bytes:
        return np.zeros(0)
    return np.array(to_numpy(part))


def _members(output: Output, metric: Any) -> Iterator[tuple[str, Output, Any]]:
    """Yield the metrics in a collection or in a wrapper of several tasks, as (name, output, metric)."""
    library = sys.modules["torchmetrics"]
    if isinstance(metric, library.MetricCollection):
        for name, member in metric.items():
            yield shown(output, str(name)), output, member
    elif isinstance(metric, library.wrappers.MultitaskWrapper) and output is None:
        for task, name in zip(metric.keys(flatten=False), metric.task_metrics, strict=True):
            member = metric.task_metrics[name]
            if isinstance(member, library.MetricCollection):
                for sub, one in member.items():
                    yield f"{task}_{sub}", name, one
            else:
                yield str(task), name, member
    else:
        yield shown(output, type(metric).__name__.lower()), output, metric
