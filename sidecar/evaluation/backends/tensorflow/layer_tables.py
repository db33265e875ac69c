"""Find everything in layers, next to their variables, that changes numbers: vocabularies, bins, tables, settings.

A checkpoint of variables does not have it, so it comes from the task, which may have made another one: each rank says
what it has, layer by layer, and they compare it. Of no layer anything stored is run: its own methods are asked.
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
"""Settings that change no number: names count up, and what is drawn in an evaluation is seeded by weights and batch."""

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")  # in what Python says of an object


@dataclass(frozen=True, slots=True)
class FixedTable:
    """A lookup table of a layer whose entries no checkpoint of variables has."""

    owner: Any  # the layer, or one that it keeps
    attribute: str
    entries: dict[Any, Any]

    def replace(self, entries: Mapping[Any, Any]) -> bool:
        """Let the layer have other entries, if its table can be made anew; whether it can.

        What was traced keeps the table that it was traced with.
        """
        table = getattr(self.owner, self.attribute)
        if type(table) is not tf.lookup.StaticHashTable:
            return False
        content = tf.lookup.KeyValueTensorInitializer(
            list(entries), list(entries.values()), table.key_dtype, table.value_dtype
        )
        setattr(self.owner, self.attribute, tf.lookup.StaticHashTable(content, table._default_value))  # noqa: SLF001
        return True


@dataclass(frozen=True, slots=True)
class Held:
    """What one layer learned, or was given as data, outside its variables."""

    layer: Any
    name: str
    digest: str


def holders_in(model: Any) -> list[Any]:
    """Return the layers of a model but for those that keep something on behalf of another one."""
    layers = layers_of(model)
    inner = {id(each) for each in map(_inner_of, layers) if each is not None}
    return [each for each in layers if id(each) not in inner]


def held_of(model: Any) -> list[Held]:
    """Return vocabularies, bins, lookup tables and assets by layer, for layers that have any."""
    found: dict[str, Held] = {}
    for number, layer in enumerate(holders_in(model)):
        digest = hashlib.sha256()
        if any([_feed_tables(digest, layer), _feed_constants(digest, layer), _feed_assets(digest, layer)]):
            name = _told(number, layer, found)
            found[name] = Held(layer, name, digest.hexdigest())
    return list(found.values())


def finalize(model: Any) -> list[Any]:
    """Let layers compute anew what they made of variables that were restored; which ones they are."""
    found = []
    for layer in layers_of(model):
        is_mean = is_of_keras(layer, "Normalization") and layer.input_mean is None
        is_bins = is_of_keras(layer, "Discretization") and is_keras_2(layer) and layer.input_bin_boundaries is None
        if is_mean or is_bins:
            layer.finalize_state()
            found.append(layer)
        if is_of_keras(layer, "IndexLookup") and idf_of(layer) is not None:
            layer.idf_weights_const = layer.idf_weights.value()  # its vocabulary is not among its variables
    return found


def is_of_keras(layer: Any, kind: str) -> bool:
    """Return whether a layer is of the class of this name of either Keras."""
    return class_named(layer, kind) is not None


def settings_of(model: Any) -> dict[str, str]:
    """Return the digest of each layer's settings by its name, as `get_config` returns them."""
    found: dict[str, str] = {}
    for number, layer in enumerate(layers_of(model)):
        if is_written_by_keras(type(layer).get_config) and hasattr(layer, "layers"):
            continue  # a model, which tells its layers once more, by their names
        with contextlib.suppress(Exception):  # of a layer that cannot tell, or a method of the user's that fails
            text = json.dumps(_plain(layer.get_config()), sort_keys=True)
            found[_told(number, layer, found)] = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return found


def _told(number: int, layer: Any, others: Mapping[str, Any]) -> str:
    name = f"{getattr(layer, 'name', number)} ({type(layer).__name__})"
    return f"{name} {number}" if name in others else name


def has_tables_in_checkpoints(layer: Any) -> bool:
    """Return whether all tables of a layer are of a kind whose entries an object checkpoint has."""
    kinds = [is_mutable for *_, is_mutable in _tables(layer)]
    return bool(kinds) and all(kinds)


def fixed_tables_of(layer: Any) -> Iterator[FixedTable]:
    """Yield each table that no checkpoint of variables has."""
    for owner, name, keys, values, is_mutable in _tables(layer):
        if not is_mutable:
            yield FixedTable(owner, name, dict(zip(keys.tolist(), values.tolist(), strict=True)))


def idf_of(layer: Any) -> Any:
    """Return the weights of words that a layer has as constants (`output_mode="tf_idf"`); None if it has none."""
    for owner in (layer, _inner_of(layer)):
        if is_of_keras(owner, "IndexLookup") and owner.output_mode == "tf_idf":
            return getattr(owner, "idf_weights_const", None)
    return None


def bins_of(layer: Any) -> Any:
    """Return the boundaries that a layer has as constants; None if it has none."""
    return getattr(layer, "bin_boundaries", None) if is_of_keras(layer, "Discretization") else None


def _tables(layer: Any) -> Iterator[tuple[Any, str, Any, Any, bool]]:
    """Yield owner, name, keys and values of each lookup table of a layer that has any, and whether it is mutable."""
    for owner in [each for each in (layer, _inner_of(layer)) if each is not None]:
        for name, each in sorted(vars(owner).items()):
            table: Any = getattr(each, "_table", None) if isinstance(each, tf.lookup.StaticVocabularyTable) else each
            is_mutable = isinstance(table, tf.lookup.experimental.MutableHashTable)
            if is_mutable or isinstance(table, tf.lookup.StaticHashTable):
                with contextlib.suppress(tf.errors.FailedPreconditionError):  # not initialized
                    keys, values = (np.asarray(part) for part in table.export())
                    if keys.size:
                        yield owner, name, keys, values, is_mutable


def _inner_of(layer: Any) -> Any:
    """Return the layer in which a `TextVectorization` keeps its vocabulary."""
    return getattr(layer, "_lookup_layer", None)


def _feed_tables(digest: Any, layer: Any) -> bool:
    found = False
    for _, name, keys, values, _ in _tables(layer):
        order = np.argsort(keys, axis=0, kind="stable")
        digest.update(name.encode())
        feed(digest.update, keys[order])
        feed(digest.update, values[order])
        found = True
    return found


def _feed_constants(digest: Any, layer: Any) -> bool:
    """Hash bins, means, variances and weights of words, which are constants in a trace."""
    names = ("mean", "variance") if is_of_keras(layer, "Normalization") else ("bin_boundaries",)
    values = [each for each in (*(getattr(layer, name, None) for name in names), idf_of(layer)) if each is not None]
    digest.update(json.dumps(_plain(values)).encode())
    return bool(values)


def _feed_assets(digest: Any, layer: Any) -> bool:
    """Hash the files that the layer writes in addition to its variables."""
    if not hasattr(layer, "save_assets"):
        return False
    found = False
    with tempfile.TemporaryDirectory(prefix="sidecar-") as folder:
        try:
            layer.save_assets(folder)
        except Exception:  # noqa: BLE001 - one that has none yet
            return False
        for file in sorted(each for each in Path(folder).rglob("*") if each.is_file()):
            digest.update(str(file.relative_to(folder)).encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
            found = True
    return found


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, the same in every process that computes the same."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items() if str(key) not in _IGNORED}
    if isinstance(value, list | tuple | set | frozenset):
        plain = [_plain(each) for each in value]
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
