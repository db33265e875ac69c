"""Encode the fields of protobuf messages: the few kinds that sinks need.

Source: https://protobuf.dev/programming-guides/encoding/
"""

import math
import struct
from typing import Final

_SEVEN_BITS: Final = 0x7F
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5  # wire types


def varint(value: int) -> bytes:
    """Return a number that is not negative, seven bits in a byte, the lowest first."""
    parts = bytearray()
    while value > _SEVEN_BITS:
        parts.append(value & _SEVEN_BITS | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def bytes_field(number: int, data: bytes) -> bytes:
    """Return a field with bytes, a text or a message."""
    return varint(number << 3 | _LEN) + varint(len(data)) + data


def text_field(number: int, text: str) -> bytes:
    """Return a field with a text. Bytes that are no text, such as in the name of a file, are escaped."""
    return bytes_field(number, text.encode(errors="backslashreplace"))


def integer_field(number: int, value: int) -> bytes:
    """Return a field with a number that is not negative."""
    return varint(number << 3 | _VARINT) + varint(value)


def double_field(number: int, value: float) -> bytes:
    """Return a field with a double."""
    return varint(number << 3 | _I64) + struct.pack("<d", value)


def float_field(number: int, value: float) -> bytes:
    """Return a field with the float of 32 bits that is nearest to the value; infinity if it is too large for one."""
    try:
        data = struct.pack("<f", value)
    except OverflowError:
        data = struct.pack("<f", math.copysign(math.inf, value))
    return varint(number << 3 | _I32) + data
