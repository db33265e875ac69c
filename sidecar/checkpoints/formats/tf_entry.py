"""Read one entry of a TensorFlow checkpoint's index, a BundleEntryProto, as strictly as TensorFlow does.

TensorFlow aborts its process for an entry that is not such a message, has an unknown type or an impossible shape, or
names a slice twice (`c/checkpoint_reader.cc`, `framework/tensor_shape.cc`, `framework/tensor.cc`). So this module
refuses entries that TensorFlow would not write, even if all checksums match.

Sources: tensorflow `core/protobuf/tensor_bundle.proto`, `core/framework/{types,tensor_shape,tensor_slice}.proto`,
`core/util/tensor_bundle/tensor_bundle.cc`.
"""

import functools
import math
from typing import Final

from sidecar.checkpoints.formats.protobuf import BYTES, FIXED32, VARINT, fields
from sidecar.checkpoints.formats.tf_tensors import STRING, VARIANT, Entry
from sidecar.errors import CorruptError

_SIZES: Final = {
    **dict.fromkeys((4, 6, 10, 11, 12), 1),  # uint8, int8, bool, qint8, quint8
    **dict.fromkeys((5, 14, 15, 16, 17, 19), 2),  # int16, bfloat16, qint16, quint16, uint16, half
    **dict.fromkeys((1, 3, 13, 22), 4),  # float, int32, qint32, uint32
    **dict.fromkeys((2, 8, 9, 23), 8),  # double, complex64, int64, uint64
    18: 16,  # complex128
    **dict.fromkeys(range(24, 34), 1),  # float8 of five kinds; (u)int4, (u)int2 and float4, one value in each byte
}
"""Bytes of a value by DataType, without DT_RESOURCE (20), which cannot be saved."""

_OF_LATER_RELEASES: Final = range(max(_SIZES) + 1, 100)  # from 101 on they are references, which are never saved
"""DataTypes of later releases: their sizes are unknown here, so the worker's TensorFlow checks them."""

_LEAST: Final = {STRING: (1, 4), VARIANT: (5, 0)}
"""The least bytes of each value, and the least bytes of all values in addition: lengths and checksums."""

_MOST_DIMENSIONS: Final = 254
_MOST_SHAPE_BYTES: Final = 64 * 1024  # the most dimensions, each with a long name
_MOST_SLICES: Final = 10_000  # a variable has one for each machine that holds a part of it
_USUAL_BYTES: Final = 64  # the most bytes of usual shapes and entries
_CRC_TAG: Final = bytes([6 << 3 | FIXED32])
_CRC_BYTES: Final = 5  # with its tag
_INT64: Final = 1 << 63

_Extent = tuple[int, int | None]


def read_entry(message: bytes) -> Entry:
    """Return the entry in a BundleEntryProto. Raises `CorruptError` for a message that TensorFlow would not write."""
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
    crc, shape, slices = 0, b"", list[bytes]()
    for number, wire, value in fields(message):
        if isinstance(value, bytes):
            if number == 2:  # noqa: PLR2004 - the shape; parsers merge repeated fields
                shape = _merged(shape, value)
            elif number == 7:  # noqa: PLR2004 - slices
                slices.append(value)
                if len(slices) > _MOST_SLICES:
                    raise CorruptError(f"a tensor has more than {_MOST_SLICES} slices")
            elif number in (*numbers, 6):
                raise CorruptError(f"field {number} of an entry is not a number")
        elif wire == VARINT and number in numbers:
            numbers[number] = natural(value)
        elif (number, wire) == (6, FIXED32):
            crc = value
        elif number in (*numbers, 2, 6, 7):
            raise CorruptError(f"field {number} of an entry has the wire type {wire}")
    dimensions = (_read_usual_shape if len(shape) <= _USUAL_BYTES else _read_shape)(shape)
    _check_slices(slices, dimensions)
    entry = Entry(numbers[1], dimensions, bool(slices), numbers[3], numbers[4], numbers[5], crc)
    _check_size(entry)
    return entry


def _merged(shape: bytes, value: bytes) -> bytes:
    """Return a shape with a further part of it. Raises `CorruptError` if it is longer than any real one."""
    if len(shape) + len(value) > _MOST_SHAPE_BYTES:
        raise CorruptError(f"the shape of a tensor has more than {_MOST_SHAPE_BYTES} bytes")
    return shape + value


