"""Read the tensors of a folder of `torch.distributed.checkpoint` in one process, or a part of them, whatever wrote it.

Source: torch `distributed/checkpoint/filesystem.py` and `metadata.py`. `.metadata` is a pickle, and torch's own reader
loads it as one that may run code. Here it may name the classes that torch writes into it, and nothing else. Objects
that are no tensors, such as the step of training, are pickles too, and are never read.
"""

import pickle
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import filesystem, metadata

from sidecar.evaluation.backends.torch.tensors import LocalPart
from sidecar.evaluation.failures import COPY_AGAIN, EvaluationError, mismatch, without_advice
from sidecar.protocol.weight_names import DCP_METADATA

_DATA: Final = re.compile(r"__[0-9]{1,9}_[0-9]{1,9}\.distcp")
_CLASSES: Final[dict[tuple[str, str], Any]] = {
    **{
        (metadata.__name__, name): getattr(metadata, name)
        for name in (
            *("Metadata", "MetadataIndex", "StorageMeta", "BytesStorageMetadata", "TensorStorageMetadata"),
            *("ChunkStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING"),
        )
    },
    (filesystem.__name__, "_StorageInfo"): filesystem._StorageInfo,  # noqa: SLF001 - it is in every file
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,  # noqa: SLF001 - looks up a name
    ("collections", "OrderedDict"): dict,
    ("pathlib", "PosixPath"): PurePosixPath,
    ("pathlib", "WindowsPath"): PureWindowsPath,
}
"""The classes and functions that `.metadata` may name. Paths tell where it was written, and are not used."""


class DistributedCheckpoint:
    """Hold what a folder says about its tensors, and read some of them.

    `content` is the saved mapping with tensors on the device `meta`, which have shapes and types, but no values.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with (path / DCP_METADATA).open("rb") as file:
            self._metadata = _unpickled(file, path)
        self._names: dict[int, str] = {}  # of the tensors in `content`, by their identity
        self.content: dict[Any, Any] = {}
        for name, stored in self._metadata.state_dict_metadata.items():
            if isinstance(stored, metadata.TensorStorageMetadata):
                tensor = torch.empty(stored.size, dtype=stored.properties.dtype, device="meta")
                self._names[id(tensor)] = name
                _put(self.content, self._place(name), tensor)

    def read(self, tensors: Mapping[str, Any], parts: Mapping[str, LocalPart]) -> dict[str, torch.Tensor]:
        """Return the values of tensors in `content`, or those of parts of them, by the keys that are given.

        Only these are read, and of each stored part one at a time.

        Raises `EvaluationError`: `mismatch` for another tensor or a damaged folder, `vanished` if a file is gone.
        """
        names = {}
        for key, tensor in tensors.items():
            if (name := self._names.get(id(tensor))) is None:
                raise mismatch(
                    f"{key} is not a tensor of {self._path}: let Task(checkpoint=…) choose tensors without computing "
                    f"others, or use Task(restore=…)"
                )
            names[key] = name
        wanted = {name: self._wanted(name, parts.get(key)) for key, name in names.items()}
        reader = _Reader(self._path, self._metadata)
        planner = _Planner()
        files = {self._file_of(index) for index in self._metadata.storage_data if index.fqn in wanted}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that no process group is needed is what is wanted
                dcp.load(wanted, storage_reader=reader, planner=planner, no_dist=True)
        except (Exception, dcp.CheckpointException) as error:  # which is no Exception
            if missing := [file for file in files if not (self._path / file).exists()]:
                raise EvaluationError("vanished", f"{self._path / missing[0]} is gone") from error
            problem = f"cannot be loaded ({COPY_AGAIN}): {_reason(error)}"
            raise mismatch(f"{self._path} {problem}") from error
        return {key: wanted[name].values for key, name in names.items()}

    def _place(self, name: str) -> Iterable[Any]:
        """Return the keys of a tensor in the saved mapping, which torch has flattened."""
        return (self._metadata.planner_data or {}).get(name, (name,))

    def _wanted(self, name: str, part: LocalPart | None) -> "_Wanted":
        """Return what is to be filled: memory of the model, if it has the stored type, so that nothing is held twice.

        Raises `EvaluationError` if the stored parts are not the whole of the tensor.
        """
        stored = self._metadata.state_dict_metadata[name]
        chunks = {tuple(chunk.offsets): prod(chunk.sizes) for chunk in stored.chunks}
        if sum(chunks.values()) != prod(stored.size):
            raise mismatch(f"{self._path}: the parts of {name} are not the whole tensor")
        region = tuple(slice(0, size) for size in stored.size) if part is None else part.region
        if part is not None and part.values is not None and part.values.dtype == stored.properties.dtype:
            return _Wanted(stored.size, region, part.values)
        shape = [place.stop - place.start for place in region]
        return _Wanted(stored.size, region, torch.empty(shape, dtype=stored.properties.dtype))

    def _file_of(self, index: Any) -> str:
        """Return the name of a data file in the folder. Raises `EvaluationError` if it is not one."""
        path = self._metadata.storage_data[index].relative_path
        if not isinstance(path, str) or _DATA.fullmatch(path) is None:
            raise mismatch(f"{self._path}: {index.fqn} is stored in {path!r}, which is no data file")
        return path


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Hold the part of a stored tensor that is read; for torch, a checkpointable object such as a `DTensor`."""

    shape: torch.Size
    region: tuple[slice, ...]
    values: torch.Tensor

    def size(self) -> torch.Size:
        """Return the shape of the stored tensor."""
        return self.shape

    def __create_chunk_list__(self) -> list[metadata.ChunkStorageMetadata]:
        """Return the region for which values are read."""
        first = torch.Size([place.start for place in self.region])
        return [metadata.ChunkStorageMetadata(offsets=first, sizes=self.values.shape)]


