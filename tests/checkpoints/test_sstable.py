import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.checkpoints.formats.crc32c import crc32c, masked_crc32c
from sidecar.checkpoints.formats.protobuf import fields
from sidecar.checkpoints.formats.sstable import MAGIC, read_table
from sidecar.errors import CorruptError


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


def test_known_checksum():
    """The check value that RFC 3720 and every catalogue of CRCs give for CRC-32C."""
    assert crc32c(b"123456789") == 0xE3069283


def test_prefixes_are_expanded():
    """Keys share prefixes inside a block and start anew in the next."""
    first = block(entry(0, b"abc", b"1") + entry(2, b"d", b"2"))
    second = block(entry(0, b"b", b""))
    assert list(read_table(table_of(first, second))) == [(b"abc", b"1"), (b"abd", b"2"), (b"b", b"")]


def test_compressed_blocks_are_named():
    """A snappy block is refused with the word in the message, though its checksum holds."""
    with pytest.raises(CorruptError, match="snappy"):
        list(read_table(table_of(block(entry(0, b"a", b"")), kind=b"\1")))


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([block(entry(0, b"b", b"") + entry(0, b"a", b""))], "ascend"),
        ([block(entry(0, b"a", b"")), block(entry(0, b"a", b""))], "ascend"),
        ([block(entry(1, b"a", b""))], "fit"),
        ([block(varint(0) + varint(1 << 60) + varint(0))], "fit"),
        ([b"\xff\xff\xff\xff"], "restart"),
        ([b""], "restart"),
        ([block(b"\xff" * 11)], "varint"),
        ([block(entry(0, b"a" * 70_000, b""))], "longer"),
    ],
)
def test_contradictions_behind_a_right_checksum(contents, message):
    """A checksum proves nothing about bytes that somebody chose."""
    with pytest.raises(CorruptError, match=message):
        list(read_table(table_of(*contents)))


def test_one_block_cannot_be_read_many_times():
    """Handles that point at the same block again and again would make a small file take hours."""
    table = Table()
    handle = table.add(block(entry(0, b"a", b"")))
    with pytest.raises(CorruptError, match="overlap"):
        list(read_table(table.finish([handle] * 1000)))


def test_prefixes_cannot_expand_without_bound():
    """A few bytes per entry that each stand for a long key are refused before they take time."""
    key = b"a" * 60_000
    bomb = entry(0, key, b"") + b"".join(entry(60_000, b"b" * i, b"") for i in range(1, 1000))
    started = time.monotonic()
    with pytest.raises(CorruptError, match="longer"):
        list(read_table(table_of(block(bomb))))
    assert time.monotonic() - started < 10


def sealed(content: bytes) -> bytes:
    return table_of(content)


@settings(deadline=5000)
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(sealed), st.binary().map(block).map(sealed)))
def test_arbitrary_bytes_have_an_answer(data):
    """Whatever the bytes, also behind right checksums: entries or CorruptError, no other error."""
    with contextlib.suppress(CorruptError):
        for key, value in read_table(data):
            assert len(key) + len(value) <= 2 * len(data)


@settings(deadline=5000)
@given(st.binary(max_size=100))
def test_arbitrary_messages_have_an_answer(data):
    """The wire format reader, likewise."""
    with contextlib.suppress(CorruptError):
        assert all(number < 1 << 61 for number, _, _ in fields(data))
