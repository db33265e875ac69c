"""Append to event files as TensorFlow writes them, and find what one holds.

A file is a sequence of records (TFRecord): length, checksum of the length, data, checksum of the data. Each record is
an `Event` (tensorflow/core/util/event.proto).
"""

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, Final

from sidecar.checkpoints.formats.crc32c import masked_crc32c
from sidecar.system.durable import sync_file

_HEAD_BYTES: Final = 12  # length and its checksum
_CHECKSUM_BYTES: Final = 4
_LONGEST_RECORD: Final = 1 << 24


def record(data: bytes) -> bytes:
    """Return data as a record."""
    length = struct.pack("<Q", len(data))
    return b"".join([length, struct.pack("<I", masked_crc32c(length)), data, struct.pack("<I", masked_crc32c(data))])


def records(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the end and the data of each whole record, from the beginning of a file."""
    file.seek(0)
    end = 0
    while (data := _next(file)) is not None:
        end += _HEAD_BYTES + len(data) + _CHECKSUM_BYTES
        yield end, data


def append(file: BinaryIO, *data: bytes) -> None:
    """Append records durably. The file must end with a whole record: readers stop at one that is not."""
    waiting = memoryview(b"".join(map(record, data)))
    while waiting:
        waiting = waiting[os.write(file.fileno(), waiting) :]
    sync_file(file)


def _next(file: BinaryIO) -> bytes | None:
    """Return the data of the next record; None if it is not whole."""
    head = _read(file, _HEAD_BYTES)
    if len(head) < _HEAD_BYTES:
        return None
    length, checksum = struct.unpack("<QI", head)
    if checksum != masked_crc32c(head[:8]) or length > _LONGEST_RECORD:
        return None
    data, tail = _read(file, length), _read(file, _CHECKSUM_BYTES)
    whole = len(data) == length and tail == struct.pack("<I", masked_crc32c(data))
    return data if whole else None


def _read(file: BinaryIO, size: int) -> bytes:
    """Return that many bytes, or fewer at the end of the file."""
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
