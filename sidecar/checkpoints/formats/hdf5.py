"""HDF5 files, as Keras writes them: `<name>.weights.h5`, and whole models `<name>.h5`.

Source: "HDF5 File Format Specification Version 3.0", II.A (superblock). What h5py does, seen by strace: a first
superblock whose consistency flag says "open for writing", the data, the metadata, the superblock again with the
file's length, and once more with that flag cleared. So the last write of all is the commit marker, and the file is
then exactly as long as it says; of a library older than the flag the length alone tells.

There are no checksums of data, so identity is taken from the content.
"""

import hashlib
import os
import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Final

from sidecar.checkpoints.files import Listing, open_file, update_from_content
from sidecar.checkpoints.formats.format import Candidate, Inspection
from sidecar.checkpoints.formats.keras_iterations import iterations
from sidecar.errors import CorruptError, IncompleteError, VanishedError

SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
SUPERBLOCK_BYTES: Final = 128
"""The longest superblock without its driver's information, rounded up."""

MAP_SUFFIX: Final = ".weights.json"

_SHARD: Final = re.compile(r"(?P<base>.+)_[0-9]{5}\.weights\.h5", re.DOTALL)
_FLAGS_OF: Final = {0: 20, 1: 20, 2: 11, 3: 11}
_ADDRESSES_OF: Final = {0: 24, 1: 28, 2: 12, 3: 12}
_CHECKSUMMED: Final = 2  # and later versions
_BEING_WRITTEN: Final = 0b101  # write access, single-writer multiple-reader access
_WIDTHS: Final = (2, 4, 8)
_WORD: Final = 0xFFFFFFFF


class Hdf5:
    """See the module's docstring."""

    name: Final = "hdf5"
    suffixes: Final = (".weights.h5", ".h5", ".hdf5")
    endings: Final = r"\.(?:h5|hdf5)"

    def file_group(self, name: str) -> str | None:
        """The file alone, unless it is named like a shard: then that of the map, should there be one."""
        if found := _SHARD.fullmatch(name):
            return f"{found['base']}{MAP_SUFFIX}"
        return name if name.endswith(self.suffixes) else None

    def candidates(self, folder: Path, listing: Listing) -> Iterator[Candidate]:
        """Every file that is named like one, but not the shards of a larger set of weights."""
        del folder
        beside = listing.files.keys() | listing.escaping
        for file in listing.files.values():
            if file.name.endswith(self.suffixes) and not is_shard(file.name, beside):
                yield Candidate(file.name, (file,))
        for name in sorted(listing.escaping):
            if name.endswith(self.suffixes) and not is_shard(name, beside):
                yield Candidate(name, (), leaving=name)

    def inspect(self, folder: Path, name: str, *, step_key: str | None = None) -> Inspection:
        """Check the superblock; the digest is of the content, whole or in part."""
        del step_key
        digest = hashlib.sha256(f"{self.name}\0".encode())
        size = update_from_hdf5(digest, folder, require_suffix(name, self.suffixes))
        with open_file(folder, name) as file:
            step = iterations(file, 0, size)
        return Inspection(digest.hexdigest(), step, (name,), "optimizer")

    def check(self, folder: Path, name: str) -> None:
        """HDF5 as Keras writes it keeps no checksums, so the structure is all that can be checked."""
        self.inspect(folder, name)

    def written_in_place(self, file: str) -> bool:
        """It is."""
        del file
        return True


def is_shard(name: str, beside: Container[str]) -> bool:
    """Whether it is a part of weights whose map lies beside it."""
    match = _SHARD.fullmatch(name)
    return match is not None and f"{match['base']}{MAP_SUFFIX}" in beside


def require_suffix(name: str, suffixes: tuple[str, ...]) -> str:
    """The name, if it is one of the format; raises `VanishedError`."""
    if not name.endswith(suffixes):
        raise VanishedError(f"{name} is not named like {' or '.join(suffixes)}")
    return name


