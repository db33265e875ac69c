"""Read checkpoints that the user names: any file or folder whose name matches the setting `checkpoint_pattern`.

The content is unknown, so it is neither checked nor loaded here: a pickle stays bytes. Such a checkpoint is complete
when it has been unchanged long enough, or when the user's own marker exists. Writers that rename a finished file or
folder to its final name are the safest. Names of unfinished files must not match the pattern, or begin with a dot.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from sidecar.checkpoints.files import File, Listing, as_file, open_file, update_from_content
from sidecar.checkpoints.formats.format import Candidate, Format, Inspection, shown
from sidecar.checkpoints.work_budget import WorkBudget
from sidecar.errors import CorruptError, IncompleteError, VanishedError

_DEEPEST: Final = 16
_MOST_FILES: Final = 100_000


class MatchingFiles(Format):
    """Read files that match a glob. Without a glob there are no candidates, and `inspect` accepts any name."""

    name: Final = "matching_file"

    def __init__(self, pattern: str | None = None) -> None:
        self._pattern = pattern

    @property
    def endings(self) -> str:
        """Return an expression that any name matches, since the glob decides; empty without a glob."""
        return "" if self._pattern is None else ".*"

    def file_group(self, name: str) -> str | None:
        """Return the name itself if it matches."""
        return name if self._pattern is not None and _matches(name, self._pattern, _NO_FILES) else None

    def _inspect(self, folder: Path, name: str, step_key: str | None, work: WorkBudget) -> Inspection:
        """Return the digest of the file's content and size. Raises `IncompleteError` for an empty file."""
        del step_key
        _require_match(name, self._pattern)
        if (folder / name).is_dir():
            raise VanishedError(f"{folder / name} is a folder")
        with open_file(folder, name) as file:
            if not os.fstat(file.fileno()).st_size:
                raise IncompleteError(f"{name} is empty")
            digest = hashlib.sha256(f"{self.name}\0".encode())
            update_from_content(digest, file, work)
        return Inspection(digest=digest.hexdigest(), step=None, files=(name,))


class MatchingFolders(Format):
    """Read folders that match a glob. Without a glob there are no candidates, and `inspect` accepts any name."""

    name: Final = "matching_folder"

    def __init__(self, pattern: str | None = None) -> None:
        self._pattern = pattern

    def candidates(self, folder: Path, listing: Listing) -> Iterator[Candidate]:
        """Yield every folder that matches, with all files below it. A folder with a link in it cannot be used."""
        if self._pattern is None:
            return
        for name in listing.folders:
            if _matches(name, self._pattern, _NO_FOLDERS):
                contents = _contents_of(folder, name)
                yield Candidate(name=name, files=tuple(contents.files), leaving=contents.link)

    def _inspect(self, folder: Path, name: str, step_key: str | None, work: WorkBudget) -> Inspection:
        """Return the digest of the names and contents of all files below the folder.

        Raises `IncompleteError` if the folder has no file, `CorruptError` if it has a link or is too large or too deep.
        """
        del step_key
        _require_match(name, self._pattern)
        if not (folder / name).is_dir() or (folder / name).is_symlink():
            raise VanishedError(f"there is no folder {folder / name}")
        contents = _contents_of(folder, name)
        if contents.link is not None:
            raise CorruptError(f"{shown(contents.link)} is a link: copy the file there instead of linking it")
        if contents.excess is not None:
            raise CorruptError(contents.excess)
        files = sorted(file.name for file in contents.files)
        if not files:
            raise IncompleteError(f"{name} holds no file")
        digest = hashlib.sha256(f"{self.name}\0".encode())
        for path in files:
            with open_file(folder, path) as file:
                digest.update(f"{path.removeprefix(name)}\0".encode(errors="surrogateescape"))
                update_from_content(digest, file, work)
        return Inspection(digest=digest.hexdigest(), step=None, files=tuple(files))


_NO_FILES: Final = ("events.out.tfevents.*", "*.ipynb")
_NO_FOLDERS: Final = ("wandb", "mlruns", "lightning_logs", "catboost_info", "__pycache__")
"""Names of loggers and notebooks. A pattern such as `*` does not mean them; one without a wildcard does."""


def _matches(name: str, pattern: str, not_meant: tuple[str, ...]) -> bool:
    """Return whether a name matches the pattern, and is none that only a pattern without a wildcard means."""
    return fnmatchcase(name, pattern) and (name == pattern or not any(fnmatchcase(name, other) for other in not_meant))


def _require_match(name: str, pattern: str | None) -> None:
    """Raise `VanishedError` if there is a pattern and the name does not match."""
    if pattern is not None and not fnmatchcase(name, pattern):
        raise VanishedError(f"{shown(name)} does not match checkpoint_pattern ({pattern})")


@dataclass(slots=True)
class _Contents:
    """Hold the regular files below a folder, a link in it if there is one, and why it is too large if it is."""

    files: list[File] = field(default_factory=list)
    link: str | None = None
    excess: str | None = None


def _contents_of(folder: Path, name: str) -> _Contents:
    """Return the contents of `folder/name`, with paths relative to `folder`. Raises OSError if it cannot be read.

    The folder is untrusted, so only a bounded part of it is listed.
    """
    contents, waiting = _Contents(), [name]
    while waiting and contents.excess is None:
        inner = waiting.pop()
        if inner.count("/") >= _DEEPEST:
            contents.excess = f"{shown(inner)} lies more than {_DEEPEST} folders deep"
            break
        for entry in _entries(folder / inner):
            path = f"{inner}/{entry.name}"
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISLNK(status.st_mode):
                contents.link = path
            elif stat.S_ISDIR(status.st_mode):
                waiting.append(path)
            elif stat.S_ISREG(status.st_mode):
                contents.files.append(as_file(path, status))
            if len(contents.files) + len(waiting) > _MOST_FILES:
                contents.excess = f"{shown(name)} holds more than {_MOST_FILES} files and folders"
                break
    contents.files.sort()
    return contents


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder; none if it is gone."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        yield from entries
