"""Bring vocabularies and bins from a `.keras` file, as data, into the layers of the task.

As `keras.models.load_model` would load it, but into the model that is there: no class that the file names is looked
for, and nothing stored is run. Assets go through each layer's own `load_assets`; of the configuration, which is plain
JSON, the values are read that Keras' preprocessing layers keep there.
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
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.hdf5 import damaged

OF_DAMAGE: Final = (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error)
"""What reading a damaged archive raises."""

_FOLDER: Final = "assets"
_CONFIG: Final = "config.json"
_LARGEST: Final = 1 << 30  # bytes of all assets, and of the configuration
_MOST_FILES: Final = 10_000

_LOOKUPS: Final = ("StringLookup", "IntegerLookup", "TextVectorization")
_KEPT: Final = {
    **dict.fromkeys(_LOOKUPS, ("vocabulary", "idf_weights")),
    "Discretization": ("bin_boundaries",),
    "Normalization": ("mean", "variance"),
    "Hashing": ("num_bins", "salt"),
}
"""Keras' layers that keep data in their configuration, and where."""


def load_assets(model: Any, path: str) -> list[Any]:
    """Give the model's layers what the file has for them; returns those that got, or have, what it has.

    Raises:
        EvaluationError: `mismatch` if a layer cannot take it, `corrupt` if it is not what Keras writes.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            stored = _stored(archive, path)
            loaded = [layer for layer, config in _pairs(model, stored, path) if _configure(layer, config, path)]
            return loaded + _load_files(model, archive, path, loaded)
    except OF_DAMAGE as error:
        raise damaged(path, error) from error


def _stored(archive: zipfile.ZipFile, path: str) -> list[tuple[str, dict[str, Any]]]:
    """Yield class and configuration of every layer that the file describes, in their order."""
    if _CONFIG not in archive.namelist():
        raise EvaluationError("corrupt", f"{path} has no {_CONFIG}")
    if archive.getinfo(_CONFIG).file_size > _LARGEST:
        raise EvaluationError("corrupt", f"{path}: {_CONFIG} is larger than any model needs")
    try:
        config = json.loads(archive.read(_CONFIG))
    except (ValueError, RecursionError) as error:
        raise EvaluationError("corrupt", f"{path}: {_CONFIG} is no JSON: {error}") from error
    return list(_described(config))


def _described(config: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the described objects without recursion, since the writer of the file decides how deep they are nested."""
    waiting = [config]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            name, own = each.get("class_name"), each.get("config")
            if isinstance(name, str) and isinstance(own, dict):
                yield name, own
            waiting += reversed(list(each.values()))
        elif isinstance(each, list):
            waiting += reversed(each)


