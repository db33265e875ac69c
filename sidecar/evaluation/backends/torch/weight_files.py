"""Read the tensors of a checkpoint, without running what its files hold.

`torch.load(weights_only=True)` builds tensors and plain containers only. Files of safetensors are mapped into memory as
they are, without the package of that name; their format is in `sidecar/checkpoints/formats/safetensors.py`. All tensors
are read when they are used.
"""

import json
import os
import pickletools
import re
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import torch
from torch import _weights_only_unpickler

from sidecar.evaluation.backends.torch.plain_objects import allowed_by_task, plain_objects, substitute
from sidecar.evaluation.backends.torch.tensors import LocalPart
from sidecar.evaluation.failures import COPY_AGAIN, EvaluationError, mismatch, without_advice
from sidecar.protocol.weight_names import DCP_METADATA, INDEX, SAFETENSORS, main_weights
from sidecar.system.plain_text import listed

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

_RUNNING_MODULES: Final = frozenset(
    {"os", "posix", "nt", "sys", "subprocess", "shutil", "importlib", "runpy", "pty", "ctypes", "socket", "pickle"}
)
_RUNNING_BUILTINS: Final = frozenset(
    f"builtins.{name}" for name in ("eval", "exec", "compile", "open", "__import__", "getattr", "setattr", "delattr")
)
"""With the modules above: functions that no training saves, and that attacks by pickles call."""

_ZIP: Final = b"PK\x03\x04"
_PICKLE: Final = b"\x80"
_LEGACY_PICKLES: Final = 5  # of torch before 1.6: a magic number, the protocol, sizes, content, and keys of storages
_FEW_OPCODES: Final = 4  # of a pickle that is a number: its protocol, its frame, the number, and its end
_HEAD_BYTES: Final = 512
_TAR_AT: Final = 257
_TAR: Final = b"ustar"
_SAVE: Final = "save model.state_dict() with torch.save"
_CUT: Final = "is cut off or damaged: copy or save it again"
_NOT_OF_TORCH: Final = "is not a file of torch.save: let Task(restore=…) read it"
_OTHER_KINDS: Final = {
    b"version https://git-lfs": "is a pointer of Git LFS and not the file itself: run git lfs pull",
    **dict.fromkeys(
        (b"<!doctype", b"<html", b"<?xml"), "is a web page, such as an error of a server: download the file again"
    ),
    b"\x1f\x8b": f"is compressed with gzip: {_SAVE}",
    b"\xfd7zXZ": f"is compressed with xz: {_SAVE}",
    b"BZh": f"is compressed with bzip2: {_SAVE}",
    b"\x28\xb5\x2f\xfd": f"is compressed with zstd: {_SAVE}",
    b"\x93NUMPY": f"is an array of numpy: {_SAVE}",
    b"\x89HDF": f"is a file of HDF5: {_SAVE}",
    b"GGUF": f"is a file of GGUF: {_SAVE}",
}
"""The first bytes of other kinds of files, with the end of the message about each."""

_OTHER_ARCHIVES: Final = {
    "constants.pkl": "a program of TorchScript (torch.jit.save), which runs code",
    "archive_format": "a program of torch.export",
    "serialized_exported_program": "a program of torch.export",
    "extern_modules": "a package of torch.package, which holds code",
    ".npy": "an archive of numpy",
}
"""Parts of the names of members in zip archives of other writers."""

_OF_DIVIDED: Final = ("torch.distributed.tensor", "torch.distributed._tensor", "torch.distributed._shard")
DIVIDED: Final = (
    "tensors that are divided among processes (DTensor, ShardedTensor): save with torch.distributed.checkpoint.save, "
    "or whole tensors by get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))"
)


def _parts(tensors: Mapping[str, Any], parts: Mapping[str, LocalPart]) -> dict[str, Any]:
    """Return tensors, or the wanted parts of them, in the same memory."""
    return {key: tensor[parts[key].region] if key in parts else tensor for key, tensor in tensors.items()}


@dataclass(frozen=True, slots=True)
class Stored:
    """Hold the content of a checkpoint: what was saved, such as a mapping of tensors by name.

    `read`: takes some of its tensors, and the parts of the model for those of which a part is wanted, by the same keys,
    and returns the values, which it may read into the memory of the parts. Those of most formats are in `content`
    already, mapped into memory.
    """

    content: Any
    read: Callable[[Mapping[str, Any], Mapping[str, LocalPart]], Mapping[str, Any]] = _parts


