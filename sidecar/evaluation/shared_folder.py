"""Let ranks meet through the folders that they save to anyway: no port, no collective library, no framework.

The hello of a rank is a small hidden file next to its own folder in the folder of the plan. Its states are in
`states.json`, which every worker saves: a rank that has made its own folder durable waits until the folders of all
others are there, reads them, and merges the states in rank order. So the published numbers are those of the saved
states, and a result proves that every rank's saves are complete.

A rank that died is noticed by its own daemon, as with every other backend: the plan fails, and the other daemons kill
the ranks that wait here. The bound below is the last resort.
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

from sidecar.confined import Folder, open_folder
from sidecar.durable import replace
from sidecar.errors import RecordError
from sidecar.evaluation.artifact_reader import merge_records, parse_record
from sidecar.evaluation.artifact_writer import STATES
from sidecar.evaluation.backend import TIMED, Int64s, RankReport, Reduced
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.rank_comparison import named, short_digest
from sidecar.evaluation.reduction import require_equal_values, slowest_of
from sidecar.workers.messages import Evaluate, Join

_LONGEST_WAIT_SECONDS: Final = 86_400.0
"""For another rank, which may evaluate that long: the daemons have bounds of their own, which are shorter."""

_FIRST_PAUSE_SECONDS: Final = 0.005
_LONGEST_PAUSE_SECONDS: Final = 0.2
_MOST_BYTES: Final = 64 * 1024 * 1024
_MOST_BYTES_OF_STATES: Final = 1 << 32  # scores of a hundred million examples
_NOT_THERE: Final = (errno.ENOENT, errno.ESTALE)  # ESTALE: on NFS, replaced by another node meanwhile

_Found = TypeVar("_Found")


class SharedFolderCollective:
    """The ranks of one group, meeting in the folder of each plan.

    Args:
        join: Which rank this is, of which group.
        now: Seconds of a clock that never goes back.
        pause: Waits for some seconds.
    """

    def __init__(
        self,
        join: Join,
        *,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._join, self._now, self._pause = join, now, pause
        self._folder = self._root = Path()
        self._plan = 0
        self._sums = 0
        self._said: list[str] = []

    def begin(self, command: Evaluate) -> None:
        """Prepare to meet in the folder of this plan."""
        folder = Path(command.save_to)
        self._folder = folder.parent
        self._root = Path(command.save_root) if command.save_root else folder.parent
        self._plan, self._sums, self._said = command.plan, 0, []

    def sum(self, mine: Int64s) -> Int64s:
        """Write a vector for the other ranks, wait for theirs, and return the sum in rank order.

        Raises `EvaluationError`: `storage` if it cannot be written or read, `member_lost` if a rank never writes.
        """
        number, self._sums = self._sums, self._sums + 1
        rank = self._join.rank
        content = {**self._origin(), "sum": number, "values": mine.tolist()}
        name = self._file(rank, number)
        with self._storage(), self._opened(make=True) as folder:
            folder.remove(f"{name}.new")  # of an attempt that was broken off
            replace(folder, name, json.dumps(content).encode(), temporary=f"{name}.new")
        self._said.append(name)
        total = np.zeros_like(mine)
        for other in range(len(self._join.members)):
            values = mine if other == rank else self._wait(other, partial(self._heard, other, number))
            if values.shape != mine.shape:
                who = named([other], self._join)
                raise EvaluationError("mismatch", f"{who} sent {len(values)} numbers where this rank has {len(mine)}")
            total += values
        return total

    def reduce(self, join: Join, report: RankReport) -> Reduced:
        """Wait until all ranks saved their states, then read them and merge them in rank order.

        Raises `EvaluationError`: `mismatch` if ranks restored different values, else as `sum`.
        """
        ranks = range(len(join.members))
        records = [self._wait(rank, partial(self._saved, rank)) for rank in ranks]
        self._remove_said()  # every rank has saved, so every rank has read them
        require_equal_values(np.array([short_digest(record["variables"]) for record in records]), join)
        seconds = {name: np.array([float(record["seconds"][name]) for record in records]) for name in TIMED}
        seconds["save"] = np.array([report.seconds["save"]])  # known only after the states were saved
        try:
            states = merge_records(tuple(self._worker(rank) for rank in ranks), records)
        except RecordError as error:
            raise EvaluationError("storage", str(error)) from error
        return Reduced(states, slowest_of(seconds))

    def _origin(self) -> dict[str, Any]:
        return {"group": self._join.group, "plan": self._plan}

    def _file(self, rank: int, number: int) -> str:
        return f".{self._worker(rank).name}.hello-{number}.part"

    def _worker(self, rank: int) -> Path:
        return self._folder / f"worker-{rank}-of-{len(self._join.members)}"

    def _heard(self, rank: int, number: int) -> Int64s | None:
        """Return the vector of another rank; None if it is not there yet, or is one of another evaluation."""
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

    def _saved(self, rank: int) -> dict[str, Any] | None:
        """Return what another rank saved; None if it is not there yet, or is of another evaluation."""
        with self._opened() as folder, folder.folder(self._worker(rank).name) as worker:
            data = worker.read(STATES, _MOST_BYTES_OF_STATES)
        try:
            record = parse_record(self._worker(rank) / STATES, data)
        except RecordError as error:
            raise EvaluationError("storage", str(error)) from error
        return record if record | self._origin() == record else None

    def _wait(self, rank: int, look: Callable[[], _Found | None]) -> _Found:
        begin, pause = self._now(), _FIRST_PAUSE_SECONDS
        while True:
            found: _Found | None = None
            with self._storage(missing=True):
                found = look()
            if found is not None:
                return found
            if self._now() - begin > _LONGEST_WAIT_SECONDS:
                who = named([rank], self._join)
                raise EvaluationError("member_lost", f"{who} did not save to {self._worker(rank)}", lost=rank)
            self._pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    @contextlib.contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[Folder]:
        """Open the plan's folder anew: on NFS that is what makes the names in it be asked for again."""
        if make:
            self._root.mkdir(parents=True, exist_ok=True)
        below = self._folder.relative_to(self._root).parts
        with open_folder(self._root) as root:
            if not below:
                yield root
                return
            with root.folder("/".join(below), make=make) as folder:
                yield folder

    def _remove_said(self) -> None:
        with contextlib.suppress(OSError), self._opened() as folder:  # it is small, and goes with the plan's folder
            for name in self._said:
                folder.unlink(name)
        self._said = []

    @contextlib.contextmanager
    def _storage(self, *, missing: bool = False) -> Iterator[None]:
        """Turn errors of storage into failures; with `missing`, an entry that is not there is none."""
        try:
            yield
        except OSError as error:
            if missing and error.errno in _NOT_THERE:
                return
            reason = f"{type(error).__name__}: {error}"
            raise EvaluationError("storage", f"cannot meet the other ranks in {self._folder}: {reason}") from error
