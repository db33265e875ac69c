"""The text file `checkpoint` that TensorFlow keeps beside its checkpoints: which of them exist, as the writer knows it.

A CheckpointState message in Protocol Buffers text format (tensorflow `python/training/checkpoint_state.proto`),
replaced by a rename, so what is read is always whole. Being named does not mean that the files are still there.
"""

import os
import re
from pathlib import Path, PurePath
from typing import Final

from sidecar.checkpoints.files import read_file
from sidecar.errors import CheckpointError

STATE_FILE: Final = "checkpoint"

_MAX_BYTES: Final = 16 * 1024 * 1024
_PATH: Final = re.compile(
    rb"""^[ \t]*(?:all_)?model_checkpoint_paths?[ \t]*:[ \t]*(?:"((?:[^"\\\n]|\\.)*)"|'((?:[^'\\\n]|\\.)*)')""",
    re.MULTILINE,
)
_ESCAPE: Final = re.compile(rb"\\([0-7]{1,3}|[xX][0-9a-fA-F]{1,2}|.)", re.DOTALL)
_LETTERS: Final = {b"a": 7, b"b": 8, b"f": 12, b"n": 10, b"r": 13, b"t": 9, b"v": 11}


def named_in(folder: Path) -> frozenset[str]:
    """Names of the checkpoints in `folder` that its state file lists; a file that cannot be read lists none."""
    try:
        content = read_file(folder, STATE_FILE, limit=_MAX_BYTES)
    except (CheckpointError, OSError):
        return frozenset()
    paths = {os.fsdecode(_unescape(double or single)) for double, single in _PATH.findall(content)}
    here = _Here(folder)
    return frozenset(PurePath(path).name for path in paths if here.holds(path))


class _Here:
    """Whether a path lies directly in a folder, under any of the folder's names, remembering what was resolved."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.path.realpath(folder)
        self._answers: dict[str, bool] = {}

    def holds(self, path: str) -> bool:
        """Relative paths are relative to the folder; `..` is never followed, nor is a path that leaves the folder."""
        parent, name = os.path.split(path)
        if "\0" in path or name in ("", ".", "..") or ".." in parent.split("/"):
            return False
        if parent not in self._answers:
            self._answers[parent] = os.path.realpath(Path(self._folder, parent)) == self._folder
        return self._answers[parent]


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
