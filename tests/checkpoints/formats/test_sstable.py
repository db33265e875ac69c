"""Read tables of TensorFlow, whose bytes somebody may have chosen."""

import contextlib
import time

import pytest
from checkpoints.tables import Table, block, entry, table_of, varint
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.checkpoints.formats.sstable import read_table
from sidecar.checkpoints.work_budget import WorkBudget
from sidecar.errors import CorruptError


def test_prefixes_are_expanded():
    """Keys share prefixes inside a block and start anew in the next."""
    first = block(entry(0, b"abc", b"1") + entry(2, b"d", b"2"))
    second = block(entry(0, b"b", b""))
    assert list(read_table(table_of(first, second), WorkBudget())) == [(b"abc", b"1"), (b"abd", b"2"), (b"b", b"")]


def test_compressed_blocks_are_named():
    """A snappy block is refused with the word in the message, though its checksum holds."""
    with pytest.raises(CorruptError, match="snappy"):
        list(read_table(table_of(block(entry(0, b"a", b"")), kind=b"\1"), WorkBudget()))


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
        list(read_table(table_of(*contents), WorkBudget()))


def test_one_block_cannot_be_read_many_times():
    """Handles that point at the same block again and again would make a small file take hours."""
    table = Table()
    handle = table.add(block(entry(0, b"a", b"")))
    with pytest.raises(CorruptError, match="overlap"):
        list(read_table(table.finish([handle] * 1000), WorkBudget()))


def test_prefixes_cannot_expand_without_bound():
    """A few bytes per entry that each stand for a long key are refused before they take time."""
    key = b"a" * 60_000
    bomb = entry(0, key, b"") + b"".join(entry(60_000, b"b" * i, b"") for i in range(1, 1000))
    started = time.monotonic()
    with pytest.raises(CorruptError, match="longer"):
        list(read_table(table_of(block(bomb)), WorkBudget()))
    assert time.monotonic() - started < 10


def sealed(content: bytes) -> bytes:
    return table_of(content)


@settings(deadline=5000)
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(sealed), st.binary().map(block).map(sealed)))
def test_arbitrary_bytes_have_an_answer(data):
    """Return entries or raise CorruptError for any bytes, also behind right checksums."""
    with contextlib.suppress(CorruptError):
        for key, value in read_table(data, WorkBudget()):
            assert len(key) + len(value) <= 2 * len(data)
