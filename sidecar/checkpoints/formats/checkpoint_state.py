"""The text file `checkpoint` that TensorFlow keeps beside its checkpoints: which of them exist, as the writer knows it.

A CheckpointState message in Protocol Buffers text format (tensorflow `python/training/checkpoint_state.proto`),
replaced by a rename, so what is read is always whole. Being named does not mean that the files are still there.
"""

import os
import re
from collections.abc import Container
from pathlib import Path
from typing import Final

from sidecar.checkpoints.files import read_file
from sidecar.errors import CheckpointError

STATE_FILE: Final = "checkpoint"

_MAX_BYTES: Final = 16 * 1024 * 1024
_PATH: Final = re.compile(  # repeats possessively, since one that can go back remembers where, for each letter
    rb"""^[ \t]*+(?:all_)?model_checkpoint_paths?[ \t]*+:[ \t]*+"""
    rb"""(?:"((?:[^"\\\n]++|\\.)*+)"|'((?:[^'\\\n]++|\\.)*+)')""",
    re.MULTILINE,
)
_LONGEST_LINE: Final = 20_000  # PATH_MAX, every byte of it as an octal escape
_MOST_PARENTS: Final = 100  # a writer uses one or two ways to name its own folder
_ESCAPE: Final = re.compile(rb"\\([0-7]{1,3}|[xX][0-9a-fA-F]{1,2}|.)", re.DOTALL)
_LETTERS: Final = {b"a": 7, b"b": 8, b"f": 12, b"n": 10, b"r": 13, b"t": 9, b"v": 11}


def named_in(folder: Path, among: Container[str]) -> frozenset[str]:
    """Which of the names `among` those in `folder` its state file lists; a file that cannot be read lists none."""
    try:
        content = read_file(folder, STATE_FILE, limit=_MAX_BYTES)
    except (CheckpointError, OSError):
        return frozenset()
    here, named = _Here(folder), set()
    for match in _PATH.finditer(content):
        if match.end() - match.start() > _LONGEST_LINE:
            continue
        raw = match[1] or match[2] or b""
        parent, name = os.path.split(os.fsdecode(_unescape(raw) if b"\\" in raw else raw))
        if name in among and name not in named and here.is_named(parent):
            named.add(name)
    return frozenset(named)


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
