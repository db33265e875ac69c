"""Tell which parameter of a function takes the labels and which the predictions, by their names. Imports nothing else.

Libraries have both orders: scikit-learn and Keras `(y_true, y_pred)`, torch and torchmetrics `(preds, target)`. Both
orders run, and of a loss that is not symmetric the wrong one gives another number.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final

_OF_PREDICTIONS: Final = ("pred", "score", "prob", "logit", "hat", "output", "hypothes", "input", "forecast", "estimat")
_OF_LABELS: Final = ("true", "target", "label", "ref", "truth", "actual", "expected", "observed", "gold")
_PREDICTIONS: Final = ("p", "out", "sim")
_LABELS: Final = ("y", "gt", "obs")
_BOTH: Final = 2


def parameters_of(function: Any) -> dict[str, inspect.Parameter]:
    """Return the named parameters of a function or of a module of PyTorch; none if they are unknown."""
    forward = getattr(function, "forward", None)
    called: Any = forward if callable(forward) and not inspect.isroutine(function) else function
    try:
        parameters = inspect.signature(called).parameters
    except (TypeError, ValueError):  # a builtin
        return {}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: one for name, one in parameters.items() if one.kind not in variadic}


def kind_of(name: str) -> int | None:
    """Return 0 for a name of labels, 1 for one of predictions, None for others."""
    lower = name.lower()
    if lower in _PREDICTIONS or any(word in lower for word in _OF_PREDICTIONS):
        return 1
    if lower in _LABELS or any(word in lower for word in _OF_LABELS):
        return 0
    return None


def told_apart(first: str, second: str) -> dict[str, int]:
    """Return which of two parameters gets the labels and which the predictions; nothing if the names do not say."""
    kind, other = kind_of(first), kind_of(second)
    if kind == other:
        return {}
    kind = 1 - other if kind is None and other is not None else kind
    return {} if kind is None else {first: kind, second: 1 - kind}


def first_kind(function: Any) -> int | None:
    """Return the kind of a function's first parameter, as `kind_of` does, if the second is of the other kind."""
    names = [one.name for one in parameters_of(function).values() if one.kind is not one.KEYWORD_ONLY][:_BOTH]
    kinds = [kind_of(name) for name in names]
    return kinds[0] if None not in kinds and len(set(kinds)) == _BOTH else None


def labels_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of (labels, predictions, …) that passes them on in the order which the names say."""
    return partial(_swapped, function) if first_kind(function) == 1 else function


def _swapped(function: Callable[..., Any], y: Any, predictions: Any, *more: Any) -> Any:
    return function(predictions, y, *more)
