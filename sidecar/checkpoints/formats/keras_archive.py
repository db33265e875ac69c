"""Read Keras 3 models, `<name>.keras`: a zip archive with configuration and weights.

Source: keras `src/saving/saving_lib.py`. Keras and tf_keras write the archive in place under its final name, and its
table last. A save that fails half way still ends with a table, but lacks the weights. Of the content, this module reads
only the optimizer's step count.
"""

import hashlib
import zipfile
from pathlib import Path
from typing import BinaryIO, Final

from sidecar.checkpoints.files import open_file, read_at
from sidecar.checkpoints.formats.format import Format, Inspection
from sidecar.checkpoints.formats.hdf5 import SUPERBLOCK_BYTES, require_suffix, require_whole
from sidecar.checkpoints.formats.keras_iterations import iterations
from sidecar.checkpoints.formats.zip_table import Member, compare_checksum, read_members
from sidecar.checkpoints.work_budget import WorkBudget
from sidecar.errors import IncompleteError

WEIGHTS: Final = "model.weights.h5"
_REQUIRED: Final = ("metadata.json", "config.json", WEIGHTS)


class KerasArchive(Format):
    """Read `.keras` archives. Keras writes them under their final names."""

    name: Final = "keras"
    suffixes: Final = (".keras",)
    endings: Final = r"\.keras"

    def file_group(self, name: str) -> str | None:
        """Return the file itself: it is a group of its own."""
        return name if name.endswith(self.suffixes) else None

    def _inspect(self, folder: Path, name: str, step_key: str | None, work: WorkBudget) -> Inspection:
        """Check the table against the file. The digest covers the members' names, sizes and checksums."""
        del step_key
        step = None
        with open_file(folder, require_suffix(name, self.suffixes)) as file:
            members = _members(file, name, work)
            weights = next(member for member in members if member.name == WEIGHTS)
            if weights.method == zipfile.ZIP_STORED:
                head = read_at(file, min(SUPERBLOCK_BYTES, weights.size), weights.start)
                require_whole(head, weights.size, f"{WEIGHTS} in {name}")
                step = iterations(file, weights.start, weights.size)
        digest = hashlib.sha256(f"{self.name}\0".encode())
        for member in sorted(members, key=lambda member: member.name):
            digest.update(f"{member.name}\0{member.size}\0{member.crc}\0".encode("utf-8", "surrogateescape"))
        size = sum(member.size for member in members)
        return Inspection(
            digest=digest.hexdigest(), step=step, files=(name,), step_source="optimizer", proof_bytes=size
        )

    def check(self, folder: Path, name: str) -> None:
        """Compare every member with its CRC-32. Compressed members are expanded in small parts."""
        work = WorkBudget(is_full=True)
        with open_file(folder, require_suffix(name, self.suffixes)) as file:
            for member in _members(file, name, work):
                compare_checksum(file, member, name, work)


def _members(file: BinaryIO, name: str, work: WorkBudget) -> list[Member]:
    """Return the members of an archive. Raises `IncompleteError` if one that Keras writes is missing."""
    members = read_members(file, name, work)
    names = {member.name for member in members}
    if missing := [required for required in _REQUIRED if required not in names]:
        raise IncompleteError(f"{name} holds no {' and no '.join(missing)}")
    return members
