"""Keras 3 models, `<name>.keras`: a zip archive with configuration and weights.

Sources: keras `src/saving/saving_lib.py`, PKWARE's APPNOTE.TXT 4.3 (records) and 4.5.3 (Zip64). Keras, and tf_keras
beside it, write it in place under its final name, member by member, and at last the table of all of them (the central
directory), which holds a CRC-32 and the size of each. A save that fails half way still ends with a table, but without
the weights.

Only the table, the headers that it points to and the optimizer's count of its steps are read; nothing is ever extracted
here.
"""

import hashlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from sidecar.checkpoints.files import Listing, open_file
from sidecar.checkpoints.formats.format import Candidate, Inspection, shown
from sidecar.checkpoints.formats.hdf5 import SUPERBLOCK_BYTES, require_suffix, require_whole
from sidecar.checkpoints.formats.keras_iterations import iterations
from sidecar.errors import ChecksumError, CorruptError, IncompleteError

WEIGHTS: Final = "model.weights.h5"
MAX_TABLE_BYTES: Final = 4 * 1024 * 1024
"""About 50,000 members. Keras writes three, and the assets of some layers."""

_REQUIRED: Final = ("metadata.json", "config.json", WEIGHTS)
_END: Final = b"PK\x05\x06"
_END_BYTES: Final = 22
_END_64: Final = b"PK\x06\x06"
_END_64_BYTES: Final = 56
_LOCATOR: Final = b"PK\x06\x07"
_LOCATOR_BYTES: Final = 20
_ENTRY: Final = b"PK\x01\x02"
_ENTRY_BYTES: Final = 46
_LOCAL: Final = b"PK\x03\x04"
_LOCAL_BYTES: Final = 30
_EXTRA_64: Final = 1
_FULL_16: Final = 0xFFFF
_FULL_32: Final = 0xFFFFFFFF
STORED: Final = 0
DEFLATED: Final = 8
_CHUNK_BYTES: Final = 1 << 20
_LARGE_BYTES: Final = 1 << 28  # with the next: what Keras itself refuses to expand (`_reject_zip_extract_bomb`)
_MAX_EXPANSION: Final = 100
_ENCRYPTED: Final = 1
_STREAMED: Final = 8  # sizes and checksum stand behind the data, and zeros in the local header


@dataclass(frozen=True, slots=True)
class Member:
    """One file in the archive; `start` is where its (compressed) data begin."""

    name: str
    method: int
    crc: int
    stored_size: int
    size: int
    start: int


class KerasArchive:
    """See the module's docstring."""

    name: Final = "keras"
    suffixes: Final = (".keras",)
    endings: Final = r"\.keras"

    def file_group(self, name: str) -> str | None:
        """The file alone."""
        return name if name.endswith(self.suffixes) else None

    def candidates(self, folder: Path, listing: Listing) -> Iterator[Candidate]:
        """Every file that is named like one."""
        del folder
        for file in listing.files.values():
            if file.name.endswith(self.suffixes):
                yield Candidate(file.name, (file,))
        for name in sorted(listing.escaping):
            if name.endswith(self.suffixes):
                yield Candidate(name, (), leaving=name)

    def inspect(self, folder: Path, name: str, *, step_key: str | None = None) -> Inspection:
        """Check the table against the file; the digest is of the members' names, sizes and checksums."""
        del step_key
        step = None
        with open_file(folder, require_suffix(name, self.suffixes)) as file:
            members = read_members(file, name)
            weights = next(member for member in members if member.name == WEIGHTS)
            if weights.method == STORED:
                head = os.pread(file.fileno(), min(SUPERBLOCK_BYTES, weights.size), weights.start)
                require_whole(head, weights.size, f"{WEIGHTS} in {name}")
                step = iterations(file, weights.start, weights.size)
        digest = hashlib.sha256(f"{self.name}\0".encode())
        for member in sorted(members, key=lambda member: member.name):
            digest.update(f"{member.name}\0{member.size}\0{member.crc}\0".encode("utf-8", "surrogateescape"))
        return Inspection(digest.hexdigest(), step, (name,), "optimizer")

    def check(self, folder: Path, name: str) -> None:
        """Every member against its CRC-32; what is compressed is expanded in small parts and not kept."""
        with open_file(folder, require_suffix(name, self.suffixes)) as file:
            for member in read_members(file, name):
                found = _crc_of(file, member, name)
                if found != member.crc:
                    raise ChecksumError(
                        f"{name}: {shown(member.name)} ({member.size} bytes at {member.start}) has the checksum "
                        f"{found:08x}, the zip table says {member.crc:08x}"
                    )

    def written_in_place(self, file: str) -> bool:
        """It is."""
        del file
        return True