def update_from_hdf5(digest: "hashlib._Hash", folder: Path, name: str) -> int:
    """Check that a file is whole, add its content to a digest, and return its size."""
    with open_file(folder, name) as file:
        size = os.fstat(file.fileno()).st_size
        require_whole(os.pread(file.fileno(), SUPERBLOCK_BYTES, 0), size, name)
        update_from_content(digest, file)
    return size


def require_whole(head: bytes, size: int, name: str) -> None:
    """Check a superblock against the size of its file.

    Raises:
        IncompleteError: it is being written, or what is there is not all of it.
        CorruptError: it is no HDF5 file, or a damaged one.
    """
    if len(head) < _ADDRESSES_OF[0] + 8 or (not any(head[:8])):
        raise IncompleteError(f"{name} has {size} bytes: it is being written, or its writer died")
    if not head.startswith(SIGNATURE):
        raise CorruptError(f"{name} does not begin like an HDF5 file")
    version = head[8]
    base, end, root = _addresses(head, version, name)
    if head[_FLAGS_OF[version]] & _BEING_WRITTEN:
        raise IncompleteError(f"{name} is open for writing, or its writer died")
    if base:
        raise CorruptError(f"{name} has an HDF5 user block of {base} bytes; Keras writes none, none is read")
    if size != end:
        raise IncompleteError(f"{name} has {size} bytes, its superblock says {end}")
    if not _ADDRESSES_OF[version] < root < size:
        raise CorruptError(f"{name}: the HDF5 root group lies at {root}, outside the file")


def _addresses(head: bytes, version: int, name: str) -> tuple[int, int, int]:
    """Where the file's data begin and end, and where its root group lies."""
    if version not in _ADDRESSES_OF:
        raise CorruptError(f"{name} has an HDF5 superblock of version {version}; known are 0 to 3")
    width = head[13] if version < _CHECKSUMMED else head[9]
    if width not in _WIDTHS:
        raise CorruptError(f"{name} has HDF5 addresses of {width} bytes")
    at = _ADDRESSES_OF[version]
    numbers = [int.from_bytes(head[at + i * width : at + (i + 1) * width], "little") for i in range(6)]
    if version < _CHECKSUMMED:  # after the addresses: the root's entry, the offset of its empty name first
        return numbers[0], numbers[2], numbers[5]
    end = at + 4 * width
    if lookup3(head[:end]) != int.from_bytes(head[end : end + 4], "little"):
        raise CorruptError(f"{name}: the HDF5 superblock does not match its checksum")
    return numbers[0], numbers[2], numbers[3]


def lookup3(data: bytes) -> int:
    """Bob Jenkins' `hashlittle` of lookup3.c, which HDF5 uses for its metadata, with an initial value of 0."""
    length = len(data)
    a = b = c = (0xDEADBEEF + length) & _WORD
    position = 0
    while length - position > 12:  # noqa: PLR2004 - three words at a time, the last ones differently
        a = (a + int.from_bytes(data[position : position + 4], "little")) & _WORD
        b = (b + int.from_bytes(data[position + 4 : position + 8], "little")) & _WORD
        c = (c + int.from_bytes(data[position + 8 : position + 12], "little")) & _WORD
        a, b, c = _mix(a, b, c)
        position += 12
    if length == position:
        return c
    rest = data[position:].ljust(12, b"\0")
    a = (a + int.from_bytes(rest[:4], "little")) & _WORD
    b = (b + int.from_bytes(rest[4:8], "little")) & _WORD
    c = (c + int.from_bytes(rest[8:], "little")) & _WORD
    for target, other, turn in ((2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24)):
        words = [a, b, c]
        words[target] = ((words[target] ^ words[other]) - _turned(words[other], turn)) & _WORD
        a, b, c = words
    return c


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for turn in (4, 6, 8, 16, 19, 4):
        a = ((a - c) & _WORD) ^ _turned(c, turn)
        c = (c + b) & _WORD
        a, b, c = b, c, a  # each word takes its turn: a, then b, then c
    return a, b, c


def _turned(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _WORD
