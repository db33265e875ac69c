"""Read the table of a zip archive, and the headers that it points to, as untrusted bytes. Nothing is extracted.

Source: PKWARE's APPNOTE.TXT 4.3 (records) and 4.5.3 (Zip64). `zipfile` reads the table, after a check by its end record
that the table is not too large and lies at its end. Writers write the members first, then the table of all members (the
central directory), which holds the CRC-32 and the size of each. So a file that is still being written has no table.
"""

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO, Final

from sidecar.checkpoints.files import read_at
from sidecar.checkpoints.formats.format import shown
from sidecar.checkpoints.work_budget import WorkBudget
from sidecar.errors import ChecksumError, CorruptError, IncompleteError

MAX_TABLE_BYTES: Final = 4 * 1024 * 1024
"""Enough for about 50,000 members. Keras writes three, and the assets of some layers; PyTorch one for each tensor."""

MAX_MEMBERS: Final = 65_000
"""One member takes up to 1 KB of memory while the table is read."""

_ENTRY: Final = b"PK\x01\x02"
_WORK_PER_MEMBER: Final = 15
_END: Final = b"PK\x05\x06"
_END_RECORD: Final = struct.Struct("<4s4H2LH")
"""Signature, this disk, disk of the table, entries here, entries, length and offset of the table, comment length."""

_END_64: Final = b"PK\x06\x06"
_END_RECORD_64: Final = struct.Struct("<4sQ2H2L4Q")
"""Signature, own length, two versions, then the same as in the smaller record, without a comment."""

_LOCATOR: Final = b"PK\x06\x07"
_LOCATOR_BYTES: Final = 20
_LOCAL: Final = b"PK\x03\x04"
_LOCAL_HEADER: Final = struct.Struct("<4s5H3L2H")
"""Signature, version, flags, method, time, date, CRC-32, stored size, size, lengths of the name and of more fields."""

