"""Load vocabularies and bins from a `.keras` file, as data, into the layers of the task.

The result is that of `keras.models.load_model`, but in the model that the task built. The classes that the file names
are not imported, and no stored code is run. Assets are loaded by the `load_assets` method of each layer. The
configuration is plain JSON; only the values that the preprocessing layers of Keras store there are read from it.
"""

import json
import struct
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

from sidecar.evaluation.backends.tensorflow.layer_tables import is_of_keras
from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2, layers_of
from sidecar.evaluation.failures import EvaluationError, mismatch
from sidecar.evaluation.hdf5 import read_failure
from sidecar.evaluation.remedy import GIVE_SAVED_MODEL

DAMAGE_ERRORS: Final = (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error)
"""Exceptions that reading a damaged archive raises."""

_FOLDER: Final = "assets"
_CONFIG: Final = "config.json"
_MAX_BYTES: Final = 1 << 30  # of all assets together, and of the configuration
_MAX_FILES: Final = 10_000
_MAX_CHARACTERS: Final = 500  # of the message of a layer

_LOOKUPS: Final = ("StringLookup", "IntegerLookup", "TextVectorization")
_CONFIGURED: Final = {
    **dict.fromkeys(_LOOKUPS, ("vocabulary", "idf_weights")),
    "Discretization": ("bin_boundaries",),
    "Normalization": ("mean", "variance"),
    "Hashing": ("num_bins", "salt"),
}
"""The layers of Keras that store data in their configuration, and the keys of that data."""


def load_assets(model: Any, path: str) -> list[Any]:
    """Load the tables and assets of a `.keras` file into the layers of a model.

    Return the layers that hold the content of the file, whether it was loaded now or was equal before. Raises
    `EvaluationError`: `mismatch` if a layer refuses its content, `corrupt` if Keras cannot have written the file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            stored = _read_configuration(archive, path)
            loaded = [layer for layer, config in _pairs(model, stored, path) if _configure(layer, config, path)]
            return loaded + _load_files(model, archive, path, loaded)
    except DAMAGE_ERRORS as error:
        raise read_failure(path, error) from error


def _read_configuration(archive: zipfile.ZipFile, path: str) -> list[tuple[str, dict[str, Any]]]:
    """Return class and configuration of every layer that the file describes, in their order."""
    if _CONFIG not in archive.namelist():
        raise EvaluationError("corrupt", f"{path} has no {_CONFIG}")
    if archive.getinfo(_CONFIG).file_size > _MAX_BYTES:
        raise EvaluationError("corrupt", f"{path}: {_CONFIG} is larger than any model needs")
    try:
        config = json.loads(archive.read(_CONFIG))
    except (ValueError, RecursionError) as error:
        raise EvaluationError("corrupt", f"{path}: {_CONFIG} is not JSON: {error}") from error
    return list(_serialized_objects(config))


def _serialized_objects(tree: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield class and configuration of the objects in a JSON tree.

    The tree is walked without recursion, since the writer of the file decides how deep it is nested.
    """
    remaining = [tree]
    while remaining:
        node = remaining.pop()
        if isinstance(node, dict):
            class_name, config = node.get("class_name"), node.get("config")
            if isinstance(class_name, str) and isinstance(config, dict):
                yield class_name, config
            remaining += reversed(list(node.values()))
        elif isinstance(node, list):
            remaining += reversed(node)


