"""Find the metrics of torchmetrics that a task lists, and measure with them. torchmetrics is never imported here."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from sidecar.evaluation.backends.torch.torchmetrics_metric import TorchMetric
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.metrics.metric import MetricResult
from sidecar.evaluation.outputs import Output, join_results, shown
from sidecar.evaluation.states import SetStates, named, within


def is_torchmetric(metric: Any) -> bool:
    """Return whether an object is a metric or a collection of torchmetrics. Nobody has one before the import of it."""
    module = sys.modules.get("torchmetrics")
    return module is not None and isinstance(metric, (module.Metric, module.MetricCollection))


class TorchMetrics:
    """Hold the metrics of torchmetrics of a task.

    Args:
        chosen: The metrics, with their outputs.
        device: Device of their states.

    Raises:
        EvaluationError: Two metrics have the same name, or one cannot be evaluated by several workers.
    """

    def __init__(self, chosen: Sequence[tuple[Output, Any]], device: torch.device) -> None:
        self._metrics: dict[str, TorchMetric] = {}
        for output, metric in chosen:
            for name, of_output, member in _members(output, metric):
                if name in self._metrics:
                    raise EvaluationError(
                        "task_error",
                        f"metrics need different names, found {name!r} again: name them with "
                        f"MetricCollection({{{name!r}: …}})",
                    )
                self._metrics[name] = TorchMetric(name, of_output, member, device)

    def arrays(self, y: Any, predictions: Any, weights: Any) -> list[NDArray[Any]]:
        """Return what one batch adds to the states of all metrics, always in the same order."""
        return [array for metric in self._metrics.values() for array in metric.change(y, predictions, weights)]

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
    def width(self) -> int:
        """Number of arrays that `arrays` returns."""
        return sum(metric.width for metric in self._metrics.values())

    def states(self, shard: Shard) -> SetStates:
        """Return new states of all metrics."""
        states: SetStates = {}
        for name, metric in self._metrics.items():
            states |= named(name, metric.new_states(shard))
        return states

    def add(self, states: SetStates, arrays: list[list[NDArray[Any]]], firsts: Sequence[int | None]) -> None:
        """Add several batches; each item of `arrays` is a list with one array per batch."""
        at = 0
        for name, metric in self._metrics.items():
            metric.add(within(states, name), arrays[at : at + metric.width], firsts)
            at += metric.width

    def compute(self, states: SetStates) -> MetricResult:
        """Return the numbers of all metrics; raises `EvaluationError` if two have the same name."""
        return join_results(
            (name, None, metric.compute(within(states, name))) for name, metric in self._metrics.items()
        )


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
