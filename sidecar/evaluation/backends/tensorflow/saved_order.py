"""Compare the order of values in an HDF5 file of older Keras with that of the model: freezing layers changes it.

Such a file has the values of each layer by their numbers, those that training changes first. In a frozen model within a
model all are of the second kind, so values of equal shapes, such as those of `BatchNormalization`, change their places.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Final

import h5py

from sidecar.evaluation.backends.tensorflow.differences import name_of
from sidecar.evaluation.failures import mismatch
from sidecar.evaluation.remedy import ON_THE_MODEL

_NEW: Final = (".keras", ".weights.h5", ".weights.json")
_NUMBER: Final = re.compile(r"_(\d+)$")  # at the end of the name of a layer


def require_same_order(model: Any, path: str) -> None:
    """Raise `EvaluationError` if the file has the same values of a layer as the model, in another order."""
    if path.endswith(_NEW):
        return
    layers = [layer for layer in model.layers if layer.weights]
    with contextlib.suppress(OSError, KeyError):  # another check says what is wrong with the file
        saved = list(_saved(path))
        for layer, names in zip(layers, saved, strict=False) if len(layers) == len(saved) else ():
            weights = (*layer.trainable_weights, *layer.non_trainable_weights)
            own, theirs = _numbered([name_of(weight) for weight in weights]), _numbered(names)
            if own != theirs and sorted(own) == sorted(theirs):
                is_trained = bool(layer.trainable_weights)
                raise mismatch(
                    f"{path}: the values of layer {layer.name!r} are in another order than in the model, since other "
                    f"layers in it were frozen when it was saved: freeze those of training, such as "
                    f"model.get_layer({layer.name!r}).trainable = {not is_trained}",
                    remedy=ON_THE_MODEL,
                )


def _saved(path: str) -> Iterator[list[str]]:
    """Yield the names of each layer's values, for layers that have any."""
    with h5py.File(path, "r", locking=False) as file:
        group = file.get("model_weights", file)
        for layer in _texts(group, "layer_names"):
            if names := _texts(group[layer], "weight_names"):
                yield names


def _texts(group: Any, name: str) -> list[str]:
    """Return an attribute of texts, which Keras divides if it is long."""
    parts = [name] if name in group.attrs else [f"{name}{number}" for number in range(len(group.attrs))]
    found = [text for part in parts if part in group.attrs for text in group.attrs[part]]
    return [text.decode() if isinstance(text, bytes) else str(text) for text in found]


def _numbered(names: list[str]) -> list[tuple[str, int, str]]:
    """Return, for each value, the name of its layer, the layer's place among those of the same name, and its own name.

    Keras numbers the layers of a process, so those of the same model have other numbers in another one.
    """
    parts = [name.removesuffix(":0").split("/") for name in names]
    split = [_NUMBER.split(part[-2] if len(part) > 1 else "") for part in parts]
    found = [(layer, int((number or ["-1"])[0])) for layer, *number in split]
    places = {each: place for place, each in enumerate(sorted(set(found)))}
    return [(layer, places[layer, number], part[-1]) for (layer, number), part in zip(found, parts, strict=True)]
