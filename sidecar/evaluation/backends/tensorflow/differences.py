"""List how a file that Keras wrote differs from a model: the type and shape of each variable in both.

Keras itself stops at the first layer that differs, and its message contains all values of the variable.
"""

import contextlib
from functools import partial
from typing import Any, Final

_HOOK: Final = "load_own_variables"  # public in Keras 3 and tf_keras: receives the contents of the file for one layer


def differences(model: Any, path: str) -> list[str]:
    """Return one sentence per difference; an empty list for formats without layers.

    Keras walks through the file once more, and every layer is compared instead of loaded.
    """
    messages: list[str] = []
    layers = list(model._flatten_layers())  # noqa: SLF001 - the only list of layers at any depth
    try:
        for layer in layers:
            object.__setattr__(layer, _HOOK, partial(_compare, layer, messages))  # bypasses Keras' attribute tracking
        with contextlib.suppress(Exception):  # the caller has reported this error
            model.load_weights(path)
    finally:
        for layer in layers:
            with contextlib.suppress(AttributeError):
                object.__delattr__(layer, _HOOK)
    return messages


def name_of(variable: Any) -> str:
    """Return the name of a variable as messages show it."""
    return str(getattr(variable, "path", None) or variable.name)


def _compare(layer: Any, messages: list[str], store: Any) -> None:
    variables = _variables_of(layer)
    saved = {str(key) for key in store.keys()}  # noqa: SIM118 - store is not a dict
    if any(not key.isdecimal() for key in saved):
        return  # this layer saves its variables under custom names
    for index, variable in enumerate(variables):
        in_model = f"{getattr(variable.dtype, 'name', variable.dtype)} {tuple(variable.shape)}"
        if str(index) not in saved:
            messages.append(f"{name_of(variable)}, {in_model} in the model, is not in the file")
        elif tuple(store[str(index)].shape) != tuple(variable.shape):
            array = store[str(index)]
            in_file = f"{array.dtype} {tuple(array.shape)}"
            messages.append(f"{name_of(variable)} is {in_model} in the model, {in_file} in the file")
    if len(saved) > len(variables):
        messages.append(f"layer {layer.name!r} has {len(variables)} variables in the model, {len(saved)} in the file")


def _variables_of(layer: Any) -> list[Any]:
    """Return the variables of a layer, without those of layers inside it, in the order of the file."""
    for kind in ("variables", "weights"):  # Keras 3, tf_keras
        lists = [getattr(layer, f"_{trained}_{kind}", None) for trained in ("trainable", "non_trainable")]
        if all(isinstance(variables, list) for variables in lists):
            return [variable for variables in lists for variable in variables or ()]
    return []
