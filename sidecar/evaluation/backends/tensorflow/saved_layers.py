"""Read the layers of a model that Keras serialized, and the tensors between them, as plain data.

Keras 3 and tf_keras write calls in two forms, which are read alike. Layers that pass their inputs on unchanged in an
evaluation are left out of the wiring.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_NEUTRAL: Final = frozenset(
    (
        *("InputLayer", "Dropout", "GaussianNoise", "GaussianDropout", "AlphaDropout", "SpatialDropout1D"),
        *("SpatialDropout2D", "SpatialDropout3D", "ActivityRegularization", "Identity"),
    )
)
"""Layers that pass their inputs on unchanged in an evaluation; so do those whose names begin with `Random`."""


def layers_of(item: Any) -> list[Any] | None:
    """Return the layers of a serialized model, or of a layer that is a model; None if it describes none."""
    config = item.get("config") if isinstance(item, Mapping) else None
    layers = config.get("layers") if isinstance(config, Mapping) else None
    if not isinstance(layers, list) or not all(isinstance(layer, Mapping) for layer in layers):
        return None
    return layers


def active(layers: list[Any]) -> list[Any]:
    """Return the layers that change their inputs in an evaluation."""
    return [layer for layer in layers if not _is_neutral(layer)]


def _is_neutral(layer: Any) -> bool:
    return class_of(layer) in _NEUTRAL or class_of(layer).startswith("Random")


def class_of(layer: Any) -> str:
    """Return the name of a layer's class."""
    return str(layer.get("class_name"))


def name_of(layer: Any) -> str:
    """Return the name of a layer; empty if it has none."""
    config = layer.get("config")
    return str(layer.get("name") or (config.get("name") if isinstance(config, Mapping) else ""))


@dataclass(frozen=True, slots=True)
class Source:
    """Describe a tensor that a layer takes, or that a model returns."""

    layer: str  # empty for an input of the model
    output: int = 0  # of the layer, which may return several tensors
    call: int = 0  # of the layer, which may be called several times
    place: str = ""  # of one of several inputs

    @property
    def certain(self) -> tuple[str, int]:
        """Return the part that two models must share: they may count calls otherwise, and find inputs by name."""
        return self.layer, self.output

    def __str__(self) -> str:
        if not self.layer:
            return f"input {self.place}" if self.place else "an input"
        told = f"output {self.output} of {self.layer}" if self.output else self.layer
        return f"{told} (call {self.call})" if self.call else told


class Wiring:
    """Find where the tensors of a serialized model come from, without layers that pass their inputs on."""

    def __init__(self, item: Any, layers: list[Any]) -> None:
        self._direct: dict[str, list[tuple[str, int, int]]] = {}
        previous: list[tuple[str, int, int]] = []
        for layer in layers:
            nodes = layer.get("inbound_nodes")
            self._direct[name_of(layer)] = previous if nodes is None else list(_histories(nodes))  # None: a Sequential
            previous = [(name_of(layer), 0, 0)]
        self._neutral = {name_of(layer) for layer in layers if _is_neutral(layer)}
        inputs = item["config"].get("input_layers")
        keys = list(inputs) if isinstance(inputs, Mapping) else None
        names = [name for name, _, _ in _histories(inputs)]
        several = len(names) > 1
        self._places = {name: str(keys[index] if keys else index) for index, name in enumerate(names) if several}
        self._outputs = list(_histories(item["config"].get("output_layers")))

    def sources(self, name: str, names: Mapping[str, str]) -> list[Source]:
        """Return what a layer takes; `names` maps the names of layers to those that are compared."""
        return [self._source(each, names) for each in self._direct.get(name, [])]

    def outputs(self, names: Mapping[str, str]) -> list[Source]:
        """Return what the model returns."""
        return [self._source(each, names) for each in self._outputs]

    def _source(self, history: tuple[str, int, int], names: Mapping[str, str]) -> Source:
        """Follow a tensor back through layers that pass their inputs on, and return where it comes from."""
        seen: set[str] = set()
        while (name := history[0]) in self._neutral and self._direct.get(name) and name not in seen:
            seen.add(name)
            history = self._direct[name][0]
        name, call, output = history
        return Source(names[name], output, call) if name in names else Source("", place=self._places.get(name, ""))


def _histories(node: Any) -> Iterator[tuple[str, int, int]]:
    """Yield layer, call and output of the tensors in a serialized call, in the forms of Keras 3 and tf_keras."""
    if isinstance(node, Mapping):
        if node.get("class_name") == "__keras_tensor__":
            name, call, output = node["config"]["keras_history"]
            yield str(name), call, output
        else:
            for value in node.values():
                yield from _histories(value)
    elif isinstance(node, list):
        if is_history(node):
            yield node[0], node[1], node[2]
            yield from _histories(node[3:])
        else:
            for value in node:
                yield from _histories(value)


def is_history(node: list[Any]) -> bool:
    """Return whether a list describes a tensor: layer, call, output, and perhaps further arguments of the call."""
    is_long_enough = len(node) >= 3  # noqa: PLR2004 - layer, call, output
    return is_long_enough and isinstance(node[0], str) and all(isinstance(part, int) for part in node[1:3])
