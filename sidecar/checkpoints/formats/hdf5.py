"""Read HDF5 files, as Keras writes them: `<name>.weights.h5`, and whole models `<name>.h5`.

Source: "HDF5 File Format Specification Version 3.0", II.A (superblock). As strace shows, h5py writes in this order: a
first superblock whose consistency flag says "open for writing", the data, the metadata, the superblock again with the
file's length, and once more with that flag cleared. So the last write is the commit marker, and the file is then
exactly as long as its superblock says. Files of libraries older than the flag have only the length to compare.

The format has no checksums of data, so the digest is computed from the content.
"""

import hashlib
import os
import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Final

from sidecar.checkpoints.files import Listing, open_file, read_at, update_from_content
from sidecar.checkpoints.formats.format import BACKUP, EMBEDDINGS, EMBEDDINGS_BEGINNING, Candidate, Format, Inspection
from sidecar.checkpoints.formats.keras_iterations import iterations
from sidecar.checkpoints.work_budget import WorkBudget
from sidecar.errors import CorruptError, IncompleteError, VanishedError

SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
SUPERBLOCK_BYTES: Final = 128
"""Bytes of the longest superblock without its driver's information, rounded up."""

MAP_SUFFIX: Final = ".weights.json"

_SHARD: Final = re.compile(r"(?P<base>.+)_[0-9]{5}\.weights\.h5", re.DOTALL)
_FLAGS_OF: Final = {0: 20, 1: 20, 2: 11, 3: 11}
_ADDRESSES_OF: Final = {0: 24, 1: 28, 2: 12, 3: 12}
_CHECKSUMMED: Final = 2  # the first superblock version that has a checksum
_BEING_WRITTEN: Final = 0b101  # write access, single-writer multiple-reader access
_WIDTHS: Final = (2, 4, 8)
_WORD: Final = 0xFFFFFFFF

_BACKUP: Final = "latest.weights.h5"
_BACKUP_STATE: Final = "training_metadata.json"
"""Files of BackupAndRestore: keras `src/callbacks/backup_and_restore.py`. The second one is written last."""


class Hdf5(Format):
    """Read single HDF5 files: `.weights.h5`, `.h5` and `.hdf5`. h5py writes them under their final names."""

    name: Final = "hdf5"
    suffixes: Final = (".weights.h5", ".h5", ".hdf5")
    endings: Final = r"\.(?:h5|hdf5)"

    def file_group(self, name: str) -> str | None:
        """Return the name of the file itself. If it is named like a shard, return the name of the shard map."""
        if match := _SHARD.fullmatch(name):
            return f"{match['base']}{MAP_SUFFIX}"
        return name if name.endswith(self.suffixes) else None

    def candidates(self, folder: Path, listing: Listing) -> Iterator[Candidate]:
        """Yield every file with one of the suffixes, except shards of sharded weights."""
        del folder
        names = listing.files.keys() | listing.escaping
        for file in listing.files.values():
            if file.name.endswith(self.suffixes) and not is_shard(file.name, names):
                yield Candidate(name=file.name, files=(file,))
        for name in sorted(listing.escaping):
            if name.endswith(self.suffixes) and not is_shard(name, names):
                yield Candidate(name=name, files=(), leaving=name)

    def _inspect(self, folder: Path, name: str, step_key: str | None, work: WorkBudget) -> Inspection:
        """Check the superblock, and read the optimizer's step. The digest covers the content, large files in part."""
        del step_key
        digest = hashlib.sha256(f"{self.name}\0".encode())
        size = update_from_hdf5(digest, folder, require_suffix(name, self.suffixes), work)
        with open_file(folder, name) as file:
            step = iterations(file, 0, size)
        aside = EMBEDDINGS if name.startswith(EMBEDDINGS_BEGINNING) else None
        if name == _BACKUP and (folder / _BACKUP_STATE).is_file():
            aside = BACKUP
        return Inspection(digest=digest.hexdigest(), step=step, files=(name,), step_source="optimizer", aside=aside)


