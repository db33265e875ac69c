"""The tensors of a TensorFlow checkpoint against the checksums that its index holds of them.

Source: tensorflow `core/util/tensor_bundle/tensor_bundle.cc`, `WriteTensor`, `WriteStringTensor`, `WriteVariantTensor`.
The checksum is a masked CRC-32C of the bytes as they lie in the shard, but for strings:

    lengths (varint64 each), masked CRC-32C of the lengths (4 bytes), the strings one after the other

There the lengths take part as 32-bit numbers (64-bit ones where they do not fit), not as they are written.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from sidecar.checkpoints.files import open_file
from sidecar.checkpoints.formats.crc32c import extend, masked
from sidecar.checkpoints.formats.protobuf import BYTES, VARINT, fields, read_varint
from sidecar.errors import ChecksumError, CorruptError

_STRING: Final = 7  # DT_STRING (core/framework/types.proto)
_CHUNK_BYTES: Final = 1 << 20
_VARINT_BYTES: Final = 10
_HALF: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Entry:
    """The part of a BundleEntryProto that is needed to find a tensor and to check it."""

    dtype: int
    scalar: bool
    shard: int
    offset: int
    size: int
    crc: int
    shape: bytes  # a TensorShapeProto


def check_tensors(folder: Path, shards: Sequence[str], entries: Iterable[tuple[str, Entry]]) -> None:
    """Read every tensor once and compare.

    Raises:
        ChecksumError: names the shard, the tensor, and both checksums.
        CorruptError: tensors lie over one another, so that reading them would take longer than their files are.
    """
    by_shard: dict[int, list[tuple[int, int, str, Entry]]] = {}
    for key, entry in entries:
        if entry.size:
            by_shard.setdefault(entry.shard, []).append((entry.offset, entry.size, key, entry))
    for number, tensors in by_shard.items():
        end = 0
        with open_file(folder, shards[number]) as file:
            for offset, size, key, entry in sorted(tensors, key=lambda each: each[:3]):
                if offset < end:
                    raise CorruptError(f"{shards[number]}: the tensor {key} lies over the one before it")
                end = offset + size
                crc = _crc_of(file, entry)
                if crc is None or masked(crc) != entry.crc:
                    found = "no readable lengths" if crc is None else f"the checksum {masked(crc):08x}"
                    raise ChecksumError(
                        f"{shards[number]}: the tensor {key} ({size} bytes at {offset}) has {found}, "
                        f"the index says {entry.crc:08x}"
                    )


def _crc_of(file: BinaryIO, entry: Entry) -> int | None:
    """None if the lengths of strings cannot be read."""
    if entry.dtype != _STRING:
        return _crc_of_bytes(file, 0, entry.offset, entry.offset + entry.size)
    position, end, crc = entry.offset, entry.offset + entry.size, 0
    for _ in range(_elements(entry)):
        head = os.pread(file.fileno(), min(_VARINT_BYTES, end - position), position)
        try:
            length, used = read_varint(head, 0)
        except CorruptError:
            return None
        crc = extend(crc, length.to_bytes(4 if length < _HALF else 8, "little"))
        position += used
    return _crc_of_bytes(file, crc, position, end)  # the checksum of the lengths takes part as it is written


def _crc_of_bytes(file: BinaryIO, crc: int, position: int, end: int) -> int:
    while position < end:
        part = os.pread(file.fileno(), min(_CHUNK_BYTES, end - position), position)
        if not part:
            break  # the file became shorter: the checksum tells
        crc = extend(crc, part)
        position += len(part)
    return crc


def _elements(entry: Entry) -> int:
    """How many strings the shape asks for; each takes at least a byte, so more than bytes cannot be."""
    count = 1
    for number, wire, value in fields(entry.shape):  # TensorShapeProto: dim = 2 {size = 1}
        if (number, wire) == (2, BYTES) and isinstance(value, bytes):
            sizes = [inner for at, kind, inner in fields(value) if (at, kind) == (1, VARINT)]
            count *= sizes[-1] if sizes and isinstance(sizes[-1], int) else 0
    return min(count, entry.size)
