"""Compare vocabularies and bins of the task's layers with the constants of the graph in a SavedModel.

Keras 3 keeps neither in variables, so a SavedModel has them in its graph alone, as keys and values of tables and as
boundaries of `Bucketize`, or as lines of a file in `assets`. The graph is read as data
(https://www.tensorflow.org/guide/saved_model, `saved_model.proto`), and not run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from sidecar.worker.failures import EvaluationError
from sidecar.worker.tensorflow.outside import bins_of, fixed_tables_of, holders_in, idf_of

_GRAPH: Final = "saved_model.pb"
_ASSETS: Final = "assets"
_LINE_NUMBER, _WHOLE_LINE = -1, -2  # as `tf.lookup.TextFileIndex` has them
_LONGEST_NUMBER: Final = 20  # letters of an int64

Table = Mapping[Any, Any]
Vectors = Mapping[str, tuple[Any, ...]]


class _Constants:
    """Constants of a stored graph.

    Args:
        folder: The SavedModel's.
        tables: Those that are looked for; nothing is read that is of another size.
        sizes: How many numbers other vectors have that are looked for.

    Raises:
        google.protobuf.message.DecodeError: the graph cannot be read.
        EvaluationError: `corrupt` if a constant in it cannot.
        OSError: a file cannot be read.
    """

    def __init__(self, folder: Path, tables: Sequence[Table], sizes: Sequence[int]) -> None:
        saved = saved_model_pb2.SavedModel.FromString((folder / _GRAPH).read_bytes())
        self._folder, self._sizes = folder, {*map(len, tables), *sizes}
        self._longest = max(map(_letters, tables), default=0)
        self._vectors: set[tuple[Any, ...]] = set()
        self.tables: list[set[tuple[Any, ...]]] = []  # what each table is made of, in order of the layers
        self.bins: set[tuple[float, ...]] = set()
        self.has_other_files = False  # of another form than Keras' vocabularies
        for meta in saved.meta_graphs:
            offsets, constants = set(), {}
            for node in _nodes(meta.graph_def):
                if node.op == "Const" and (vector := self._vector(node)) is not None:
                    constants[node.name] = vector
                elif node.op == "Bucketize":
                    self.bins.add(_as_stored(node.attr["boundaries"].list.f))
                elif node.op == "InitializeTableFromTextFileV2":
                    offsets.add(node.attr["offset"].i)
                    columns = {node.attr["key_index"].i, node.attr["value_index"].i}
                    self.has_other_files |= columns != {_LINE_NUMBER, _WHOLE_LINE}
            self._vectors |= set(constants.values())
            try:
                self.tables += [self._made_of(inputs, meta, constants, offsets) for inputs in _tables(meta)]
            except IndexError as error:
                raise EvaluationError("corrupt", f"{folder / _GRAPH} is damaged: {error} in its objects") from error

    def places(self, table: Table) -> list[int]:
        """Return which tables of the graph have its keys, in any order, and their values in the same order."""
        return [place for place, vectors in enumerate(self.tables) if _is_made_of(table, vectors)]

    def has_vector(self, vector: tuple[float, ...]) -> bool:
        """Return whether there are these numbers."""
        return vector in self._vectors

    def _vector(self, node: Any) -> tuple[Any, ...] | None:
        tensor = node.attr["value"].tensor
        shape = [each.size for each in tensor.tensor_shape.dim]
        if len(shape) != 1 or shape[0] not in self._sizes:
            return None
        try:
            return tuple(tf.make_ndarray(tensor).tolist())
        except (TypeError, ValueError, KeyError) as error:
            raise EvaluationError(
                "corrupt", f"{self._folder / _GRAPH} is damaged: the constant {node.name!r} cannot be read ({error})"
            ) from error

    def _made_of(self, inputs: Iterable[Any], meta: Any, constants: Vectors, offsets: set[int]) -> set[tuple[Any, ...]]:
        found: set[tuple[Any, ...]] = set()
        for each in inputs:
            if each.HasField("constant") and each.constant.operation in constants:
                found.add(constants[each.constant.operation])
            elif each.HasField("asset"):
                name = meta.asset_file_def[each.asset.asset_file_def_index].filename
                found |= self._lines(self._folder / _ASSETS / Path(name).name, offsets)
        return found

    def _lines(self, file: Path, offsets: set[int]) -> set[tuple[Any, ...]]:
        """Return the lines of a file as tables are made of them; none if it is longer than all that is looked for."""
        if not file.is_file() or file.stat().st_size > self._longest:
            return set()
        lines = file.read_bytes().replace(b"\r", b"").removesuffix(b"\n").split(b"\n")
        found: set[tuple[Any, ...]] = {tuple(range(offset, offset + len(lines))) for offset in offsets}
        if all(each.removeprefix(b"-").isdigit() for each in lines):
            found.add(tuple(map(int, lines)))
        return {*found, tuple(lines)}


def require_same(model: Any, folder: Path) -> list[Any]:
    """Return the layers of a model that hold what the graph in that folder has.

    Raises `EvaluationError` (`mismatch`) for a layer that holds something else. A graph with fewer tables than the
    model, or without any bins, was saved without these layers and says nothing of them; nor does one whose tables are
    made of columns in files, or that has those of the model in another order: whose they are is not known then.
    """
    layers = [(layer, list(fixed_tables_of(layer)), idf_of(layer), bins_of(layer)) for layer in holders_in(model)]
    layers = [each for each in layers if each[1] or each[3] is not None]
    if not layers:
        return []
    tables = [table for _, tables, _, _ in layers for table in tables]
    sizes = [len(idf) for _, _, idf, _ in layers if idf is not None]
    try:
        found, same = _Constants(folder, tables, sizes), []
    except FileNotFoundError as error:
        raise EvaluationError("vanished", f"{folder} is gone, or a file of it: {error}") from error
    except OSError as error:
        raise EvaluationError("storage", f"{folder} cannot be read: {error}") from error
    has_tables, in_order = len(found.tables) >= len(tables), _is_in_order([found.places(table) for table in tables])
    for layer, tables, idf, bins in layers:
        fits = all(map(found.places, tables)) and (idf is None or found.has_vector(_as_stored(idf)))
        says_nothing = not has_tables or (found.has_other_files and not fits)
        if (not says_nothing and not fits) or (found.bins and bins is not None and _as_stored(bins) not in found.bins):
            raise EvaluationError(
                "mismatch",
                f"{folder.name}: layer {layer.name!r} ({type(layer).__name__}) holds another vocabulary or other bins "
                "than the graph that was saved: let build_model make them as training did, or set trust_saved_graph = "
                "true to evaluate the graph itself",
            )
        if (not tables or (in_order and not says_nothing)) and (found.bins or bins is None):
            same.append(layer)
    return same


def _tables(meta: Any) -> Iterator[list[Any]]:
    """Yield what the function is given that makes a table, for each, in the order in which layers were found.

    Raises `IndexError` where objects name others that are not there.
    """
    objects = meta.object_graph_def
    for node in objects.nodes:
        children = {child.local_name: child.node_id for child in node.children}
        if node.HasField("resource") and "_initialize" in children:
            names = objects.nodes[children["_initialize"]].function.concrete_functions
            functions = [objects.concrete_functions[name] for name in names if name in objects.concrete_functions]
            yield [objects.nodes[place] for function in functions for place in function.bound_inputs]


def _is_made_of(table: Table, vectors: set[tuple[Any, ...]]) -> bool:
    keys = (each for each in vectors if len(each) == len(table) and set(each) == table.keys())
    return any(tuple(table[key] for key in each) in vectors for each in keys)


def _is_in_order(places: Iterable[Sequence[int]]) -> bool:
    """Return whether one of each can be chosen, each higher than that before."""
    last: int | None = -1
    for each in places:
        last = None if last is None else min((place for place in each if place > last), default=None)
    return last is not None


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _letters(table: Table) -> int:
    """Return how long a file of its keys or values can be at most."""
    words = [each for pair in table.items() for each in pair]
    return sum(len(each) + 2 if isinstance(each, bytes) else _LONGEST_NUMBER + 2 for each in words)


def _as_stored(numbers: Any) -> tuple[float, ...]:
    return tuple(np.asarray(numbers, np.float32).tolist())
