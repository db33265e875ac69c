"""Compare the order of layers, and that of the values within a layer, in a checkpoint with those of the model.

Most formats bind values by these orders, and values of equal shapes fit in any of them. An HDF5 file of older Keras has
the values of each layer by their numbers, those that training changes first. In a frozen model within a model all are
of the second kind, so values such as those of `BatchNormalization` change their places.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import h5py

from sidecar.evaluation.backends.tensorflow.differences import name_of
from sidecar.evaluation.backends.tensorflow.libraries import layers_of
from sidecar.evaluation.failures import mismatch
from sidecar.evaluation.remedy import ON_THE_MODEL, Remedy
from sidecar.system.plain_text import listed

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


def require_same_layers(model: Any, pairs: Iterable[tuple[str, str]], path: str) -> None:
    """Raise `EvaluationError` if layers got the values of one another, by the names that the user gave them.

    Most formats bind values by the order of the layers. If a task makes the same layers in another order, each gets
    values of the right shape, but of another layer. Names that Keras makes up show nothing.

    `pairs`: the name of each layer in the model, and the name of the layer in the checkpoint whose values it got.
    """
    own = {layer.name for layer in layers_of(model) if not _is_made_up(layer)}
    moved = {name: saved for name, saved in pairs if name != saved and name.rpartition("/")[2] in own}
    if moved and set(moved) == set(moved.values()):
        text = listed([f"layer {name!r} of the model is in the place of {saved!r}" for name, saved in moved.items()])
        raise mismatch(
            f"{path} holds the layers in another order: {text}. ",
            remedy=Remedy(
                "Let build_model make them in the order of training; if only their names differ, write "
                "Task(restore=lambda model, path: model.load_weights(path))",
                "Make them in the order of training",
            ),
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


def _is_made_up(layer: Any) -> bool:
    """Return whether Keras made up the name of a layer: its class, and a number from the second one on."""
    words = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", type(layer).__name__)
    snake = re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower()
    return re.fullmatch(rf"{re.escape(snake)}(_\d+)?", layer.name) is not None
