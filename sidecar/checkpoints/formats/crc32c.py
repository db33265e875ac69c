"""Compute CRC-32C (Castagnoli, RFC 3720 appendix B.4), and mask it as LevelDB and TensorFlow do in their files."""

from typing import Final

_MASK_DELTA: Final = 0xA282EAD8
_WORD: Final = 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the checksum of `data`."""
    return extend(0, data)


def extend(crc: int, data: bytes) -> int:
    """Return the checksum of earlier bytes followed by `data`. `crc`: the checksum of the earlier bytes; 0 for none."""
    import google_crc32c  # noqa: PLC0415 - one MB of memory, which only checkpoints of TensorFlow and Orbax need

    return int(google_crc32c.extend(crc, data))


def masked(crc: int) -> int:
    """Return a checksum as it is stored: rotated and shifted, so that data that holds checksums can be checksummed.

    Source: leveldb `util/crc32c.h`, tensorflow `tsl/lib/hash/crc32c.h`.
    """
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _WORD


def masked_crc32c(data: bytes) -> int:
    """Return the checksum of `data` as it is stored."""
    return masked(crc32c(data))