def _pairs(model: Any, stored: list[tuple[str, dict[str, Any]]], path: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the layers that keep data in their configuration, each with its configuration in the file."""
    inner = {id(getattr(layer, "_lookup_layer", None)) for layer in layers_of(model)}  # TextVectorization's own
    for kind in _KEPT:
        layers = [each for each in layers_of(model) if is_of_keras(each, kind) and id(each) not in inner]
        configs = [config for name, config in stored if name == kind]
        by_name = {str(config.get("name")): config for config in configs}
        if not configs:  # of a subclassed model, which tells nothing of its layers
            continue
        if len(layers) != len(configs):
            raise EvaluationError(
                "mismatch",
                f"{path} has {len(configs)} layers {kind}, the model has {len(layers)}: let build_model return the "
                f"model that was saved",
            )
        if len(by_name) == len(configs) and {layer.name for layer in layers} == by_name.keys():
            yield from ((layer, by_name[layer.name]) for layer in layers)
        else:  # Keras counts up names in a process
            yield from zip(layers, configs, strict=True)


def _configure(layer: Any, config: dict[str, Any], path: str) -> bool:
    """Bring a layer to what its configuration in the file says; whether that says anything."""
    kind = next(kind for kind in _KEPT if is_of_keras(layer, kind))
    given = {name: config.get(name) for name in _KEPT[kind] if config.get(name) is not None}
    inner = getattr(layer, "_lookup_layer", layer)
    if kind in _LOOKUPS and not given:  # it was adapted, so that the file has it as an asset
        inner.input_vocabulary = None  # else Keras would not look there
        return False
    own = layer.get_config()
    if not given or all(own.get(name) == each for name, each in given.items()):
        return bool(given)
    if kind not in (*_LOOKUPS, "Discretization") or not all(map(_is_plain, given.values())):
        names = ", ".join(given)
        raise EvaluationError(
            "mismatch",
            f"{path}: layer {layer.name!r} ({kind}) was saved with another {names} than the task builds it with: let "
            f"build_model return the model that was saved",
        )
    try:
        if kind == "Discretization":
            layer.bin_boundaries = given["bin_boundaries"]
        else:
            layer.set_vocabulary(given["vocabulary"], given.get("idf_weights"))
            inner.input_vocabulary, inner.input_idf_weights = given["vocabulary"], given.get("idf_weights")
    except (ValueError, TypeError, LookupError, RuntimeError) as error:
        raise _refused(layer, path, error) from error
    return True


def _is_plain(values: Any) -> bool:
    """Return whether a value is data; a vocabulary may also be the name of a file, which may lie anywhere."""
    return isinstance(values, list) and all(isinstance(each, str | int | float) for each in values)


def _load_files(model: Any, archive: zipfile.ZipFile, path: str, loaded: list[Any]) -> list[Any]:
    """Let layers load their files; those that did."""
    members = [each for each in archive.infolist() if PurePosixPath(each.filename).parts[:1] == (_FOLDER,)]
    files = [each for each in members if not each.is_dir()]
    if not files:
        return []
    if len(files) > _MOST_FILES or sum(each.file_size for each in files) > _LARGEST:
        raise EvaluationError("corrupt", f"{path}: {len(files)} assets are more than any model needs")
    with tempfile.TemporaryDirectory(prefix="sidecar-") as folder:
        for member in files:
            parts = PurePosixPath(member.filename.replace("\\", "/")).parts
            if ".." in parts or "\0" in member.filename:
                raise EvaluationError("corrupt", f"{path}: the asset {member.filename!r} lies outside of it")
            target = Path(folder, *parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(member))
        return _visit(model, str(Path(folder, _FOLDER)), path, loaded)


def _visit(model: Any, folder: str, path: str, loaded: list[Any]) -> list[Any]:
    """Call `load_assets` of each layer that has a folder of files, by the names under which Keras saves."""
    if is_keras_2(model):
        from tf_keras.src.saving import saving_lib

        visited: dict[str, Any] = {"visited_trackables": set()}
    else:
        from keras.src.saving import saving_lib

        visited = {"visited_saveables": set()}
    found: list[Any] = []

    class Store(saving_lib.DiskIOStore):  # type: ignore[misc] # Keras is not typed
        """Folders with files in them."""

        def __init__(self) -> None:
            self.mode, self.root_path, self.archive, self.tmp_dir, self.working_dir = "r", folder, None, None, folder

        def get(self, path: str) -> Any:
            """Return the folder of a layer's assets; None if it has no file."""
            place = Path(folder, path)
            return str(place) if place.is_dir() and any(each.is_file() for each in place.iterdir()) else None

    store = Store()
    layers = [each for each in layers_of(model) if hasattr(each, "load_assets")]
    done = {id(each) for each in loaded}
    originals = {id(each): each.load_assets for each in layers}

    def take(layer: Any, place: Any) -> None:
        if place is None or id(layer) in done:
            return
        try:
            originals[id(layer)](place)
        except Exception as error:
            raise _refused(layer, path, error) from error
        found.append(layer)

    for layer in layers:
        object.__setattr__(layer, "load_assets", partial(take, layer))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            saving_lib._load_state(model, weights_store=None, assets_store=store, inner_path="", **visited)  # noqa: SLF001
    finally:
        for layer in layers:
            object.__delattr__(layer, "load_assets")
    return found


def _refused(layer: Any, path: str, error: Exception) -> EvaluationError:
    said = " ".join(str(error).split())[:500] or type(error).__name__
    return EvaluationError(
        "mismatch", f"{path}: layer {layer.name!r} ({type(layer).__name__}) cannot take what was saved of it: {said}"
    )
