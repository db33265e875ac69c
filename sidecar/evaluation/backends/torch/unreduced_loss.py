"""Make the loss of a task return the losses of single items, whichever reduction the user chose.

Functions of `torch.nn.functional` become modules of `torch.nn`, which know their parameters. A loss that cannot be
added up over batches is refused with a remedy.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType
from typing import Any, Final

from torch import nn
from torch.nn import functional

from sidecar.evaluation.failures import task_error
from sidecar.system.plain_text import shortened

_AS_MODULES: Final[dict[Any, Callable[..., nn.Module]]] = {
    functional.binary_cross_entropy: nn.BCELoss,
    functional.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    functional.cross_entropy: nn.CrossEntropyLoss,
    functional.hinge_embedding_loss: nn.HingeEmbeddingLoss,
    functional.huber_loss: nn.HuberLoss,
    functional.kl_div: nn.KLDivLoss,
    functional.l1_loss: nn.L1Loss,
    functional.mse_loss: nn.MSELoss,
    functional.multi_margin_loss: nn.MultiMarginLoss,
    functional.multilabel_margin_loss: nn.MultiLabelMarginLoss,
    functional.multilabel_soft_margin_loss: nn.MultiLabelSoftMarginLoss,
    functional.nll_loss: nn.NLLLoss,
    functional.poisson_nll_loss: nn.PoissonNLLLoss,
    functional.smooth_l1_loss: nn.SmoothL1Loss,
    functional.soft_margin_loss: nn.SoftMarginLoss,
}
_MODULES_OF_TORCH: Final = "torch.nn.modules."
_REDUCTIONS: Final = ("none", "mean", "sum", "batchmean")


def unreduced(loss: Any) -> tuple[Callable[..., Any], Callable[..., Any] | None, str]:
    """Return a function that returns the losses of single items, and the reduction that the user chose.

    Between them is the loss as it was given, if torch does not define what it divides by.
    """
    if isinstance(loss, type):
        raise task_error(f"Task(loss={loss.__name__}) is a class: write loss={loss.__name__}()")
    if not callable(loss):
        raise task_error(f"Task(loss={shortened(loss)}) must be a loss of torch, or a function")
    loss = _as_module(loss)
    if isinstance(loss, nn.Module):
        if isinstance(loss, nn.KLDivLoss) and loss.reduction == "mean":
            raise task_error(
                "KLDivLoss(reduction='mean') divides by the number of elements, which is not the KL divergence: give "
                "reduction='batchmean'"
            )
        if any(True for _ in loss.parameters()):
            raise task_error(
                f"Task(loss={type(loss).__name__}(…)) has parameters of its own, which no checkpoint restores: make it "
                f"a part of the model, and let Task(step=…) return its outputs"
            )
        single = copy.deepcopy(loss)
        reduction = getattr(single, "reduction", "none")
        if hasattr(single, "reduction"):
            single.reduction = "none"
        is_of_torch = str(getattr(type(loss).forward, "__module__", "")).startswith(_MODULES_OF_TORCH)
        whole = None if is_of_torch or reduction == "none" else copy.deepcopy(loss).eval()
        return single.eval(), whole, str(reduction)
    reduction = _parameters_of(loss).get("reduction")
    if reduction is None:
        return loss, None, "none"
    chosen = reduction.default if reduction.default in _REDUCTIONS else "mean"
    return lambda predictions, y: loss(predictions, y, reduction="none"), loss, chosen


def _as_module(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return the module of `torch.nn` for a function of `torch.nn.functional`, or for a `partial` of one."""
    function, options = (loss.func, loss.keywords) if isinstance(loss, partial) and not loss.args else (loss, {})
    module = _AS_MODULES.get(function) if isinstance(function, FunctionType) else None
    if module is None:
        return loss
    try:
        return module(**options)
    except TypeError as error:
        raise task_error(
            f"Task(loss=partial({function.__name__}, …)): {module.__name__} does not take these arguments ({error}): "
            f"weights of examples or elements are returned by Task(step=…)"
        ) from error


def _parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin
        return {}
