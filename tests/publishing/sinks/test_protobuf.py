"""Encode fields of protobuf messages as its own library does."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.checkpoints.formats.protobuf import fields
from sidecar.publishing.sinks.protobuf import (
    bytes_field,
    double_field,
    float_field,
    integer_field,
    text_field,
    varint,
)


@pytest.mark.parametrize(("number", "data"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (150, b"\x96\x01")])
def test_small_groups_of_bits_come_first(number, data):
    """Compare with the examples of the encoding's documentation."""
    assert varint(number) == data


@given(st.integers(1, 2**29 - 1), st.integers(0, 2**64 - 1), st.binary())
def test_a_reader_finds_each_field(number, value, data):
    """Read back what was written with the reader of the daemon's formats."""
    message = integer_field(number, value) + bytes_field(number, data)
    assert [(each[0], each[2]) for each in fields(message)] == [(number, value), (number, data)]


def test_texts_that_are_not_unicode_are_escaped():
    """Write a name of a file that holds other bytes."""
    assert text_field(1, "a\udc80") == bytes_field(1, rb"a\udc80")


@pytest.mark.parametrize("value", [0.0, -1.5, math.inf, 1e300])
def test_numbers_keep_their_bits_or_their_sign(value):
    """Write doubles as they are, and the nearest float, or infinity where there is none."""
    assert struct.unpack("<d", double_field(1, value)[1:]) == (value,)
    (nearest,) = struct.unpack("<f", float_field(1, -value)[1:])
    assert nearest == (-math.inf if value > 1e38 else -value)