_FULL_16: Final = 0xFFFF
_FULL_32: Final = 0xFFFFFFFF
_UTF_8: Final = 0x800  # flag: the name is in UTF-8, not in cp437
_CHUNK_BYTES: Final = 1 << 20
_LARGE_BYTES: Final = 1 << 28  # with the next: members that Keras refuses to expand (`_reject_zip_extract_bomb`)
_MAX_EXPANSION: Final = 100
_ENCRYPTED: Final = 1  # flag
_STREAMED: Final = 8  # flag: sizes and checksum follow the data, and are 0 in the local header


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Describe one file in the archive. `start`: the offset of its data, or of its header in an entry of the table."""

    name: str
    method: int
    crc: int
    stored_size: int
    size: int
    start: int


def archives_in(file: BinaryIO, name: str) -> Iterator[range]:
    """Yield the place of each archive in a file that is a row of archives as PyTorch writes them, the last one first.

    Raises `CorruptError` if there is no end of an archive where one must be.
    """
    end = os.fstat(file.fileno()).st_size
    while end:
        start = max(0, end - _END_RECORD_64.size - _LOCATOR_BYTES - _END_RECORD.size)
        record = read_at(file, end - start, start)
        if record[:4] != _END_64 or record[-_END_RECORD.size :][:4] != _END:
            raise CorruptError(f"{name}: there is no end of an archive at {end}")
        length = len(record) + _number(record, 40, 8) + _number(record, 48, 8)  # and the table, and what lies before it
        if length > end:
            raise CorruptError(f"{name}: the archive that ends at {end} states a length of {length} bytes")
        yield range(end - length, end)
        end -= length


def read_members(file: BinaryIO, name: str, work: WorkBudget, place: range | None = None) -> list[Member]:
    """Return the members that the archive's table lists, checked against the file, in order of position.

    `place`: where the archive lies in the file; None: it is the whole file. Raises `IncompleteError` if there is no
    table at the end, and `CorruptError` if table and file contradict each other.
    """
    place = range(os.fstat(file.fileno()).st_size) if place is None else place
    offset, length, count = _find_table(file, place, name)
    if length > MAX_TABLE_BYTES:
        raise CorruptError(f"{name} has a zip table of {length} bytes, more than any model needs")
    entries = sorted(_entries(read_at(file, length, offset), count, name), key=lambda entry: entry[1])
    members, end = [], place.start
    for entry, inside, flags in entries:
        work.add(_WORK_PER_MEMBER)
        at = place.start + inside
        if not end <= at < offset:
            raise CorruptError(f"{name}: {shown(entry.name)} at {at} overlaps another member or the table")
        member = _located(file, entry, at, flags, name)
        end = member.start + member.stored_size
        if end > offset:
            raise CorruptError(f"{name}: {shown(entry.name)} ends at {end}, but the data ends at {offset}")
        members.append(member)
    expanded, most = sum(member.size for member in members), _MAX_EXPANSION * len(place) + _LARGE_BYTES
    if expanded > most:
        raise CorruptError(f"{name}: its members expand to {expanded} bytes, more than {most} for a file of its size")
    names = [member.name for member in members]
    if len(set(names)) < len(names):
        raise CorruptError(f"{name} has two members with the same name")
    return members


def _find_table(file: BinaryIO, place: range, name: str) -> tuple[int, int, int]:
    """Return the offset in the file, the length and the number of entries of the table, as its end record says.

    Raises `CorruptError` if the table does not end where its end record begins.
    """
    window = min(len(place), _END_RECORD.size + _FULL_16)
    tail = read_at(file, window, place.stop - window)
    at = tail.rfind(_END)
    while at >= 0 and not _ends_with(tail, at):
        at = tail.rfind(_END, 0, at)
    if at < 0:
        raise IncompleteError(f"{name} does not end with its zip table: it is being written, or its writer died")
    _, disk, first_disk, counted, count, length, offset, _ = _END_RECORD.unpack_from(tail, at)
    end = place.stop - window + at
    locator = read_at(file, _LOCATOR_BYTES, max(place.start, end - _LOCATOR_BYTES))
    is_full = _FULL_16 in (count, counted) or _FULL_32 in (length, offset)
    if is_full or locator[:4] == _LOCATOR:  # PyTorch's writer, miniz, writes the large record for small files, too
        end = min(place.start + _number(locator, 8, 8), place.stop)
        record = read_at(file, _END_RECORD_64.size, end)
        if locator[:4] != _LOCATOR or record[:4] != _END_64 or len(record) < _END_RECORD_64.size:
            raise CorruptError(f"{name}: the zip table of a large file is damaged")
        small = ((counted, _FULL_16), (count, _FULL_16), (length, _FULL_32), (offset, _FULL_32))
        *_, disk, first_disk, counted, count, length, offset = _END_RECORD_64.unpack(record)
        for (value, full), large in zip(small, (counted, count, length, offset), strict=True):
            if value not in (full, large):
                raise CorruptError(f"{name}: its two end records contradict each other, {value} and {large}")
    if disk or first_disk or counted != count:
        raise CorruptError(f"{name} is one part of a zip archive of several")
    offset += place.start
    if offset + length != end:
        raise CorruptError(f"{name}: the zip table ends at {offset + length}, but should end at {end}")
    return offset, length, count


def _ends_with(tail: bytes, at: int) -> bool:
    """Return whether the end record at `at`, with the comment behind it, reaches to the end of the file."""
    if len(tail) - at < _END_RECORD.size:
        return False
    *_, comment_bytes = _END_RECORD.unpack_from(tail, at)
    return bool(at + _END_RECORD.size + comment_bytes == len(tail))


def _entries(table: bytes, count: int, name: str) -> Iterator[tuple[Member, int, int]]:
    """Yield (entry, offset of its local header, flags) for each entry of the table."""
    end = _END_RECORD.pack(_END, 0, 0, 0, 0, len(table), 0, 0)  # here the table begins at 0
    if table.count(_ENTRY) > MAX_MEMBERS:
        raise CorruptError(f"{name} has a zip table of more than {MAX_MEMBERS} members, more than any model needs")
    try:
        with zipfile.ZipFile(io.BytesIO(table + end)) as archive:
            if archive.start_dir:
                raise CorruptError(f"{name}: the zip table ends like the end record of another one")
            entries = archive.infolist()
            archive.NameToInfo.clear()  # so that each entry can be freed below
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        raise CorruptError(f"{name}: its zip table cannot be read: {shown(str(error))}") from error
    if len(entries) != count:
        raise CorruptError(f"{name}: the zip table has {len(entries)} entries, its end record counts {count}")
    entries.reverse()
    while entries:
        entry = entries.pop()
        raw = entry.orig_filename.encode("utf-8" if entry.flag_bits & _UTF_8 else "cp437")
        member = Member(
            name=os.fsdecode(raw),
            method=entry.compress_type,
            crc=entry.CRC,
            stored_size=entry.compress_size,
            size=entry.file_size,
            start=entry.header_offset,
        )
        _require_usual(member, entry.flag_bits, name)
        yield member, member.start, entry.flag_bits


def _require_usual(member: Member, flags: int, name: str) -> None:
    """Raise `CorruptError` for an entry that no known writer of checkpoints makes, or that Keras refuses to read."""
    if _FULL_32 in (member.stored_size, member.size, member.start):
        raise CorruptError(f"{name}: the zip table lacks the sizes of the large member {shown(member.name)}")
    if flags & _ENCRYPTED or member.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise CorruptError(
            f"{name}: {shown(member.name)} is encrypted or compressed in a way that no writer of checkpoints uses"
        )
    if member.method == zipfile.ZIP_STORED and member.size != member.stored_size:
        raise CorruptError(f"{name}: {shown(member.name)} has two sizes, {member.size} and {member.stored_size}")
    if member.size > _LARGE_BYTES and member.size > _MAX_EXPANSION * member.stored_size:
        raise CorruptError(
            f"{name}: {shown(member.name)} expands from {member.stored_size} bytes to {member.size}, "
            f"more than {_MAX_EXPANSION}-fold: Keras does not read such members"
        )


def _located(file: BinaryIO, member: Member, at: int, flags: int, name: str) -> Member:
    """Return a member of the table with the offset of its data, which its local header at `at` determines.

    Raises `CorruptError` if the local header contradicts the table.
    """
    header = read_at(file, _LOCAL_HEADER.size, at)
    if header[:4] != _LOCAL or len(header) < _LOCAL_HEADER.size:
        raise CorruptError(f"{name}: {shown(member.name)} is not where the zip table says")
    _, _, _, method, _, _, crc, stored_size, size, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    if os.fsdecode(read_at(file, name_bytes, at + _LOCAL_HEADER.size)) != member.name:
        raise CorruptError(f"{name}: {shown(member.name)} has another name in its own header")
    in_table = (min(member.stored_size, _FULL_32), min(member.size, _FULL_32))
    elsewhere = (_FULL_32, _FULL_32)  # a writer that reserved room for large sizes writes them into more fields
    has_equal_content = crc == member.crc and (stored_size, size) in (in_table, elsewhere)
    if method != member.method or not (flags & _STREAMED or has_equal_content):
        raise CorruptError(f"{name}: {shown(member.name)} has another size or checksum in its own header")
    start = at + _LOCAL_HEADER.size + name_bytes + extra_bytes
    return replace(member, start=start)


def compare_checksum(file: BinaryIO, member: Member, name: str, work: WorkBudget) -> None:
    """Raise `ChecksumError` if the content of a member has another CRC-32 or size than the table says."""
    work.compare(member.size)
    crc = _crc_of(file, member, name)
    if crc != member.crc:
        raise ChecksumError(
            f"{name}: {shown(member.name)} ({member.size} bytes at {member.start}) has the checksum {crc:08x}, the zip "
            f"table says {member.crc:08x}"
        )


def _crc_of(file: BinaryIO, member: Member, name: str) -> int:
    """Return the checksum of a member's content. Raises `ChecksumError` if its size differs from the table's."""
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
    """Yield the member's content in small parts, so that memory is bounded."""
    if member.method == zipfile.ZIP_STORED:
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
            raise ChecksumError(f"{name}: {shown(member.name)} has more bytes after its compressed content")
    while not inflate.eof and (data := inflate.decompress(b"", _CHUNK_BYTES)):
        yield data  # the rest of the output: all input was consumed before


def _stored(file: BinaryIO, member: Member) -> Iterator[bytes]:
    """Yield the member's bytes as they lie in the file; fewer if the file became shorter."""
    position, end = member.start, member.start + member.stored_size
    while position < end and (part := read_at(file, min(_CHUNK_BYTES, end - position), position)):
        yield part
        position += len(part)


def _number(data: bytes, at: int, length: int) -> int:
    return int.from_bytes(data[at : at + length], "little")
