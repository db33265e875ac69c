"""Compute a loss of PyTorch over all examples, from the losses of single items instead of the means of batches.

The number is the one that the criterion itself returns for the whole eval set as one batch. So it is divided by what
torch divides by: the sum of class weights for `CrossEntropyLoss(weight=…)`, and only positions that are not ignored
count. The order of arguments is that of torch: (predictions, y).
"""

import copy
import inspect
import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from sidecar.evaluation.backends.torch.tensors import to_numpy
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.metrics.average import Average
from sidecar.evaluation.metrics.metric import MetricResult, value
from sidecar.evaluation.metrics.positions import counting
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum
from sidecar.evaluation.task import call

_BY_CLASS: Final = (nn.CrossEntropyLoss, nn.NLLLoss)
_AS_MODULES: Final[dict[Any, Callable[..., nn.Module]]] = {
    functional.cross_entropy: nn.CrossEntropyLoss,
    functional.nll_loss: nn.NLLLoss,
    functional.kl_div: nn.KLDivLoss,
}


class TorchLoss:
    """Compute Σ w·l / Σ w over the items of all batches; an item is an example, a position or an element.

    Args:
        loss: `Task.loss`: a module such as `nn.CrossEntropyLoss()`, a function of `torch.nn.functional`, or a function
            of (predictions, y) that returns one value for each example or position.
        device: The device of the model.
    """

    def __init__(self, loss: Any, device: torch.device) -> None:
        self._single, reduction = _unreduced(loss)
        if isinstance(self._single, nn.Module):
            self._single.to(device)  # it may have class weights
        self._is_sum, self._is_of_examples = reduction == "sum", reduction == "batchmean"
        self._average = Average()

    def states(self) -> SetStates:
        """Return new states."""
        return self._average.states() | {"examples": ExactSum((), "int64")}

    def arrays(self, y: Any, predictions: Any, weights: Any) -> list[NDArray[Any]]:
        """Return the losses of one batch, their weights, and whether there is one for each example.

        Losses are (m,) as float64, and weights are (m,) as float32, without items of weight 0. Raises
        `EvaluationError` if the loss does not return one value for each item.
        """
        if not isinstance(predictions, torch.Tensor) or not isinstance(y, torch.Tensor):
            raise EvaluationError(
                "task_error",
                f"Task(loss=…) takes one tensor of predictions and one of labels, found {type(predictions).__name__} "
                f"and {type(y).__name__}: let Task(step=…) return these",
            )
        if isinstance(self._single, _BY_CLASS):
            predictions, y, weights = _classes_second(predictions, y, weights)
        losses = call("Task(loss=…)", self._single, predictions, y)
        if not isinstance(losses, torch.Tensor) or losses.ndim == 0 or len(losses) != len(predictions):
            shape = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
            raise EvaluationError(
                "task_error",
                f"Task(loss=…) must return one value for each of {len(predictions)} examples, found {shape}: a mean of "
                f"a batch cannot be added up exactly. Give a loss of torch, or a function that does not reduce",
            )
        divisors = self._divisors(losses, y)
        items = to_numpy(losses).astype(np.float64)
        given = (
            None if weights is None else to_numpy(weights) if isinstance(weights, torch.Tensor) else np.asarray(weights)
        )
        if divisors is not None:
            wide = np.broadcast_to(to_numpy(divisors), items.shape)
            items = np.divide(items, wide, out=np.zeros_like(items), where=wide != 0)
            given = wide if given is None else wide * _aligned(given, wide)
        counted = counting("loss", given, items.shape, items)
        return [counted.arrays[0], counted.weights, np.array([counted.one_per_example]), np.array([len(predictions)])]

    def add(self, states: SetStates, arrays: list[list[NDArray[Any]]]) -> None:
        """Add several batches; each item of `arrays` is a list with one array per batch."""
        for losses, weights, one_per_example, examples in zip(*arrays, strict=True):
            plain = None if (weights == 1).all() else weights
            self._average.add(states, losses, plain, one_per_example=bool(one_per_example[0]))
            exact_sum(states, "examples").add(np.int64(examples[0]))

    def compute(self, states: SetStates) -> MetricResult:
        """Return the loss; NaN if the sum of weights is 0."""
        if self._is_sum:
            return MetricResult({"loss": value(self._average.total(states), "min")})
        if self._is_of_examples:
            examples = int(exact_sum(states, "examples").integers())
            return MetricResult(
                {"loss": value(self._average.total(states) / examples if examples else math.nan, "min")}
            )
        return MetricResult({"loss": value(self._average.mean(states), "min", self._average.interval(states))})

    def _divisors(self, losses: torch.Tensor, y: torch.Tensor) -> torch.Tensor | None:
        """Return what torch divides the sum of losses by, for each loss; None if that is 1."""
        single = self._single
        if not isinstance(single, _BY_CLASS) or y.is_floating_point():
            return None
        valid = y != single.ignore_index
        if single.weight is None:
            return None if bool(valid.all()) else valid.to(losses.dtype)
        return torch.where(valid, single.weight[torch.where(valid, y, 0)], 0.0)