def read_members(file: BinaryIO, name: str) -> list[Member]:
    """What the archive's table says, checked against the file, in order of where it lies.

    Raises:
        IncompleteError: there is no table at the end, or not of all that Keras writes.
        CorruptError: table and file contradict each other.
    """
    size = os.fstat(file.fileno()).st_size
    offset, length, count = _find_table(file, size, name)
    if length > MAX_TABLE_BYTES:
        raise CorruptError(f"{name} has a zip table of {length} bytes, more than any model needs")
    entries = sorted(_entries(os.pread(file.fileno(), length, offset), count, name), key=lambda entry: entry[1])
    members, end = [], 0
    for entry, at, flags in entries:
        if not end <= at < offset:
            raise CorruptError(f"{name}: {shown(entry.name)} lies at {at}, where something else does")
        member = _located(file, entry, at, flags, name)
        end = member.start + member.stored_size
        if end > offset:
            raise CorruptError(f"{name}: {shown(entry.name)} ends behind the data, at {end} of {offset} bytes")
        members.append(member)
    names = [member.name for member in members]
    if len(set(names)) < len(names):
        raise CorruptError(f"{name} holds two members of one name")
    if missing := [each for each in _REQUIRED if each not in names]:
        raise IncompleteError(f"{name} holds no {' and no '.join(missing)}")
    return members


def _find_table(file: BinaryIO, size: int, name: str) -> tuple[int, int, int]:
    """Offset, length and number of entries of the central directory, which ends where its end record begins."""
    window = min(size, _END_BYTES + _FULL_16)
    tail = os.pread(file.fileno(), window, size - window)
    at = tail.rfind(_END)
    while at >= 0 and at + _END_BYTES + _number(tail, at + 20, 2) != len(tail):  # what follows is a comment
        at = tail.rfind(_END, 0, at)
    if at < 0:
        raise IncompleteError(f"{name} does not end with its zip table: it is being written, or its writer died")
    here, first, count, length, offset = (
        _number(tail, at + i, n) for i, n in ((4, 2), (6, 2), (10, 2), (12, 4), (16, 4))
    )
    counted, end = _number(tail, at + 8, 2), size - window + at
    if _FULL_16 in (count, counted) or _FULL_32 in (length, offset):
        locator = os.pread(file.fileno(), _LOCATOR_BYTES, max(0, end - _LOCATOR_BYTES))
        end = _number(locator, 8, 8)
        record = os.pread(file.fileno(), _END_64_BYTES, min(end, size))
        if locator[:4] != _LOCATOR or record[:4] != _END_64 or len(record) < _END_64_BYTES:
            raise CorruptError(f"{name}: the zip table of a large file is damaged")
        here, first = _number(record, 16, 4), _number(record, 20, 4)
        counted, count, length, offset = (_number(record, i, 8) for i in (24, 32, 40, 48))
    if here or first or counted != count:
        raise CorruptError(f"{name} is one part of a zip archive of several")
    if offset + length != end:
        raise CorruptError(f"{name}: the zip table ends at {offset + length}, but should at {end}")
    return offset, length, count


def _entries(table: bytes, count: int, name: str) -> Iterator[tuple[Member, int, int]]:
    """Each entry with the place of its local header, and its flags."""
    position = 0
    for _ in range(count):
        entry = table[position : position + _ENTRY_BYTES]
        if entry[:4] != _ENTRY or len(entry) < _ENTRY_BYTES:
            raise CorruptError(f"{name}: the zip table has fewer entries than the {count} that it counts")
        flags, method = _number(entry, 8, 2), _number(entry, 10, 2)
        crc, stored_size, size, at = (_number(entry, i, 4) for i in (16, 20, 24, 42))
        name_bytes, extra_bytes, comment_bytes = (_number(entry, i, 2) for i in (28, 30, 32))
        position += _ENTRY_BYTES
        raw = table[position : position + name_bytes]
        extra = table[position + name_bytes : position + name_bytes + extra_bytes]
        position += name_bytes + extra_bytes + comment_bytes
        size, stored_size, at = _enlarged((size, stored_size, at), extra, name)
        member = Member(os.fsdecode(raw), method, crc, stored_size, size, at)
        if flags & _ENCRYPTED or method not in (STORED, DEFLATED):
            raise CorruptError(
                f"{name}: {shown(member.name)} is encrypted or compressed in a way that Keras does not use"
            )
        if method == STORED and size != stored_size:
            raise CorruptError(f"{name}: {shown(member.name)} has two sizes, {size} and {stored_size}")
        if size > _LARGE_BYTES and size > _MAX_EXPANSION * stored_size:
            raise CorruptError(
                f"{name}: {shown(member.name)} expands from {stored_size} bytes to {size}, "
                f"more than {_MAX_EXPANSION}-fold: Keras does not read such members"
            )
        yield member, at, flags
    if position != len(table):
        raise CorruptError(f"{name}: the zip table has {len(table) - position} bytes too many")


