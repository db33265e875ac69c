"""CRC-32C (Castagnoli, RFC 3720 appendix B.4) and the masking that LevelDB and TensorFlow store it with.

`crc32c` is pure Python, 3 to 10 MB/s: enough for an index, not for tensors. `extend` is google-crc32c, more than
1 GB/s; it is imported only where tensors are checked.
"""

from typing import Final

_POLYNOMIAL: Final = 0x82F63B78  # reflected
_MASK_DELTA: Final = 0xA282EAD8
_WORD: Final = 0xFFFFFFFF


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE: Final = tuple(_entry(byte) for byte in range(256))


def crc32c(data: bytes) -> int:
    """The checksum of `data`."""
    table, crc = _TABLE, _WORD
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ _WORD


def masked_crc32c(data: bytes) -> int:
    """The checksum as it is stored: rotated and shifted, so that data that holds checksums can be checksummed.

    Source: leveldb `util/crc32c.h`, tensorflow `tsl/lib/hash/crc32c.h`.
    """
    return masked(crc32c(data))


def extend(crc: int, data: bytes) -> int:
    """The checksum of what had the checksum `crc` (0: nothing) followed by `data`, fast."""
    import google_crc32c  # noqa: PLC0415 - most daemons check no tensors

    return int(google_crc32c.extend(crc, data))


def masked(crc: int) -> int:
    """A checksum in the form in which it is stored."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _WORD
