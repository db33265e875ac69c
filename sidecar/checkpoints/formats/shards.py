"""Read the index of a checkpoint in shards, as `save_pretrained` of Hugging Face's libraries writes it.

`<base><ending>.index.json` names the shard of each tensor: `<base>-00001-of-00002<ending>`. The endings are
`.safetensors` and, by older releases, `.bin`. All shards are written before the index.

If training saves to the same folder again, shards are replaced one by one beside the old index. Most writers do so in
place, so a shard that is being written is not whole. safetensors 0.8 writes each to `.tmp…` in the same folder and
renames it, so that file shows that the shards belong to two saves. Otherwise only times do: shards that are newer than
the index. Copies may have such times, too.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from sidecar.checkpoints.files import read_file, size_of
from sidecar.checkpoints.formats.format import shown
from sidecar.checkpoints.formats.json_members import TooManyMembersError, read_members, string_at, value_at
from sidecar.checkpoints.work_budget import TEXT_KIB, WorkBudget
from sidecar.errors import CorruptError, IncompleteError, VanishedError
from sidecar.protocol.weight_names import index_of

MAX_INDEX_BYTES: Final = 16 * 1024 * 1024
"""Enough for about 160,000 tensors in all shards."""

_MOST_SHARDS: Final = 100_000  # the names have five digits


def shards_of(index: str, names: Iterable[str]) -> list[str]:
    """Return those names that are named like shards of an index, sorted."""
    return sorted(name for name in names if index_of(name) == index)


def read_index(folder: Path, name: str, work: WorkBudget) -> tuple[str, ...]:
    """Return the names of the shards that an index lists, sorted.

    Raises `IncompleteError` for an index that is cut off or empty, `CorruptError` if it names other files.
    """
    work.add(TEXT_KIB * (min(size_of(folder, name) or 0, MAX_INDEX_BYTES) // 1024))
    content = read_file(folder, name, limit=MAX_INDEX_BYTES)
    shards = set[str]()

    def of_tensor(tensor: str, at: int) -> int:
        del tensor
        shard, end = string_at(text, at)
        if index_of(shard) != name.rpartition("/")[2]:
            raise CorruptError(f"{name} names the shard {shown(shard)}, which is not named like its shards")
        shards.add(shard)
        if len(shards) > _MOST_SHARDS:
            raise CorruptError(f"{name} names more than {_MOST_SHARDS} shards")
        return end

    def of_index(key: str, at: int) -> int:
        return read_members(text, at, of_tensor, work) if key == "weight_map" else value_at(text, at)[1]

    try:
        text = content.decode()
        del content
        end = read_members(text, 0, of_index, work)
    except TooManyMembersError as error:
        raise CorruptError(f"{name} is not the index of shards: {error}") from error
    except ValueError as error:
        raise IncompleteError(f"{name} is cut off, or is not the index of shards: {shown(str(error))}") from error
    if text[end:].strip():
        raise CorruptError(f"{name} has more text behind its end")
    if not shards:
        raise IncompleteError(f"{name} names no shards")
    return tuple(sorted(shards))


def is_unfinished(name: str) -> bool:
    """Return whether a name is one that safetensors gives to a file that it has not finished."""
    return name.startswith(".tmp")


def require_none_unfinished(folder: Path, index: str) -> None:
    """Raise `IncompleteError` if a shard has been begun in the folder since the index was written."""
    written_at = (folder / index).stat().st_mtime_ns
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_unfinished(entry.name) and entry.stat(follow_symlinks=False).st_mtime_ns >= written_at:
                raise IncompleteError(f"{index}: a shard is being saved again, to {entry.name}")


def doubt_about(folder: Path, index: str, shards: Iterable[str]) -> str | None:
    """Return why shards may be of two saves: one is newer than the index. Paths are relative to the folder."""
    written_at = (folder / index).stat().st_mtime_ns
    newer = [shard for shard in shards if (folder / shard).stat().st_mtime_ns > written_at]
    return f"{max(newer)} is newer than {index}, as if it was being saved again" if newer else None


@contextlib.contextmanager
def as_shard(index: str, shard: str) -> Iterator[None]:
    """Raise `IncompleteError` if a shard that is read in the block does not exist."""
    try:
        yield
    except VanishedError as error:
        raise IncompleteError(f"{index}: the shard {shard} is missing") from error
