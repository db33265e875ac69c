"""Find metrics of torchmetrics that take some batches for probabilities and others for logits.

Such a metric applies sigmoid or softmax to a batch only if a value of it is below 0 or above 1, so its number depends
on the batches. torchmetrics is never imported here.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from numpy.typing import NDArray

from sidecar.evaluation.data.batch_source import Division
from sidecar.evaluation.failures import task_error

_CLASSIFICATION: Final = "torchmetrics.classification"
_OF_SCORES: Final = ("thresholds", "n_bins", "squared")
"""Attributes of metrics of several classes that read the scores themselves: areas and curves, calibration, hinge."""

PROBABILITIES: Final = "let Task(step=…) return probabilities, such as torch.sigmoid(model(x)) or model(x).softmax(1)"

Scales = tuple[str, int, int]
"""Name of a metric, and the numbers of batches that it took for probabilities and for logits."""


def takes_both(metric: Any) -> bool:
    """Return whether a metric applies sigmoid or softmax to a batch only if a value of it is below 0 or above 1.

    Classes of which the largest value alone counts are the same with both.
    """
    for name in ("base_metric", "_base_metric"):  # of wrappers
        metric = getattr(metric, name, metric)
    kinds = [kind.__name__ for kind in type(metric).__mro__ if kind.__module__.startswith(_CLASSIFICATION)]
    if any(kind.startswith(("Binary", "Multilabel")) for kind in kinds):
        return True
    return any(kind.startswith("Multiclass") for kind in kinds) and any(hasattr(metric, name) for name in _OF_SCORES)


def scale_of(predicted: Any) -> list[int]:
    """Return 1 and 0 for predictions of a batch that lie from 0 to 1, 0 and 1 for others, and zeros if not floats."""
    if not isinstance(predicted, torch.Tensor) or not predicted.is_floating_point() or not predicted.numel():
        return [0, 0]
    is_within = bool(((predicted >= 0) & (predicted <= 1)).all())
    return [int(is_within), int(not is_within)]


def as_probabilities(metric: Any, predicted: torch.Tensor) -> torch.Tensor:
    """Return predictions of a batch as the metric reads them, so that a part of them is not read in another way."""
    if not takes_both(metric) or scale_of(predicted) != [0, 1]:
        return predicted
    kinds = (kind.__name__ for part in metric.modules() for kind in type(part).__mro__)
    is_of_classes = any(kind.startswith("Multiclass") for kind in kinds)
    return predicted.softmax(1) if is_of_classes else predicted.sigmoid()


def of_two_scales(names: Sequence[str], counts: NDArray[Any]) -> list[Scales]:
    """Return the metrics that took batches in both ways, given two counts for each."""
    named_counts = zip(names, counts.reshape(-1, 2).tolist(), strict=True)
    return [(name, within, beyond) for name, (within, beyond) in named_counts if within and beyond]


def scale_note(found: Scales, remedy: str) -> str:
    """Return a note about a metric for the reader of the result."""
    name, within, beyond = found
    return (
        f"{name} takes a batch for probabilities if all of it is from 0 to 1, as in {within:,} of {within + beyond:,} "
        f"batches, and else for logits, so another batch size gives another number: {remedy}"
    )


def refuse_two_scales(found: list[Scales], eval_set: str, sharding: Division, remedy: str) -> None:
    """Raise `EvaluationError` for such metrics in a set whose batches depend on the number of workers."""
    if found and sharding == "own":
        raise task_error(
            f"eval set {eval_set!r} divides itself, so that its batches depend on the number of workers, and "
            f"{scale_note(found[0], remedy)}"
        )
