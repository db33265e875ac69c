"""Sorted string tables by hand, as leveldb writes them or wrongly, behind right checksums. No framework is needed."""

from collections.abc import Iterable

from sidecar.checkpoints.formats.crc32c import masked_crc32c
from sidecar.checkpoints.formats.sstable import MAGIC


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def entry(shared: int, rest: bytes, value: bytes) -> bytes:
    return varint(shared) + varint(len(rest)) + varint(len(value)) + rest + value


def block(entries: bytes) -> bytes:
    return entries + (0).to_bytes(4, "little") + (1).to_bytes(4, "little")


class Table:
    """Writes a table as leveldb does, or wrongly where a test says so."""

    def __init__(self) -> None:
        self.data = b""

    def add(self, content: bytes, kind: bytes = b"\0") -> bytes:
        """Append a block; the answer is its handle."""
        handle = varint(len(self.data)) + varint(len(content))
        self.data += content + kind + masked_crc32c(content + kind).to_bytes(4, "little")
        return handle

    def finish(self, handles: list[bytes]) -> bytes:
        """Append indices and footer; the answer is the table."""
        metaindex = self.add(block(b""))
        index = self.add(block(b"".join(entry(0, b"%04d" % i, handle) for i, handle in enumerate(handles))))
        return self.data + (metaindex + index).ljust(40, b"\0") + MAGIC.to_bytes(8, "little")


def table_of(*contents: bytes, kind: bytes = b"\0") -> bytes:
    table = Table()
    return table.finish([table.add(content, kind) for content in contents])


def index_of(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A table of one block with these keys, written out, and values."""
    return table_of(block(b"".join(entry(0, key, value) for key, value in entries)))


def bundle_entry(
    *, dtype: int = 1, shape: bytes = b"", shard: int = 0, offset: int = 0, size: int = 0, crc: int = 0
) -> bytes:
    """Return the bytes of a BundleEntryProto."""
    numbers = b"".join(
        bytes([field << 3]) + varint(value)
        for field, value in ((1, dtype), (3, shard), (4, offset), (5, size))
        if value
    )
    return numbers + b"\x12" + varint(len(shape)) + shape + b"\x35" + crc.to_bytes(4, "little")


def dimension(size: int) -> bytes:
    """One of a TensorShapeProto."""
    number = varint(size)
    return b"\x12" + varint(len(number) + 1) + b"\x08" + number


def bundle_header(shards: int = 1) -> bytes:
    """Return the bytes of a BundleHeaderProto."""
    return b"\x08" + varint(shards)
