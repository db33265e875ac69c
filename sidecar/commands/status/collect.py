"""Collect the status of a run from shared storage alone: on any node, and also when every daemon is down.

`RunObserver` collects the status as often as it is asked to, and writes nothing. `RunReader` reads each record of the
journal once. `RunStatus` holds the facts that were read, and `render` shows them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from sidecar.checkpoints.catalog import Catalog
from sidecar.checkpoints.scan import ScanResult
from sidecar.commands.best import BestExport
from sidecar.commands.observed_nodes import ObservedNode, ObservedNodes, telling_ages
from sidecar.coordination import snapshot_store
from sidecar.coordination.heartbeats import Heartbeats, heartbeat_path
from sidecar.coordination.journal import Journal
from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.run import read_run
from sidecar.coordination.storage import Storage
from sidecar.policy.eligibility import LeftOut, left_out, ready_workers
from sidecar.policy.proposers import publisher
from sidecar.policy.selection import Selection, pending
from sidecar.protocol.heartbeat import Heartbeat
from sidecar.protocol.records import Checkpoint, FinishedSet
from sidecar.protocol.states import Verdict, WorkerPhase
from sidecar.system.clock import Clock

if TYPE_CHECKING:
    from sidecar.publishing.state_backup.ownership import Own

OBSERVED_BEATS: Final = 2.25  # every live node has beaten twice by then; the quarter is for slow storage
_READING_SECONDS: Final = 0.1  # between two readings of the heartbeats, until each node is known to be alive or not
_IN_ORDER: Final = (
    WorkerPhase.JOIN,
    WorkerPhase.BUILD,
    WorkerPhase.READ,
    WorkerPhase.RESTORE,
    WorkerPhase.HELLO,
    WorkerPhase.EVALUATE,
    WorkerPhase.SAVE,
    WorkerPhase.REDUCE,
    WorkerPhase.SUM,
    WorkerPhase.CONCLUDE,
)  # in the order in which a worker goes through them
_NOT_LOOKED_FOR: Final = (
    "the daemons find it, and this command does not look for it: give it the settings of the daemons, such as "
    "checkpoint_pattern, by --config FILE"
)
_RANKS: Final[Mapping[str, int]] = {phase: rank for rank, phase in enumerate(_IN_ORDER)}


@dataclass(frozen=True, slots=True)
class Directory:
    """Describe the checkpoint directory as this machine sees it, and the copy of the state directory.

    `path`: for display. `busy`: a sentence, if this machine evaluates and has too much to do. `backup`: what the backup
    has of the state; None: nothing was ever sent.
    """

    path: str = ""
    missing: bool = False
    busy: str = ""
    backup: "Own | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """Hold the status of a run, as its files show it. Times are in seconds."""

    run_id: str | None  # None: no daemon has begun this run
    history: JournalState = field(default_factory=JournalState)
    members: tuple[ObservedNode, ...] = ()
    unread: dict[str, str] = field(default_factory=dict)  # by node: why its heartbeat could not be read
    queue: tuple[Checkpoint, ...] = ()  # complete and not evaluated, in order, with that of the open plan
    incomplete: tuple[tuple[str, str], ...] = ()  # names of incomplete checkpoints, each with the reason
    unknown: dict[str, str] = field(default_factory=dict)  # by name: why this node cannot read a checkpoint now
    min_workers: int = 1
    no_run: str = ""  # if no daemon has begun this run: that, and what to type
    directory: Directory = Directory()
    best_export: BestExport | None = None  # whether its files are whole was not checked
    lease_seconds: float = 10.0  # a node whose heartbeat has not changed for this long is gone
    beat: float = 2.0  # between two heartbeats of a node
    wall: float = 0.0  # the time of the observation, since 1970, by this node's clock
    written_at: dict[str, float] = field(default_factory=dict)  # by node: its file's time, by the storage's clock

    @property
    def proposer(self) -> str | None:
        """Return the node that proposes and publishes: the first worker that is known to be alive."""
        return publisher(self._ready)

    @property
    def left_out(self) -> dict[str, LeftOut]:
        """Return the live nodes that take part in no evaluation, or not in all of them, each with the reason."""
        return left_out(self._ready, self.history, None, self.min_workers)

    @property
    def _ready(self) -> list[Heartbeat]:
        return ready_workers(observed.heartbeat for observed in self.members if observed.fresh(self.lease_seconds))

    @property
    def verdicts(self) -> dict[str, int]:
        """Return the number of checkpoints by how they ended. A requeued checkpoint has not ended."""
        ends = Counter(self.history.verdicts.settled[key] for key in self.history.verdicts.without_result)
        others = {
            verdict: ends[verdict] for verdict in (Verdict.FAILED, Verdict.SKIPPED, Verdict.VANISHED, Verdict.CORRUPT)
        }
        return {"evaluated": len(self.history.verdicts.succeeded)} | others

    @property
    def tasks(self) -> dict[str, list[str]]:
        """Return the nodes that run each version of the task, by its digest."""
        nodes_of_task: dict[str, list[str]] = {}
        for heartbeat in (observed.heartbeat for observed in self.members if not observed.left):
            if heartbeat.task is not None:
                nodes_of_task.setdefault(heartbeat.task, []).append(heartbeat.node)
        return nodes_of_task

    @property
    def phase(self) -> str | None:
        """Return the phase of the open plan's slowest worker; None if no heartbeat reports a phase."""
        plan = self.history.open
        phases = [
            progress.phase
            for observed in self.members
            if plan is not None and observed.heartbeat.journal.plan == plan.plan
            for progress in observed.heartbeat.doing or ()
        ]
        slowest = min(phases, key=lambda phase: _RANKS.get(phase, len(_RANKS)), default=None)
        return "publish" if slowest == WorkerPhase.IDLE else slowest  # every worker is done

    @property
    def finished(self) -> list[FinishedSet]:
        """Return the eval sets of the open plan that are finished while others are evaluated, each once."""
        plan = None if self.history.open is None else self.history.open.plan
        found = (each for observed in self.members for each in observed.heartbeat.finished_in(plan))
        return list({each.eval_set: each for each in found}.values())

    def attempts(self, checkpoint: Checkpoint) -> int:
        """Return how many attempts at a checkpoint have failed, with any task."""
        return sum(map(len, self.history.verdicts.failures.get(checkpoint.key, {}).values()))


