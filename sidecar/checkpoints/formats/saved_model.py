"""Read SavedModels: a folder with `saved_model.pb` and, in `variables/`, a TensorFlow object checkpoint.

Sources: tensorflow `python/saved_model/save.py`, `core/protobuf/saved_model.proto`. As strace shows, TensorFlow writes
in this order: the variables, as in any object checkpoint; `assets/`, copied in place; `saved_model.pb` by a rename,
which is the commit marker; then `fingerprint.pb` by a rename, and tf_keras writes `keras_metadata.pb` in place. The
last two are not needed for loading, so they are not part of the checkpoint. Assets are files that the graph reads, such
as vocabularies. The marker names them, but holds neither their lengths nor their checksums.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from sidecar.checkpoints.files import (
    MOST_ENTRIES,
    File,
    Listing,
    as_file,
    list_files,
    open_file,
    read_at,
    resolve,
    update_from_content,
)
from sidecar.checkpoints.formats.format import Candidate, Format, Inspection, about
from sidecar.checkpoints.formats.protobuf import BYTES, VARINT, fields, read_varint
from sidecar.checkpoints.formats.tf_object import TfObject
from sidecar.checkpoints.work_budget import SAMPLE, WorkBudget
from sidecar.errors import CheckpointError, CorruptError, IncompleteError, VanishedError

MARKER: Final = "saved_model.pb"
VARIABLES: Final = "variables"
ASSETS: Final = "assets"

_META_GRAPHS: Final = 2  # field of SavedModel, whose other field is a version
_ASSET_FILE_DEF: Final = 6  # field of MetaGraphDef, all of whose fields are messages
_FILENAME: Final = 2  # field of AssetFileDef
_MAX_FIELDS: Final = 20_000  # in the whole file: one for each set of tags, and in it for each collection and asset
_MAX_ASSET_BYTES: Final = 64 * 1024  # the message that names an asset holds a file name and a tensor's name
_HEAD_BYTES: Final = 20  # tag and length, both as the longest varints
_BUNDLE: Final = TfObject()


class SavedModel(Format):
    """Read SavedModels: a marker file, variables and assets in one folder."""

    name: Final = "saved_model"

    def candidates(self, folder: Path, listing: Listing) -> Iterator[Candidate]:
        """Yield every sub-folder with the marker. It counts as committed unless a file in it is newer."""
        for name in listing.folders:
            marker = _file(folder, f"{name}/{MARKER}")
            if marker is None:
                continue
            inner, leaving = _inner(folder, name)
            rewritten = any(file.mtime_ns > marker.mtime_ns for file in inner)
            yield Candidate(name=name, files=(marker, *inner), named=True, committed=not rewritten, leaving=leaving)

    def _inspect(self, folder: Path, name: str, step_key: str | None, work: WorkBudget) -> Inspection:
        """Check the outline of the marker, the existence of its assets, and the variables like an object checkpoint.

        The digest covers the marker, the digest of the variables and the contents of the assets.
        """
        digest = hashlib.sha256(f"{self.name}\0".encode())
        with open_file(folder, f"{name}/{MARKER}") as file, about(f"{name}/{MARKER}"):
            assets = _read_outline(file, work)
            update_from_content(digest, file, work)
        if any((folder / name / inner).is_symlink() for inner in ("", VARIABLES, ASSETS)):
            linked = f"{folder / name}, its {VARIABLES} or its {ASSETS}"
            raise CorruptError(f"{linked} is a link: copy the folder there instead")
        try:
            with about(f"{name}/{VARIABLES}"):
                bundle = _BUNDLE.inspect(folder / name / VARIABLES, VARIABLES, step_key=step_key, work=work)
        except VanishedError as error:
            raise IncompleteError(f"{name} has a {MARKER}, but no {VARIABLES}/{VARIABLES}.index") from error
        digest.update(bundle.digest.encode())
        for asset in assets:
            try:
                with open_file(folder, f"{name}/{asset}") as file:
                    digest.update(f"{asset}\0".encode(errors="surrogateescape"))
                    update_from_content(digest, file, work)
            except VanishedError as error:
                raise IncompleteError(f"{name} has a {MARKER} that names {asset}, but not that file") from error
        files = (MARKER, *(f"{VARIABLES}/{file}" for file in bundle.files), *assets)
        return Inspection(
            digest=digest.hexdigest(),
            step=bundle.step,
            files=tuple(f"{name}/{file}" for file in files),
            step_source=bundle.step_source,
        )

    def check(self, folder: Path, name: str) -> None:
        """Compare every variable with its checksum. Marker and assets have none that can be computed here."""
        self.inspect(folder, name)  # checks the structure of the marker
        with about(f"{name}/{VARIABLES}"):
            _BUNDLE.check(folder / name / VARIABLES, VARIABLES)

    def written_in_place(self, file: str) -> bool:
        """Return True for the index of the variables and for assets."""
        return _BUNDLE.written_in_place(file) or PurePosixPath(file).parts[1:-1] == (ASSETS,)


def _file(folder: Path, name: str) -> File | None:
    """Return the state of a regular file; None if it does not exist or cannot be read."""
    try:
        status = (folder / name).stat()
    except OSError:
        return None
    return as_file(name, status) if stat.S_ISREG(status.st_mode) else None


def _inner(folder: Path, name: str) -> tuple[tuple[File, ...], str | None]:
    """Return the files of the variables and the assets, and a link that leads out of the folder if there is one."""
    if not _stays(folder, f"{name}/{MARKER}"):
        return (), f"{name}/{MARKER}"
    found: list[File] = []
    for inner, start in ((f"{name}/{VARIABLES}", f"{VARIABLES}."), (f"{name}/{ASSETS}", "")):
        if (folder / inner).is_symlink():
            return (), inner
        try:
            # users name assets as they like
            listing = list_files(folder / inner, all_names=not start, most=MOST_ENTRIES)
        except OSError:
            continue  # `inspect` reports the problem
        if listing.escaping:
            return (), f"{inner}/{min(listing.escaping)}"
        found += [
            file._replace(name=f"{inner}/{file.name}")
            for file in sorted(listing.files.values())
            if file.name.startswith(start)
        ]
    return tuple(found), None


def _stays(folder: Path, name: str) -> bool:
    """Return whether a path stays in the folder if its links are followed."""
    try:
        resolve(folder, name)
    except CheckpointError:
        return False
    return True


def _read_outline(file: BinaryIO, work: WorkBudget) -> list[str]:
    """Check the ends of all messages and the existence of a graph, and return the paths of the assets in the marker.

    The contents of graphs are not read.
    """
    size, budget = os.fstat(file.fileno()).st_size, iter(range(_MAX_FIELDS))
    graphs = [span for number, span in _messages(file, 0, size, budget, work) if number == _META_GRAPHS]
    if not graphs:
        raise IncompleteError("it holds no graph")
    assets: dict[str, None] = {}
    for graph in graphs:
        for number, span in _messages(file, graph.start, graph.stop, budget, work):
            if number == _ASSET_FILE_DEF:
                assets[f"{ASSETS}/{_asset(file, span)}"] = None
    return list(assets)


def _messages(file: BinaryIO, start: int, end: int, budget: Iterator[int], work: WorkBudget) -> list[tuple[int, range]]:
    """Return (number, place) of each text or message field between two positions. Each field takes one of `budget`."""
    position, found = start, []
    for _ in budget:
        if position >= end:
            break
        work.add(SAMPLE)
        head = read_at(file, min(_HEAD_BYTES, end - position), position)
        tag, at = read_varint(head, 0)
        if tag & 7 not in (VARINT, BYTES):
            raise CorruptError(f"it is not a SavedModel: a field at {position} has the wire type {tag & 7}")
        value, at = read_varint(head, at)
        length = value if tag & 7 == BYTES else 0
        if tag & 7 == BYTES:
            found.append((tag >> 3, range(position + at, position + at + length)))
        position += at + length
    if position != end:
        raise IncompleteError(f"it ends at {end}, its outline needs {position}")
    return found


def _asset(file: BinaryIO, span: range) -> str:
    """Return the path of an asset in `assets/`. Raises `CorruptError` for a name that is not a plain file name."""
    if len(span) > _MAX_ASSET_BYTES:
        raise CorruptError(f"it has an asset name of {len(span)} bytes: more than a file name needs")
    message = read_at(file, len(span), span.start)
    found = [value for number, _, value in fields(message) if number == _FILENAME]
    asset = os.fsdecode(found[-1]) if found and isinstance(found[-1], bytes) else ""
    if asset in ("", ".", "..") or "/" in asset or "\0" in asset:
        raise CorruptError(f"it names the asset {asset!r}, which is not a file in {ASSETS}/")
    return asset
