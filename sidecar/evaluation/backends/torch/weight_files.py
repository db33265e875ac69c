"""Read the tensors of a checkpoint, without running what its files hold.

`torch.load(weights_only=True)` builds tensors and plain containers only. Files of safetensors are mapped into memory as
they are, without the package of that name; their format is in `sidecar/checkpoints/formats/safetensors.py`. All tensors
are read when they are used.
"""

import json
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from sidecar.evaluation.failures import EvaluationError
from sidecar.weight_names import DCP_METADATA, INDEX, SAFETENSORS, main_weights

_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"
_TYPES: Final = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
"""Types of safetensors, as its bindings for PyTorch name them."""

_NAMES_SHOWN: Final = 5
_RUNNING_MODULES: Final = frozenset(
    {"os", "posix", "nt", "sys", "subprocess", "shutil", "importlib", "runpy", "pty", "ctypes", "socket", "pickle"}
)
_RUNNING_BUILTINS: Final = frozenset(
    f"builtins.{name}" for name in ("eval", "exec", "compile", "open", "__import__", "getattr", "setattr", "delattr")
)
"""With the modules above: functions that no training saves, and that attacks by pickles call."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Hold the content of a checkpoint: what was saved, such as a mapping of tensors by name.

    `read`: returns the values of some of its tensors. Those of other formats are in `content` already.
    """

    content: Any
    read: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict


def load(path: str) -> Stored:
    """Return the content of a checkpoint.

    Args:
        path: A file of `torch.save` or safetensors, an index of shards, a folder of Hugging Face's libraries, or one of
            `torch.distributed.checkpoint`.

    Raises:
        EvaluationError: `mismatch` for content that could run code, with the names of what it refuses; `vanished` if a
            file is gone.
    """
    where = Path(path)
    try:
        if (where / DCP_METADATA).exists():
            # Imported here, because it takes half a second, and most checkpoints are files.
            from sidecar.evaluation.backends.torch.distributed_checkpoint import DistributedCheckpoint

            folder = DistributedCheckpoint(where)
            return Stored(folder.content, folder.read)
        if where.is_dir():
            where /= _weights_in(where)
        return Stored(dict(_of_shards(where)) if where.name.endswith(INDEX) else _load_file(where))
    except FileNotFoundError as error:
        raise EvaluationError("vanished", f"{path} is gone, or part of it: {error}") from error


def _weights_in(folder: Path) -> str:
    weights = main_weights([entry.name for entry in folder.iterdir()])
    if weights is None:
        raise EvaluationError("vanished", f"{folder} holds no weights of a model")
    return weights


def _of_shards(index: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of all shards that an index lists. The daemon has checked their names."""
    places = json.loads(index.read_bytes())["weight_map"]
    shards = {shard: _load_file(index.with_name(shard)) for shard in sorted(set(places.values()))}
    for name, shard in places.items():
        if name not in shards[shard]:
            raise EvaluationError("mismatch", f"{index} names {name} in {shard}, which does not hold it")
        yield name, shards[shard][name]


def _load_file(path: Path) -> Any:
    return _of_safetensors(path) if path.name.endswith(SAFETENSORS) else _of_torch(str(path))


def _of_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file of safetensors by name."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        header = json.loads(file.read(min(length, size)))
    values = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)[_LENGTH_BYTES + length :]
    try:
        return {name: _tensor(values, stored) for name, stored in header.items() if name != _METADATA}
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        raise EvaluationError("mismatch", f"{path} cannot be loaded: {type(error).__name__}: {error}") from error


def _tensor(values: torch.Tensor, stored: Mapping[str, Any]) -> torch.Tensor:
    """Return a tensor in the values of a file. A copy is made only if it begins between two places of its type."""
    first, last = stored["data_offsets"]
    dtype, part = _TYPES[stored["dtype"]], values[first:last]
    return (part.clone() if part.storage_offset() % dtype.itemsize else part).view(dtype).reshape(stored["shape"])


def _of_torch(path: str) -> Any:
    """Return the content of a file of `torch.save`. Tensors are mapped into memory, and read when they are used.

    Raises `EvaluationError` for content that `weights_only=True` refuses, with the names of what it refuses.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        names = sorted(_refused_names(path))
        if not names:
            raise EvaluationError("mismatch", f"{path} cannot be loaded: {_first_line(error)}") from error
        if running := [name for name in names if _runs_code(name)]:
            raise EvaluationError(
                "mismatch",
                f"{path} calls {listed(running)} when it is unpickled, as attacks do: it was not loaded. Find out who "
                f"wrote it, and save model.state_dict() alone",
            ) from error
        raise EvaluationError(
            "mismatch",
            f"{path} holds {listed(names)}, which torch.load(weights_only=True) does not build, since that could run "
            f"code: save model.state_dict() alone, or, if you trust the file, write at the top of the task's file: "
            f"{_allowing(names[:_NAMES_SHOWN])}",
        ) from error


def _allowing(names: list[str]) -> str:
    """Return code that allows objects of these names. Those of the script that saved have another module in a task."""
    places = [name.rpartition(".") for name in names]
    own = [name for module, _, name in places if module == "__main__"]
    imports = [f"import {module}" for module in sorted({"torch", *(module for module, _, _ in places)} - {"__main__"})]
    imports += [f"from TRAINING_SCRIPT import {', '.join(own)}"] if own else []
    given = [
        f"({name}, '__main__.{name}')" if module == "__main__" else f"{module}.{name}" for module, _, name in places
    ]
    return "; ".join([*imports, f"torch.serialization.add_safe_globals([{', '.join(given)}])"])


def _refused_names(path: str) -> list[str]:
    try:
        return list(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # noqa: BLE001 - the file is untrusted, and the first error says enough
        return []


def _runs_code(name: str) -> bool:
    """Return whether a global, such as `posix.system`, runs code or commands that the file names."""
    return name.partition(".")[0] in _RUNNING_MODULES or name in _RUNNING_BUILTINS


def listed(names: list[str], separator: str = ", ") -> str:
    """Return the first names for a message, and how many more there are."""
    more = f"{separator}and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return separator.join(names[:_NAMES_SHOWN]) + more


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
