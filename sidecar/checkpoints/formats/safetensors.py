"""Read safetensors: `<name>.safetensors` alone, or shards next to the index `<name>.safetensors.index.json`.

Source: "Format" in the README of `huggingface/safetensors`. A file is the length of its header in 8 bytes,
little-endian, the header in JSON, and the values. The header states for each tensor where its values lie, without gaps,
so it states the size of the file. There are no checksums. As strace shows, releases before 0.8 write the file in place
under its final name; 0.8 writes a temporary file and renames it.

A file that gets its final size before its values would look whole. No release writes so, and files must be unchanged
for the quiet time in any case.
"""

import hashlib
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from sidecar.checkpoints.files import Listing, open_file, read_at, update_from_content
from sidecar.checkpoints.formats.format import STEP_KEYS, Candidate, Format, Inspection, shown
from sidecar.checkpoints.formats.hdf5 import require_suffix
from sidecar.checkpoints.formats.json_members import read_members, string_at, value_at
from sidecar.checkpoints.formats.shards import as_shard, doubt_about, read_index, require_none_unfinished, shards_of
from sidecar.checkpoints.work_budget import TEXT_KIB, WorkBudget
from sidecar.errors import CorruptError, IncompleteError, VanishedError
from sidecar.protocol.records import StepSource
from sidecar.protocol.weight_names import INDEX, SAFETENSORS, index_of

MAX_HEADER_BYTES: Final = 12 * 1024 * 1024
"""Enough for about 100,000 tensors in one file. The format allows 100 MB, which would not fit into a small daemon."""

_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"
_MOST_DIGITS: Final = 18


class Safetensors(Format):
    """Read safetensors files, single or in shards.

    Which release wrote a file cannot be seen, and most write under the final name.
    """

    name: Final = "safetensors"
    suffixes: Final = (f"{SAFETENSORS}{INDEX}", SAFETENSORS)
    endings: Final = r"\.safetensors|\.safetensors\.index\.json"

    def file_group(self, name: str) -> str | None:
        """Return the name of the index for a shard, else the file itself."""
        return (index_of(name) or name) if name.endswith(self.suffixes) else None

    def candidates(self, folder: Path, listing: Listing) -> Iterator[Candidate]:
        """Yield each single file, and each index with all shards of its name."""
        del folder
        for name in sorted(listing.escaping):
            if name.endswith(self.suffixes) and index_of(name) is None:
                yield Candidate(name=name, files=(), leaving=name)
        for file in listing.files.values():
            if file.name.endswith(self.suffixes) and index_of(file.name) is None:
                shards = tuple(listing.files[name] for name in shards_of(file.name, listing.files))
                leaving = next(iter(shards_of(file.name, listing.escaping)), None)
                yield Candidate(name=file.name, files=(file, *shards), leaving=leaving)

    def _inspect(self, folder: Path, name: str, step_key: str | None, work: WorkBudget) -> Inspection:
        """Compare the size of each file with its header. The digest covers headers and, of large files, samples.

        `step_key`: a key of the metadata in the header.
        """
        keys = (step_key,) if step_key else STEP_KEYS
        source: StepSource = "step_key" if step_key else "variable"
        digest = hashlib.sha256(f"{self.name}\0".encode())
        if index_of(require_suffix(name, self.suffixes)) is not None:
            raise VanishedError(f"{name} is not a checkpoint by its name, but a part of {index_of(name)}")
        if not name.endswith(INDEX):
            step = _update(digest, folder, name, keys, work)
            return Inspection(digest=digest.hexdigest(), step=step, files=(name,), step_source=source)
        steps, shards = [], read_index(folder, name, work)
        require_none_unfinished(folder, name)
        for shard in shards:
            digest.update(f"{shard}\0".encode("utf-8", "surrogateescape"))
            with as_shard(name, shard):
                steps.append(_update(digest, folder, shard, keys, work))
        doubt = doubt_about(folder, name, shards)
        return Inspection(
            digest=digest.hexdigest(), step=steps[0], files=(name, *shards), step_source=source, doubt=doubt
        )


def _update(digest: "hashlib._Hash", folder: Path, name: str, keys: Sequence[str], work: WorkBudget) -> int | None:
    """Check that a file is whole, add its content to a digest, and return the step in its metadata if there is one."""
    with open_file(folder, name) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(read_at(file, _LENGTH_BYTES, 0), "little")
        if length > MAX_HEADER_BYTES:
            raise CorruptError(f"{name} states a header of {length} bytes; up to {MAX_HEADER_BYTES} are read")
        work.add(TEXT_KIB * (min(length, size) // 1024))
        text = _read_text(digest, file, length, name)
        if size < _LENGTH_BYTES or text is None:
            raise IncompleteError(f"{name} is cut off in its header")
        values, numbers = _read_header(text, name, keys, work)
        if size != (needed := _LENGTH_BYTES + length + values):
            error = IncompleteError if size < needed else CorruptError
            raise error(f"{name} has {size} bytes, but its header states {needed}")
        update_from_content(digest, file, work)
    return next((numbers[key] for key in keys if key in numbers), None)


def _read_text(digest: "hashlib._Hash", file: BinaryIO, length: int, name: str) -> str | None:
    """Return the text of a header, and add its bytes to a digest; None if it is cut off. Raises `CorruptError`."""
    content = read_at(file, length, _LENGTH_BYTES)
    if len(content) < length:
        return None
    digest.update(content)
    try:
        return content.decode()
    except ValueError as error:
        raise CorruptError(f"{name} is not a safetensors file: its header is damaged ({shown(str(error))})") from error


def _read_header(text: str, name: str, keys: Sequence[str], work: WorkBudget) -> tuple[int, dict[str, int]]:
    """Return the bytes of all values, and the whole numbers of these keys in the metadata. Raises `CorruptError`."""
    starts, ends, numbers = array("Q"), array("Q"), dict[str, int]()

    def of_metadata(key: str, at: int) -> int:
        value, end = string_at(text, at)
        if key in keys and value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS:
            numbers[key] = int(value)
        return end

    def of_header(key: str, at: int) -> int:
        if key == _METADATA:
            return read_members(text, at, of_metadata, work)
        tensor, end = value_at(text, at)
        first, last = tensor["data_offsets"]
        starts.append(first)
        ends.append(last)
        return end

    try:
        end = read_members(text, 0, of_header, work)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise CorruptError(f"{name} is not a safetensors file: its header is damaged ({shown(str(error))})") from error
    position = 0
    by_end = sorted(range(len(starts)), key=ends.__getitem__)
    for place in sorted(by_end, key=starts.__getitem__):  # an empty tensor comes before the one that begins there
        if starts[place] != position or ends[place] < position:
            raise CorruptError(f"{name} states a place of values that begin at {starts[place]} instead of {position}")
        position = ends[place]
    if text[end:].strip(" "):
        raise CorruptError(f"{name} has more text behind its header")
    return position, numbers
