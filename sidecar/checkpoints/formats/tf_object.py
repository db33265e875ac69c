"""Read TensorFlow object checkpoints: `<prefix>.index` and `<prefix>.data-0000i-of-0000n` in the same folder.

Sources: tensorflow `core/util/tensor_bundle/{tensor_bundle.h,tensor_bundle.cc,naming.h}`,
`core/protobuf/tensor_bundle.proto`, `python/checkpoint/checkpoint_management.py`. The index is a sorted string table:
key "" holds a BundleHeaderProto, every other key a BundleEntryProto that says where a tensor lies and what its checksum
is.

The writer renames the shards into place, then writes the index *in place*, then names the prefix in the text file
`checkpoint`, which is therefore the commit marker. `Checkpoint.write` does not touch that file.
"""

import bisect
import hashlib
import operator
import re
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sidecar.checkpoints.files import File, Listing, open_file, read_at, read_file, size_of
from sidecar.checkpoints.formats.checkpoint_state import named_in
from sidecar.checkpoints.formats.crc32c import masked_crc32c
from sidecar.checkpoints.formats.format import (
    BACKUP,
    EMBEDDINGS,
    EMBEDDINGS_BEGINNING,
    Candidate,
    Format,
    Inspection,
    about,
    shown,
)
from sidecar.checkpoints.formats.protobuf import VARINT, fields, read_varint
from sidecar.checkpoints.formats.sstable import read_table
from sidecar.checkpoints.formats.tf_entry import natural, read_entry
from sidecar.checkpoints.formats.tf_tensors import STRING, Entry, check_tensors
from sidecar.checkpoints.work_budget import OPENED_FILE, TEXT_KIB, WorkBudget
from sidecar.errors import CorruptError, IncompleteError
from sidecar.protocol.records import StepSource

MAX_INDEX_BYTES: Final = 8 * 1024 * 1024
"""Enough for about 150,000 tensors. Reading takes up to half a second per MB, so this also bounds the time."""

MAX_TENSORS: Final = 250_000
"""An index of the largest size holds no more, except for empty entries."""

MAX_SHARDS: Final = 100_000
"""Shards have five digits in their names."""

_ENDINGS: Final = r"\.(?:index|data-[0-9]{5,}-of-[0-9]{5,})"
_FILE: Final = re.compile(rf"(?P<prefix>.+){_ENDINGS}", re.DOTALL)
_VALUE: Final = "/.ATTRIBUTES/VARIABLE_VALUE"
_INTEGERS: Final = {3: 4, 9: 8}  # DT_INT32, DT_INT64 (core/framework/types.proto) and their sizes in bytes
_GRAPH: Final = b"_CHECKPOINTABLE_OBJECT_GRAPH"
_BACKUP: Final = re.compile(rb"_?ckpt_saved_epoch/")
"""Keys of BackupAndRestore: tf_keras `src/distribute/worker_training_state.py`."""

_ITERATOR: Final = b"/.ATTRIBUTES/ITERATOR_STATE"
"""End of the keys of iterators: tensorflow `python/data/ops/iterator_ops.py`."""

_NO_MODEL: Final = (b"_CHECKPOINTABLE_OBJECT_GRAPH", b"save_counter/", b"step/", b"global_step/")
"""Beginnings of keys that every checkpoint may have, whether it holds a model or not."""

_LENGTH_BYTES: Final = 10  # the longest varint
_CRC_BYTES: Final = 4
_VARIABLES: Final = 2  # the first rank of steps that are not an optimizer's
_MOST_COUNTS: Final = 16  # the most step counts that are read; a model has one or two optimizers

_TENSOR: Final = 8  # units of work
_BYTES_PER_UNIT: Final = 16  # of an entry with very many fields

