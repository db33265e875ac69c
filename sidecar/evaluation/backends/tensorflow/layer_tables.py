"""Find everything outside the variables of layers that changes numbers: vocabularies, bins, tables, settings.

A checkpoint of variables does not hold these, so they come from the task, which may build other ones on another rank.
Therefore each rank computes digests by layer, and the ranks compare them. Only methods of the layers are called; no
stored code is run.
"""

import contextlib
import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.libraries import class_named, is_keras_2, is_written_by_keras, layers_of
from sidecar.evaluation.data.digest import feed

_IGNORED: Final = ("name", "seed", "build_config", "shared_object_id")
"""Settings that change no number: Keras numbers the names, and an evaluation sets its own seeds."""

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")  # in the `repr` of an object


@dataclass(frozen=True, slots=True)
class LayerTables:
    """The tables of one layer: all data outside its variables."""

    layer: Any
    name: str
    digest: str


def holders_in(model: Any) -> list[Any]:
    """Return the layers of a model without the lookup layers inside `TextVectorization` layers."""
    layers = layers_of(model)
    inner = {id(layer) for layer in map(_inner_of, layers) if layer is not None}
    return [layer for layer in layers if id(layer) not in inner]


def tables_of(model: Any) -> list[LayerTables]:
    """Return vocabularies, bins, lookup tables and assets by layer, for layers that have any."""
    by_name: dict[str, LayerTables] = {}
    for number, layer in enumerate(holders_in(model)):
        digest = hashlib.sha256()
        if any([_feed_tables(digest, layer), _feed_constants(digest, layer), _feed_assets(digest, layer)]):
            name = _unique_name(number, layer, by_name)
            by_name[name] = LayerTables(layer, name, digest.hexdigest())
    return list(by_name.values())


def finalize(model: Any) -> list[Any]:
    """Let layers compute again the constants that depend on restored variables; return these layers."""
    finalized = []
    for layer in layers_of(model):
        is_mean = is_of_keras(layer, "Normalization") and layer.input_mean is None
        is_bins = is_of_keras(layer, "Discretization") and is_keras_2(layer) and layer.input_bin_boundaries is None
        if is_mean or is_bins:
            layer.finalize_state()
            finalized.append(layer)
        if is_of_keras(layer, "IndexLookup") and idf_of(layer) is not None:
            layer.idf_weights_const = layer.idf_weights.value()  # its vocabulary is not a variable
    return finalized


def is_of_keras(layer: Any, kind: str) -> bool:
    """Return whether a layer is an instance of the class of this name, in Keras 3 or tf_keras."""
    return class_named(layer, kind) is not None


def settings_of(model: Any) -> dict[str, str]:
    """Return the digest of the settings of each layer, as `get_config` returns them, by a unique name."""
    digests: dict[str, str] = {}
    for number, layer in enumerate(layers_of(model)):
        if is_written_by_keras(type(layer).get_config) and hasattr(layer, "layers"):
            continue  # the settings of a model repeat those of its layers, with their names
        with contextlib.suppress(Exception):  # `get_config` is missing, or a method of the user fails
            text = json.dumps(_plain(layer.get_config()), sort_keys=True)
            digests[_unique_name(number, layer, digests)] = hashlib.sha256(
                text.encode(errors="surrogatepass")
            ).hexdigest()
    return digests


def _unique_name(number: int, layer: Any, others: Mapping[str, Any]) -> str:
    name = f"{getattr(layer, 'name', number)} ({type(layer).__name__})"
    return f"{name} {number}" if name in others else name


def has_tables_in_checkpoints(layer: Any) -> bool:
    """Return whether a layer has tables, and an object checkpoint holds the entries of all of them."""
    kinds = [_is_mutable(table) for _, table, *_ in _tables(layer)]
    return bool(kinds) and all(kinds)


def constant_tables_of(model: Any) -> list[tuple[Any, Any, Any]]:
    """Return layer, keys and values of each table that is part of a graph, in the order of the objects of the model."""
    found = {
        id(table): (layer, keys, values)
        for layer in holders_in(model)
        for _, table, keys, values in _tables(layer)
        if not _is_mutable(table)
    }
    return [found[id(each)] for each in tf.train.TrackableView(model).descendants() if id(each) in found]


def idf_of(layer: Any) -> Any:
    """Return the weights of words that a layer holds as constants (`output_mode="tf_idf"`); `None` if it has none."""
    for owner in (layer, _inner_of(layer)):
        if is_of_keras(owner, "IndexLookup") and owner.output_mode == "tf_idf":
            return getattr(owner, "idf_weights_const", None)
    return None


def _tables(layer: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield each lookup table of a layer: its name, itself, its keys and its values."""
    for owner in [owner for owner in (layer, _inner_of(layer)) if owner is not None]:
        for name, attribute in sorted(vars(owner).items()):
            is_vocabulary = isinstance(attribute, tf.lookup.StaticVocabularyTable)
            table: Any = getattr(attribute, "_table", None) if is_vocabulary else attribute
            if _is_mutable(table) or isinstance(table, tf.lookup.StaticHashTable):
                with contextlib.suppress(tf.errors.FailedPreconditionError):  # not initialized
                    keys, values = (np.asarray(part) for part in table.export())
                    if keys.size:
                        yield name, table, keys, values


def _is_mutable(table: Any) -> bool:
    return isinstance(table, tf.lookup.experimental.MutableHashTable)


def _inner_of(layer: Any) -> Any:
    """Return the layer inside a `TextVectorization` that holds its vocabulary; `None` for other layers."""
    return getattr(layer, "_lookup_layer", None)


def _feed_tables(digest: Any, layer: Any) -> bool:
    has_tables = False
    for name, _, keys, values in _tables(layer):
        order = np.argsort(keys, axis=0, kind="stable")
        digest.update(name.encode())
        feed(digest.update, keys[order])
        feed(digest.update, values[order])
        has_tables = True
    return has_tables


def _feed_constants(digest: Any, layer: Any) -> bool:
    """Hash bins, means, variances and weights of words, which are constants in a trace; return whether it has any."""
    names = ("mean", "variance") if is_of_keras(layer, "Normalization") else ("bin_boundaries",)
    constants = (*(getattr(layer, name, None) for name in names), idf_of(layer))
    values = [constant for constant in constants if constant is not None]
    digest.update(json.dumps(_plain(values)).encode())
    return bool(values)


def _feed_assets(digest: Any, layer: Any) -> bool:
    """Hash the files that the layer writes in addition to its variables; return whether it writes any."""
    if not hasattr(layer, "save_assets"):
        return False
    has_assets = False
    with tempfile.TemporaryDirectory(prefix="sidecar-") as folder:
        try:
            layer.save_assets(folder)
        except Exception:  # noqa: BLE001 - a layer that has no assets yet may fail
            return False
        for file in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            digest.update(str(file.relative_to(folder)).encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
            has_assets = True
    return has_assets


def _plain(value: Any) -> Any:
    """Return a value made of JSON types, which is equal in every process that computes the same numbers."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if str(key) not in _IGNORED}
    if isinstance(value, list | tuple | set | frozenset):
        plain = [_plain(item) for item in value]
        return sorted(plain, key=json.dumps) if isinstance(value, set | frozenset) else plain
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.ndarray | np.generic | tf.Tensor | tf.Variable):
        digest = hashlib.sha256()
        feed(digest.update, np.asarray(value))
        return digest.hexdigest()
    return _ADDRESS.sub("", repr(value)) if callable(value) else type(value).__name__
