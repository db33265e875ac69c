"""The text file `checkpoint` that TensorFlow keeps beside its checkpoints: which of them exist, as the writer knows it.

A CheckpointState message in Protocol Buffers text format (tensorflow `python/training/checkpoint_state.proto`),
replaced by a rename, so what is read is always whole. Being named does not mean that the files are still there.
"""

import os
import re
from collections import Counter
from collections.abc import Container
from collections.abc import Set as AbstractSet
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
    state = StateFile(folder)
    state.read(0.0)
    return frozenset(filter(among.__contains__, state.named))


class StateFile:
    """The state file of one folder, looked at again and again.

    It is opened each time, since that is what shows on NFS what another machine wrote. Of a file that lists thousands
    of checkpoints only the lines that are new are taken apart; a string never goes beyond its line.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._content = b""  # without the lines behind the last one that may name a checkpoint
        self._here = _Here(folder)
        self._lines: dict[str, int] = {}  # by name, how many lines say it
        self._seen: tuple[os.stat_result, float, float] | None = None  # the file, since when, and when it was read

    @property
    def named(self) -> AbstractSet[str]:
        """Names of the checkpoints in the folder that it listed when it was read last."""
        return self._lines.keys()

    def read(self, now: float) -> set[str]:
        """Names that came or went since the last time; a file that cannot be read lists none.

        `now` is in seconds: a file that was the same for a while when it was read is not read again.
        """
        try:
            with open_file(self._folder, STATE_FILE) as file:
                stat = os.fstat(file.fileno())
                since = now
                if self._seen is not None and _same(self._seen[0], stat):
                    _, since, read_at = self._seen
                    if read_at >= since + _COARSE_SECONDS:
                        return set()
                content = read_opened(file, self._folder / STATE_FILE, limit=_MAX_BYTES)
        except (CheckpointError, OSError):
            self._seen = None
            return self._take_apart(b"")
        self._seen = stat, since, now
        return self._take_apart(content if content.count(b"\n") <= _MOST_LINES else b"")

    def _take_apart(self, content: bytes) -> set[str]:
        """Bring what is named up to date; returns the names that came or went."""
        end = content.find(b"\n", content.rfind(_MARK) + 1)  # saves also write a time for each, behind them all
        content = content if end < 0 else content[:end]
        if content == self._content:
            return set()
        was: dict[str, bool] = {}
        gone, new = _differing(self._content, content)
        here = _Here(self._folder)
        if not here.agrees(self._here):  # a folder or a link in a path is another now: all of it may mean another name
            was = dict.fromkeys(self._lines, True)
            self._lines.clear()
            gone, new = [], content.split(b"\n")
        for name in filter(None, (_name_in(self._here, line) for line in gone)):
            was.setdefault(name, True)
            self._lines[name] -= 1
        self._here, self._content = here, content
        for name in filter(None, (_name_in(here, line) for line in new)):
            was.setdefault(name, name in self._lines)
            self._lines[name] = self._lines.get(name, 0) + 1
        for name in was:
            if self._lines.get(name) == 0:
                del self._lines[name]
        return {name for name, before in was.items() if before != (name in self._lines)}


def _differing(before: bytes, after: bytes) -> tuple[list[bytes], list[bytes]]:
    """The lines that went and those that came, as often as they did.

    The first line names the newest checkpoint. Of the list behind it, saves drop lines in front and add some at the
    end; if more than that is new it is compared line by line.
    """
    (first, _, old), (other_first, _, new) = before.partition(b"\n"), after.partition(b"\n")
    old, new = b"\n" + old, b"\n" + new
    start = old.find(new[: new.find(b"\n", 1) + 1] or new)
    kept = old[start:]
    if start >= 0 and new.startswith(kept) and new[len(kept) :][:1] in (b"", b"\n"):
        return [first, *old[:start].split(b"\n")], [other_first, *new[len(kept) :].split(b"\n")]
    went, came = Counter(before.split(b"\n")), Counter(after.split(b"\n"))
    return [*(went - came).elements()], [*(came - went).elements()]


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    fields = ("st_size", "st_mtime_ns", "st_ino", "st_ctime_ns")
    return all(getattr(one, each) == getattr(other, each) for each in fields)


def _name_in(here: "_Here", line: bytes) -> str | None:
    """The checkpoint in the folder that a line names, if it names one."""
    found = _PATH.match(line) if _MARK in line and len(line) <= _LONGEST_LINE else None
    if found is None:
        return None
    raw = found[1] or found[2] or b""
    parent, name = os.path.split(os.fsdecode(_unescape(raw) if b"\\" in raw else raw))
    return name if name and here.is_named(parent) else None


class _Here:
    """Whether a path is one of a folder's names, remembering what was resolved."""

    def __init__(self, folder: Path) -> None:
        self.folder = os.path.realpath(folder)
        self.answers: dict[str, bool] = {}

    def is_named(self, path: str) -> bool:
        """A relative path starts at the folder; one with `..` in it is never followed."""
        if path not in self.answers:
            if "\0" in path or ".." in path.split("/") or len(self.answers) >= _MOST_PARENTS:
                return False
            self.answers[path] = os.path.realpath(Path(self.folder, path)) == self.folder
        return self.answers[path]

    def agrees(self, before: "_Here") -> bool:
        """Whether all that was resolved before is still the same; then it is remembered, unless that is full."""
        if self.folder != before.folder or len(before.answers) >= _MOST_PARENTS:
            return False
        return all(self.is_named(path) == is_here for path, is_here in before.answers.items())


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
