"""Compare checksums with those of RFC 3720."""

import pytest

from sidecar.checkpoints.formats.crc32c import crc32c, extend


@pytest.mark.parametrize(
    ("data", "checksum"),
    [(b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E)],
)
def test_known_checksums(data, checksum):
    """The check value that every catalogue of CRCs gives for CRC-32C, and the examples of RFC 3720, B.4."""
    assert crc32c(data) == checksum == extend(extend(0, data[:7]), data[7:])
