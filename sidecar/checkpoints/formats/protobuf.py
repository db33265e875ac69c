"""Read the Protocol Buffers wire format, for messages of a few known fields.

Source: protobuf.dev/programming-guides/encoding. Input is untrusted: every length is compared with the bytes that
follow.
"""

from collections.abc import Iterator
from typing import Final

from sidecar.errors import CorruptError

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

_LONGEST_VARINT: Final = 10
_LONGEST_TAG: Final = 5  # bytes of a tag or a length, which have 32 bits
_LEAST_TAG: Final = 1 << 3  # field numbers begin with 1
_LARGEST_TAG: Final = (1 << 32) - 1


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the unsigned 64-bit varint at `position`, and the position behind it."""
    if position < len(data) and data[position] < 0x80:  # noqa: PLR2004 - see below; a short cut, as most have one byte
        return data[position], position + 1
    value = 0
    for index, byte in enumerate(data[position : position + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:  # noqa: PLR2004 - the top bit says that another byte follows
            if value >> 64:
                raise CorruptError("a varint has more than 64 bits")
            return value, position + index + 1
    raise CorruptError("a varint does not end")


def fields(message: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield (field number, wire type, value) in order. Numbers are unsigned, sub-messages are bytes.

    Raise `CorruptError` wherever protobuf's parsers fail, because TensorFlow aborts on some of these messages.
    """
    position = 0
    while position < len(message):
        start = position
        tag, position = read_varint(message, position)
        if not _LEAST_TAG <= tag <= _LARGEST_TAG or position - start > _LONGEST_TAG:
            raise CorruptError(f"a field has the number {tag >> 3}, which is invalid or written too long")
        number, wire = tag >> 3, tag & 7
        value: int | bytes
        if wire == VARINT:
            value, position = read_varint(message, position)
        elif wire == BYTES:
            start = position
            length, position = read_varint(message, position)
            if position - start > _LONGEST_TAG:
                raise CorruptError("the length of a field is written too long")
            value, position = _take(message, position, length)
        elif wire in (FIXED32, FIXED64):
            raw, position = _take(message, position, 4 if wire == FIXED32 else 8)
            value = int.from_bytes(raw, "little")
        else:
            raise CorruptError(f"a field has the unknown wire type {wire}")
        yield number, wire, value


def _take(message: bytes, position: int, length: int) -> tuple[bytes, int]:
    """Return `length` bytes from `position` on, and the position behind them."""
    if length > len(message) - position:
        raise CorruptError(f"a field of {length} bytes ends behind its message")
    return message[position : position + length], position + length
