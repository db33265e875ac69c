"""Compare the checksum of a superblock with that of HDF5's library."""

import pytest

from sidecar.checkpoints.formats.hdf5 import lookup3
from sidecar.errors import CheckpointError


def test_known_lookup3():
    """The examples in lookup3.c."""
    assert lookup3(b"") == 0xDEADBEEF
    assert lookup3(b"Four score and seven years ago") == 0x17770551


@pytest.mark.parametrize("position", range(9, 48))
def test_a_checksummed_superblock(checkpoint, root, position):
    """Superblocks of version 2 and 3 have a checksum: each damage shows."""
    format_, name, _ = checkpoint("weights_latest")
    content = bytearray((root / name).read_bytes())
    content[position] ^= 4
    (root / name).write_bytes(content)
    with pytest.raises(CheckpointError):
        format_.inspect(root, name)