def _unreduced(loss: Any) -> tuple[Callable[..., Any], str]:
    """Return a function that returns the losses of single items, and the reduction that the user chose."""
    if isinstance(loss, type):
        raise EvaluationError("task_error", f"Task(loss={loss.__name__}) is a class: write loss={loss.__name__}()")
    if not callable(loss):
        raise EvaluationError("task_error", f"Task(loss={loss!r:.80}) must be a loss of torch, or a function")
    if isinstance(loss, partial) and loss.func in _AS_MODULES and not loss.args:
        loss = _AS_MODULES[loss.func](**loss.keywords)
    elif loss in _AS_MODULES:
        loss = _AS_MODULES[loss]()
    if isinstance(loss, nn.Module):
        if isinstance(loss, nn.KLDivLoss) and loss.reduction == "mean":
            raise EvaluationError(
                "task_error",
                "KLDivLoss(reduction='mean') divides by the number of elements, which is not the KL divergence: give "
                "reduction='batchmean'",
            )
        single = copy.deepcopy(loss)
        reduction = getattr(single, "reduction", "none")
        if hasattr(single, "reduction"):
            single.reduction = "none"
        return single.eval(), str(reduction)
    if "reduction" in _parameters_of(loss):
        return lambda predictions, y: loss(predictions, y, reduction="none"), "mean"
    return loss, "none"


def _parameters_of(function: Callable[..., Any]) -> Collection[str]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin
        return ()


def _classes_second(predictions: torch.Tensor, y: torch.Tensor, weights: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Return predictions with the classes in the second axis, as torch takes them; (n, …, classes) is accepted, too.

    Raises `EvaluationError` if both readings are possible.
    """
    if predictions.ndim != y.ndim + 1 or y.is_floating_point() or y.ndim < 2:  # noqa: PLR2004 - one axis behind the examples
        return predictions, y, weights
    is_second = predictions.shape[:1] + predictions.shape[2:] == y.shape
    is_last = predictions.shape[:-1] == y.shape
    if is_second and is_last:
        raise EvaluationError(
            "task_error",
            f"predictions {tuple(predictions.shape)} for labels {tuple(y.shape)} can be read in two ways: let "
            f"Task(step=…) return logits.flatten(0, -2) and labels.flatten()",
        )
    return (predictions.movedim(-1, 1) if is_last else predictions), y, weights


def _aligned(weights: NDArray[Any], items: NDArray[Any]) -> NDArray[Any]:
    """Return weights that are multiplied with items (n, …): the weight of an example applies to all its items."""
    return weights.reshape(*weights.shape, *(1,) * (items.ndim - weights.ndim))
