"""Keep the metric states of each finished eval set, so that the next attempt at a checkpoint need not evaluate it.

`rank_evaluation` asks for them. A rank writes its states of a set when the set is done, into a folder next to those of
the plans. After an interruption, a group of any size may use them: each of the ranks of before is taken over by one
rank. All that the states depend on is in their key, so the numbers have the bits of an evaluation that was not
interrupted. Rows that are saved for each example are kept next to the states, as further names of the same files. Sets
that take less than a second are not kept.

Finished batches of a set that is not finished may be kept in the same way: `finished_batches` decides which.

Nothing depends on these files: whatever cannot be written or read is evaluated again. Imports no framework.
"""

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from sidecar.errors import RecordError
from sidecar.evaluation.artifact_reader import MOST_BYTES_OF_STATES, merge_records, parse_record
from sidecar.evaluation.artifact_writer import STATES, ArtifactWriter
from sidecar.evaluation.backend import Stream
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.finished_batches import FinishedBatches, Kept, chosen, merged, parsed
from sidecar.evaluation.output_comparison import short_digest
from sidecar.evaluation.states import SetStates
from sidecar.protocol.column_names import file_name
from sidecar.system.confined import Folder, open_folder

_LEAST_SECONDS: Final = 1.0  # the files of a set that took less would cost more than they save
_MOST_FILES: Final = 1024  # of finished batches of one set
_MOST_BYTES_OF_BATCHES: Final = 1 << 30  # in all files of one set, which each rank reads
_BATCHES: Final = re.compile(r"batches-[0-9]{1,6}-of-[1-9][0-9]{0,5}", re.ASCII)
_UNREADABLE: Final = (OSError, RecordError, EvaluationError, AttributeError, LookupError, TypeError, ValueError)
_WORKER: Final = re.compile(r"worker-0-of-([1-9][0-9]{0,5})", re.ASCII)