def is_shard(name: str, names: Container[str]) -> bool:
    """Return whether a file is a shard of sharded weights, whose map is among the `names` in the same folder."""
    match = _SHARD.fullmatch(name)
    return match is not None and f"{match['base']}{MAP_SUFFIX}" in names


def require_suffix(name: str, suffixes: tuple[str, ...]) -> str:
    """Return the name unchanged. Raises `VanishedError` if it has none of the suffixes."""
    if not name.endswith(suffixes):
        raise VanishedError(f"{name} is not named like {' or '.join(suffixes)}")
    return name


def update_from_hdf5(digest: "hashlib._Hash", folder: Path, name: str, work: WorkBudget) -> int:
    """Check that a file is whole, add its content to a digest, and return its size."""
    with open_file(folder, name) as file:
        size = os.fstat(file.fileno()).st_size
        require_whole(read_at(file, SUPERBLOCK_BYTES, 0), size, name)
        update_from_content(digest, file, work)
    return size


def require_whole(head: bytes, size: int, name: str) -> None:
    """Check a superblock against the size of its file. Raises `IncompleteError` or `CorruptError`."""
    if len(head) < _ADDRESSES_OF[0] + 8 or (not any(head[:8])):
        raise IncompleteError(f"{name} has {size} bytes: it is being written, or its writer died")
    if not head.startswith(SIGNATURE):
        raise CorruptError(f"{name} does not begin like an HDF5 file")
    version = head[8]
    base, end, root = _addresses(head, version, name)
    if head[_FLAGS_OF[version]] & _BEING_WRITTEN:
        raise IncompleteError(f"{name} is open for writing, or its writer died")
    if base:
        raise CorruptError(f"{name} has an HDF5 user block of {base} bytes, which Keras never writes")
    if size != end:
        raise IncompleteError(f"{name} has {size} bytes, its superblock says {end}")
    if not _ADDRESSES_OF[version] < root < size:
        raise CorruptError(f"{name}: the HDF5 root group lies at {root}, outside the file")


def _addresses(head: bytes, version: int, name: str) -> tuple[int, int, int]:
    """Return the addresses at which the file's data begin and end, and the address of its root group."""
    if version not in _ADDRESSES_OF:
        raise CorruptError(f"{name} has an HDF5 superblock of version {version}; known are 0 to 3")
    width = head[13] if version < _CHECKSUMMED else head[9]
    if width not in _WIDTHS:
        raise CorruptError(f"{name} has HDF5 addresses of {width} bytes")
    at = _ADDRESSES_OF[version]
    numbers = [int.from_bytes(head[at + i * width : at + (i + 1) * width], "little") for i in range(6)]
    if version < _CHECKSUMMED:  # the next number is the offset of the root's empty name, where the root's entry begins
        return numbers[0], numbers[2], numbers[5]
    end = at + 4 * width
    if lookup3(head[:end]) != int.from_bytes(head[end : end + 4], "little"):
        raise CorruptError(f"{name}: the HDF5 superblock does not match its checksum")
    return numbers[0], numbers[2], numbers[3]


def lookup3(data: bytes) -> int:
    """Return Bob Jenkins' `hashlittle` (lookup3.c) of the data with an initial value of 0: HDF5's metadata checksum."""
    length = len(data)
    a = b = c = (0xDEADBEEF + length) & _WORD
    position = 0
    while length - position > 12:  # noqa: PLR2004 - three words at a time; the last three are mixed differently
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
    """Return three words mixed with each other, as `mix` in lookup3.c."""
    for turn in (4, 6, 8, 16, 19, 4):
        a = ((a - c) & _WORD) ^ _turned(c, turn)
        c = (c + b) & _WORD
        a, b, c = b, c, a  # each word takes its turn: a, then b, then c
    return a, b, c


def _turned(word: int, bits: int) -> int:
    """Return a word of 32 bits rotated to the left."""
    return (word << bits | word >> (32 - bits)) & _WORD
