"""Prove that the hashed files are those that the task loaded, since they could be replaced in the meantime.

`sidecar eval` reads a checkpoint in the folder where training wrote it. The task's `load` or `predict` could also write
to it.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.evaluation.data.opened_files import FileVersion
from sidecar.evaluation.failures import EvaluationError, mismatch

_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LoadedFiles:
    """The files of a checkpoint before it was loaded. Files that `load` adds to a folder are not included."""

    path: Path
    versions: Mapping[Path, FileVersion]

    @classmethod
    def find(cls, path: Path) -> "LoadedFiles":
        """Find the files of a checkpoint, which is a file or a folder. Raises `OSError` if one cannot be read."""
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        return cls(path, {file: FileVersion.of(file.stat()) for file in files})

    def digest(self) -> str:
        """Return the hex digest of names and contents.

        Raises `EvaluationError`: `mismatch` if a file has changed since it was found, `vanished` if it is gone.
        """
        digest = hashlib.sha256()
        for file, version in self.versions.items():
            digest.update(f"{file.relative_to(self.path)}\0{version.size}\0".encode(errors="surrogateescape"))
            try:
                with file.open("rb") as opened:
                    while part := opened.read(_READ_BYTES):
                        digest.update(part)
                    _require_same(file, os.fstat(opened.fileno()), version)
            except FileNotFoundError as error:
                raise EvaluationError("vanished", f"{file} is gone: {error}") from error
        return digest.hexdigest()

    def require_unchanged(self) -> None:
        """Raise `EvaluationError` (`mismatch`) if a file was changed during the evaluation; it may be gone by now."""
        for file, version in self.versions.items():
            try:
                status = file.stat()
            except FileNotFoundError:
                continue
            _require_same(file, status, version)


def _require_same(file: Path, status: os.stat_result, version: FileVersion) -> None:
    if FileVersion.of(status) != version:
        raise mismatch(f"{file} was changed while it was evaluated, so the loaded content is unknown")