def _pairs(model: Any, stored: list[tuple[str, dict[str, Any]]], path: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the layers that store data in their configuration, each with its configuration in the file."""
    inner = {id(getattr(layer, "_lookup_layer", None)) for layer in layers_of(model)}  # within a TextVectorization
    for kind in _CONFIGURED:
        layers = [layer for layer in layers_of(model) if is_of_keras(layer, kind) and id(layer) not in inner]
        configs = [config for name, config in stored if name == kind]
        by_name = {str(config.get("name")): config for config in configs}
        if not configs:  # a subclassed model does not describe its layers
            continue
        if len(layers) != len(configs):
            raise mismatch(
                f"{path} has {len(configs)} layers {kind}, the model has {len(layers)}: ",
                remedy=GIVE_SAVED_MODEL,
            )
        if len(by_name) == len(configs) and {layer.name for layer in layers} == by_name.keys():
            yield from ((layer, by_name[layer.name]) for layer in layers)
        else:  # names differ where the process made such layers before: Keras numbers them
            yield from zip(layers, configs, strict=True)


def _configure(layer: Any, config: dict[str, Any], path: str) -> bool:
    """Set the data of a layer from its configuration in the file; return whether the configuration holds any."""
    kind = next(kind for kind in _CONFIGURED if is_of_keras(layer, kind))
    stored = {name: config.get(name) for name in _CONFIGURED[kind] if config.get(name) is not None}
    inner = getattr(layer, "_lookup_layer", layer)
    if kind in _LOOKUPS and not stored:  # the layer was adapted, so the file holds its vocabulary as an asset
        inner.input_vocabulary = None  # otherwise Keras would not load the asset
        return False
    present = layer.get_config()
    if not stored or all(present.get(name) == value for name, value in stored.items()):
        return bool(stored)
    if kind not in (*_LOOKUPS, "Discretization") or not all(map(_is_plain, stored.values())):
        names = ", ".join(stored)
        raise mismatch(
            f"{path}: layer {layer.name!r} ({kind}) was saved with another {names} than it is built with: ",
            remedy=GIVE_SAVED_MODEL,
        )
    try:
        if kind == "Discretization":
            layer.bin_boundaries = stored["bin_boundaries"]
        else:
            layer.set_vocabulary(stored["vocabulary"], stored.get("idf_weights"))
            inner.input_vocabulary, inner.input_idf_weights = stored["vocabulary"], stored.get("idf_weights")
    except (ValueError, TypeError, LookupError, RuntimeError) as error:
        raise _refused(layer, path, error) from error
    return True


def _is_plain(values: Any) -> bool:
    """Return whether a value is data; a vocabulary may also be the path of a file anywhere."""
    return isinstance(values, list) and all(isinstance(value, str | int | float) for value in values)


def _load_files(model: Any, archive: zipfile.ZipFile, path: str, loaded: list[Any]) -> list[Any]:
    """Let the layers that are not in `loaded` load their asset files; return those that did."""
    members = [member for member in archive.infolist() if PurePosixPath(member.filename).parts[:1] == (_FOLDER,)]
    files = [member for member in members if not member.is_dir()]
    if not files:
        return []
    if len(files) > _MAX_FILES or sum(file.file_size for file in files) > _MAX_BYTES:
        raise EvaluationError("corrupt", f"{path}: {len(files)} assets are more than any model needs")
    with tempfile.TemporaryDirectory(prefix="sidecar-") as folder:
        for file in files:
            parts = PurePosixPath(file.filename.replace("\\", "/")).parts
            if ".." in parts or "\0" in file.filename:
                raise EvaluationError("corrupt", f"{path}: the asset {file.filename!r} lies outside of it")
            target = Path(folder, *parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(file))
        return _load_extracted(model, str(Path(folder, _FOLDER)), path, loaded)


def _load_extracted(model: Any, folder: str, path: str, loaded: list[Any]) -> list[Any]:
    """Call `load_assets` of each layer that has files in the folder; return these layers.

    Keras finds the folder of each layer, by the names that it uses to save.
    """
    if is_keras_2(model):
        from tf_keras.src.saving import saving_lib

        visited: dict[str, Any] = {"visited_trackables": set()}
    else:
        from keras.src.saving import saving_lib

        visited = {"visited_saveables": set()}
    newly_loaded: list[Any] = []

    class Store(saving_lib.DiskIOStore):  # type: ignore[misc] # Keras is not typed
        """Offer the extracted files as the asset store of Keras."""

        def __init__(self) -> None:
            self.mode, self.root_path, self.archive, self.tmp_dir, self.working_dir = "r", folder, None, None, folder

        def get(self, path: str) -> Any:
            """Return the folder of the assets of a layer; `None` if it holds no file."""
            place = Path(folder, path)
            return str(place) if place.is_dir() and any(entry.is_file() for entry in place.iterdir()) else None

    store = Store()
    layers = [layer for layer in layers_of(model) if hasattr(layer, "load_assets")]
    loaded_before = {id(layer) for layer in loaded}
    originals = {id(layer): layer.load_assets for layer in layers}

    def load(layer: Any, place: Any) -> None:
        if place is None or id(layer) in loaded_before:
            return
        try:
            originals[id(layer)](place)
        except Exception as error:
            raise _refused(layer, path, error) from error
        newly_loaded.append(layer)

    for layer in layers:
        object.__setattr__(layer, "load_assets", partial(load, layer))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            saving_lib._load_state(model, weights_store=None, assets_store=store, inner_path="", **visited)  # noqa: SLF001
    finally:
        for layer in layers:
            object.__delattr__(layer, "load_assets")
    return newly_loaded


def _refused(layer: Any, path: str, error: Exception) -> EvaluationError:
    reason = " ".join(str(error).split())[:_MAX_CHARACTERS] or type(error).__name__
    return mismatch(f"{path}: layer {layer.name!r} ({type(layer).__name__}) cannot load its saved assets: {reason}")