_Rank = tuple[int, bool, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bundle:
    """Summarise an index: the least size of each of its shards, and the entries that may hold the training step."""

    shards: int
    byteorder: Literal["little", "big"]
    ends: Mapping[int, int]  # by shard: where its last tensor ends
    counts: Sequence[tuple[StepSource, Entry]]  # the likeliest step first
    graph: Entry | None
    aside: str | None  # as in `Inspection`


@dataclass(slots=True)
class _Purpose:
    """Find out from the keys of an index whether it is something else than a checkpoint of a model."""

    is_backup: bool = False
    holds_iterator: bool = False
    holds_values: bool = False

    def add(self, key: bytes) -> None:
        """Note one key."""
        if _BACKUP.match(key):
            self.is_backup = True
        elif key.endswith(_ITERATOR):
            self.holds_iterator = True
        elif not key.startswith(_NO_MODEL):
            self.holds_values = True

    @property
    def aside(self) -> str | None:
        """Return what `Inspection.aside` says of it."""
        if self.is_backup:
            return BACKUP
        return "the place of an iterator in the data" if self.holds_iterator and not self.holds_values else None


class TfObject(Format):
    """Read TensorFlow object checkpoints: an index and its shards."""

    name: Final = "tf_object"

    endings: Final = _ENDINGS

    def file_group(self, name: str) -> str | None:
        """Return the name of the index that has the same prefix as this index or shard."""
        match = _FILE.fullmatch(name)
        return None if match is None else f"{match['prefix']}.index"

    def candidates(self, folder: Path, listing: Listing) -> Iterator[Candidate]:
        """Yield every prefix that has an index. Shards without an index are being written or deleted."""
        files = listing.files
        by_prefix: dict[str, list[File]] = defaultdict(list)
        for file in files.values():
            if match := _FILE.fullmatch(file.name):
                by_prefix[match["prefix"]].append(file)
        named: Container[str] = named_in(folder, by_prefix) if listing.named is None else listing.named
        leaving = {match["prefix"]: match[0] for match in map(_FILE.fullmatch, sorted(listing.escaping)) if match}
        for prefix, outside in leaving.items():
            yield Candidate(
                name=prefix, files=tuple(sorted(by_prefix.pop(prefix, ()))), named=prefix in named, leaving=outside
            )
        for prefix, parts in by_prefix.items():
            if index := files.get(f"{prefix}.index"):
                # The state file names a constant prefix even while it is written again. For a moment there are new
                # shards and the old index. Shards that are newer than the index otherwise occur only in copies.
                rewritten = any(part.mtime_ns > index.mtime_ns for part in parts)
                yield Candidate(
                    name=prefix,
                    files=tuple(sorted(parts)),
                    named=prefix in named,
                    committed=prefix in named and not rewritten,
                )

    def _inspect(self, folder: Path, name: str, step_key: str | None, work: WorkBudget) -> Inspection:
        """Parse the index, compare all its checksums, and measure the shards. Tensors are not read.

        The digest is a SHA-256 over the format's name, the index, which holds a checksum of every tensor, and the sizes
        of the shards. So it does not depend on the prefix or the folder.
        """
        work.add(TEXT_KIB * (min(size_of(folder, f"{name}.index") or 0, MAX_INDEX_BYTES) // 1024))
        index = read_file(folder, f"{name}.index", limit=MAX_INDEX_BYTES)
        with about(f"{name}.index"):
            bundle = _read_bundle(index, step_key, work)
        digest = hashlib.sha256(f"{self.name}\0{len(index)}\0".encode() + index)
        shards = []
        for number in range(bundle.shards):  # untrusted, so this stops at the first shard that is missing
            shard = f"{name}.data-{number:05d}-of-{bundle.shards:05d}"
            size = size_of(folder, shard)
            work.add(OPENED_FILE)
            if size is None:
                raise IncompleteError(f"{shard} is missing")
            if size < bundle.ends.get(number, 0):
                raise IncompleteError(f"{shard} has {size} bytes, its tensors need {bundle.ends[number]}")
            digest.update(f"{size}\0".encode())
            shards.append(shard)
        if bundle.graph is not None:
            _require_length(folder, shards[bundle.graph.shard], bundle.graph)
        source, step = _read_step(folder, shards, bundle)
        aside = EMBEDDINGS if name.startswith(EMBEDDINGS_BEGINNING) else bundle.aside
        return Inspection(
            digest=digest.hexdigest(), step=step, files=(f"{name}.index", *shards), step_source=source, aside=aside
        )

    def check(self, folder: Path, name: str) -> None:
        """Compare every tensor with its masked CRC-32C."""
        _, *shards = self.inspect(folder, name).files
        index, work = read_file(folder, f"{name}.index", limit=MAX_INDEX_BYTES), WorkBudget(is_full=True)
        check_tensors(folder, shards, _tensors(index, len(shards), work), work)

    def written_in_place(self, file: str) -> bool:
        """Return True for the index only: shards are renamed into place."""
        return file.endswith(".index")


def _read_bundle(index: bytes, step_key: str | None, work: WorkBudget) -> _Bundle:
    """Read all entries of an index. `step_key`: the key that the user named for the step."""
    entries = read_table(index, work)
    key, header = next(entries, (None, b""))
    if key != b"":
        raise CorruptError("it has no header")
    shards, byteorder = _read_header(header)
    ends: dict[int, int] = {}
    likely: list[tuple[_Rank, Entry]] = []
    graph: Entry | None = None
    purpose = _Purpose()
    for number, (key, value) in enumerate(entries):
        work.add(_TENSOR + len(value) // _BYTES_PER_UNIT)
        if number >= MAX_TENSORS:
            raise CorruptError(f"it holds more than {MAX_TENSORS} tensors")
        try:
            entry = read_entry(value)
        except CorruptError as error:
            raise CorruptError(f"{shown(key)}: {error}") from error
        if entry.shard >= shards:
            raise CorruptError(f"{shown(key)} has the shard number {entry.shard}, but there are {shards} shards")
        ends[entry.shard] = max(ends.get(entry.shard, 0), entry.offset + entry.size)
        purpose.add(key)
        if key == _GRAPH:
            graph = entry
            if entry.dtype != STRING or not entry.scalar:
                raise CorruptError("the object graph is not text")
        if entry.scalar and _INTEGERS.get(entry.dtype) == entry.size:
            rank = step_rank(key.decode("utf-8", "replace"), step_key)
            if rank is not None:
                bisect.insort(likely, (rank, entry), key=operator.itemgetter(0))
                del likely[_MOST_COUNTS:]  # keys may be long
    return _Bundle(
        shards=shards,
        byteorder=byteorder,
        ends=ends,
        counts=[(_source(rank, step_key), entry) for rank, entry in likely],
        graph=graph,
        aside=purpose.aside,
    )


def _tensors(index: bytes, shards: int, work: WorkBudget) -> Iterator[tuple[bytes, Entry]]:
    """Yield every tensor that has data, by its key, in order of keys. The data of a sliced tensor has other keys."""
    for key, value in read_table(index, work):
        work.add(_TENSOR + len(value) // _BYTES_PER_UNIT)
        entry = read_entry(value) if key else None
        if entry is not None and entry.size:
            if entry.shard >= shards:  # the index was replaced after the inspection
                raise IncompleteError(f"{shown(key)} has the shard number {entry.shard}, but there are {shards} shards")
            yield key, entry


def step_rank(key: str, step_key: str | None) -> _Rank | None:
    """Return the rank of a scalar's key as the training step: the least is the likeliest; None if it is not a step.

    The count of an optimizer comes first, because optimizers always increment it, and the count nearest to the root
    first of these. An optimizer that wraps another one (`LossScaleOptimizer`) counts 0; then the next count is read.
    `save_counter`, the N of `ckpt-N`, counts saves and is never the step.
    """
    path = key.removesuffix(_VALUE)  # name-based savers of TF 1 write keys without it
    if step_key is not None:
        return (0, False, 0, path) if step_key in (key, path) else None
    for rank, leaf in enumerate(("_iterations", "iter")):  # Keras 3 and recent Keras 2; older Keras 2
        if path == leaf or path.endswith(f"/{leaf}"):
            return rank, path != f"optimizer/{leaf}", path.count("/"), path
    for rank, name in enumerate(("step", "global_step"), start=_VARIABLES):
        if path == name:
            return rank, False, 1, path
    return None


def _source(rank: _Rank, step_key: str | None) -> StepSource:
    """Return the source of a step that has this rank, as it stands in the record of a checkpoint."""
    if step_key is not None:
        return "step_key"
    return "optimizer" if rank[0] < _VARIABLES else "variable"


def _require_length(folder: Path, shard: str, graph: Entry) -> None:
    """Check the length that the object graph states, because TensorFlow uses it before it compares a checksum."""
    with open_file(folder, shard) as file:
        head = read_at(file, min(_LENGTH_BYTES, graph.size), graph.offset)
    with about(shard):
        length, used = read_varint(head, 0)
        if used + _CRC_BYTES + length != graph.size:
            raise CorruptError(f"the object graph has {graph.size} bytes, but states {length}")


def _read_step(folder: Path, shards: Sequence[str], bundle: _Bundle) -> tuple[StepSource | None, int | None]:
    """Return the source and value of the first positive count, else of the first count of 0, else (None, None)."""
    zero: tuple[StepSource | None, int | None] = None, None
    for source, entry in bundle.counts:
        step = _read_integer(folder, shards[entry.shard], entry, bundle.byteorder)
        if step > 0:
            return source, step
        if step == 0 and zero[0] is None:
            zero = source, 0
    return zero


def _read_integer(folder: Path, shard: str, entry: Entry, byteorder: Literal["little", "big"]) -> int:
    """Return the value of a scalar integer. Raises `CorruptError` if it does not match its checksum."""
    with open_file(folder, shard) as file:
        raw = read_at(file, entry.size, entry.offset)
    if (found := masked_crc32c(raw)) != entry.crc:
        raise CorruptError(
            f"{shard}: the training step (at {entry.offset}) has the checksum {found:08x}, but the index states "
            f"{entry.crc:08x}: index and data come from different saves"
        )
    return int.from_bytes(raw, byteorder, signed=True)


def _read_header(message: bytes) -> tuple[int, Literal["little", "big"]]:
    """Read a BundleHeaderProto: num_shards = 1, endianness = 2 (0 little, 1 big), version = 3."""
    shards, endianness = 0, 0
    for number, wire, value in fields(message):
        if (number, wire) == (1, VARINT):
            shards = natural(value)
        elif (number, wire) == (2, VARINT):
            endianness = natural(value)
    if not 1 <= shards <= MAX_SHARDS:
        raise CorruptError(f"it states {shards} shards; the number must be 1 to {MAX_SHARDS}")
    return shards, "big" if endianness else "little"