@dataclass(eq=False)
class RunObserver:
    """Read the status of a run. Methods may block for as long as the storage does; `StorageTimeout` bounds that."""

    storage: Storage
    catalog: Catalog
    clock: Clock
    _: KW_ONLY
    lease_seconds: float
    written_at: Callable[[str], float | None] = lambda _: None
    trusted_seconds: float | None = None  # a node lives if its file is at most so old by this clock; None: who changes
    no_run: Callable[[], str] = str
    busy: Callable[[Collection[str]], str] = lambda _: ""
    selection: Selection = field(default_factory=Selection)
    starts_new: bool = False  # a first daemon skips the checkpoints that are there
    min_workers: int = 1
    beat_seconds: float = 2.0
    place: str = ""
    best_export: Callable[[], BestExport | None] = lambda: None
    backup: "Callable[[], Own | None]" = lambda: None
    _reader: "RunReader | None" = None  # None: no run was found yet

    def collect(self) -> RunStatus:
        """Read everything that is new, and return the status. Raises `StorageError` if storage does not answer."""
        scan = self.catalog.scan()
        complete = [discovered.checkpoint for discovered in scan.found]
        if not self.observe_members():
            directory = Directory(self.place, scan.missing)
            choice = self.selection.choose(complete, JournalState())
            return RunStatus(
                run_id=None,
                directory=directory,
                queue=() if self.starts_new else choice.evaluate,
                incomplete=scan.waiting,
                no_run=self.no_run(),
            )
        assert self._reader is not None
        self._reader.read_journal()
        history, task = self._reader.history, self._reader.task(self.lease_seconds)
        choice = self.selection.choose(pending(history, complete, task), history)
        members = tuple(self._reader.nodes)
        return RunStatus(
            run_id=self._reader.run_id,
            history=history,
            members=members,
            unread=self._reader.unread,
            queue=choice.evaluate,
            incomplete=scan.waiting,
            unknown={**scan.unknown, **not_looked_for(scan, history, self._live(members))},
            min_workers=self.min_workers,
            directory=Directory(self.place, scan.missing, self.busy(_nodes(history)), self.backup()),
            best_export=self.best_export(),
            lease_seconds=self.lease_seconds,
            beat=self.beat_seconds,
            wall=self.clock.wall(),
            written_at=self._reader.written,
        )

    def observe_members(self) -> bool:
        """Read the heartbeats. Return False if there is no run yet."""
        run = read_run(self.storage)
        if self._reader is None or run != self._reader.run_id:  # the first call, or a new run began in the directory
            self._reader = None if run is None else RunReader.begin(self.storage, run)
            if self._reader is not None:
                self._reader.read_journal()  # before the heartbeats, which a `ReadAhead` brings with it
        if self._reader is None:
            return False
        times = self.clock.now(), self.clock.wall()
        self._reader.read_heartbeats(*times, self.trusted_seconds, self.lease_seconds, self.written_at)
        return True

    def _live(self, members: Iterable[ObservedNode]) -> list[Heartbeat]:
        return [observed.heartbeat for observed in members if observed.fresh(self.lease_seconds)]

    def unknown_nodes(self) -> list[str]:
        """Return the nodes for which one more reading of the heartbeats may show whether they are alive."""
        return [] if self._reader is None else self._reader.nodes.unknown()


