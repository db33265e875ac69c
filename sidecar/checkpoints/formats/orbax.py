"""Read Orbax checkpoints, as `keras.callbacks.OrbaxCheckpoint` writes them: a folder named after the step, `<N>/`.

Sources: orbax-checkpoint 0.12 `_src/path/atomicity.py`, `_src/metadata/checkpoint.py`; tensorstore
`kvstore/ocdbt/format/manifest.cc`. As strace shows, the callback writes all files into `<N>.orbax-checkpoint-tmp/`,
writes the time of the commit into `_CHECKPOINT_METADATA`, creates `commit_success.txt`, and gives the folder its final
name by one rename. On storage without renames the files are written under the final name, and `_CHECKPOINT_METADATA` is
the commit marker.

The callback deletes surplus checkpoints under their final names, file by file, in any order. The deletion changes the
times of the folders, which nobody changes after the commit otherwise.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from sidecar.checkpoints.files import (
    MOST_ENTRIES,
    File,
    Listing,
    list_files,
    open_file,
    read_at,
    read_file,
    update_from_content,
)
from sidecar.checkpoints.formats.crc32c import crc32c
from sidecar.checkpoints.formats.format import Candidate, Format, Inspection
from sidecar.checkpoints.work_budget import WorkBudget
from sidecar.errors import CorruptError, IncompleteError, VanishedError

MARKER: Final = "_CHECKPOINT_METADATA"
MANIFEST: Final = "manifest.ocdbt"

MAX_FILES: Final = 10_000
"""The most files in one checkpoint; each process that saves writes a few."""

_COMMITTED: Final = "commit_success.txt"  # written by recent releases
_COMMITTED_AT: Final = "commit_timestamp_nsecs"
_LEVELS: Final = 8
_MAX_BYTES: Final = 256 * 1024
_MAGIC: Final = b"\x0c\xdb\x3a\x2a"
_HEAD_BYTES: Final = 12  # the magic number and the length
_CRC_BYTES: Final = 4


class Orbax(Format):
    """Read Orbax checkpoints: folders with a commit marker."""

    name: Final = "orbax"

    def candidates(self, folder: Path, listing: Listing) -> Iterator[Candidate]:
        """Yield every sub-folder with the marker. It counts as committed if nothing in it changed after the commit."""
        for name in listing.folders:
            with contextlib.suppress(OSError):  # the folder cannot be read, or is gone
                if (folder / name / MARKER).is_file():
                    files, leaving, changed_ns = _tree(folder, name)
                    yield Candidate(
                        name=name,
                        files=files,
                        named=True,
                        committed=_is_undisturbed(name, files, changed_ns),
                        leaving=leaving,
                    )

    def _inspect(self, folder: Path, name: str, step_key: str | None, work: WorkBudget) -> Inspection:
        """Check the marker and the manifests of the arrays. The digest covers all files, large ones in part."""
        del step_key
        if (folder / name).is_symlink() or not (folder / name).is_dir():
            raise VanishedError(f"{folder / name} is not a folder")
        _require_committed(read_file(folder, f"{name}/{MARKER}", limit=_MAX_BYTES), f"{name}/{MARKER}")
        try:
            files, leaving, _ = _tree(folder, name)
        except FileNotFoundError as error:
            raise VanishedError(f"{folder / name} is gone, or part of it") from error
        if leaving is not None:
            raise CorruptError(f"{leaving} is a link: copy the file there instead")
        if len(files) > MAX_FILES:
            raise CorruptError(f"{name} has more than {MAX_FILES} files, or deeper folders than Orbax makes")
        digest, arrays = hashlib.sha256(f"{self.name}\0".encode()), 0
        for file in files:
            with open_file(folder, file.name) as opened:
                if file.name.rpartition("/")[2] == MANIFEST:
                    _require_whole(read_at(opened, _MAX_BYTES + 1, 0), file.name)
                    arrays += 1
                inner = file.name.removeprefix(f"{name}/")
                digest.update(f"{inner}\0".encode(errors="surrogateescape"))
                update_from_content(digest, opened, work)
        if not arrays:
            raise IncompleteError(f"{name} has no {MANIFEST}, so its arrays are missing")
        return Inspection(digest=digest.hexdigest(), step=None, files=tuple(file.name for file in files))

    def written_in_place(self, file: str) -> bool:
        """Return False: no file changes after the folder has its final name."""
        del file
        return False


def _tree(folder: Path, name: str) -> tuple[tuple[File, ...], str | None, int]:
    """Return all files below a folder, a link in it if there is one, and the time of the last change of a folder.

    Each folder's time is read after its listing, so that it shows deletions during the listing. A tree with more than
    `MAX_FILES` files is cut off, because it is not a checkpoint. Raises OSError.
    """
    found: list[File] = []
    changed_ns, waiting = 0, [name]
    while waiting:
        inner = waiting.pop()
        listing = list_files(folder / inner, all_names=True, most=MOST_ENTRIES)
        changed_ns = max(changed_ns, os.lstat(folder / inner).st_mtime_ns)
        if listing.escaping:
            return (), f"{inner}/{min(listing.escaping)}", changed_ns
        found += [file._replace(name=f"{inner}/{file.name}") for file in listing.files.values()]
        if inner.count("/") < _LEVELS and len(found) + len(waiting) <= MAX_FILES:
            waiting += [f"{inner}/{subfolder}" for subfolder in listing.folders]
    return tuple(sorted(found)), None, changed_ns


def _is_undisturbed(name: str, files: Iterable[File], changed_ns: int) -> bool:
    """Return whether nothing was written or deleted after the commit. For copies the result is often wrongly False."""
    times = {file.name: file.mtime_ns for file in files}
    committed_ns = times.get(f"{name}/{_COMMITTED}", times.get(f"{name}/{MARKER}", 0))
    return max(changed_ns, *times.values(), 0) <= committed_ns


def _require_committed(content: bytes, where: str) -> None:
    """Raise `IncompleteError` if the marker's content is cut off or has no time of the commit."""
    try:
        read = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise IncompleteError(f"{where} is cut off") from error
    committed_at = read.get(_COMMITTED_AT) if isinstance(read, dict) else None
    if not isinstance(committed_at, int) or committed_at <= 0:
        raise IncompleteError(f"{where} has no {_COMMITTED_AT}: it is being written, or its writer died")


def _require_whole(content: bytes, where: str) -> None:
    """Check length and checksum of a manifest. The rest of it is compressed, and is not read."""
    if len(content) > _MAX_BYTES:
        raise CorruptError(f"{where} is larger than the {_MAX_BYTES} bytes that it may have")
    if not content.startswith(_MAGIC):
        raise CorruptError(f"{where} does not begin like an OCDBT manifest")
    length = int.from_bytes(content[len(_MAGIC) : _HEAD_BYTES], "little")
    if len(content) != length or length < _HEAD_BYTES + _CRC_BYTES:
        raise IncompleteError(f"{where} has {len(content)} bytes, but states {length}")
    expected = int.from_bytes(content[-_CRC_BYTES:], "little")
    if (found := crc32c(content[:-_CRC_BYTES])) != expected:
        raise CorruptError(f"{where} has the checksum {found:08x}, but states {expected:08x}")
