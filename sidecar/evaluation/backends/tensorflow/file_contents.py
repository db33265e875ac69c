"""Record which values of a file of Keras a model reads, to find those that it leaves out.

`load_weights` visits the objects of the model and takes their values from the file. Keras reports neither a group of
the file that belongs to no object, nor a value that a layer of the user does not read.
"""

import contextlib
import json
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import h5py

from sidecar.evaluation.backends.tensorflow.completeness import Unused, metrics_of, takes_no_part
from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2, layers_of

_HOOK: Final = "load_own_variables"
_VARS: Final = "vars"  # the group of the values of one object
_IN_ARCHIVE: Final = "model.weights.h5"
_SEED_SHAPE, _SEED_TYPE = (2,), "uint32"  # of the state of a seed generator
_LOCK: Final = threading.Lock()  # the class of stores is changed while a file is loaded


@dataclass(slots=True)
class FileContents:
    """Hold the names of the values of a file that were read, and the types of the floats among them."""

    path: str
    read: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)
    names: list[tuple[str, str]] = field(default_factory=list)  # of each layer in the model, and in the file

    def unused(self) -> list[Unused]:
        """Return the values of a model in the file that nothing has read.

        Older `.h5` files have none: Keras compares the numbers of layers and of their values.
        """
        values: dict[str, Unused] = {}
        for file in _opened(self.path):
            found: dict[str, h5py.Dataset] = {}
            file.visititems(partial(_collect, found))
            for name, dataset in found.items():
                if name not in self.read and not _takes_no_part(name, dataset, file):
                    values[name] = _unused(name, dataset)
        return list(values.values())


@contextlib.contextmanager
def recorded(model: Any, path: str, may_lack: Callable[[Any], bool]) -> Iterator[FileContents]:
    """Record what `model.load_weights` reads in this block.

    `model`: the built model. `path`: the file that is loaded. `may_lack`: whether the file may lack this variable; a
    layer of such variables alone is then left as it is.
    """
    if is_keras_2(model):
        from tf_keras.src.saving import saving_lib
    else:
        from keras.src.saving import saving_lib
    contents = FileContents(path)
    layers = list({id(layer): layer for layer in (*layers_of(model), *metrics_of(model))}.values())
    with _LOCK, _get_replaced(saving_lib.H5IOStore, contents):
        try:
            for layer in layers:
                object.__setattr__(layer, _HOOK, partial(_load, layer, getattr(layer, _HOOK), contents, may_lack))
            yield contents
        finally:
            for layer in layers:
                with contextlib.suppress(AttributeError):  # `differences` has removed it
                    object.__delattr__(layer, _HOOK)


def _load(layer: Any, load: Any, contents: FileContents, may_lack: Callable[[Any], bool], store: Any) -> None:
    if not len(store) and layer.weights and all(map(may_lack, layer.weights)):
        return
    name = getattr(getattr(store, "_h5_entry_group", None), "attrs", {}).get("name")
    if isinstance(name, str):
        contents.names.append((layer.name, name))
    load(store)


class _Recorded(h5py.Group):  # type: ignore[misc] # h5py is not typed
    """Record the names and types of the values that are taken from a group."""

    def __init__(self, group: Any, contents: FileContents) -> None:
        super().__init__(group.id)
        self._contents = contents

    def __getitem__(self, name: Any) -> Any:
        found = super().__getitem__(name)
        if isinstance(found, h5py.Dataset):
            self._contents.read.add(str(found.name).lstrip("/"))
            stored = str(found.attrs.get("dtype", found.dtype))  # HDF5 itself has no bfloat16
            self._contents.types |= {stored} if "float" in stored else set()
        return found


@contextlib.contextmanager
def _get_replaced(store_class: Any, contents: FileContents) -> Iterator[None]:
    """Let the stores of Keras record what is read from the groups that they open."""
    originals = {name: vars(each)[name] for each, name in _openers(store_class)}

    def get(store: Any, path: str) -> Any:
        found = originals["get"](store, path)
        if isinstance(found, h5py.Group):  # tf_keras
            return _Recorded(found, contents)
        _record(store, contents)
        return found

    def get_h5_group(store: Any, path: str) -> None:  # of another shard
        originals["_get_h5_group"](store, path)
        _record(store, contents)

    replaced = {"get": get, "_get_h5_group": get_h5_group}
    try:
        for each, name in _openers(store_class):
            setattr(each, name, replaced[name])
        yield
    finally:
        for each, name in _openers(store_class):
            setattr(each, name, originals[name])


def _openers(store_class: Any) -> Iterator[tuple[Any, str]]:
    """Yield the methods that open a group, with their classes."""
    yield store_class, "get"
    for each in store_class.__subclasses__():
        if "_get_h5_group" in vars(each):
            yield each, "_get_h5_group"


def _record(store: Any, contents: FileContents) -> None:
    group = getattr(store, "_h5_entry_group", None)  # in Keras 3
    if isinstance(group, h5py.Group):
        store._h5_entry_group = _Recorded(group, contents)  # noqa: SLF001 - the only place of the group


def _opened(path: str) -> Iterator[Any]:
    """Yield the HDF5 files of a file of Keras, open; nothing for an older format."""
    if path.endswith(".keras"):
        with zipfile.ZipFile(path) as archive, archive.open(_IN_ARCHIVE) as member, h5py.File(member, "r") as file:
            yield file
    elif path.endswith(".weights.json"):
        shards = json.loads(Path(path).read_bytes())["weight_map"].values()
        names = {name for each in shards for name in (each if isinstance(each, list) else [each])}
        for name in sorted(names):
            with h5py.File(Path(path).with_name(name), "r", locking=False) as file:
                yield file
    elif path.endswith(".weights.h5"):
        with h5py.File(path, "r", locking=False) as file:
            if "layer_names" not in file.attrs:  # an older writer used the same name
                yield file


def _collect(found: dict[str, h5py.Dataset], name: str, item: Any) -> None:
    if isinstance(item, h5py.Dataset) and name.rpartition("/")[0].rpartition("/")[2] == _VARS:
        found[name] = item


def _takes_no_part(name: str, dataset: h5py.Dataset, file: Any) -> bool:
    """Return whether a value is one of an optimizer, a metric or a generator of random numbers."""
    *parts, _, _ = name.split("/")
    group = file[name.rpartition("/")[0]]
    own_name = str(group.attrs.get("name", ""))
    is_seed = dataset.shape == _SEED_SHAPE and str(dataset.dtype) == _SEED_TYPE
    return any(map(takes_no_part, (*parts, own_name.rstrip("_0123456789")))) or is_seed or _is_of_optimizer(group)


def _is_of_optimizer(group: Any) -> bool:
    """Return whether a group begins with the number of iterations, which layers hardly count."""
    first = group.get("0")
    return isinstance(first, h5py.Dataset) and first.shape == () and first.dtype.kind == "i"


def _unused(name: str, dataset: h5py.Dataset) -> Unused:
    place, _, key = name.partition(f"/{_VARS}/") if f"/{_VARS}/" in name else ("", "", name.removeprefix(f"{_VARS}/"))
    layer = str(dataset.parent.attrs.get("name", ""))
    shown = f"{place}/{key}" if place else key
    return Unused(shown, tuple(dataset.shape), str(dataset.dtype), alias=f"{layer}/{key}" if layer else "")