def load(path: str) -> Stored:
    """Return the content of a checkpoint: a file of `torch.save` or safetensors, an index of shards, or a folder.

    Raises `EvaluationError`: `mismatch` for content that could run code, with the names of what it refuses; `vanished`
    if a file is gone.
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
    try:
        places = dict(json.loads(index.read_bytes())["weight_map"])
        names = sorted({str(Path(shard).name) for shard in places.values()})
    except (LookupError, TypeError, ValueError) as error:
        raise mismatch(f"{index} is no index of shards: {type(error).__name__}: {error}") from error
    shards = {shard: _load_file(index.with_name(shard)) for shard in names}
    for name, shard in places.items():
        if name not in shards.get(shard, ()):
            raise mismatch(f"{index} names {name} in {shard}, which does not hold it")
        yield name, shards[shard][name]


def _load_file(path: Path) -> Any:
    return _of_safetensors(path) if path.name.endswith(SAFETENSORS) else _of_torch(str(path))


def _of_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file of safetensors by name."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            header = json.loads(file.read(min(length, size)))
        values = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)[_LENGTH_BYTES + length :]
        return {name: _tensor(values, stored) for name, stored in header.items() if name != _METADATA}
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        with path.open("rb") as file:
            cannot = f"cannot be loaded ({COPY_AGAIN}): {type(error).__name__}: {error}"
            problem = _by_its_head(file.read(_HEAD_BYTES)) or cannot
        raise mismatch(f"{path} {problem}") from error


def _tensor(values: torch.Tensor, stored: Mapping[str, Any]) -> torch.Tensor:
    """Return a tensor in the values of a file. A copy is made only if it begins between two places of its type."""
    first, last = stored["data_offsets"]
    dtype, part = _TYPES[stored["dtype"]], values[first:last]
    return (part.clone() if part.storage_offset() % dtype.itemsize else part).view(dtype).reshape(stored["shape"])


def _of_torch(path: str) -> Any:
    """Return the content of a file of `torch.save`. Tensors are mapped into memory, and read when they are used.

    Plain values such as numbers of numpy are built by `plain_objects`. Raises `EvaluationError` for other content that
    `weights_only=True` refuses, with all its names, and for other files.
    """
    try:
        return _loaded(path)
    except (FileNotFoundError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if (problem := _of_other_kind(path)) is not None:
            raise mismatch(f"{path} {problem}") from error
        first = error
    try:
        names = _names_in(path)
    except Exception:  # noqa: BLE001 - the file is untrusted
        raise mismatch(f"{path} {_CUT}") from first
    if refused := sorted(name for name in names if not _is_allowed(name)):
        raise mismatch(f"{path} {_refusal(refused)}") from first
    try:
        with plain_objects(names):
            return _loaded(path)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if any(name.startswith(_OF_DIVIDED) for name in names):
            raise mismatch(f"{path} holds {DIVIDED}") from error
        if "unexpected EOF" in str(error):  # in the values of tensors, which follow the pickles of a legacy file
            raise mismatch(f"{path} {_CUT}") from error
        raise mismatch(f"{path} cannot be loaded ({COPY_AGAIN}): {_reason(error)}") from error


def _loaded(path: str) -> Any:
    with open(path, "rb") as file:  # noqa: PTH123 - the path of torch.load
        can_be_mapped = file.read(len(_ZIP)) == _ZIP
    return torch.load(path, map_location="cpu", weights_only=True, mmap=can_be_mapped)


def _of_other_kind(path: str) -> str | None:
    """Return what a file is that is not one of `torch.save`, and the remedy; None if it may be one."""
    with open(path, "rb") as file:  # noqa: PTH123
        head = file.read(_HEAD_BYTES)
    if head.startswith(_ZIP):
        return _of_other_archive(path)
    if head[_TAR_AT:].startswith(_TAR):
        return "is a tar archive: load it where it was saved, and save model.state_dict() with torch.save"
    if (kind := _by_its_head(head)) is not None:
        return kind
    return _of_other_pickle(path) if head.startswith(_PICKLE) else _NOT_OF_TORCH


def _by_its_head(head: bytes) -> str | None:
    """Return what a file is by its first bytes, and the remedy; None if that is not known."""
    if not head:
        return "is empty: copy or save it again"
    start = head.lstrip().lower()
    kinds = (kind for begin, kind in _OTHER_KINDS.items() if head.startswith(begin) or start.startswith(begin))
    return next(kinds, None)


def _of_other_pickle(path: str) -> str | None:
    """Return what a pickle is that is not the first one of a legacy file; None if it may be that."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            first = [argument for _, argument, _ in islice(pickletools.genops(file), _FEW_OPCODES)]
    except ValueError:
        return _CUT
    return None if torch.serialization.MAGIC_NUMBER in first else _NOT_OF_TORCH


