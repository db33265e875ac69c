"""Check HDF5 files before Keras reads them: refuse links out of a file, and name damage.

While HDF5 reads values, it resolves links to other files, raw data in other files and virtual data sets, with the
permissions of this process. Older versions of Keras follow all of them. So the author of a checkpoint could make this
process save the bytes of any file as weights. Keras itself writes no such links.

Source: "HDF5 File Format Specification Version 3.0". The low-level API of h5py opens an object without following it.

A damaged file may make HDF5 loop for ever or crash, so it is checked in a forked child, which shares all imported
modules. h5py supports this: it takes its lock around forks. The limit is processor time, so that slow storage does not
use it up.
"""

import contextlib
import errno
import io
import json
import math
import os
import re
import resource
import signal
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import h5py
from h5py import h5a, h5d, h5g, h5l, h5o

from sidecar.evaluation.failures import EvaluationError

MAX_OBJECTS: Final = 250_000
"""Limit of links and attributes in one file; models have fewer variables."""

_CPU_SECONDS: Final = 30
"""Limit for the check of one file's metadata or values; 250,000 objects take a third of it."""

MAX_DEPTH: Final = 256
"""Limit of nested groups."""

MAX_CHARACTERS: Final = 500
"""Limit of the text of an error of HDF5 or Keras, which may list every layer."""

_STORAGE_ERRORS: Final = (errno.EACCES, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EPERM)
"""Errors of `open` and `read` that do not depend on the content of a file."""

_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
_WEIGHTS: Final = "model.weights.h5"
_SHARDED: Final = ".weights.json"
_LARGE_BYTES: Final = 1 << 28  # larger data that expands more than _MAX_EXPANSION is not a model, as in archives
_MAX_EXPANSION: Final = 100
_ATTRIBUTE_BYTES: Final = 1 << 26
_ERRNO: Final = re.compile(r"errno = (\d+)")
_LOCAL_BYTES: Final = 30  # header of a zip member, up to its name
_LINKS: Final = {h5l.TYPE_SOFT: "a soft link", h5l.TYPE_EXTERNAL: "an external link"}


def require_self_contained(path: str) -> None:
    """Check the metadata of all HDF5 files in a file of Keras, without the values.

    Raises `EvaluationError`: `corrupt` if a link points out of the file or something is damaged, `vanished`, or
    `storage`.
    """
    check_isolated(path, lambda: _check(path, lambda _: None), cpu_seconds=_CPU_SECONDS)


def require_readable(path: str) -> None:
    """Check the values, too, after Keras failed to read a file. Raises as `require_self_contained` does."""
    check_isolated(path, lambda: _check(path, lambda data: h5py.Dataset(data)[()]), cpu_seconds=_CPU_SECONDS)


def read_failure(path: str, error: Exception) -> EvaluationError:
    """Return the failure for an error while a file was read; h5py raises many types of errors for damaged metadata."""
    text = " ".join(str(error).split())[:MAX_CHARACTERS]
    if isinstance(error, OSError):
        match = _ERRNO.search(str(error))
        number = int(match[1]) if match else error.errno
        if number == errno.ENOENT or not Path(path).exists():
            return EvaluationError("vanished", f"{path} is gone, or a file of it: {text}")
        if number in _STORAGE_ERRORS:
            return EvaluationError("storage", f"{path} cannot be read: {text}")
    return EvaluationError("corrupt", f"{path} is damaged: {text or type(error).__name__}")


def _check(path: str, use: Callable[[Any], Any]) -> None:
    try:
        for file in _files(Path(path)):
            for name, content in _hdf5_in(file):
                with _opened(content) as opened:
                    for data in _datasets(opened, name):
                        use(data)
    except (EvaluationError, MemoryError):
        raise
    except Exception as error:
        raise read_failure(path, error) from error


def _opened(content: Any) -> Any:
    """Open a file without locks, which some storage lacks, or in the way in which this process has it open already.

    The error of a task's own `restore` may keep the file open.
    """
    try:
        return h5py.File(content, "r", locking=False)
    except OSError as error:
        if "locking flag" not in str(error):
            raise
        return h5py.File(content, "r")


