"""The text file `checkpoint` that TensorFlow keeps beside its checkpoints: which of them exist, as the writer knows it.

A CheckpointState message in Protocol Buffers text format (tensorflow `python/training/checkpoint_state.proto`),
replaced by a rename, so what is read is always whole. Being named does not mean that the files are still there.
"""

import os
import re
from collections.abc import Container
from pathlib import Path
from typing import Final

from sidecar.checkpoints.files import open_file, read_opened
from sidecar.errors import CheckpointError

STATE_FILE: Final = "checkpoint"

_MAX_BYTES: Final = 8 * 1024 * 1024
_MOST_LINES: Final = 150_000  # two for each checkpoint: its path, and when it was saved
_PATH: Final = re.compile(  # repeats possessively, since one that can go back remembers where, for each letter
    rb"""[ \t]*+(?:all_)?model_checkpoint_paths?[ \t]*+:[ \t]*+"""
    rb"""(?:"((?:[^"\\\n]++|\\.)*+)"|'((?:[^'\\\n]++|\\.)*+)')""",
)
_MARK: Final = b"model_checkpoint_path"
_LONGEST_LINE: Final = 20_000  # PATH_MAX, every byte of it as an octal escape
_MOST_PARENTS: Final = 100  # a writer uses one or two ways to name its own folder
_ESCAPE: Final = re.compile(rb"\\([0-7]{1,3}|[xX][0-9a-fA-F]{1,2}|.)", re.DOTALL)
_LETTERS: Final = {b"a": 7, b"b": 8, b"f": 12, b"n": 10, b"r": 13, b"t": 9, b"v": 11}


_COARSE_SECONDS: Final = 2.0  # between two contents that the coarsest filesystem tells apart by their times


def named_in(folder: Path, among: Container[str]) -> frozenset[str]:
    """Which of the names `among` those in `folder` its state file lists; a file that cannot be read lists none."""
    return frozenset(filter(among.__contains__, StateFile(folder).read(0.0)))


class StateFile:
    """The state file of one folder, looked at again and again.

    It is opened each time, since that is what shows on NFS what another machine wrote. Of a file that lists thousands
    of checkpoints only the lines that are new are taken apart; a string never goes beyond its line.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hash = hash(b"")
        self._names: dict[bytes, str | None] = {}  # lines with a path, and the checkpoint here that it names, if any
        self._newest: set[bytes] = set()  # lines beside the list of all checkpoints: they name one of them again
        self._listed: frozenset[str] = frozenset()
        self._named: frozenset[str] = frozenset()
        self._seen: tuple[os.stat_result, float, float] | None = None  # the file, since when, and when it was read

    def read(self, now: float) -> frozenset[str]:
        """Names of the checkpoints in the folder that it lists; one that cannot be read lists none.

        `now` is in seconds: a file that was the same for a while when it was read is not read again.
        """
        try:
            with open_file(self._folder, STATE_FILE) as file:
                stat = os.fstat(file.fileno())
                since = now
                if self._seen is not None and _same(self._seen[0], stat):
                    _, since, read_at = self._seen
                    if read_at >= since + _COARSE_SECONDS:
                        return self._named
                content = read_opened(file, self._folder / STATE_FILE, limit=_MAX_BYTES)
        except (CheckpointError, OSError):
            self._seen, content = None, b""
            self._take_apart(content)
            return self._named
        self._seen = stat, since, now
        self._take_apart(content)
        return self._named

    def _take_apart(self, content: bytes) -> None:
        """Bring what is named up to date. The same object stays as long as the same checkpoints are named."""
        if hash(content) == self._hash:
            return
        self._hash = hash(content)
        few = content if content.count(b"\n") <= _MOST_LINES else b""
        lines = {line for line in few.split(b"\n") if _MARK in line and len(line) <= _LONGEST_LINE}
        new, gone = lines - self._names.keys(), self._names.keys() - lines
        here = _Here(self._folder)
        added = {line: _name_in(here, line) for line in new}
        in_list = {name for line, name in added.items() if name is not None and b"all_" in line}
        removed = {line: self._names.pop(line) for line in gone}
        out_of_list = {name for line, name in removed.items() if line not in self._newest}
        self._names |= added
        self._newest = (self._newest - gone) | {line for line in new if b"all_" not in line}
        if in_list or not out_of_list.isdisjoint(self._listed):
            self._listed = (self._listed - out_of_list) | in_list
        first = {name for line in self._newest if (name := self._names[line]) is not None}
        named = self._listed if first <= self._listed else self._listed | first
        if named != self._named:
            self._named = named


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    fields = ("st_size", "st_mtime_ns", "st_ino", "st_ctime_ns")
    return all(getattr(one, each) == getattr(other, each) for each in fields)


def _name_in(here: "_Here", line: bytes) -> str | None:
    """The checkpoint in the folder that a line names, if it names one."""
    found = _PATH.match(line)
    if found is None:
        return None
    raw = found[1] or found[2] or b""
    parent, name = os.path.split(os.fsdecode(_unescape(raw) if b"\\" in raw else raw))
    return name if name and here.is_named(parent) else None


class _Here:
    """Whether a path is one of a folder's names, remembering what was resolved."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.path.realpath(folder)
        self._answers: dict[str, bool] = {}

    def is_named(self, path: str) -> bool:
        """A relative path starts at the folder; one with `..` in it is never followed."""
        if path not in self._answers:
            if "\0" in path or ".." in path.split("/") or len(self._answers) >= _MOST_PARENTS:
                return False
            self._answers[path] = os.path.realpath(Path(self._folder, path)) == self._folder
        return self._answers[path]


def _unescape(text: bytes) -> bytes:
    """Undo the escapes of a text-format string: octal, hexadecimal, C letters."""

    def byte(match: re.Match[bytes]) -> bytes:
        code = match[1]
        if code[:1] in b"01234567":
            return bytes([int(code, 8) & 0xFF])
        if code[:1] in b"xX" and len(code) > 1:
            return bytes([int(code[1:], 16)])
        return bytes([_LETTERS[code]]) if code in _LETTERS else code

    return _ESCAPE.sub(byte, text)
