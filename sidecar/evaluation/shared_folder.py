"""Exchange data between ranks through the folders of their saves, without ports, collective library or framework.

The hello of a rank is a small hidden file next to its own folder in the folder of the plan. The states are in
`states.json`, which every worker saves. A rank makes its own folder durable, waits for the folders of all other ranks,
reads them, and merges the states in rank order. So the published numbers are those of the saved states, and a result
proves that the saves of every rank are complete.

The daemon of a rank that died notices this, as with every other backend. The plan fails, and the other daemons kill the
ranks that wait here. The limit below is the last resort.
"""

import contextlib
import errno
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from sidecar.errors import RecordError
from sidecar.evaluation.artifact_reader import MOST_BYTES_OF_STATES, merge_records, parse_record
from sidecar.evaluation.artifact_writer import STATES
from sidecar.evaluation.backend import TIMED, Int64s, RankReport, Reduced
from sidecar.evaluation.failures import EvaluationError, mismatch
from sidecar.evaluation.output_comparison import named, short_digest
from sidecar.evaluation.reduction import require_equal_values, slowest_of
from sidecar.protocol.messages import Evaluate, Join
from sidecar.system.confined import Folder, open_folder
from sidecar.system.durable import replace

_LONGEST_WAIT_SECONDS: Final = 86_400.0
"""Limit of the wait for another rank, which may evaluate that long. The limits of the daemons are shorter."""

_FIRST_PAUSE_SECONDS: Final = 0.005
_LONGEST_PAUSE_SECONDS: Final = 0.2
_MOST_BYTES: Final = 64 * 1024 * 1024
_NOT_THERE: Final = (errno.ENOENT, errno.ESTALE)  # ESTALE: on NFS, if another node has replaced the file

_Found = TypeVar("_Found")


class SharedFolderCollective:
    """Connect the ranks of one group through the folder of each plan."""

    def __init__(
        self,
        join: Join,  # this rank and its group
        *,
        now: Callable[[], float] = time.monotonic,  # returns the seconds of a monotonic clock
        pause: Callable[[float], None] = time.sleep,  # waits for a number of seconds
    ) -> None:
        self._join, self._now, self._pause = join, now, pause
        self._folder = self._root = Path()
        self._plan = 0
        self._sums = 0
        self._written: list[str] = []

    def begin(self, command: Evaluate) -> None:
        """Prepare for the exchange in the folder of this plan."""
        folder = Path(command.save_to)
        self._folder = folder.parent
        self._root = Path(command.save_root) if command.save_root else folder.parent
        self._plan, self._sums, self._written = command.plan, 0, []

    def sum(self, vector: Int64s) -> Int64s:
        """Write a vector for the other ranks, wait for theirs, and return the sum in rank order.

        Raises `EvaluationError`: `storage` if it cannot be written or read, `member_lost` if a rank never writes.
        """
        number, self._sums = self._sums, self._sums + 1
        rank = self._join.rank
        content = {**self._origin(), "sum": number, "values": vector.tolist()}
        name = self._file(rank, number)
        with self._storage(), self._opened(make=True) as folder:
            folder.remove(f"{name}.new")  # from an interrupted attempt
            replace(folder, name, json.dumps(content).encode(), temporary=f"{name}.new")
        self._written.append(name)
        total = np.zeros_like(vector)
        for other in range(len(self._join.members)):
            values = vector if other == rank else self._wait(other, partial(self._read_vector, other, number))
            if values.shape != vector.shape:
                sender = named([other], self._join)
                raise mismatch(f"{sender} sent {len(values)} numbers, this rank has {len(vector)}")
            total += values
        return total

    def reduce(self, join: Join, report: RankReport) -> Reduced:
        """Wait until all ranks saved their states, then read them and merge them into the report's.

        Raises `EvaluationError`: `mismatch` if ranks restored different values, otherwise as `sum` does.
        """
        ranks = range(len(join.members))
        records = [self._wait(rank, partial(self._read_saved, rank)) for rank in ranks]
        self._remove_written()  # every rank has saved, so every rank has read them
        require_equal_values(np.array([short_digest(record["variables"]) for record in records]), join)
        seconds = {name: np.array([float(record["seconds"][name]) for record in records]) for name in TIMED}
        seconds["save"] = np.array([report.seconds["save"]])  # known only after the states were saved
        try:
            others = [rank for rank in ranks if rank != join.rank]
            workers = tuple(self._worker(rank) for rank in (join.rank, *others))
            states = merge_records(workers, [{"states": report.states}, *(records[rank] for rank in others)])
        except RecordError as error:
            raise EvaluationError("storage", str(error)) from error
        return Reduced(states, slowest_of(seconds))

    def _origin(self) -> dict[str, Any]:
        return {"group": self._join.group, "plan": self._plan}

    def _file(self, rank: int, number: int) -> str:
        return f".{self._worker(rank).name}.hello-{number}.part"

    def _worker(self, rank: int) -> Path:
        return self._folder / f"worker-{rank}-of-{len(self._join.members)}"

    def _read_vector(self, rank: int, number: int) -> Int64s | None:
        """Return the vector of another rank; None if it belongs to another evaluation. Raises `OSError` if missing."""
        with self._opened() as folder:
            data = folder.read(self._file(rank, number), _MOST_BYTES)
        try:
            content = json.loads(data)
            if content | self._origin() != content or content["sum"] != number:
                return None
            return np.array(content["values"], np.int64)
        except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
            path = self._folder / self._file(rank, number)
            raise EvaluationError("storage", f"{path} is damaged: {type(error).__name__}: {error}") from error

    def _read_saved(self, rank: int) -> dict[str, Any] | None:
        """Return the saved record of a rank; None if it belongs to another evaluation. Raises `OSError` if missing."""
        with self._opened() as folder, folder.folder(self._worker(rank).name) as worker:
            data = worker.read(STATES, MOST_BYTES_OF_STATES)
        try:
            record = parse_record(self._worker(rank) / STATES, data)
        except RecordError as error:
            raise EvaluationError("storage", str(error)) from error
        return record if record | self._origin() == record else None

    def _wait(self, rank: int, read: Callable[[], _Found | None]) -> _Found:
        begin, pause = self._now(), _FIRST_PAUSE_SECONDS
        while True:
            found: _Found | None = None
            with self._storage(missing=True):
                found = read()
            if found is not None:
                return found
            if self._now() - begin > _LONGEST_WAIT_SECONDS:
                name = named([rank], self._join)
                raise EvaluationError("member_lost", f"{name} did not save to {self._worker(rank)}", lost=rank)
            self._pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _opened(self, *, make: bool = False) -> Folder:
        """Open the folder of the plan anew, which makes NFS look up the names in it again."""
        if make:
            self._root.mkdir(parents=True, exist_ok=True)
        below = self._folder.relative_to(self._root).parts
        root = open_folder(self._root)
        if not below:
            return root
        with root:
            return root.folder("/".join(below), make=make)

    def _remove_written(self) -> None:
        with contextlib.suppress(OSError), self._opened() as folder:  # removed with the folder otherwise
            for name in self._written:
                folder.unlink(name)
        self._written = []

    @contextlib.contextmanager
    def _storage(self, *, missing: bool = False) -> Iterator[None]:
        """Turn errors of the storage into failures; with `missing`, a missing entry is not an error."""
        try:
            yield
        except OSError as error:
            if missing and error.errno in _NOT_THERE:
                return
            reason = f"cannot exchange data with other ranks in {self._folder}: {type(error).__name__}: {error}"
            raise EvaluationError("storage", reason) from error