_read_usual_entry = functools.lru_cache(1024)(_read_entry)


def natural(value: int | bytes) -> int:
    """Return a number of a message. Raises `CorruptError` if it is bytes, or negative as a signed 64-bit number."""
    if isinstance(value, bytes) or value >= _INT64:
        raise CorruptError("it holds a negative number where none can be")
    return value


def _check_size(entry: Entry) -> None:
    """Raise `CorruptError` if an entry's size does not fit its type and shape."""
    count = math.prod(entry.shape)
    if entry.dtype in _SIZES:
        expected = count * _SIZES[entry.dtype]
        fits = entry.size == (0 if entry.sliced else expected)
    elif entry.dtype in _LEAST:
        per_value, in_all = _LEAST[entry.dtype]
        expected = per_value * count + in_all
        fits = entry.size == 0 if entry.sliced else entry.size >= expected
    elif entry.dtype in _OF_LATER_RELEASES:
        return
    else:
        raise CorruptError(f"a tensor has the dtype {entry.dtype}, which no TensorFlow writes")
    if not fits:
        raise CorruptError(
            f"a tensor of dtype {entry.dtype} and shape {list(entry.shape)} has {entry.size} bytes, not {expected}"
        )


def _read_shape(message: bytes) -> tuple[int, ...]:
    """Return the dimensions in a TensorShapeProto: dim = 2 {size = 1, name = 2}, unknown_rank = 3 (never saved)."""
    sizes: list[int] = []
    for number, _, value in fields(message):
        if number == 2 and isinstance(value, bytes):  # noqa: PLR2004 - see above
            sizes.append(_read_dimension(value))
            if len(sizes) > _MOST_DIMENSIONS:
                raise CorruptError(f"a tensor has more than {_MOST_DIMENSIONS} dimensions")
        elif number in (2, 3):
            raise CorruptError("a tensor has an unknown shape")
    count = 1
    for size in sizes:
        count *= size
        if count >= _INT64:  # even if a later dimension is 0, as in TensorFlow
            raise CorruptError("a tensor has more values than can be counted")
    return tuple(sizes)


_read_usual_shape = functools.lru_cache(1024)(_read_shape)  # models have few shapes, and many tensors


def _read_dimension(message: bytes) -> int:
    """Return the size of one dimension."""
    size = 0
    for number, wire, value in fields(message):
        if (number, wire) == (1, VARINT):
            size = natural(value)
        elif (number, wire) == (2, BYTES) and isinstance(value, bytes):
            _require_text(value)
        elif number in (1, 2):
            raise CorruptError("a dimension of a tensor is not a number")
    return size


def _require_text(value: bytes) -> None:
    """Raise `CorruptError` if the name of a dimension is not UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        raise CorruptError("a dimension of a tensor has a name that is not text") from None


def _check_slices(messages: list[bytes], shape: tuple[int, ...]) -> None:
    """Raise `CorruptError` unless every slice lies inside the tensor and none is listed twice."""
    slices = set[tuple[_Extent, ...]]()
    for message in messages:
        extents: list[_Extent] = []
        for number, wire, value in fields(message):  # TensorSliceProto: extent = 1
            if (number, wire) == (1, BYTES) and isinstance(value, bytes) and len(extents) < len(shape):
                extents.append(_read_extent(value))
            elif number == 1:
                raise CorruptError("a slice of a tensor has other dimensions than the tensor")
        inside = all(start + (length or 0) <= size for (start, length), size in zip(extents, shape, strict=False))
        if len(extents) != len(shape) or not inside or tuple(extents) in slices:
            raise CorruptError("a slice of a tensor lies outside it, or is listed twice")
        slices.add(tuple(extents))


def _read_extent(message: bytes) -> _Extent:
    """Return the (start, length) in a TensorSliceProto.Extent: start = 1, length = 2. None is the whole dimension."""
    start, length = 0, None
    for number, wire, value in fields(message):
        if number in (1, 2) and wire != VARINT:
            raise CorruptError("a slice of a tensor has a place that is not a number")
        if number == 1:
            start = natural(value)
        elif number == 2:  # noqa: PLR2004 - see above
            length = natural(value)
    return start, length
