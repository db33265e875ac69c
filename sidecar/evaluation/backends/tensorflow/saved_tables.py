"""Compare the vocabularies of a model with those in the graph of a SavedModel, which is read and never run.

A SavedModel holds vocabularies only in its graph. `restore` takes its variables, so a model that looks words up in
another order would multiply each embedding with a wrong word. Sources: tensorflow
`core/protobuf/saved_object_graph.proto`: a table is a resource with a function `_initialize`, which is bound to the
table and to constants (its keys and values), or to a file with one key in each line.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from sidecar.evaluation.backends.tensorflow.completeness import Unused
from sidecar.evaluation.backends.tensorflow.layer_tables import constant_tables_of, idf_of
from sidecar.evaluation.remedy import Remedy
from sidecar.system.plain_text import listed

MARKER: Final = "saved_model.pb"
_ASSETS: Final = "assets"
_WHOLE_LINE, _LINE_NUMBER = -2, -1  # values of `key_index` and `value_index`


@dataclass(frozen=True, slots=True)
class Difference:
    """Describe a table of the model that the graph does not hold."""

    layer: Any
    text: str

    @property
    def value(self) -> Unused:
        """Return the vocabulary of the checkpoint that the model does not use, as patterns name it."""
        return Unused(f"{self.layer.name}/vocabulary", (), "")


@dataclass(frozen=True, slots=True)
class _Saved:
    """Hold one table of a graph: keys and values, or the file of its keys."""

    keys: Any
    values: Any

    @property
    def size(self) -> int:
        """Number of keys, without an array of them: the graph is not trusted."""
        return len(self.keys) if isinstance(self.keys, list) else _size(self.keys)

    def pairs(self) -> dict[Any, Any]:
        """Return the values by key."""
        keys, values = (
            part if isinstance(part, list) else tf.make_ndarray(part).tolist() for part in (self.keys, self.values)
        )
        return dict(zip(keys, values, strict=True))


def compare(model: Any, folder: Path) -> tuple[list[Any], list[Difference]]:
    """Return the layers whose tables are all in the graph, and the tables that are not.

    Both are empty if the model or the graph has no tables, or the graph has any that cannot be read. Raises
    `DecodeError` for a damaged graph.
    """
    own = constant_tables_of(model)
    marker = folder / MARKER
    if not own or not marker.is_file():
        return [], []
    try:
        saved = list(_tables_in(saved_model_pb2.SavedModel.FromString(marker.read_bytes()), folder))
        is_alike = len(saved) == len(own)
        differences = [
            Difference(layer, text)
            for number, (layer, keys, values) in enumerate(own)
            if (text := _difference(keys, values, [saved[number]] if is_alike else saved))
        ]
    except (KeyError, TypeError, ValueError, StopIteration, OSError):  # not as TensorFlow writes tables today
        return [], []
    if not saved:
        return [], []
    differing = {id(each.layer) for each in differences}
    layers = {id(layer): layer for layer, *_ in own if id(layer) not in differing and idf_of(layer) is None}
    return list(layers.values()), differences


def described(differences: Sequence[Difference]) -> str:
    """Return what the differences are, for a message."""
    return listed([f"{each.layer.name!r} ({each.text})" for each in differences])


def remedy(differences: Sequence[Difference]) -> Remedy:
    """Return how the model gets the vocabularies of the checkpoint, and how the difference is allowed."""
    names = ", ".join(f'"{each.value.name}"' for each in differences)
    give = f"call get_layer({differences[0].layer.name!r}).set_vocabulary(words) with the list of words of training"
    return Remedy(
        f"In build_model {give}, or save .keras files, which hold it. If it does not matter, "
        f"write Task(ignore=[{names}])",
        f"Before the model is given to SidecarEvaluator, {give}",
    )


def _tables_in(saved_model: Any, folder: Path) -> Iterator[_Saved]:
    """Yield the tables of a graph that have constant contents, in the order of its objects."""
    meta = saved_model.meta_graphs[0]
    objects, constants = meta.object_graph_def, {node.name: node for node in meta.graph_def.node}
    functions = {each.signature.name: each for each in meta.graph_def.library.function}
    for resource in objects.nodes:
        place = {child.local_name: child.node_id for child in resource.children}.get("_initialize")
        if resource.WhichOneof("kind") != "resource" or place is None:
            continue
        name = objects.nodes[place].function.concrete_functions[0]
        bound = [objects.nodes[number] for number in objects.concrete_functions[name].bound_inputs]
        for node in functions[name].node_def:
            if node.op == "LookupTableImportV2":
                inputs = [argument.name for argument in functions[name].signature.input_arg]
                keys, values = (
                    constants[bound[inputs.index(each.partition(":")[0])].constant.operation].attr["value"].tensor
                    for each in node.input[1:3]
                )
                if _size(keys) != _size(values):
                    raise ValueError(name)
                yield _Saved(keys, values)
            elif node.op.startswith("InitializeTable"):
                index = next(each.asset.asset_file_def_index for each in bound if each.WhichOneof("kind") == "asset")
                yield _of_file(node.attr, folder / _ASSETS, meta.asset_file_def[index].filename)


def _of_file(attributes: Any, assets: Path, name: str) -> _Saved:
    """Return the table that an operation makes from a file of words; raise `ValueError` for other files."""
    indices = attributes["key_index"].i, attributes["value_index"].i
    if indices != (_WHOLE_LINE, _LINE_NUMBER) or Path(name).name != name or (assets / name).is_symlink():
        raise ValueError(name)
    words = (assets / name).read_bytes().splitlines()
    first = attributes["offset"].i
    return _Saved(words, list(range(first, first + len(words))))


def _difference(keys: Any, values: Any, saved: list[_Saved]) -> str:
    """Return how a table differs from the most similar one; empty if one of them is equal."""
    own = dict(zip(keys.tolist(), values.tolist(), strict=True))
    found = ""
    for each in saved:
        if each.size != len(own):
            found = found or f"{each.size} entries in the checkpoint, {len(own)} in the model"
            continue
        if (pairs := each.pairs()) == own:
            return ""
        place = sorted(own, key=lambda key: (own[key], key))
        key = next((key for key in place if pairs.get(key) != own[key]), place[0])
        other = pairs.get(key, "missing")
        found = f"{_shown(key)} is {_shown(other)} in the checkpoint, {_shown(own[key])} in the model"
    return found


def _shown(item: Any) -> str:
    return repr(item.decode(errors="replace")) if isinstance(item, bytes) else str(item)


def _size(tensor: Any) -> int:
    return math.prod(int(each.size) for each in tensor.tensor_shape.dim)