def _of_other_archive(path: str) -> str | None:
    """Return what a zip archive is that is not one of `torch.save`; None if it may be one."""
    try:
        with zipfile.ZipFile(path) as archive:
            whole = set(archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError):
        return _CUT
    names = whole | {name.partition("/")[2] for name in whole}
    kind = next((kind for part, kind in _OTHER_ARCHIVES.items() if any(part in name for name in names)), None)
    if kind is not None:
        return f"is {kind}: save model.state_dict() with torch.save"
    return (
        None if "data.pkl" in names else "is a zip archive, but not one of torch.save: save model.state_dict() with it"
    )


def _is_allowed(name: str) -> bool:
    """Return whether torch, the task or `plain_objects` builds the objects of a name."""
    return name in _built_by_torch() or name in allowed_by_task() or substitute(name) is not None


def _built_by_torch() -> Mapping[str, Any]:
    allowed: Mapping[str, Any] = _weights_only_unpickler._get_allowed_globals()  # noqa: SLF001 - the only list of them
    return allowed


def _refusal(names: list[str]) -> str:
    """Say which names of a file are refused, and what to do."""
    if running := [name for name in names if _runs_code(name)]:
        return (
            f"calls {listed(running)} when it is unpickled, as attacks do: it was not loaded. Find out who wrote it, "
            f"and save model.state_dict() alone"
        )
    if any(name.startswith(_OF_DIVIDED) for name in names):
        return f"holds {DIVIDED}"
    return (
        f"holds {listed(names)}, which torch does not build from a file, since that could run code: save "
        f"model.state_dict() alone, or, if you trust the file, write at the end of the task's file: {_allowing(names)}"
    )


def _allowing(names: list[str]) -> str:
    """Return code that allows objects of these names. Those of the script that saved have another module in a task."""
    imports, given = ["torch"], []
    for name in names:
        module, _, last = name.rpartition(".")
        found = (_module_of_task_with(last) or "TRAINING_SCRIPT") if module == "__main__" else module
        imports.append(found)
        is_renamed = found != module or module == "builtins"
        given.append(f"({found}.{last}, '{name}')" if is_renamed else name)
    lines = [*(f"import {module}" for module in sorted(set(imports)))]
    return "; ".join([*lines, f"torch.serialization.add_safe_globals([{', '.join(given)}])"])


def _module_of_task_with(name: str) -> str | None:
    """Return the module next to the task that defines a class of this name; None if there is none."""
    folder = sys.path[0] if sys.path else ""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and folder and Path(file).parent == Path(folder):
            found = vars(module).get(name)
            if isinstance(found, type) and found.__module__ == module.__name__:
                return module.__name__
    return None


def _names_in(path: str) -> set[str]:
    """Return the names of classes and functions in the pickles of a file. Nothing is built.

    Names of Python 2 are replaced, as torch does.
    """
    with open(path, "rb") as file:  # noqa: PTH123
        is_zip = file.read(len(_ZIP)) == _ZIP
        if not is_zip:
            file.seek(0)
            return {name for _ in range(_LEGACY_PICKLES) for name in _names_of(file)}
    with zipfile.ZipFile(path) as archive:
        (name,) = [name for name in archive.namelist() if name.partition("/")[2] == "data.pkl"]
        with archive.open(name) as pickled:
            return set(_names_of(pickled))


def _names_of(pickled: IO[bytes]) -> Iterator[str]:
    texts: list[str] = []
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name in ("GLOBAL", "INST") and isinstance(argument, str):
            module, _, name = argument.partition(" ")
            module, name = _weights_only_unpickler.NAME_MAPPING.get(
                (module, name), (_weights_only_unpickler.IMPORT_MAPPING.get(module, module), name)
            )
            yield f"{module}.{name}"
        elif opcode.name == "STACK_GLOBAL" and len(texts) > 1:
            yield ".".join(texts[-2:])
        elif isinstance(argument, str):
            texts = [*texts[-1:], argument]


def _reason(error: Exception) -> str:
    """Return why torch cannot load a file in one line."""
    text = str(error)
    if "Unsupported operand" in text:
        return "it was pickled with another protocol than torch's: save it without pickle_protocol"
    told = re.sub(r"Weights only load failed\.|WeightsUnpickler error:", "", without_advice(text)).strip()
    return next(iter(told.splitlines()), "") or f"torch refuses its content ({type(error).__name__})"


def _runs_code(name: str) -> bool:
    """Return whether a global, such as `posix.system`, runs code or commands that the file names."""
    return name.partition(".")[0] in _RUNNING_MODULES or name in _RUNNING_BUILTINS