class _Planner(dcp.DefaultLoadPlanner):
    """Read into the values of `_Wanted`."""

    def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
        """Take what is wanted as it is: torch would flatten what it calls a state dict, and lose these objects."""
        self.original_state_dict = self.state_dict = state_dict
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def lookup_tensor(self, index: metadata.MetadataIndex) -> torch.Tensor:
        """Return the tensor into which a stored part goes."""
        values: torch.Tensor = self.state_dict[index.fqn].values
        return values


class _Reader(dcp.FileSystemReader):
    """Read a folder whose metadata was read before."""

    def __init__(self, path: Path, read: metadata.Metadata) -> None:
        super().__init__(path)
        self._read = read

    def read_metadata(self, *args: Any, **kwargs: Any) -> metadata.Metadata:
        """Return the metadata."""
        del args, kwargs
        return self._read


class _Unpickler(pickle.Unpickler):
    """Build what torch writes into `.metadata`."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that is allowed. Raises `UnpicklingError` for any other."""
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        try:
            return _CLASSES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which torch does not write there") from None


def _unpickled(file: BufferedReader, path: Path) -> metadata.Metadata:
    """Return the metadata in a file. Raises `EvaluationError`."""
    try:
        read = _Unpickler(file).load()
    except Exception as error:
        problem = f"cannot be loaded ({COPY_AGAIN}): {_reason(error)}"
        raise mismatch(f"{path / DCP_METADATA} {problem}") from error
    if not isinstance(read, metadata.Metadata) or not isinstance(read.storage_data, dict):
        raise mismatch(f"{path / DCP_METADATA} holds no metadata of torch.distributed.checkpoint")
    return read


def _put(content: dict[Any, Any], place: Iterable[Any], tensor: torch.Tensor) -> None:
    """Put a tensor into nested mappings. Places in lists are keys, too."""
    *outer, last = place
    for key in outer:
        content = content.setdefault(key, {})
    content[last] = tensor


def _reason(error: BaseException) -> str:
    """Return one line of an error: what a pickle names, or else the first line."""
    if isinstance(error, dcp.CheckpointException):
        error = next(iter(error.failures.values()))[0]
    lines = [line for text in str(error).splitlines() if (line := without_advice(text).strip())]
    return next((line for line in lines if "GLOBAL" in line), lines[0] if lines else type(error).__name__)
