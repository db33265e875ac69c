"""Read checkpoints of `torch.save`: a zip archive with one pickle and the bytes of each tensor.

Sources: torch `torch/serialization.py`, `caffe2/serialize/inline_container.cc`. All names begin with one folder, which
is the file's own name or `archive`. `data.pkl` is the pickle, `data/<number>` are the tensors' bytes, and `version` is
the version of the format. The file is written in place under its final name in one pass, and its table last, without
fsync. So a file with its table is whole, but may still be in the page cache of its writer.

The pickle is never loaded here: that would run code that the file names. For the training step only its opcodes are
read: its beginning, its end, and at most 1 MiB in between.

Lightning's `ModelCheckpoint(save_last=True)` saves each state a second time, as `last.ckpt`. The bytes of both files
may differ, because the pickle holds the paths of the callback. All tensors are equal, and so is the step.
`save_last="link"` makes a symbolic link instead.
"""

import contextlib
import hashlib
import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, Final

from sidecar.checkpoints.files import open_file, read_at, update_from_content
from sidecar.checkpoints.formats.format import STEP_KEYS, Format, Inspection
from sidecar.checkpoints.formats.hdf5 import require_suffix
from sidecar.checkpoints.formats.pickle_numbers import number_at_end, numbers_at_top
from sidecar.checkpoints.formats.zip_table import Member, archives_in, compare_checksum, read_members
from sidecar.checkpoints.work_budget import WorkBudget
from sidecar.errors import CheckpointError, CorruptError, VanishedError
from sidecar.protocol.records import StepSource

_PICKLE: Final = "data.pkl"
_LEGACY: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # a pickle of torch's magic number
_TORCHSCRIPT_MEMBER: Final = "constants.pkl"
_EXPORT_MEMBER: Final = "archive_format"
_TENSORS: Final = "data/"
_READ_BYTES: Final = 16 * 1024
_MOST_BYTES: Final = 1024 * 1024
_ARCHIVE: Final = 12  # units of work

_NO_MODEL: Final = re.compile(
    r"(?:optimizer|scheduler|scaler)(?:_\d+)?\.pt|rng_state(?:_\d+)?\.pth|.*_optim_states\.pt"
    r"|pytorch_model-\d+-of-\d+\.bin"
)
"""Files without a whole model that Hugging Face Trainer, accelerate and DeepSpeed save next to the model."""


class TorchZip(Format):
    """Read files of `torch.save`, which writes under the final name."""

    name: Final = "torch_zip"
    suffixes: Final = (".pt", ".pth", ".ckpt", ".pt.tar", ".pth.tar")
    endings: Final = r"\.pt|\.pth|\.ckpt|\.pth?\.tar|pytorch_model[^/]*\.bin"

    def file_group(self, name: str) -> str | None:
        """Return the file itself: it is a group of its own."""
        return name if _has_known_name(name) else None

    def _inspect(self, folder: Path, name: str, step_key: str | None, work: WorkBudget) -> Inspection:
        """Check the table against the file. The digest covers the members' names, sizes and checksums.

        `step_key`: a key of the saved mapping. Content without checksums is sampled.
        """
        with open_file(folder, _require_known_name(name)) as file:
            members = _members(file, name, work)
            digest = hashlib.sha256(f"{self.name}\0".encode())
            has_checksums = _add_members(digest, members, file, work)
            step = _step(file, members[_PICKLE], (step_key,) if step_key else STEP_KEYS, work)
            state = _training_state_digest(file, members, work) if has_checksums and LAST.fullmatch(name) else None
            size = sum(member.size for member in members.values())
            members.clear()  # so that there are never two large tables in memory
        source: StepSource = "step_key" if step_key else "variable"
        proof = size if has_checksums else None
        others = _same_as(folder, name, state, work)
        return Inspection(
            digest=digest.hexdigest(), step=step, files=(name,), step_source=source, proof_bytes=proof, same_as=others
        )

    def check(self, folder: Path, name: str) -> None:
        """Compare every member that has a CRC-32 with it. `torch.load` does not."""
        check_archive(folder, _require_known_name(name), WorkBudget(is_full=True))


def _has_known_name(name: str) -> bool:
    """Return whether a file may be a checkpoint of this format by its name."""
    is_weights = name.startswith("pytorch_model") and name.endswith(".bin")  # other .bin files hold anything
    return (is_weights or name.endswith(TorchZip.suffixes)) and _NO_MODEL.fullmatch(name) is None


def _require_known_name(name: str) -> str:
    """Return the name unchanged. Raises `VanishedError` if no checkpoint of this format has such a name."""
    if _NO_MODEL.fullmatch(name):
        raise VanishedError(f"{name} is not a checkpoint by its name, but a part of one without the whole model")
    return name if _has_known_name(name) else require_suffix(name, TorchZip.suffixes)


def _members(file: BinaryIO, name: str, work: WorkBudget) -> dict[str, Member]:
    """Return the members of an archive by their names without the common folder.

    Raises `IncompleteError` if it has no table yet, `CorruptError` if it is not an archive of `torch.save`.
    """
    if read_at(file, len(_LEGACY), 0) == _LEGACY:
        raise CorruptError(
            f"{name} is in the format of torch before 1.6, which has no sign of completeness: save it without "
            f"_use_new_zipfile_serialization=False (DeepSpeed: checkpoint_serialization), or name it with "
            f"complete_marker and checkpoint_pattern"
        )
    members: dict[str, Member] = {}
    folders = set[str]()
    for member in read_members(file, name, work):
        folder, _, inner = member.name.partition("/")
        folders.add(folder)
        members[inner] = member
    if _TORCHSCRIPT_MEMBER in members:
        raise CorruptError(f"{name} is a program of TorchScript, not a checkpoint: save model.state_dict()")
    if _EXPORT_MEMBER in members:
        raise CorruptError(f"{name} is a program of torch.export, not a checkpoint: save model.state_dict()")
    if len(folders) != 1 or _PICKLE not in members:
        raise CorruptError(f"{name} is a zip archive, but not one of torch.save: it has no {_PICKLE}")
    if any(member.method != zipfile.ZIP_STORED for member in members.values()):
        raise CorruptError(f"{name} has compressed members, which torch.save never writes")
    return members


