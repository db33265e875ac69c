"""Read LevelDB-style sorted string tables, as TensorFlow writes them for `.index` files.

Sources: leveldb `doc/table_format.md`, tensorflow `tsl/lib/io/{format.h,block.cc,table_builder.cc}`.

    data blocks, metaindex block, index block, footer
    footer  two block handles (varint64 offset and size), zeros up to 40 bytes, magic number (8 bytes, little endian)
    block   entries, restart offsets (uint32 each), their number (uint32); then, outside its size, a trailer:
            type (1 byte; 0: not compressed), masked CRC-32C of block and type (4 bytes)
    entry   shared, unshared and value length (varint32 each), rest of the key, value

The bytes are untrusted: blocks may not overlap, keys must ascend, and the expanded length of keys is bounded. So
reading takes time and memory proportional to the table.
"""

from collections.abc import Iterator
from typing import Final

from sidecar.checkpoints.formats.crc32c import crc32c, extend, masked
from sidecar.checkpoints.formats.protobuf import read_varint
from sidecar.checkpoints.work_budget import WorkBudget
from sidecar.errors import CorruptError

MAGIC: Final = 0xDB4775248B80FB57

_FOOTER_BYTES: Final = 48
_TRAILER_BYTES: Final = 5
_UNCOMPRESSED: Final = 0
_COMPRESSIONS: Final = {1: "snappy", 2: "zstd"}
_KEY_BYTES: Final = 64 * 1024  # longer than any path in an object graph
_EXPANSION: Final = 64  # keys, written out, per byte of a block; real tables stay under 4

_BLOCK: Final = 5  # units of work

Handle = tuple[int, int]


def read_table(table: bytes, work: WorkBudget) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, value) in ascending order of keys. Raises `CorruptError` at the first contradiction."""
    metaindex, index = _read_footer(table)
    for _ in _read_block(table, metaindex):
        pass  # its entries are not needed, but its checksum must match
    end, last = 0, None
    for _, value in _read_block(table, index):
        work.add(_BLOCK)
        handle, position = _read_handle(value, 0)
        if position != len(value) or handle[0] < end:
            raise CorruptError("the table's blocks overlap or are out of order")
        end = sum(handle) + _TRAILER_BYTES
        for key, entry in _read_block(table, handle):
            if last is not None and key <= last:
                raise CorruptError("the table's keys do not ascend")
            last = key
            yield key, entry
    if end > metaindex[0]:
        raise CorruptError("the table's data runs into its index")


def _read_footer(table: bytes) -> tuple[Handle, Handle]:
    """Return the handles of the metaindex block and of the index block."""
    if len(table) < _FOOTER_BYTES:
        raise CorruptError(f"{len(table)} bytes are too few for a table")
    footer = table[-_FOOTER_BYTES:]
    if int.from_bytes(footer[-8:], "little") != MAGIC:
        raise CorruptError("the table does not end with its magic number: it is cut off or something else")
    metaindex, position = _read_handle(footer[:-8], 0)
    index, position = _read_handle(footer[:-8], position)
    if any(footer[position:-8]):
        raise CorruptError("the table's footer is damaged")
    return metaindex, index


def _read_handle(data: bytes, position: int) -> tuple[Handle, int]:
    """Return the block handle at `position`, and the position behind it."""
    offset, middle = read_varint(data, position)
    size, end = read_varint(data, middle)
    # Writers use the shortest form. Any other form is damage, which no checksum of the footer would show.
    if (middle - position > 1 and data[middle - 1] == 0) or (end - middle > 1 and data[end - 1] == 0):
        raise CorruptError("the table has a damaged block handle")
    return (offset, size), end


def _read_block(table: bytes, handle: Handle) -> Iterator[tuple[bytes, bytes]]:
    """Return the (key, value) pairs of a block, after a comparison with its checksum."""
    offset, size = handle
    if offset + size + _TRAILER_BYTES > len(table) - _FOOTER_BYTES:
        raise CorruptError(f"a block of {size} bytes at {offset} ends behind its table")
    block, trailer = table[offset : offset + size], table[offset + size : offset + size + _TRAILER_BYTES]
    stated, computed = int.from_bytes(trailer[1:], "little"), masked(extend(crc32c(block), trailer[:1]))
    if computed != stated:
        raise CorruptError(
            f"the block of {size} bytes at {offset} has the checksum {computed:08x}, but states {stated:08x}"
        )
    if trailer[0] != _UNCOMPRESSED:
        compression = _COMPRESSIONS.get(trailer[0], f"type {trailer[0]}")
        raise CorruptError(f"the block at {offset} is compressed ({compression}), which TensorFlow never does")
    return _read_entries(block, _entries_end(block))


def _entries_end(block: bytes) -> int:
    """Return the position behind the entries of a block, where its restart offsets begin."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if len(block) < 4 or end < 0:  # noqa: PLR2004 - the number of restarts
        raise CorruptError(f"a block of {len(block)} bytes cannot hold {restarts} restart offsets")
    return end


def _read_entries(block: bytes, end: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the (key, value) pairs of a block, with the prefixes of keys expanded."""
    position, key, expanded = 0, b"", 0
    while position < end:
        shared, position = read_varint(block, position)
        unshared, position = read_varint(block, position)
        length, position = read_varint(block, position)
        value_at = position + unshared
        if shared > len(key) or value_at + length > end:
            raise CorruptError("an entry does not fit into its block")
        key = key[:shared] + block[position:value_at]
        expanded += len(key)
        if len(key) > _KEY_BYTES or expanded > _EXPANSION * len(block) + _KEY_BYTES:
            raise CorruptError("the table's keys are longer than any real checkpoint's")
        position = value_at + length
        yield key, block[value_at:position]
