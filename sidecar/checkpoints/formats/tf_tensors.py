"""Compare the tensors of a TensorFlow checkpoint with the checksums in its index.

Source: tensorflow `core/util/tensor_bundle/tensor_bundle.cc`, `WriteTensor`, `WriteStringTensor`, `WriteVariantTensor`.
The checksum is a masked CRC-32C of the bytes as they lie in the shard, except for two types:

    strings   lengths (varint64 each), masked CRC-32C of the lengths (4 bytes), the strings one after the other
    variants  each: length (varint64), serialized content, masked CRC-32C of all bytes before (4 bytes)

For these types the checksum covers a length as a number of 4 bytes, not as it is written. Lengths that do not fit, and
those of variants, have 8 bytes.
"""

import contextlib
import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from sidecar.checkpoints.files import open_file, read_at
from sidecar.checkpoints.formats.crc32c import extend, masked
from sidecar.checkpoints.formats.format import shown
from sidecar.checkpoints.formats.protobuf import read_varint
from sidecar.checkpoints.work_budget import OPENED_FILE, TooMuchWorkError, WorkBudget
from sidecar.errors import ChecksumError, CorruptError, IncompleteError

STRING: Final = 7  # DT_STRING and DT_VARIANT (core/framework/types.proto)
VARIANT: Final = 21
_CHUNK_BYTES: Final = 1 << 20
_LENGTHS_BYTES: Final = 1 << 16
_VARINT_BYTES: Final = 10
_CRC_BYTES: Final = 4
_LENGTH: Final = 1  # units of work
_VARIANT: Final = 3
_HALF: Final = 1 << 32
_SHORT: Final = re.compile(rb"[\0-\x7f]*")  # lengths of one byte each
_END_OF_NAME: Final = b"\0\1"
_OPEN_FILES: Final = 64  # far below a process's limit; the tensors of all shards are mixed in the index


class Entry(NamedTuple):
    """Hold the part of a BundleEntryProto that is needed to find a tensor and to check it."""

    dtype: int
    shape: tuple[int, ...]
    sliced: bool  # whether its values are stored under other keys
    shard: int
    offset: int
    size: int
    crc: int

    @property
    def scalar(self) -> bool:
        """Return whether the tensor is a single value, stored under its own key."""
        return not self.shape and not self.sliced


def check_tensors(
    folder: Path, shards: Sequence[str], entries: Iterable[tuple[bytes, Entry]], work: WorkBudget
) -> None:
    """Read every tensor once, and compare it with its checksum. `ChecksumError` names shard, tensor and both checksums.

    Raises `IncompleteError` if a shard ends before its tensors do, and `CorruptError` if the tensors of a shard have
    more bytes in all than the shard: they overlap, and reading all of them could take arbitrarily long.
    """
    left: dict[int, int] = {}
    with contextlib.ExitStack() as stack:
        files: dict[int, BinaryIO] = {}
        for key, entry in entries:
            name = shards[entry.shard]
            if entry.shard not in files:
                if len(files) == _OPEN_FILES:
                    stack.close()
                    files.clear()
                files[entry.shard] = stack.enter_context(open_file(folder, name))
                work.add(OPENED_FILE)
            file = files[entry.shard]
            size = os.fstat(file.fileno()).st_size
            if entry.offset + entry.size > size:
                raise IncompleteError(f"{name} has {size} bytes, {_readable(key)} needs {entry.offset + entry.size}")
            left[entry.shard] = left.get(entry.shard, size) - entry.size
            if left[entry.shard] < 0:
                raise CorruptError(f"{name}: the tensor {_readable(key)} overlaps others: all exceed the file's size")
            work.compare(entry.size)
            crc = _crc_of(file, entry, work)
            if crc is None or masked(crc) != entry.crc:
                found = "no readable lengths" if crc is None else f"the checksum {masked(crc):08x}"
                raise ChecksumError(
                    f"{name}: the tensor {_readable(key)} ({entry.size} bytes at {entry.offset}) has {found}, "
                    f"the index says {entry.crc:08x}"
                )


def _readable(key: bytes) -> str:
    """Return a key for a message. Keys of slices are an ordered code (`EncodeTensorNameSlice`): 0, name, 0 1, slice."""
    if key.startswith(b"\0"):
        return f"{shown(key[1:].partition(_END_OF_NAME)[0])} (a slice of it)"
    return shown(key)


def _crc_of(file: BinaryIO, entry: Entry, work: WorkBudget) -> int | None:
    """Return the checksum of a tensor's bytes; None if the lengths of its strings or variants cannot be read."""
    end = entry.offset + entry.size
    try:
        if entry.dtype == STRING:
            crc, position = _crc_of_lengths(file, entry, work)
            return _crc_of_bytes(file, crc, position, end)  # also covers the stored checksum of the lengths
        if entry.dtype == VARIANT:
            return _crc_of_variants(file, entry, work)
    except TooMuchWorkError:
        raise
    except CorruptError:
        return None
    return _crc_of_bytes(file, 0, entry.offset, end)


def _crc_of_lengths(file: BinaryIO, entry: Entry, work: WorkBudget) -> tuple[int, int]:
    """Return the checksum of the lengths of all strings, and the position behind the lengths."""
    position, end, crc, left = entry.offset, entry.offset + entry.size, 0, math.prod(entry.shape)
    while left:
        part, at = read_at(file, min(_LENGTHS_BYTES, end - position), position), 0
        while left and at < max(1, len(part) - _VARINT_BYTES):  # a length that is cut is whole in the next part
            short = _SHORT.match(part, at)
            count = min(left, short.end() - at) if short else 0
            if count:
                widened = bytearray(4 * count)
                widened[::4] = part[at : at + count]
                crc, at, left = extend(crc, bytes(widened)), at + count, left - count
            else:
                work.add(_LENGTH)
                length, at = read_varint(part, at)
                crc, left = extend(crc, length.to_bytes(4 if length < _HALF else 8, "little")), left - 1
        position += at
    return crc, position


def _crc_of_variants(file: BinaryIO, entry: Entry, work: WorkBudget) -> int:
    """Return the checksum of all variants of a tensor."""
    position, end, crc = entry.offset, entry.offset + entry.size, 0
    for _ in range(math.prod(entry.shape)):
        work.add(_VARIANT)
        length, used = read_varint(read_at(file, min(_VARINT_BYTES, end - position), position), 0)
        start, position = position + used, position + used + length + _CRC_BYTES
        if position > end:
            raise CorruptError("a variant is longer than its tensor")
        crc = _crc_of_bytes(file, extend(crc, length.to_bytes(8, "little")), start, position)
    return crc


def _crc_of_bytes(file: BinaryIO, crc: int, position: int, end: int) -> int:
    """Return the checksum of earlier bytes, `crc`, followed by the bytes from `position` to `end`."""
    while position < end:
        part = read_at(file, min(_CHUNK_BYTES, end - position), position)
        if not part:
            break  # the file became shorter, so the checksum will not match
        crc = extend(crc, part)
        position += len(part)
    return crc