def update_from_archive(digest: "hashlib._Hash", folder: Path, name: str, work: WorkBudget) -> None:
    """Check that a file of `torch.save` is whole, whatever its name, and add its content to a digest."""
    with open_file(folder, name) as file:
        _add_members(digest, _members(file, name, work), file, work)


def check_archive(folder: Path, name: str, work: WorkBudget) -> None:
    """Compare every member that has a CRC-32 with it. `torch.load` does not."""
    with open_file(folder, name) as file:
        if work.is_new(file):
            _compare(file, name, _members(file, name, work).values(), work)


def check_archives(folder: Path, name: str, work: WorkBudget) -> None:
    """Compare every member that has a CRC-32 with it, in a file that is a row of archives of `torch.save`."""
    with open_file(folder, name) as file:
        for place in archives_in(file, name) if work.is_new(file) else ():
            work.add(_ARCHIVE)
            _compare(file, name, read_members(file, name, work, place), work)


def _compare(file: BinaryIO, name: str, members: Iterable[Member], work: WorkBudget) -> None:
    for member in members:
        if member.crc:
            compare_checksum(file, member, name, work)


def _add_members(digest: "hashlib._Hash", members: Mapping[str, Member], file: BinaryIO, work: WorkBudget) -> bool:
    """Add the content of an archive to a digest, and return whether all of it has checksums."""
    for inner, member in sorted(members.items()):
        digest.update(f"{inner}\0{member.size}\0{member.crc}\0".encode("utf-8", "surrogateescape"))
    has_checksums = all(member.crc for member in members.values() if member.size)
    if not has_checksums:
        update_from_content(digest, file, work)  # torch.serialization.set_crc32_options(False)
    return has_checksums


def _step(file: BinaryIO, pickled: Member, keys: tuple[str, ...], work: WorkBudget) -> int | None:
    """Return the training step, by the first of the keys that the saved mapping has.

    Near its beginning or at its end it is found in a file of any size. Between these only the first part of a large
    pickle is read: a larger one takes too long.
    """
    fewest, size = min(_READ_BYTES, pickled.size), pickled.size
    found = numbers_at_top(read_at(file, fewest, pickled.start), work)
    if (step := next((found[key] for key in keys if key in found), None)) is not None or size <= _READ_BYTES:
        return step
    end = read_at(file, fewest, pickled.start + size - fewest)
    if (step := next((step for key in keys if (step := number_at_end(end, key, work)) is not None), None)) is not None:
        return step
    found = numbers_at_top(read_at(file, min(_MOST_BYTES, size), pickled.start), work)
    return next((found[key] for key in keys if key in found), None)


def _same_as(folder: Path, name: str, state: str | None, work: WorkBudget) -> tuple[str, ...]:
    """Return the other checkpoints in the folder with the same training state, if this name is an additional one.

    `state`: of a `last.ckpt`, as `_training_state_digest` returns it; None: no other file is compared.
    """
    target = target_of_link(folder, name)
    if target is not None:
        return (target,) if _has_known_name(target) else ()
    same = []
    for other in saved_before(folder, name) if state is not None else ():
        with contextlib.suppress(CheckpointError, OSError), open_file(folder, other) as opened:
            if _training_state_digest(opened, _members(opened, other, work), work) == state:
                same.append(other)
    return tuple(same)


def _training_state_digest(file: BinaryIO, members: Mapping[str, Member], work: WorkBudget) -> str:
    """Return a digest of the training state: the step, and the size and checksum of each tensor by its name."""
    digest = hashlib.sha256(f"{_step(file, members[_PICKLE], STEP_KEYS, work)}\0".encode())
    for inner, member in sorted(members.items()):
        if inner.startswith(_TENSORS):
            digest.update(f"{inner}\0{member.size}\0{member.crc}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


LAST: Final = re.compile(r"last(?:-v\d+)?\.ckpt")
"""Names that Lightning gives to the additional copy, with a number if there is one of an earlier training."""

_SIMILAR_BYTES: Final = 256 * 1024  # paths in the pickle differ, and the padding of each member
_MOST_COMPARED: Final = 4


def target_of_link(folder: Path, name: str) -> str | None:
    """Return the name of another file in the folder that a symbolic link leads to; None if it is no such link."""
    if not (folder / name).is_symlink():
        return None
    target = (folder / name).resolve()
    return target.name if target.parent == folder.resolve() else None


def saved_before(folder: Path, name: str) -> list[str]:
    """Return the files of Lightning that may hold the training state of `name`, which is a `last.ckpt`.

    These are the few files of about the same size that were written at about the same time, the nearest first.
    Raises OSError.
    """
    last = (folder / name).stat()
    others = []
    with os.scandir(folder) as entries:
        for entry in entries:
            is_other = entry.name.endswith(".ckpt") and LAST.fullmatch(entry.name) is None
            if is_other and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                if abs(status.st_size - last.st_size) <= _SIMILAR_BYTES:
                    others.append((abs(status.st_mtime_ns - last.st_mtime_ns), entry.name))
    return [other for _, other in sorted(others)[:_MOST_COMPARED]]