def _files(path: Path) -> list[Path]:
    """Return the file itself or, for a map of shards, the shards next to it."""
    if not path.name.endswith(_SHARDED):
        return [path]
    shard = re.compile(re.escape(path.name.removesuffix(_SHARDED)) + r"_[0-9]{5}\.weights\.h5")
    return sorted(file for file in path.parent.iterdir() if shard.fullmatch(file.name))


def _hdf5_in(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield a readable name and the content of each HDF5 file: the file itself, or members of an archive."""
    if path.suffix != ".keras":
        yield str(path), path
        return
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for member in archive.infolist():
            content = _content(archive, member, file)
            if member.filename == _WEIGHTS or _has_signature(content, member.file_size):
                yield f"{member.filename!r} in {path}", content


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: io.BufferedReader) -> Any:
    if member.compress_type != zipfile.ZIP_STORED:
        return io.BytesIO(archive.read(member))  # Keras does not compress members
    header = os.pread(file.fileno(), _LOCAL_BYTES, member.header_offset)
    name_bytes, extra_bytes = struct.unpack("<HH", header[26:])
    return _Part(file.fileno(), member.header_offset + _LOCAL_BYTES + name_bytes + extra_bytes, member.file_size)


def _has_signature(content: Any, size: int) -> bool:
    """Return whether HDF5 would find its signature in the content, at 0, 512, 1024, 2048 and so on."""
    at = 0
    while at < size:
        content.seek(at)
        if content.read(len(_SIGNATURE)) == _SIGNATURE:
            return True
        at = max(512, 2 * at)
    return False


class _Part(io.RawIOBase):
    """Read a part of an open file as a file. `zipfile` would read a member from its start for each seek."""

    def __init__(self, file: int, start: int, size: int) -> None:
        super().__init__()
        self._file, self._start, self._size, self._at = file, start, size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, as `io.RawIOBase.seek` does."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, as `io.RawIOBase.readinto` does."""
        view = memoryview(buffer).cast("B")[: max(0, self._size - self._at)]
        count = os.preadv(self._file, [view], self._start + self._at) if view else 0
        self._at += count
        return count


def _datasets(file: Any, name: str) -> Iterator[Any]:
    """Yield every data set below the root once, after a check of its metadata and attributes."""
    budget, seen = iter(range(MAX_OBJECTS)), set[int]()
    waiting = [(h5o.open(file.id, b"/"), b"", 0)]
    while waiting:
        item, place, depth = waiting.pop()
        if (address := h5o.get_info(item).addr) in seen:  # a second name of an object, or a group within itself
            continue
        seen.add(address)
        _read_attributes(item, f"{name}: {_shown(place)}", budget)
        if isinstance(item, h5d.DatasetID):
            _require_own_data(item, f"{name}: {_shown(place)}")
            yield item
        elif isinstance(item, h5g.GroupID):
            if depth == MAX_DEPTH:
                raise EvaluationError("corrupt", f"{name}: {_shown(place)} is nested deeper than {MAX_DEPTH} groups")
            waiting += [(inner, place + b"/" + key, depth + 1) for key, inner in _inner(item, place, name, budget)]


def _inner(group: Any, place: bytes, name: str, budget: Iterator[int]) -> Iterator[tuple[bytes, Any]]:
    """Yield names and objects of a group. Raises `EvaluationError` for an object that is a link."""
    for key in _names(group.links.iterate, budget, name):
        kind = group.links.get_info(key).type
        if kind != h5l.TYPE_HARD:
            kind_of_link = _LINKS.get(kind, "a user-defined link")
            parts = group.links.get_val(key) if kind in _LINKS else b""
            target = " in ".join(_shown(part) for part in reversed(parts if isinstance(parts, tuple) else [parts]))
            raise _refused(f"{name}: {_shown(place + b'/' + key)}", f"{kind_of_link} to {target}")
        yield key, h5o.open(group, key)


def _require_own_data(data: Any, where: str) -> None:
    """Raise `EvaluationError` unless the values of a data set are in its file, and their size is plausible."""
    created = data.get_create_plist()
    if created.get_external_count():
        target = _shown(created.get_external(0)[0])
        raise _refused(where, f"a data set whose values lie in the file {target}")
    if created.get_layout() == h5d.VIRTUAL:  # checked before `shape`, which would read the sources
        sources = created.get_virtual_count()
        target = repr(created.get_virtual_filename(0)) if sources else "nothing"
        raise _refused(where, f"a virtual data set made of {target}")
    size, stored = math.prod(data.shape or ()) * data.dtype.itemsize, data.get_storage_size()
    if size > _LARGE_BYTES and size > _MAX_EXPANSION * stored:
        raise EvaluationError("corrupt", f"{where} has a size of {size} bytes, but {stored} are in the file")


def _read_attributes(item: Any, where: str, budget: Iterator[int]) -> None:
    if not h5a.get_num_attrs(item):
        return
    for key in _names(partial(h5a.iterate, item), budget, where):
        attribute = h5a.open(item, key)
        if math.prod(attribute.shape or ()) * attribute.dtype.itemsize > _ATTRIBUTE_BYTES:
            raise EvaluationError("corrupt", f"{where} has an attribute {_shown(key)} that is too large for any model")
        h5py.AttributeManager(h5py.Group(item) if isinstance(item, h5g.GroupID) else h5py.Dataset(item))[key]


def _names(iterate: Callable[[Callable[[bytes], bool | None]], Any], budget: Iterator[int], where: str) -> list[bytes]:
    names: list[bytes] = []
    is_over = False

    def take(name: bytes) -> bool | None:
        nonlocal is_over
        is_over = next(budget, None) is None
        names.append(name)
        return True if is_over else None  # any value but None ends the iteration

    iterate(take)
    if is_over:
        raise EvaluationError("corrupt", f"{where} has more than {MAX_OBJECTS} objects and attributes")
    return names


def _refused(where: str, kind: str) -> EvaluationError:
    return EvaluationError("corrupt", f"{where} is {kind}: a checkpoint must contain its values, as Keras writes it")


def _shown(name: bytes | str) -> str:
    text = os.fsdecode(name) if isinstance(name, bytes) else name
    return repr(text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…") if text else "'/'"


_LONGEST: Final = 8000  # characters of a message; all of it fits into a pipe
_PIPE_BYTES: Final = 65536


def check_isolated(path: str, check: Callable[[], None], *, cpu_seconds: int) -> None:
    """Run `check` in a child process, and raise the `EvaluationError` that it raises.

    It is `corrupt` if a signal ends the child, and `out_of_memory` if there is no memory for it, or it is killed.
    """
    receiving, sending = os.pipe()
    try:
        child = _fork(path)
        if child == 0:
            try:
                os.write(sending, json.dumps(_answer(path, check, cpu_seconds)).encode())
            finally:
                os._exit(0)
        status = 0
        with contextlib.suppress(ChildProcessError):  # the task's code ignores SIGCHLD
            _, status = os.waitpid(child, 0)
        os.set_blocking(receiving, False)  # a process that the task started may have inherited the other end
        answer = b""
        with contextlib.suppress(BlockingIOError):
            answer = os.read(receiving, _PIPE_BYTES)
    finally:
        os.close(receiving)
        os.close(sending)
    if answer:
        if failure := json.loads(answer):
            raise EvaluationError(*failure)
        return
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        raise EvaluationError("out_of_memory", f"the process that checked {path} was killed, as by lack of memory")
    end = signal.strsignal(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else "without an answer"
    raise EvaluationError("corrupt", f"{path} is damaged: the process that checked it ended ({end})")


def _fork(path: str) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads, which the child does not need
        try:
            return os.fork()
        except OSError as error:
            raise EvaluationError("out_of_memory", f"no process could be started to check {path}: {error}") from error


def _answer(path: str, check: Callable[[], None], cpu_seconds: int) -> tuple[str, str] | None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    try:
        check()
    except EvaluationError as error:
        return error.kind, str(error)[:_LONGEST]
    except MemoryError:
        return "out_of_memory", f"there is not enough memory to check {path}"
    return None
