"""Match labels, predictions and metrics by output: a model with several outputs has metrics for each."""

from collections.abc import Iterable, Mapping
from typing import Any

from sidecar.evaluation.failures import task_error
from sidecar.evaluation.metrics.metric import MetricResult
from sidecar.protocol.records import Value

Output = str | int | None
"""The key of an output in a dict, its index in a list, or None for the only output."""


def by_output(given: Any) -> dict[Output, Any]:
    """Return the given values by output; a value that is not a dict belongs to the only output."""
    return dict(given) if isinstance(given, Mapping) else {None: given}


def shown(output: Output, name: str) -> str:
    """Return the name of an output's number, as Keras writes it: `digit_accuracy`."""
    return name if output is None else f"{output}_{name}"


def pick(structure: Any, output: Output) -> Any:
    """Return the part of labels or predictions that belongs to an output; raises `EvaluationError` if there is none."""
    several = isinstance(structure, Mapping | list | tuple)
    if isinstance(structure, tuple) and isinstance(output, str) and output in getattr(structure, "_fields", ()):
        return getattr(structure, output)
    if output is None and not several:
        return structure
    keys = list(structure) if isinstance(structure, Mapping) else list(range(len(structure))) if several else []
    if output is None and not keys:
        raise task_error("labels or predictions are empty: return one array, or several by name")
    if output is None:
        raise task_error(
            f"labels or predictions have the parts {keys}: give metrics and loss for each, such as {{{keys[0]!r}: …}}, "
            f"or let one part be returned, such as the one of [{keys[0]!r}]"
        )
    if output not in keys:
        line = ""
        if not keys:
            line = ", and a dict names outputs: write a list, such as metrics=lambda: [metric] and loss=criterion"
        elif keys[0] == 0 and not isinstance(output, int):
            line = ", as those of a list: use these numbers, such as {0: …}"
        raise task_error(f"labels or predictions have no part {output!r}: they have {keys or 'one'}{line}")
    return structure[output]


def pick_weights(weights: Any, output: Output) -> Any:
    """Return the weights of an output: its own weights, or the common weights of all outputs."""
    if weights is None or not isinstance(weights, Mapping | list | tuple):
        return weights
    return pick(weights, output)


def join_results(results: Iterable[tuple[str, Output, MetricResult]]) -> MetricResult:
    """Join the results of metrics, which are given as (name of the metric, output, result).

    Raises `EvaluationError` if two metrics give a number the same name.
    """
    values: dict[str, Value] = {}
    classes: dict[str, Mapping[str, Value]] = {}
    slices: dict[str, dict[str, Value]] = {}
    notes: tuple[str, ...] = ()
    for name, output, result in results:
        notes += result.notes
        for key, number in result.values.items():
            if shown(output, key) in values:
                raise task_error(f"metric {name!r}: another metric has a number {key!r}, too")
            values[shown(output, key)] = number
        classes |= {shown(output, key): numbers for key, numbers in result.classes.items()}
        for slice_name, numbers in result.slices.items():
            slices.setdefault(slice_name, {}).update({shown(output, key): number for key, number in numbers.items()})
    return MetricResult(values, classes, notes, slices)
