"""List how a file that Keras wrote differs from a model: each variable with its type and shape there and here.

Keras itself stops at the first layer, and says it with the values that the variable holds.
"""

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

_HOOK: Final = "load_own_variables"  # public in both Keras: a layer is given what the file has for it
_NAMED: Final = 5  # variables that an error lists by name


def differences(model: Any, path: str) -> list[str]:
    """Let Keras walk through the file once more, and compare instead of loading; empty for formats without layers."""
    found: list[str] = []
    layers = list(model._flatten_layers())  # noqa: SLF001 - at any depth
    try:
        for layer in layers:
            object.__setattr__(layer, _HOOK, partial(_compare, layer, found))  # past Keras' bookkeeping of attributes
        with contextlib.suppress(Exception):  # it was told before
            model.load_weights(path)
    finally:
        for layer in layers:
            with contextlib.suppress(AttributeError):
                object.__delattr__(layer, _HOOK)
    return found


def name_of(variable: Any) -> str:
    """Return the name of a variable for people."""
    return str(getattr(variable, "path", None) or variable.name)


def some(names: Sequence[str]) -> str:
    """Return the first few of many."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _compare(layer: Any, found: list[str], store: Any) -> None:
    variables = _own(layer)
    saved = {str(key) for key in store.keys()}  # noqa: SIM118 - it is no dict
    if any(not key.isdecimal() for key in saved):
        return  # a layer that saves its variables under names of its own
    for index, variable in enumerate(variables):
        here = f"{getattr(variable.dtype, 'name', variable.dtype)} {tuple(variable.shape)}"
        if str(index) not in saved:
            found.append(f"{name_of(variable)}, {here} in the model, is not in the file")
        elif tuple(store[str(index)].shape) != tuple(variable.shape):
            there = store[str(index)]
            found.append(f"{name_of(variable)} is {here} in the model, {there.dtype} {tuple(there.shape)} in the file")
    if len(saved) > len(variables):
        found.append(f"layer {layer.name!r} has {len(variables)} variables in the model, {len(saved)} in the file")


def _own(layer: Any) -> list[Any]:
    """Return a layer's variables without those of layers within it, in the order of the file."""
    for kind in ("variables", "weights"):  # Keras 3, tf_keras
        lists = [getattr(layer, f"_{trained}_{kind}", None) for trained in ("trainable", "non_trainable")]
        if all(isinstance(each, list) for each in lists):
            return [variable for each in lists for variable in each or ()]
    return []
