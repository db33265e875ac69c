"""Read one entry of a TensorFlow checkpoint's index, a BundleEntryProto: where a tensor lies, and its checksum.

Only what is used is checked. Other entries that TensorFlow would not write, such as a size that contradicts the shape,
are for the worker process: TensorFlow may abort it, and the checkpoint is given up as corrupt after its attempts.

Sources: tensorflow `core/protobuf/tensor_bundle.proto`, `core/framework/tensor_shape.proto`.
"""

import functools
from typing import Final

from sidecar.checkpoints.formats.protobuf import FIXED32, VARINT, fields
from sidecar.checkpoints.formats.tf_tensors import Entry
from sidecar.errors import CorruptError

_MOST_DIMENSIONS: Final = 254
_MOST_SHAPE_BYTES: Final = 64 * 1024  # the most dimensions, each with a long name
_USUAL_BYTES: Final = 64  # the most bytes of usual entries
_CRC_TAG: Final = bytes([6 << 3 | FIXED32])
_CRC_BYTES: Final = 5  # with its tag
_INT64: Final = 1 << 63


def read_entry(message: bytes) -> Entry:
    """Return the entry in a BundleEntryProto. Raises `CorruptError` for a message of another kind."""
    rest, checksum = message[:-_CRC_BYTES], message[-_CRC_BYTES:]
    if checksum[:1] != _CRC_TAG or len(rest) > _USUAL_BYTES:
        return _read_entry(message)
    try:  # entries of one training's checkpoints differ only in the checksum at the end
        entry = _read_usual_entry(rest)
    except CorruptError:
        return _read_entry(message)  # perhaps a field goes on in the last bytes
    return entry._replace(crc=int.from_bytes(checksum[1:], "little"))


def _read_entry(message: bytes) -> Entry:
    numbers = dict.fromkeys((1, 3, 4, 5), 0)  # dtype, shard_id, offset, size
    crc, shape, sliced = 0, b"", False
    for number, wire, value in fields(message):
        if number == 2 and isinstance(value, bytes):  # noqa: PLR2004 - the shape; parsers merge repeated fields
            shape += value
            if len(shape) > _MOST_SHAPE_BYTES:
                raise CorruptError(f"the shape of a tensor has more than {_MOST_SHAPE_BYTES} bytes")
        elif number == 7 and isinstance(value, bytes):  # noqa: PLR2004 - slices
            sliced = True
        elif wire == VARINT and number in numbers:
            numbers[number] = natural(value)
        elif (number, wire) == (6, FIXED32) and isinstance(value, int):
            crc = value
        elif number in (*numbers, 2, 6, 7):
            raise CorruptError(f"field {number} of an entry has the wire type {wire}")
    return Entry(numbers[1], _read_shape(shape), sliced, numbers[3], numbers[4], numbers[5], crc)


_read_usual_entry = functools.lru_cache(1024)(_read_entry)


def natural(value: int | bytes) -> int:
    """Return a number of a message. Raises `CorruptError` if it is bytes, or negative as a signed 64-bit number."""
    if isinstance(value, bytes) or value >= _INT64:
        raise CorruptError("it holds a negative number where none can be")
    return value


def _read_shape(message: bytes) -> tuple[int, ...]:
    """Return the dimensions in a TensorShapeProto: dim = 2 {size = 1, name = 2}, unknown_rank = 3 (never saved)."""
    sizes: list[int] = []
    for number, _, value in fields(message):
        if number == 2 and isinstance(value, bytes):  # noqa: PLR2004 - see above
            sizes.append(next((natural(size) for field, _, size in fields(value) if field == 1), 0))
            if len(sizes) > _MOST_DIMENSIONS:
                raise CorruptError(f"a tensor has more than {_MOST_DIMENSIONS} dimensions")
        elif number in (2, 3):
            raise CorruptError("a tensor has an unknown shape")
    return tuple(sizes)