def _nodes(history: JournalState) -> set[str]:
    """Return the nodes of the open plan."""
    return set() if history.open is None else {member.node for member in history.open.members or ()}


def not_looked_for(scan: ScanResult, history: JournalState, live: Iterable[Heartbeat]) -> dict[str, str]:
    """Return the checkpoints that live daemons find while this command finds none of them, each with the reason.

    Most likely the daemons were given settings, such as `checkpoint_pattern`, that this command was not given.
    """
    seen = {name for heartbeat in live for name in heartbeat.checkpoints.sees}
    if scan.missing or not seen.isdisjoint(found.checkpoint.folder for found in scan.found):
        return {}
    return dict.fromkeys(sorted(history.verdicts.never_settled(seen).difference(scan.unknown)), _NOT_LOOKED_FOR)


def observe_for(observer: RunObserver, seconds: float, pause: Callable[[float], None]) -> None:
    """Read heartbeats until each node is known to be alive or not, for `seconds` at most.

    Raises `StorageError` if storage does not answer.
    """
    until = observer.clock.now() + seconds
    while observer.observe_members() and observer.unknown_nodes() and observer.clock.now() < until:
        pause(_READING_SECONDS)


def file_times(root: Path) -> Callable[[str], float | None]:
    """Return a function from a path to the time of its last write, or None: since 1970, by the storage's clock."""

    def written_at(path: str) -> float | None:
        try:
            return (root / path).stat().st_mtime
        except OSError:
            return None

    return written_at


@dataclass(slots=True, eq=False)
class RunReader:
    """Hold what was read of one run so far. Every method may block for as long as the storage does."""

    run_id: str
    history: JournalState  # the state of the journal
    _journal: Journal  # read up to `history`
    _heartbeats: Heartbeats
    nodes: ObservedNodes = field(default_factory=ObservedNodes)
    unread: dict[str, str] = field(default_factory=dict)  # by node: why its file gave no heartbeat
    written: dict[str, float] = field(default_factory=dict)  # by node: its file's time, by the storage's clock

    @classmethod
    def begin(cls, storage: Storage, run_id: str) -> Self:
        """Begin to read a run, from its snapshot if there is one. Raises `StorageError` if storage does not answer."""
        journal = Journal(storage, run_id)
        history = snapshot_store.resume(storage, journal) or JournalState()
        return cls(run_id, history, journal, Heartbeats(storage, run_id))

    def read_heartbeats(
        self,
        now: float,
        wall: float = 0.0,
        trusted_seconds: float | None = None,
        lease_seconds: float = 0.0,
        written_at: Callable[[str], float | None] = lambda _: None,
    ) -> None:
        """Read all heartbeats; `now` is the time of the reader's clock.

        `wall`: the time since 1970. `trusted_seconds`: as in `telling_ages`; None if the times of files tell nothing.
        `written_at`: returns the time of a file that the storage does not list.
        """
        reading = self._heartbeats.read_all()
        self.unread = reading.unread
        self.written = self._heartbeats.written()
        for node in reading.nodes - self.written.keys():
            if (at := written_at(heartbeat_path(node))) is not None:
                self.written[node] = at
        ages = {}
        if trusted_seconds is not None:
            ages = telling_ages(self.written, wall, trusted_seconds, lease_seconds)
        self.nodes.update(reading, now, ages)

    def read_journal(self) -> None:
        """Read the journal on to its end."""
        for record in self._journal.read_to_end():
            self.history.apply(record)

    def task(self, lease_seconds: float) -> str | None:
        """Return the task whose settlements count: that of a live node, else of a node that was there."""
        with_task = [observed for observed in self.nodes if observed.heartbeat.task is not None]
        alive = [observed for observed in with_task if observed.fresh(lease_seconds)]
        return next((observed.heartbeat.task for observed in (*alive, *with_task)), None)