@dataclass(slots=True, kw_only=True)
class FinishedSets:
    """Hold the finished eval sets of one checkpoint, as one rank sees them."""

    folder: Path | None  # of all ranks and sets; None: nothing is kept
    root: Path  # the part of its path in which links are followed
    shard: Shard  # this rank
    in_parallel: Executor
    seconds: float = 30.0  # between two times that the finished batches of a set are written
    now: Callable[[], float] = time.monotonic
    _keys: dict[str, str] = field(default_factory=dict)
    _streams: dict[str, Stream] = field(default_factory=dict)
    _batches: dict[str, tuple[frozenset[int], set[int], str, SetStates]] = field(default_factory=dict)
    _variables: Callable[[], str] = str
    _found: dict[str, tuple[int, SetStates]] = field(default_factory=dict)
    _since: float = 0.0
    _alone: list[str] = field(default_factory=list)  # finished by this rank, and not by all when it looked

    def exist(self) -> bool:
        """Return whether an attempt before left any."""
        try:
            with self._opened() as folder:
                return bool(folder.names())
        except OSError:
            return False

    def begin(self, streams: Sequence[Stream], same: Mapping[str, str], variables: Callable[[], str]) -> None:
        """Note the sets that are about to be evaluated. Those without a fingerprint are not kept.

        `same`: all that their states depend on, apart from the data and the restored values, whose digest `variables`
        waits for.
        """
        self._keys = {stream.eval_set: _digest(same, stream) for stream in streams if stream.fingerprint}
        self._streams = {stream.eval_set: stream for stream in streams if stream.eval_set in self._keys}
        self._variables, self._since = variables, self.now()

    def find(self, eval_set: str, saves: ArtifactWriter) -> int:
        """Return how many ranks finished a set; 0 unless all of them did, as far as this rank reads their states.

        A number below 0 stands for batches that are finished, of which `batches` tells more.
        `saves` gets the rows of the ranks that this one takes over.
        """
        if eval_set not in self._keys:
            return 0
        expected = self._expected(eval_set)
        try:
            with self._opened() as folder, folder.folder(file_name(eval_set)) as of_set:
                self._found[eval_set] = self._read(of_set, expected, self.shard, partial(saves.take, eval_set))
        except _UNREADABLE:
            saves.drop(eval_set)
        return self._found.get(eval_set, (0, {}))[0] or self._find_batches(eval_set, saves)

    def _find_batches(self, eval_set: str, saves: ArtifactWriter) -> int:
        """Return a number below 0 that stands for the finished batches of a set; 0 if there are none that fit."""
        expected, batches = self._expected(eval_set), self._streams[eval_set].batches
        kept: dict[str, Kept] = {}
        rows: dict[str, tuple[bytes, Mapping[str, Any]]] = {}  # digests of records, and what they say of rows
        left = _MOST_BYTES_OF_BATCHES
        with (
            contextlib.suppress(OSError),
            self._opened() as folder,
            folder.folder(file_name(eval_set)) as of_set,
        ):
            for name in sorted(filter(_BATCHES.fullmatch, of_set.names()))[:_MOST_FILES]:
                with contextlib.suppress(*_UNREADABLE), of_set.folder(name) as part:
                    data = part.read(STATES, left)
                    left -= len(data)
                    record = parse_record(part.path / STATES, data)
                    if record | expected == record:
                        kept[name] = parsed(record, eval_set, batches)
                        rows[name] = sha256(data).digest(), record["predictions"]
        names = chosen(kept)
        if not names:
            return 0
        of_this_rank = names[self.shard.rank :: self.shard.world_size]
        with contextlib.suppress(*_UNREADABLE):
            own, states = merged(kept[name] for name in of_this_rank)
            done = frozenset[int]().union(*(kept[name].batches for name in names))
            self._batches[eval_set] = done, own, kept[names[0]].first, states
            with self._opened() as folder, folder.folder(file_name(eval_set)) as of_set:
                for name in of_this_rank:
                    with of_set.folder(name) as part:
                        digest, tables = rows[name]
                        if sha256(part.read(STATES, _MOST_BYTES_OF_BATCHES)).digest() != digest:
                            raise RecordError(f"{part.path} was replaced")
                        for table in tables.values():
                            saves.take(eval_set, part, table)
            return -1 - (abs(short_digest(repr([(name, sorted(kept[name].batches)) for name in names]))) >> 1)
        saves.drop(eval_set)
        return 0

    def batches(self, agreed: Collection[str], saves: ArtifactWriter) -> dict[str, FinishedBatches]:
        """Return for each set the batches that need not be run, which all ranks agree on, and what keeps others.

        `saves` has the rows of the batches.
        """
        found = {}
        for eval_set in self._streams if self.folder is not None else ():
            write = partial(self._keep_batches, eval_set, saves)
            found[eval_set] = each = FinishedBatches(seconds=self.seconds, write=write, now=self.now)
            if eval_set in agreed:
                each.done, each.own, each.first, each.taken = self._batches[eval_set]
        return found

    def _keep_batches(self, eval_set: str, saves: ArtifactWriter, kept: Kept) -> None:
        """Write the states of the finished batches of this rank in place of those before."""
        assert self.folder is not None
        path = self.folder / file_name(eval_set) / f"batches-{self.shard.rank}-of-{self.shard.world_size}"
        of_batches = {"batches": sorted(kept.batches), "first": kept.first}
        with contextlib.suppress(EvaluationError), ArtifactWriter(path, self.root, in_parallel=self.in_parallel) as own:
            own.begin(None)
            own.share(eval_set, saves)
            own.finish({eval_set: kept.states}, self._variables(), {"key": self._keys[eval_set]} | of_batches)

    def _expected(self, eval_set: str) -> dict[str, str]:
        return {"key": self._keys[eval_set], "variables": self._variables()}

    def found(self, eval_set: str) -> SetStates:
        """Return the states of a set of the ranks before that this rank takes over; empty if it takes over none."""
        return self._found[eval_set][1]

    def keep(self, eval_set: str, states: SetStates, saves: ArtifactWriter) -> None:
        """Write the states of a set that was just evaluated, if that took long enough. `saves` has its rows."""
        since, self._since = self._since, self.now()
        if self.folder is None or eval_set not in self._keys or self._since - since < _LEAST_SECONDS:
            return
        path = self.folder / file_name(eval_set) / self._own_name
        with contextlib.suppress(EvaluationError), ArtifactWriter(path, self.root, in_parallel=self.in_parallel) as own:
            own.begin(None)
            own.share(eval_set, saves)
            own.finish({eval_set: states}, self._variables(), {"key": self._keys[eval_set]})

    def drop(self, eval_set: str) -> None:
        """Remove what this rank kept of a set in an attempt before: no part of it may be used."""
        if self.folder is not None:
            with contextlib.suppress(OSError), self._opened() as folder, folder.folder(file_name(eval_set)) as of_set:
                of_set.remove(self._own_name)

    @property
    def _own_name(self) -> str:
        return f"worker-{self.shard.rank}-of-{self.shard.world_size}"

    def remove(self) -> None:
        """Remove all of them, once all ranks saved their states of all sets."""
        if self.folder is not None:
            with contextlib.suppress(OSError), self._opened(above=True) as folder:
                folder.remove(self.folder.name)

    def _opened(self, *, above: bool = False) -> Folder:
        """Open the folder, or the one above it. Raises `OSError`."""
        if self.folder is None:
            raise FileNotFoundError
        below = (self.folder.parent if above else self.folder).relative_to(self.root)
        with open_folder(self.root) as root:
            return root.folder(str(below))

    def of_all(self, eval_set: str, own: SetStates) -> Iterator[tuple[str, SetStates]]:
        """Yield sets that all ranks have finished, with their states, now that this rank has finished one.

        `own`: the states of this rank. Rank 0 finds, too, what it did not find when it finished the sets before.
        """
        if self.shard.world_size == 1:
            yield eval_set, own
            return
        self._alone = [*self._alone, eval_set] if self.shard.rank == 0 else [eval_set]
        for name in self._alone:
            if (states := self.taken(name)) is not None:
                self._alone = [each for each in self._alone if each != name]
                yield name, states

    def taken(self, eval_set: str) -> SetStates | None:
        """Return the states of all ranks that finished a set; None unless all of them did."""
        if eval_set in self._keys:
            expected = self._expected(eval_set)
            with (
                contextlib.suppress(OSError, RecordError),
                self._opened() as folder,
                folder.folder(file_name(eval_set)) as of_set,
            ):
                return self._read(of_set, expected, Shard(0, 1))[1] or None
        return None

    def _read(
        self,
        folder: Folder,
        expected: dict[str, str],
        shard: Shard,
        take: Callable[[Folder, Mapping[str, Any]], None] = lambda _, table: None,  # noqa: ARG005
    ) -> tuple[int, SetStates]:
        """Return the number of the ranks that finished a set, and the states of those that `shard` takes over.

        `take` is called with the folder of each of those that saved rows, and what it says about them.
        Raises `OSError` or `RecordError` if there are none, or others than expected.
        """
        names = set(folder.names())
        sizes = [int(match[1]) for name in sorted(names) if (match := _WORKER.fullmatch(name))]
        size = max((size for size in sizes if {f"worker-{rank}-of-{size}" for rank in range(size)} <= names), default=0)
        records: dict[Path, dict[str, Any]] = {}
        for rank in range(shard.rank, size, shard.world_size):
            with folder.folder(f"worker-{rank}-of-{size}") as worker:
                record = parse_record(worker.path / STATES, worker.read(STATES, MOST_BYTES_OF_STATES))
                if record | expected != record:
                    raise RecordError(f"{worker.path} is of another evaluation")
                for table in record["predictions"].values():
                    take(worker, table)
            records[worker.path] = record
        if not records:
            return size, {}
        (states,) = merge_records(tuple(records), list(records.values())).values()
        return size, states


def _digest(same: Mapping[str, str], stream: Stream) -> str:
    data = stream.eval_set, stream.fingerprint, stream.batches, stream.examples, stream.sharding, stream.sampled
    return sha256(repr((sorted(same.items()), data)).encode(errors="surrogateescape")).hexdigest()
