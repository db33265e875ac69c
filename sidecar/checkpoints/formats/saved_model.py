"""SavedModels: a folder with `saved_model.pb` and, in `variables/`, a TensorFlow object checkpoint.

Sources: tensorflow `python/saved_model/save.py`, `core/protobuf/saved_model.proto`. Written in this order, as strace
shows: the variables, as any object checkpoint; `assets/`; `saved_model.pb` by a rename, which is the commit marker;
then `fingerprint.pb` by a rename and, by tf_keras, `keras_metadata.pb` in place. The last two are not needed to read
variables, so they are no part of the checkpoint; nor are assets, which only a stored graph reads.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from sidecar.checkpoints.files import File, Listing, as_file, list_files, open_file, resolve, update_from_content
from sidecar.checkpoints.formats.format import Candidate, Inspection, about
from sidecar.checkpoints.formats.protobuf import BYTES, VARINT, read_varint
from sidecar.checkpoints.formats.tf_object import TfObject
from sidecar.errors import CheckpointError, CorruptError, IncompleteError, VanishedError

MARKER: Final = "saved_model.pb"
VARIABLES: Final = "variables"

_MAX_FIELDS: Final = 10_000  # of the outermost message: a version, and a graph for each set of tags
_HEAD_BYTES: Final = 20  # tag and length, the longest varints
_BUNDLE: Final = TfObject()


class SavedModel:
    """See the module's docstring."""

    name: Final = "saved_model"
    suffixes: Final = ()

    def candidates(self, folder: Path, listing: Listing) -> Iterator[Candidate]:
        """Every sub-folder with the marker, which also says that it is finished, unless its variables are newer."""
        for name in listing.folders:
            marker = _file(folder, f"{name}/{MARKER}")
            if marker is None:
                continue
            inner, leaving = _variables(folder, name)
            rewritten = any(file.mtime_ns > marker.mtime_ns for file in inner)
            yield Candidate(name, (marker, *inner), True, not rewritten, leaving)

    def inspect(self, folder: Path, name: str, *, step_key: str | None = None) -> Inspection:
        """Check the outline of the marker and, as for any object checkpoint, the variables."""
        digest = hashlib.sha256(f"{self.name}\0".encode())
        with open_file(folder, f"{name}/{MARKER}") as file:
            with about(f"{name}/{MARKER}"):
                _require_outline(file)
            update_from_content(digest, file)
        if (folder / name).is_symlink() or (folder / name / VARIABLES).is_symlink():
            raise CorruptError(f"{folder / name} or its {VARIABLES} is a link: copy the folder there instead")
        try:
            with about(f"{name}/{VARIABLES}"):
                bundle = _BUNDLE.inspect(folder / name / VARIABLES, VARIABLES, step_key=step_key)
        except VanishedError as error:
            raise IncompleteError(f"{name} has a {MARKER}, but no {VARIABLES}/{VARIABLES}.index") from error
        digest.update(bundle.digest.encode())
        files = (f"{name}/{MARKER}", *(f"{name}/{VARIABLES}/{file}" for file in bundle.files))
        return Inspection(digest.hexdigest(), bundle.step, files)

    def check(self, folder: Path, name: str) -> None:
        """Every variable, as of any object checkpoint. The marker has no checksum that can be computed here."""
        self.inspect(folder, name)  # the marker, too
        with about(f"{name}/{VARIABLES}"):
            _BUNDLE.check(folder / name / VARIABLES, VARIABLES)

    def written_in_place(self, file: str) -> bool:
        """Only the index of the variables is."""
        return _BUNDLE.written_in_place(file)


def _file(folder: Path, name: str) -> File | None:
    """A regular file as it is now; whatever else is there, or cannot be seen, is none."""
    try:
        found = (folder / name).stat()
    except OSError:
        return None
    return as_file(name, found) if stat.S_ISREG(found.st_mode) else None


def _variables(folder: Path, name: str) -> tuple[tuple[File, ...], str | None]:
    """The files of the variables, and one that is a link out of there, if any."""
    inner = f"{name}/{VARIABLES}"
    if not _stays(folder, f"{name}/{MARKER}"):
        return (), f"{name}/{MARKER}"
    if (folder / inner).is_symlink():
        return (), inner
    try:
        listing = list_files(folder / inner)
    except OSError:
        return (), None  # `inspect` finds out what is wrong
    files = tuple(
        file._replace(name=f"{inner}/{file.name}")
        for file in sorted(listing.files.values())
        if file.name.startswith(f"{VARIABLES}.")
    )
    return files, next((f"{inner}/{each}" for each in sorted(listing.escaping)), None)


def _stays(folder: Path, name: str) -> bool:
    try:
        resolve(folder, name)
    except CheckpointError:
        return False
    return True


def _require_outline(file: BinaryIO) -> None:
    """Check that the outermost message ends where the file does and holds a graph; graphs are not read.

    SavedModel: saved_model_schema_version = 1, meta_graphs = 2.
    """
    size, position, graphs = os.fstat(file.fileno()).st_size, 0, 0
    for _ in range(_MAX_FIELDS):
        if position >= size:
            break
        head = os.pread(file.fileno(), _HEAD_BYTES, position)
        tag, at = read_varint(head, 0)
        if tag & 7 not in (VARINT, BYTES):
            raise CorruptError(f"it is no SavedModel: a field at {position} has the wire type {tag & 7}")
        value, at = read_varint(head, at)
        position += at + (value if tag & 7 == BYTES else 0)
        graphs += tag == 2 << 3 | BYTES
    if position != size:
        raise IncompleteError(f"it has {size} bytes, its outline needs {position}")
    if not graphs:
        raise IncompleteError("it holds no graph")