def _enlarged(values: tuple[int, int, int], extra: bytes, name: str) -> tuple[int, ...]:
    """Size, compressed size and offset; where 32 bits do not hold them, they stand in the Zip64 extra field."""
    if _FULL_32 not in values:
        return values
    position = 0
    while position + 4 <= len(extra):
        kind, length = _number(extra, position, 2), _number(extra, position + 2, 2)
        position += 4
        if kind == _EXTRA_64:
            large = [_number(extra, at, 8) for at in range(position, min(position + length, len(extra)) - 7, 8)]
            if len(large) >= values.count(_FULL_32):
                return tuple(large.pop(0) if value == _FULL_32 else value for value in values)
        position += length
    raise CorruptError(f"{name}: the zip table lacks the sizes of a large member")


def _located(file: BinaryIO, member: Member, at: int, flags: int, name: str) -> Member:
    """The member with the place of its data, which its own header tells; both must agree."""
    header = os.pread(file.fileno(), _LOCAL_BYTES, at)
    if header[:4] != _LOCAL or len(header) < _LOCAL_BYTES:
        raise CorruptError(f"{name}: {shown(member.name)} is not where the zip table says")
    name_bytes, extra_bytes = _number(header, 26, 2), _number(header, 28, 2)
    if os.fsdecode(os.pread(file.fileno(), name_bytes, at + _LOCAL_BYTES)) != member.name:
        raise CorruptError(f"{name}: {shown(member.name)} has another name in its own header")
    told = _number(header, 8, 2), _number(header, 14, 4), _number(header, 18, 4), _number(header, 22, 4)
    small = tuple(min(each, _FULL_32) for each in (member.stored_size, member.size))
    known = (small, (_FULL_32, _FULL_32))  # a writer that reserved room for large sizes writes them elsewhere
    if told[0] != member.method or (not flags & _STREAMED and (told[1] != member.crc or told[2:] not in known)):
        raise CorruptError(f"{name}: {shown(member.name)} has another size or checksum in its own header")
    start = at + _LOCAL_BYTES + name_bytes + extra_bytes
    return Member(member.name, member.method, member.crc, member.stored_size, member.size, start)


def _crc_of(file: BinaryIO, member: Member, name: str) -> int:
    """Of the member's content, which has as many bytes as it says."""
    crc, size = 0, 0
    for data in _expanded(file, member, name):
        crc, size = zlib.crc32(data, crc), size + len(data)
        if size > member.size:
            break
    if size != member.size:
        more = "more than " if size > member.size else ""
        raise ChecksumError(
            f"{name}: {shown(member.name)} has {more}{min(size, member.size)} bytes, the zip table says {member.size}"
        )
    return crc


def _expanded(file: BinaryIO, member: Member, name: str) -> Iterator[bytes]:
    """The member's content in small parts, whatever it expands to."""
    if member.method == STORED:
        yield from _stored(file, member)
        return
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    for part in _stored(file, member):
        left = part
        while left and not inflate.eof:
            try:
                yield inflate.decompress(left, _CHUNK_BYTES)
            except zlib.error as error:
                raise ChecksumError(f"{name}: {shown(member.name)} cannot be expanded: {error}") from error
            left = inflate.unconsumed_tail
        if inflate.eof and (left or inflate.unused_data):
            raise ChecksumError(f"{name}: {shown(member.name)} has something behind its compressed content")
    while not inflate.eof and (data := inflate.decompress(b"", _CHUNK_BYTES)):
        yield data  # all was taken in, and not all given out


def _stored(file: BinaryIO, member: Member) -> Iterator[bytes]:
    """The bytes as they lie in the file; fewer, if it became shorter."""
    position, end = member.start, member.start + member.stored_size
    while position < end and (part := os.pread(file.fileno(), min(_CHUNK_BYTES, end - position), position)):
        yield part
        position += len(part)


def _number(data: bytes, at: int, length: int) -> int:
    return int.from_bytes(data[at : at + length], "little")
