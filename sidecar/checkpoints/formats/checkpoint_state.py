"""Read the text file `checkpoint`, in which TensorFlow lists the checkpoints of a folder that it has not deleted.

The file holds a CheckpointState message in Protocol Buffers text format (tensorflow
`python/training/checkpoint_state.proto`). TensorFlow replaces it by a rename, so a reader never sees half of it. A
checkpoint may be listed although its files are gone.
"""

import hashlib
import os
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Final

from sidecar.checkpoints.files import open_file, read_opened
from sidecar.errors import CheckpointError

STATE_FILE: Final = "checkpoint"

_MAX_BYTES: Final = 8 * 1024 * 1024
_MOST_LINES: Final = 150_000  # two for each checkpoint: its path, and the time of saving
_PATH: Final = re.compile(  # possessive quantifiers: others would store a backtracking position for each character
    rb"""^[ \t]*+(?:all_)?model_checkpoint_paths?[ \t]*+:[ \t]*+"""
    rb"""(?:"((?:[^"\\\n]++|\\.)*+)"|'((?:[^'\\\n]++|\\.)*+)')""",
    re.MULTILINE,
)
_LONGEST_PATH: Final = 20_000  # PATH_MAX, every byte of it as an octal escape
_MOST_PARENTS: Final = 100  # a writer names its folder in one or two ways
_ESCAPE: Final = re.compile(rb"\\([0-7]{1,3}|[xX][0-9a-fA-F]{1,2}|.)", re.DOTALL)
_C_ESCAPES: Final = {b"a": 7, b"b": 8, b"f": 12, b"n": 10, b"r": 13, b"t": 9, b"v": 11}
_COARSE_SECONDS: Final = 2.0  # the resolution of file times on the coarsest filesystem


def named_in(folder: Path, among: Container[str]) -> frozenset[str]:
    """Return the names in `among` that the state file of `folder` lists. A file that cannot be read lists none."""
    state = StateFile(folder)
    state.read(0.0)
    return frozenset(filter(among.__contains__, state.named))


class StateFile:
    """Read the state file of one folder, once per scan.

    The file is opened in every scan, because on NFS opening it shows the writes of other machines. A file that did not
    change is not read again.

    Attributes:
        named: The checkpoints in the folder that the file listed when it was last read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: tuple[os.stat_result, float, float] | None = None  # (metadata, unchanged since, read at)
        self._digest = b""  # of the content
        self._names: dict[bytes, str | None] = {}  # by the path that the file lists; None: not in the folder
        self.named: frozenset[str] = frozenset()

    def read(self, now: float) -> frozenset[str]:
        """Return the names that were added or removed since the last call. A file that cannot be read lists none.

        `now` is in seconds. It decides whether an unchanged file is read again: a file that is changed twice within the
        resolution of its time looks unchanged.
        """
        try:
            with open_file(self._folder, STATE_FILE) as file:
                status, since = os.fstat(file.fileno()), now
                if self._read is not None and _is_same(self._read[0], status):
                    _, since, read_at = self._read
                    if read_at >= since + _COARSE_SECONDS:
                        return frozenset()
                content = read_opened(file, self._folder / STATE_FILE, limit=_MAX_BYTES)
        except (CheckpointError, OSError):
            self._read, content = None, b""
        else:
            self._read = status, since, now
        # A path with several parts may lead elsewhere by now, if a link on it changed.
        only_names = b"/" not in content and b"\\" not in content
        digest = hashlib.sha256(content).digest()
        if only_names and digest == self._digest:
            return frozenset()
        self._digest, self._names = digest, _names_in(self._folder, content, self._names if only_names else {})
        before, self.named = self.named, frozenset(filter(None, self._names.values()))
        return before ^ self.named


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    """Return whether two results of `stat` are of the same file with the same content."""
    fields = ("st_size", "st_mtime_ns", "st_ino", "st_ctime_ns")
    return all(getattr(one, name) == getattr(other, name) for name in fields)


def _names_in(folder: Path, content: bytes, known: Mapping[bytes, str | None]) -> dict[bytes, str | None]:
    """Return the name of each checkpoint that the state file of a folder lists, by its path as written there.

    The name is None if the path leads out of the folder. No string spans two lines. `known`: the result for the last
    content, which saves work, because most paths stay in the file.
    """
    if content.count(b"\n") > _MOST_LINES:
        return {}
    parents = _Parents(folder)
    paths = {double or single for double, single in _PATH.findall(content)}
    return {path: known.get(path) or _name_in(parents, path) for path in paths}


def _name_in(parents: "_Parents", path: bytes) -> str | None:
    """Return the name of the checkpoint to which a path leads; None if that is not in the folder."""
    if len(path) > _LONGEST_PATH:
        return None
    if b"\\" in path:
        path = _unescape(path)
    if b"/" not in path and b"\0" not in path:
        return os.fsdecode(path) or None
    parent, name = os.path.split(os.fsdecode(path))
    return name if name and parents.is_folder(parent) else None


class _Parents:
    """Decide whether paths lead to one folder, and cache the answers."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.path.realpath(folder)
        self._answers: dict[str, bool] = {}

    def is_folder(self, path: str) -> bool:
        """Return whether a path leads to the folder. A relative path starts there. A path with `..` is not followed."""
        if path not in self._answers:
            if "\0" in path or ".." in path.split("/") or len(self._answers) >= _MOST_PARENTS:
                return False
            self._answers[path] = os.path.realpath(Path(self._folder, path)) == self._folder
        return self._answers[path]


def _unescape(text: bytes) -> bytes:
    r"""Replace the escapes in a string of the text format: octal, hexadecimal, and those of C such as `\n`."""

    def byte(match: re.Match[bytes]) -> bytes:
        code = match[1]
        if code[:1] in b"01234567":
            return bytes([int(code, 8) & 0xFF])
        if code[:1] in b"xX" and len(code) > 1:
            return bytes([int(code[1:], 16)])
        return bytes([_C_ESCAPES[code]]) if code in _C_ESCAPES else code

    return _ESCAPE.sub(byte, text)
