"""Read folders of `torch.distributed.checkpoint`: `.metadata`, and the data files `__<rank>_<number>.distcp`.

Source: torch `distributed/checkpoint/filesystem.py`. Every rank writes its files in place, with fsync; then rank 0
writes `.metadata.tmp`, also with fsync, removes an old `.metadata`, and renames the new one. `async_save` does the same
later. A data file is a row of archives of `torch.save`, one for each tensor or part of one. torchtitan, Lightning and
accelerate write such folders, too.

`.metadata` is a pickle with the place of each part. It is never loaded here: that would run code that it names, and
take more memory than the daemon has. The names of the files and the lengths of all parts are found in its bytes, as the
pickler of CPython writes them.

If training saves to a folder again, files are replaced one by one under the old `.metadata`. Then some are newer than
that, as they may be in copies.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from sidecar.checkpoints.files import MOST_ENTRIES, Listing, list_files, open_file, read_at, update_from_content
from sidecar.checkpoints.formats.format import Candidate, Format, Inspection
from sidecar.checkpoints.formats.torch_zip import check_archives
from sidecar.checkpoints.work_budget import SAMPLE, WorkBudget
from sidecar.errors import CorruptError, IncompleteError, VanishedError
from sidecar.protocol.weight_names import DCP_METADATA

UNFINISHED: Final = f"{DCP_METADATA}.tmp"
UNCOORDINATED: Final = f"__0{DCP_METADATA}"
"""The file that rank 0 writes instead where every rank saves by itself: `use_collectives=False`."""

MAX_METADATA_BYTES: Final = 1 << 30
"""Of 5 million parts: a large model and its optimizer on 1,000 ranks."""

_DATA: Final = re.compile(r"__[0-9]{1,9}_[0-9]{1,9}\.distcp")
_NAME: Final = re.compile(rb"__[0-9]{1,9}_[0-9]{1,9}\.distcp")
_MOST_FILES: Final = 100_000
_PART_UNITS: Final = 1  # of work
_KIB: Final = 8  # units of work for each KiB of text

_KEY: Final = rb"(?:h.|j.{4}|\x8c(?:\x06offset|\x06length|\x15transform_descriptors)\x94)"
_LONG: Final = b"|".join(rb"\x8a\x%02x.{%d}" % (length, length) for length in range(1, 8))
_NUMBER: Final = rb"(?:K.|M..|J.{4}|" + _LONG + b")"
_PART: Final = re.compile(_KEY + _NUMBER + _KEY + b"(" + _NUMBER + b")(?:" + _KEY + b"N)?ub", re.DOTALL)
"""The end of a `_StorageInfo`: offset, length, and maybe no transform. A key is a text, or a reference to one."""

_LONGEST_PART: Final = 256
_PROTOCOL: Final = re.compile(rb"\x80[\x04\x05]")
_FRAME: Final = b"\x95"
_STOP: Final = b"."
_CHUNK_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = 9  # of a frame: the opcode, and the length of the content
_LARGE: Final = {b"B": 4, b"X": 4, b"\x8e": 8, b"\x8d": 8}
"""Opcodes of values of 64 KiB and more, which lie between frames, and the bytes of their lengths."""

_MOST_ALONE: Final = 3  # what is shorter than 4 bytes gets no frame
_BYTES_PER_PIECE: Final = 8192
_FEW_PIECES: Final = 64
"""CPython closes a frame at 64 KiB or before a larger value, so a real pickle has far fewer pieces than these allow."""


class Dcp(Format):
    """Read folders of `torch.distributed.checkpoint`."""

    name: Final = "dcp"

    def candidates(self, folder: Path, listing: Listing) -> Iterator[Candidate]:
        """Yield every sub-folder with `.metadata`. It counts as committed if no data file is newer."""
        for name in listing.folders:
            with contextlib.suppress(OSError):  # the folder cannot be read, or is gone
                if any((folder / name / file).is_file() for file in (DCP_METADATA, UNCOORDINATED)):
                    yield _candidate(folder, name)

    def _inspect(self, folder: Path, name: str, step_key: str | None, work: WorkBudget) -> Inspection:
        """Check that all files that `.metadata` names are there, and are as long as its parts."""
        del step_key
        if (folder / name).is_symlink() or not (folder / name).is_dir():
            raise VanishedError(f"{folder / name} is not a folder")
        where = f"{name}/{DCP_METADATA}"
        if not (folder / where).exists() and (folder / name / UNCOORDINATED).exists():
            raise CorruptError(
                f"{name} was saved by each rank alone (use_collectives=False): it holds no {DCP_METADATA}, so nothing "
                "tells when it is complete; save it with use_collectives=True"
            )
        digest = hashlib.sha256(f"{self.name}\0".encode())
        with open_file(folder, where) as file:
            names, needed = _read_metadata(file, where, digest, work)
            committed_at = os.fstat(file.fileno()).st_mtime_ns
        size, newer = 0, None
        for data in names:
            try:
                with open_file(folder, f"{name}/{data}") as file:
                    status = os.fstat(file.fileno())
                    digest.update(f"{data}\0".encode())
                    update_from_content(digest, file, work)
            except VanishedError as error:
                raise IncompleteError(f"{where} names {data}, which is missing") from error
            size += status.st_size
            newer = data if status.st_mtime_ns > committed_at else newer
        if size < needed:
            raise IncompleteError(f"{name}: its data files have {size} bytes, but {where} states {needed}")
        doubt = None if newer is None else f"{newer} is newer than {where}, as if it was being saved again"
        return Inspection(
            digest=digest.hexdigest(), step=None, files=(where, *(f"{name}/{data}" for data in names)), doubt=doubt
        )

    def check(self, folder: Path, name: str) -> None:
        """Compare every part with its CRC-32. Loading does not."""
        work = WorkBudget(is_full=True)
        for file in self.inspect(folder, name).files[1:]:
            check_archives(folder, file, work)


def _candidate(folder: Path, name: str) -> Candidate:
    """Return the candidate in a folder with `.metadata`. Raises OSError."""
    listing = list_files(folder / name, all_names=True, most=MOST_ENTRIES)
    files = sorted(
        file
        for file in listing.files.values()
        if file.name in (DCP_METADATA, UNFINISHED, UNCOORDINATED) or _DATA.fullmatch(file.name)
    )
    leaving = min((link for link in listing.escaping if link == DCP_METADATA or _DATA.fullmatch(link)), default=None)
    metadata = listing.files.get(DCP_METADATA)
    committed = metadata is not None and all(file.mtime_ns <= metadata.mtime_ns for file in files)
    inner = tuple(file._replace(name=f"{name}/{file.name}") for file in files)
    return Candidate(
        name=name,
        files=inner,
        named=True,
        committed=committed,
        leaving=None if leaving is None else f"{name}/{leaving}",
    )


def _read_metadata(file: BinaryIO, where: str, digest: "hashlib._Hash", work: WorkBudget) -> tuple[list[str], int]:
    """Return the data files that a pickled `Metadata` names, sorted, and how long all of its parts are together.

    A part that is not recognised is not counted. Raises `IncompleteError` for a pickle that is cut off.
    """
    names, needed, rest = set[bytes](), 0, b""
    for frame in _frames(file, where, work):
        digest.update(frame)
        work.add(_KIB * (1 + len(frame) // 1024))
        text = rest + frame
        end = 0
        for part in _PART.finditer(text):
            needed += _number(part[1])
            work.add(_PART_UNITS)
            end = part.end()
        for found in _NAME.finditer(text):
            names.add(found[0])
            work.add(_PART_UNITS)
        if len(names) > _MOST_FILES:
            raise CorruptError(f"{where} names more than {_MOST_FILES} files")
        rest = text[max(end, len(text) - _LONGEST_PART) :]
    if not names:
        raise CorruptError(f"{where} names no data file, so it is not one of torch.distributed.checkpoint")
    return sorted(name.decode() for name in names), needed


def _frames(file: BinaryIO, where: str, work: WorkBudget) -> Iterator[bytes]:
    """Yield the content of a pickle without the heads of its frames, in parts. Raises `IncompleteError`."""
    size, position, last = os.fstat(file.fileno()).st_size, 2, b""
    if size > MAX_METADATA_BYTES:
        raise CorruptError(f"{where} has {size} bytes; up to {MAX_METADATA_BYTES} are read")
    if size and _PROTOCOL.fullmatch(read_at(file, 2, 0)) is None:
        raise CorruptError(f"{where} is not a pickle of protocol 4 or 5, as torch.distributed.checkpoint writes it")
    alone, pieces = 0, 0
    while position < size:
        pieces += 1
        work.add(SAMPLE)
        if pieces > _FEW_PIECES + size // _BYTES_PER_PIECE:
            raise CorruptError(f"{where} is not a pickle of a checkpoint: it has {pieces} pieces up to {position}")
        start, end = _piece(read_at(file, _HEAD_BYTES, position), position)
        alone = alone + 1 if end == position + 1 else 0
        if alone > _MOST_ALONE:
            raise CorruptError(f"{where} is damaged: there is no frame of the pickle at {position}")
        if end > size:
            break
        for position in range(start, end, _CHUNK_BYTES):
            last = read_at(file, min(_CHUNK_BYTES, end - position), position)
            yield last
        position = end
    if position != size or not last.endswith(_STOP):
        raise IncompleteError(f"{where} is cut off")


def _piece(head: bytes, position: int) -> tuple[int, int]:
    """Return where the content of the piece of a pickle begins and ends whose first bytes are at `position`.

    A piece is a frame, a large value, or one byte between these.
    """
    if head[:1] == _FRAME:
        return position + _HEAD_BYTES, position + _HEAD_BYTES + int.from_bytes(head[1:], "little")
    if (width := _LARGE.get(head[:1])) is not None:
        return position, position + 1 + width + int.from_bytes(head[1 : 1 + width], "little")
    return position, position + 1


def _number(code: bytes) -> int:
    """Return the number that an opcode holds: K, M, J or LONG1 with its length."""
    return int.from_bytes(code[2 if code[:1] == b"\x8a" else 1 :], "little")
