"""Restore vocabularies and bins that a SavedModel stores as constants of its graph into the layers of the task.

Keras 3 keeps neither in variables. A SavedModel has them only in its graph, as keys and values of tables and as
boundaries of `Bucketize`, or as lines of a file in `assets`. The graph is read as data
(https://www.tensorflow.org/guide/saved_model, `saved_model.proto`), and not run. The graph does not name layers: where
several layers could match, the contents of the layers are compared with the contents of the graph.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import saved_model_pb2

from sidecar.evaluation.backends.tensorflow.layer_tables import FixedTable, bins_of, fixed_tables_of, holders_in, idf_of
from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2
from sidecar.evaluation.failures import EvaluationError

_GRAPH: Final = "saved_model.pb"
_ASSETS: Final = "assets"
_LINE_NUMBER, _WHOLE_LINE = -1, -2  # values of `tf.lookup.TextFileIndex`
_LONGEST_NUMBER: Final = 20  # characters of an int64

Vector = tuple[Any, ...]


class _Constants:
    """Read the constants of a stored graph.

    Args:
        folder: The folder of the SavedModel.
        tables: The tables to search for; constants of other sizes are not read.
        sizes: The lengths of other vectors to search for.

    Raises:
        google.protobuf.message.DecodeError: the graph cannot be read.
        EvaluationError: `corrupt` if a constant of the graph cannot be read.
        OSError: a file cannot be read.
    """

    def __init__(self, folder: Path, tables: Sequence[FixedTable], sizes: Sequence[int]) -> None:
        saved = saved_model_pb2.SavedModel.FromString((folder / _GRAPH).read_bytes())
        self._folder, self._sizes = folder, {*(len(table.entries) for table in tables), *sizes}
        self._max_file_bytes = max((_max_file_bytes(table.entries) for table in tables), default=0)
        self._vectors: set[Vector] = set()
        self.tables: list[dict[Any, Any]] = []  # in the order of the layers; empty for a table of another size
        self.bins: set[tuple[float, ...]] = set()
        self.has_other_files = False  # whether there are files in another form than vocabularies of Keras
        for meta in saved.meta_graphs:
            constants: dict[str, Vector] = {}
            for node in _nodes(meta.graph_def):
                if node.op == "Const" and (vector := self._vector(node)) is not None:
                    constants[node.name] = vector
                elif node.op == "Bucketize":
                    self.bins.add(_as_stored(node.attr["boundaries"].list.f))
            self._vectors |= set(constants.values())
            try:
                self.tables += [self._table(source, meta, constants) for source in _table_sources(meta)]
            except (IndexError, KeyError) as error:
                raise EvaluationError("corrupt", f"{folder / _GRAPH} is damaged: it has no object {error}") from error

    def has_vector(self, vector: tuple[float, ...]) -> bool:
        """Return whether the graph has a constant with these numbers."""
        return vector in self._vectors

    def _vector(self, node: Any) -> Vector | None:
        tensor = node.attr["value"].tensor
        shape = [dimension.size for dimension in tensor.tensor_shape.dim]
        if len(shape) != 1 or shape[0] not in self._sizes:
            return None
        try:
            return tuple(tf.make_ndarray(tensor).tolist())
        except (TypeError, ValueError, KeyError) as error:
            raise EvaluationError(
                "corrupt", f"{self._folder / _GRAPH} is damaged: the constant {node.name!r} cannot be read ({error})"
            ) from error

    def _table(self, source: "_TableSource", meta: Any, constants: Mapping[str, Vector]) -> dict[Any, Any]:
        assets = [item.asset for item in source.inputs if item.HasField("asset")]
        files = [meta.asset_file_def[asset.asset_file_def_index] for asset in assets]
        if files:
            columns = self._columns(self._folder / _ASSETS / Path(files[0].filename).name, source)
        else:
            names = [item.constant.operation for item in source.inputs if item.HasField("constant")]
            columns = [constants[name] for name in names if name in constants]
        fits = len(columns) == 2 and len(columns[0]) == len(columns[1])  # noqa: PLR2004 - keys and values
        return dict(zip(*columns, strict=True)) if fits else {}

    def _columns(self, file: Path, source: "_TableSource") -> list[Vector]:
        """Return the keys and values that a table reads from the lines of a file; an empty list for a longer file."""
        kinds = [source.file_attributes[name].i for name in ("key_index", "value_index")]
        self.has_other_files |= {*kinds} != {_LINE_NUMBER, _WHOLE_LINE}
        if self.has_other_files or not file.is_file() or file.stat().st_size > self._max_file_bytes:
            return []
        lines = file.read_bytes().replace(b"\r", b"").removesuffix(b"\n").split(b"\n")
        first = source.file_attributes["offset"].i
        columns: list[Vector] = []
        for kind, dtype in zip(kinds, source.dtypes, strict=True):
            if kind == _LINE_NUMBER:
                columns.append(tuple(range(first, first + len(lines))))
            elif dtype == types_pb2.DT_STRING:
                columns.append(tuple(lines))
            elif all(line.removeprefix(b"-").isdigit() for line in lines):
                columns.append(tuple(map(int, lines)))
        return columns


def load_constants(model: Any, folder: Path) -> list[Any]:
    """Restore tables and bins from the graph in the folder; return the layers that hold the stored contents.

    A layer is changed only if exactly one constant of the graph matches it and no other layer matches that constant.

    Raise `EvaluationError` (`mismatch`) for any other layer whose contents differ from the graph. A graph with fewer
    tables than the model, or without bins, was saved without these layers, so they are not compared. They are not
    compared either if the graph reads its tables from columns of files, and they are not returned if its tables come
    in another order than in the model, because then it is unknown which table belongs to which layer.
    """
    layers = [(layer, list(fixed_tables_of(layer)), idf_of(layer), bins_of(layer)) for layer in holders_in(model)]
    layers = [entry for entry in layers if entry[1] or entry[3] is not None]
    if not layers:
        return []
    tables = [table for _, tables, _, _ in layers for table in tables]
    sizes = [len(idf) for _, _, idf, _ in layers if idf is not None]
    try:
        constants = _Constants(folder, tables, sizes)
    except FileNotFoundError as error:
        raise EvaluationError("vanished", f"{folder} is gone, or a file of it: {error}") from error
    except OSError as error:
        raise EvaluationError("storage", f"{folder} cannot be read: {error}") from error
    has_tables = len(constants.tables) >= len(tables)
    held = [_matching_entries(table, tables, constants.tables) for table in tables] if has_tables else []
    in_order = _is_in_order([[n for n, stored in enumerate(constants.tables) if stored == entries] for entries in held])
    bins_are_set = _set_bins([layer for layer, _, _, bins in layers if bins is not None], constants.bins)
    same = []
    for layer, tables, idf, bins in layers:
        entries = [held.pop(0) for _ in tables] if has_tables else []
        fits = None not in entries and (idf is None or constants.has_vector(_as_stored(idf)))
        is_unknown = not has_tables or (constants.has_other_files and not fits)
        bins_differ = (
            bins is not None and not bins_are_set and constants.bins and _as_stored(bins) not in constants.bins
        )
        if (not is_unknown and not fits) or bins_differ:
            raise EvaluationError(
                "mismatch",
                f"{folder.name}: layer {layer.name!r} ({type(layer).__name__}) holds another vocabulary or other bins "
                "than the graph that was saved: let build_model make them as training did, or set trust_saved_graph = "
                "true to evaluate the graph itself",
            )
        if (not tables or (in_order and not is_unknown)) and (constants.bins or bins is None):
            same.append(layer)
    return same


def _matching_entries(
    table: FixedTable, tables: Sequence[FixedTable], stored: Sequence[dict[Any, Any]]
) -> dict[Any, Any] | None:
    """Return the stored entries for a table, and set them if they differ; None if no stored table matches."""
    if table.entries in stored:
        return table.entries
    candidates = [entries for entries in stored if _could_be(table, entries)]
    if len(candidates) != 1 or sum(_could_be(other, candidates[0]) for other in tables) != 1:
        return None
    return candidates[0] if table.replace(candidates[0]) else None


def _could_be(table: FixedTable, stored: Mapping[Any, Any]) -> bool:
    """Return whether two tables have the same types and indices; otherwise unknown words get other indices."""
    in_layer, in_graph = ((list(entries), list(entries.values())) for entries in (table.entries, stored))
    if [list(map(type, part)) for part in in_layer] != [list(map(type, part)) for part in in_graph]:
        return False
    words_first = bool(in_layer[0]) and isinstance(in_layer[0][0], bytes)
    return {*in_layer[words_first]} == {*in_graph[words_first]}


def _set_bins(layers: Sequence[Any], stored: Collection[tuple[float, ...]]) -> bool:
    """Set the bins of the graph if one layer and one set of bins match in number; return whether they are set."""
    if len(layers) != 1 or len(stored) != 1 or is_keras_2(layers[0]):
        return False
    (layer,), (bins,) = layers, stored
    if len(bins) != len(layer.bin_boundaries) and len(bins) + 1 != layer.num_bins:
        return False
    if _as_stored(layer.bin_boundaries) != bins:
        layer.bin_boundaries = list(bins)
    return True


@dataclass(frozen=True, slots=True)
class _TableSource:
    """The inputs from which the graph creates and fills one lookup table."""

    inputs: list[Any]  # objects passed to the function that fills the table
    file_attributes: Mapping[str, Any]  # attributes for reading a file; empty without a file
    dtypes: tuple[int, int]  # of keys and values


def _table_sources(meta: Any) -> Iterator[_TableSource]:
    """Yield the source of each table, in the order in which Keras saved the layers.

    Raises `IndexError` or `KeyError` if an object refers to a missing one.
    """
    objects = meta.object_graph_def
    bodies = {function.signature.name: function for function in meta.graph_def.library.function}
    for node in objects.nodes:
        children = {child.local_name: child.node_id for child in node.children}
        if not node.HasField("resource") or "_initialize" not in children:
            continue
        making, filling = (
            list(objects.nodes[children[name]].function.concrete_functions)
            for name in ("_create_resource", "_initialize")
        )
        created = [node.attr for name in making for node in bodies[name].node_def if "key_dtype" in node.attr]
        read = [node.attr for name in filling for node in bodies[name].node_def if "key_index" in node.attr]
        if created:
            inputs = [objects.nodes[at] for name in filling for at in objects.concrete_functions[name].bound_inputs]
            dtypes = created[0]["key_dtype"].type, created[0]["value_dtype"].type
            yield _TableSource(inputs, read[0] if read else {}, dtypes)


def _is_in_order(places: Iterable[Sequence[int]]) -> bool:
    """Return whether one place can be chosen from each sequence so that the chosen places increase."""
    last: int | None = -1
    for choices in places:
        last = None if last is None else min((place for place in choices if place > last), default=None)
    return last is not None


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _max_file_bytes(table: Mapping[Any, Any]) -> int:
    """Return the largest size in bytes of a file with the keys or values of a table."""
    words = [word for pair in table.items() for word in pair]
    return sum(len(word) + 2 if isinstance(word, bytes) else _LONGEST_NUMBER + 2 for word in words)


def _as_stored(numbers: Any) -> tuple[float, ...]:
    return tuple(np.asarray(numbers, np.float32).tolist())
