"""Entries say where tensors lie; those that no reader can use are refused."""

import pytest
from checkpoints.tables import bundle_entry, bundle_header, dimension, index_of, varint

from sidecar.checkpoints.formats.crc32c import masked_crc32c
from sidecar.checkpoints.formats.tf_entry import read_entry
from sidecar.checkpoints.formats.tf_object import TfObject
from sidecar.errors import CorruptError

GRAPH = b"_CHECKPOINTABLE_OBJECT_GRAPH"
UNKNOWN_RANK = b"\x18\x01"
NEGATIVE = b"\x12\x0b\x08" + b"\xff" * 9 + b"\x01"
HALF = b"\x3a\x06\x0a\x04\x08\x00\x10\x01"  # a slice: 1 of the first dimension, from 0 on


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (bundle_entry(dtype=1, shape=UNKNOWN_RANK, size=4), "unknown shape"),
        (bundle_entry(dtype=1, shape=NEGATIVE, size=4), "negative"),
        (bundle_entry(dtype=4, shape=dimension(1) * 255, size=1), "254 dimensions"),
        (bundle_entry(dtype=4, shape=b"\x12\x02\x08", size=1), "ends behind its message"),
        (bundle_entry(dtype=4, size=1) + b"\x00\x01", "number 0"),
        (bundle_entry(dtype=4, size=1) + b"\x88\x80\x80\x80\x80\x00\x04", "too long"),
        (bundle_entry(dtype=4, size=1) + b"\x4a\x80\x80\x80\x80\x80\x00", "too long"),
        (bundle_entry(dtype=4, size=1) + b"\x0d\x04\x00\x00\x00", "wire type 5"),
        (bundle_entry(dtype=4, size=1) + b"\x0a\x00", "wire type 2"),
        (bundle_entry(dtype=4, size=1) + b"\x0b\x0c", "unknown wire type"),
    ],
)
def test_a_message_of_another_kind_is_refused(entry, said):
    """The error says which part of it cannot be read."""
    with pytest.raises(CorruptError, match=said):
        read_entry(entry)


@pytest.mark.parametrize(
    "entry",
    [
        bundle_entry(dtype=1, size=4),
        bundle_entry(dtype=14, shape=dimension(3) * 2, size=18),
        bundle_entry(dtype=9, shape=dimension(0)),
        bundle_entry(dtype=7, shape=dimension(0), size=4),
        bundle_entry(dtype=1, shape=dimension(2)) + HALF + b"\x3a\x06\x0a\x04\x08\x01\x10\x01",
        bundle_entry(dtype=1, shape=dimension(2)) + b"\x3a\x02\x0a\x00",
        bundle_entry(dtype=4, size=1) + b"\x78\x01",
    ],
    ids=["scalar", "matrix", "empty", "no text", "slices", "a slice that is all", "a field of later versions"],
)
def test_what_tensorflow_writes_is_read(entry):
    """Also what a later version may add."""
    read_entry(entry)


def crc(value):
    return b"\x35" + value.to_bytes(4, "little")  # field 6, fixed32


BARE = bundle_entry(dtype=1, size=4).removesuffix(crc(0))


@pytest.mark.parametrize(
    ("entry", "checksum"),
    [
        (BARE + crc(7), 7),
        (BARE + crc(8), 8),
        (crc(9) + BARE, 9),
        (crc(9) + BARE + crc(7), 7),
        (BARE + b"\x7a\x06a" + crc(7), 0),
        (BARE, 0),
    ],
    ids=["last", "last, of another checkpoint", "first", "twice", "in an unknown field", "none"],
)
def test_entries_that_differ_in_the_checksum_are_distinguished(entry, checksum):
    """The rest of an entry is read once for all checkpoints of a training."""
    read = read_entry(entry)
    assert (read.dtype, read.size, read.crc) == (1, 4, checksum)


def test_damage_before_the_checksum_is_refused_each_time():
    """An entry that was refused once is refused again."""
    for checksum in (7, 7, 8):
        with pytest.raises(CorruptError, match="negative"):
            read_entry(bundle_entry(dtype=1, shape=NEGATIVE, size=4, crc=checksum))


def put(root, entry, data):
    (root / "m.index").write_bytes(index_of([(b"", bundle_header()), (GRAPH, entry)]))
    (root / "m.data-00000-of-00001").write_bytes(data)


def test_the_object_graph_is_a_text(root):
    """Try one value: every reader asks for it first."""
    for entry in (bundle_entry(dtype=1, size=4), bundle_entry(dtype=7, shape=dimension(1), size=5)):
        put(root, entry, bytes(5))
        with pytest.raises(CorruptError, match="not text"):
            TfObject().inspect(root, "m")


@pytest.mark.parametrize("length", [4, 6, 1 << 62])
def test_the_object_graph_is_as_long_as_it_says(root, length):
    """TensorFlow makes room for what it says."""
    head = varint(length)
    data = head + masked_crc32c(b"").to_bytes(4, "little") + b"graph"
    put(root, bundle_entry(dtype=7, size=len(data)), data)
    with pytest.raises(CorruptError, match=rf"object graph.*\b{length}\b"):
        TfObject().inspect(root, "m")
