"""Read sharded Keras weights: `<name>.weights.json` next to `<name>_00000.weights.h5`, `<name>_00001.weights.h5`, ….

`model.save_weights("<name>.weights.json", max_shard_size=…)` of Keras 3.10 and later writes one HDF5 file after the
other. The map is written again after *every* shard (keras `src/saving/saving_lib.py`, `ShardedH5IOStore.close`), so a
map whose shards are all whole may be an earlier one. A map is the last one only if it names every newer shard, and if
the shards are large enough for the values that it counts.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from sidecar.checkpoints.files import Listing, open_file, read_file, size_of
from sidecar.checkpoints.formats.format import Candidate, Format, Inspection, shown
from sidecar.checkpoints.formats.hdf5 import MAP_SUFFIX, require_suffix, update_from_hdf5
from sidecar.checkpoints.formats.keras_iterations import iterations
from sidecar.checkpoints.work_budget import ENTRY, TEXT_KIB, WorkBudget
from sidecar.errors import CorruptError, IncompleteError, VanishedError

MAX_MAP_BYTES: Final = 4 * 1024 * 1024
"""Enough for about 40,000 layers."""

MAX_VALUES: Final = 200_000
"""The most values in a map: one name for each layer and shard. A value of 4 bytes in the file needs 100 in memory."""

_MAX_SHARDS: Final = 100_000  # five digits
_MOST_OPENED: Final = 16  # shards opened for the optimizer's step count, which is in the first of its shards
_MAX_TOTAL_BYTES: Final = 2**63  # the size limit of a file


class KerasShards(Format):
    """Read sharded Keras weights: a map and its HDF5 shards, which Keras writes under their final names."""

    name: Final = "keras_shards"
    suffixes: Final = (MAP_SUFFIX,)
    endings: Final = r"\.weights\.json"

    def file_group(self, name: str) -> str | None:
        """Return the name of a map, whose group it is. `Hdf5.file_group` returns the same name for the shards."""
        return name if name.endswith(MAP_SUFFIX) else None

    def candidates(self, folder: Path, listing: Listing) -> Iterator[Candidate]:
        """Yield every map with all its shards in the folder. A map lists written shards, so it counts as named."""
        del folder
        for name in sorted(listing.escaping):
            if name.endswith(MAP_SUFFIX):
                yield Candidate(name=name, files=(), leaving=name)
        for file in listing.files.values():
            if file.name.endswith(MAP_SUFFIX):
                shards = _shards_of(file.name, listing.files)
                leaving = next(iter(sorted(_shards_of(file.name, dict.fromkeys(listing.escaping)))), None)
                yield Candidate(
                    name=file.name,
                    files=(file, *(listing.files[name] for name in shards)),
                    named=True,
                    committed=False,
                    leaving=leaving,
                )

    def _inspect(self, folder: Path, name: str, step_key: str | None, work: WorkBudget) -> Inspection:
        """Check the map and the superblock of each shard that it names. The digest covers the map and the shards."""
        del step_key
        size = size_of(folder, require_suffix(name, self.suffixes)) or 0
        work.add(TEXT_KIB * (min(size, MAX_MAP_BYTES) // 1024))
        content = read_file(folder, require_suffix(name, self.suffixes), limit=MAX_MAP_BYTES)
        total, shards, of_optimizers = _read_map(content, name)
        _require_last(folder, name, shards, work)
        digest = hashlib.sha256(f"{self.name}\0{len(content)}\0".encode() + content)
        size = 0
        for shard in shards:
            try:
                size += update_from_hdf5(digest, folder, shard, work)
            except VanishedError as error:
                raise IncompleteError(f"{name}: the shard {shard} is missing") from error
        if size < total:
            raise IncompleteError(f"{name}: its shards have {size} bytes, its values need {total:.0f}")
        return Inspection(
            digest=digest.hexdigest(), step=_step(folder, of_optimizers), files=(name, *shards), step_source="optimizer"
        )


def _step(folder: Path, shards: tuple[str, ...]) -> int | None:
    """Return the steps that the optimizer has made, by the first shard that has a positive count."""
    steps: int | None = None
    for shard in shards[:_MOST_OPENED]:
        with open_file(folder, shard) as file:
            count = iterations(file, 0, os.fstat(file.fileno()).st_size)
        steps = steps if count is None else count
        if count:
            break
    return steps


def _shards_of(name: str, names: Mapping[str, Any]) -> list[str]:
    """Return the names in `names` that are named like shards of the map `name`, sorted."""
    base = name.removesuffix(MAP_SUFFIX)
    start = f"{base}_"
    return sorted(shard for shard in names if shard.startswith(start) and _is_numbered(shard.removeprefix(start)))


def _is_numbered(rest: str) -> bool:
    """Return whether the rest of a name is that of a shard, such as `00001.weights.h5`."""
    number, _, suffix = rest.partition(".")
    return len(number) == 5 and number.isascii() and number.isdigit() and suffix == "weights.h5"  # noqa: PLR2004 - 00000


def _read_map(content: bytes, name: str) -> tuple[float, tuple[str, ...], tuple[str, ...]]:
    """Return the bytes of all values, the shards in order of names, and the shards with optimizer values."""
    if content.count(b",") + content.count(b"[") + content.count(b"{") > MAX_VALUES:
        raise CorruptError(f"{name} holds more than the {MAX_VALUES} values that a map may have")
    try:
        read = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise IncompleteError(f"{name} is cut off, or is not JSON: {shown(str(error))}") from error
    try:
        total, places = read["metadata"]["total_size"], read["weight_map"].items()
    except (AttributeError, KeyError, TypeError) as error:
        raise CorruptError(f"{name} is not a map of shards: it lacks metadata.total_size or weight_map") from error
    named, of_optimizers = set[str](), set[str]()
    for path, place in places:
        for shard in place if isinstance(place, list) else [place]:
            # Keras opens the first shard by the name of the map, so it cannot read a map that was renamed alone.
            if not isinstance(shard, str) or not _shards_of(name, {shard: None}):
                raise CorruptError(f"{name} names the shard {_readable(shard)}, which is not named like its shards")
            named.add(shard)
            if "optimizer" in path:
                of_optimizers.add(shard)
    if isinstance(total, bool) or not isinstance(total, int | float) or not 0 <= total < _MAX_TOTAL_BYTES:
        raise CorruptError(f"{name} states {_readable(total)} as the total size of its values")
    if not named:
        raise IncompleteError(f"{name} names no shards")
    return total, tuple(sorted(named)), tuple(sorted(of_optimizers))


def _readable(value: Any) -> str:
    """Return a value of the map for a message."""
    return shown(str(value)) if isinstance(value, str | int | float) else f"a {type(value).__name__}"


def _require_last(folder: Path, name: str, shards: tuple[str, ...], work: WorkBudget) -> None:
    """Raise `IncompleteError` if a shard is newer than the map and not named by it, because then it is being written.

    Shards are numbered from 0 on, so they are found without listing the folder.
    """
    base = name.removesuffix(MAP_SUFFIX)
    try:
        written_at = (folder / name).stat().st_mtime_ns
    except FileNotFoundError as error:
        raise VanishedError(f"{folder / name} is gone") from error
    named = set(shards)
    for number in range(_MAX_SHARDS):
        shard = f"{base}_{number:05d}.weights.h5"
        work.add(ENTRY)
        try:
            newer = (folder / shard).stat().st_mtime_ns >= written_at
        except FileNotFoundError:
            return
        if newer and shard not in named:
            raise IncompleteError(f"{name}: the shard {shard} is being written")
