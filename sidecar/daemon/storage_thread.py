"""Carry out requests to shared storage in the one thread that touches it, and post a response for each.

So storage that hangs blocks this thread and nothing else. The thread decides nothing. `JoinedRun` reads and writes
journal and heartbeats, the reconciler checkpoints and pins. Errors are part of the response.
"""

import contextlib
import errno
import os
import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Final

from sidecar.checkpoints.subfolder_hint import similar_folder
from sidecar.coordination import snapshot_store
from sidecar.coordination.compaction import Compaction
from sidecar.coordination.heartbeats import Heartbeats, ReadLimits
from sidecar.coordination.journal import Journal
from sidecar.coordination.journal_state import Closed, JournalState
from sidecar.coordination.liveness import HeartbeatReadings
from sidecar.coordination.run import find_run, open_run, read_run
from sidecar.coordination.snapshot import Snapshot
from sidecar.coordination.state_directory import StateDirectory
from sidecar.coordination.storage import Storage
from sidecar.coordination.unfinished_writes import UnfinishedWrites
from sidecar.coordination.unique_names import GracePeriod
from sidecar.errors import (
    NewerSchemaError,
    RecordError,
    RunReplacedError,
    SidecarError,
    StateUnavailableError,
    StorageError,
)
from sidecar.protocol.heartbeat import Heartbeat
from sidecar.protocol.records import Outcome, Plan
from sidecar.protocol.states import NodeState, OutcomeStatus
from sidecar.retention.pins.policy import PinPolicy
from sidecar.retention.pins.reconciler import PinReconciler, Reconciliation
from sidecar.retention.saves.retention import CleanupRequest, CleanupResult
from sidecar.system.bounded_calls import Calls, HangingError, call_directly
from sidecar.system.bucket_folder import BucketFolder, place_of
from sidecar.system.clock import Clock
from sidecar.system.shortages import machine_shortage

_SCAN: Final = "scan"

_MOST_RECORDS: Final = 1000
"""The most records that are read at once. Between the parts of a long journal the loop writes heartbeats."""

_COMPACTION_SECONDS: Final = 0.1
"""The seconds of one step of a compaction, which the other requests of this thread wait for."""

_COMPACTION_PAUSE_SECONDS: Final = 60.0  # after a failure

_CERTAIN_SECONDS: Final = 300.0
"""The seconds for which a state in a bucket counts as present while its listing shows this node's own heartbeat.

Each request costs money there. Before a record is created, the run is read in any case.
"""


@dataclass(slots=True, kw_only=True)
class JoinedRun:
    """Read and write the run that this daemon has joined. `views`: makes calls on which no decision depends."""

    storage: Storage
    journal: Journal
    heartbeats: Heartbeats
    unfinished_writes: UnfinishedWrites
    views: Calls
    compaction: Compaction
    certain_until: float = float("-inf")  # the run, and the end of its journal, were looked at a moment ago
    _compaction_at: float = float("-inf")  # when a failed compaction is tried again
    _compaction_problem: str | None = None
    _snapshot_problem: str | None = None
    _records: list[Plan | Outcome] = field(default_factory=list)  # read, and not yet part of a response
    _success: Closed | None = None  # the newest, until its view is written

    def read_on(self) -> int:
        """Read new records of the journal, and return their number."""
        plan = self.journal.open
        records = self.journal.read_new(_MOST_RECORDS)
        self._records += records
        for record in records:
            if isinstance(record, Plan):
                plan = record
            elif record.status == OutcomeStatus.SUCCEEDED and plan is not None:
                self._success = Closed(plan, record)
        return len(records)

    def read_more(self, *, certain: bool = False) -> bool:
        """Read new records of the journal, and return whether there are more.

        `certain`: where they end needs no proof. It has been proved, and only a thousand later plans can change it.
        """
        return self.read_on() == _MOST_RECORDS or not (certain or self.journal.reaches_end())

    def take_records(self) -> tuple[Plan | Outcome, ...]:
        """Return the records that were read since the last call."""
        records, self._records = tuple(self._records), []
        return records

    def write_view(self) -> str | None:
        """Write the view of the newest result, and return why that failed; None if it did not fail.

        The node that wrote the result may have died before it wrote the view. The next call tries again after a
        failure.
        """
        if self._success is None:
            return None
        try:
            written = self.views("view", partial(_write_result, self.journal, self._success))
        except (RecordError, StorageError, HangingError) as error:
            return str(error)
        if written is self._success:
            self._success = None
        return None

    def write_snapshot(self, snapshot: Snapshot | None) -> str | None:
        """Write a snapshot for daemons that start, if one is due.

        Return why the newest one could not be written; None if it could.
        """
        if snapshot is not None:
            try:
                self._snapshot_problem = self.views("snapshot", partial(snapshot_store.write, self.storage, snapshot))
            except HangingError as error:
                self._snapshot_problem = str(error)
        return self._snapshot_problem

    def compact(self, closed: int | None, clock: Clock) -> str | None:
        """Move old plans into segments for a moment, and return why that failed; None if it did not.

        `closed`: the plans up to this one are closed; None: another node does it, or a plan is open.
        """
        if closed is None or clock.now() < self._compaction_at or not self.compaction.is_due(closed):
            return self._compaction_problem
        end = clock.now() + _COMPACTION_SECONDS
        try:
            self.views("compact", partial(self.compaction.work, closed, lambda: clock.now() >= end))
            self._compaction_problem = None
        except (RecordError, StorageError, HangingError) as error:
            self._compaction_problem = str(error)
            self._compaction_at = clock.now() + _COMPACTION_PAUSE_SECONDS
        return self._compaction_problem

    def remove_unfinished_writes(self, now: float) -> None:
        """Remove the unfinished files of writers that were killed."""
        storage_time = self.heartbeats.storage_time(now)
        with contextlib.suppress(HangingError):
            self.views("sweep", partial(self.unfinished_writes.sweep, now, storage_time))


def _write_result(journal: Journal, success: Closed) -> Closed:
    """Write the view of a success, and return that success, because a call may end late."""
    journal.write_result(success)
    return success


@dataclass(frozen=True, slots=True)
class JoinRun:
    """Join the run in the state directory, or create it. `names_similar`: as of `Sync`."""

    names_similar: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """Write the heartbeat, read new records and the other heartbeats and, if `scan`, scan the checkpoints.

    `noticed`: training says that there is a new one, so the scan is one of everything, and of a bucket at once.
    `tidying`: the saves to remove and to measure. `snapshot`: a snapshot of the journal to write. `attended`: nodes
    whose heartbeats are read before those of others. `closed`: the newest closed plan, if this node moves old ones into
    segments. `names_similar`: search for a name like that of a missing checkpoint directory, which is news then.
    """

    heartbeat: Heartbeat
    scan: bool
    pin_policy: PinPolicy
    tidying: CleanupRequest
    snapshot: Snapshot | None = None
    attended: tuple[str, ...] = ()
    closed: int | None = None
    noticed: bool = False
    names_similar: bool = False


@dataclass(frozen=True, slots=True)
class PollJournal:
    """Read new records of the journal."""


@dataclass(frozen=True, slots=True)
class CreatePlan:
    """Create the next plan, unless another node did."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class CreateOutcome:
    """Create the outcome of the open plan, unless another node did."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class StoreSaves:
    """Upload what this node's workers saved in the open plan, if the state lies in a bucket. Read new records, too."""

    plan: Plan


Request = JoinRun | Sync | PollJournal | CreatePlan | CreateOutcome | StoreSaves


@dataclass(frozen=True, slots=True)
class Joined:
    """Answer `JoinRun`: `history` is the journal's state in its newest snapshot; the records after it follow."""

    run: str
    history: JournalState | None


@dataclass(frozen=True, slots=True)
class DirectoryMissing:
    """Answer `JoinRun`: no run was joined, because there is no checkpoint directory yet.

    `similar`: a question that names a folder beside it, as of `similar_folder`; empty without any.
    """

    similar: str = ""


@dataclass(frozen=True, slots=True)
class RecordsRead:
    """Answer `PollJournal`, `CreatePlan`, `CreateOutcome` and `StoreSaves` by the new records of the journal.

    `stored`: the plan of `StoreSaves`, if the saves of all its workers are in the bucket; else None.
    """

    records: tuple[Plan | Outcome, ...]
    stored: int | None = None


@dataclass(frozen=True, slots=True)
class ScanRunning:
    """Report that the requested scan, or the one before, has not ended."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Hold the result of `Sync.tidying`, and sentences about failures with views and saves.

    No decision depends on `trouble`. `journal_problems` are those sentences which say why the journal grows: a snapshot
    or a segment cannot be written.
    """

    tidied: CleanupResult
    trouble: tuple[str, ...]
    journal_problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """Answer `Sync`: the heartbeat was written, those of other nodes were read, and the rest was tried."""

    request: Sync
    records: tuple[Plan | Outcome, ...]  # records of the journal that were read
    more: bool  # whether the journal has more records
    unread: SidecarError | None  # the error that kept the journal from being read to its end
    reading: HeartbeatReadings  # the heartbeats that were read
    upkeep: Upkeep | None  # what else was done; None: nothing, because a newer release wrote the journal
    # The result of the scan, or its error; None if there was none
    reconciliation: Reconciliation | ScanRunning | SidecarError | None
    similar: str = ""  # if the directory is missing: as of `DirectoryMissing`
    done: bool = False  # whether the trainer's marker exists, on a chief; on other nodes the scan reports that

    @property
    def error(self) -> SidecarError | None:
        """Return the error that matters more: the journal's before the scan's."""
        scan = self.reconciliation
        return self.unread or (scan if isinstance(scan, SidecarError) else None)


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """Answer a request that failed. The records that were read before are not lost."""

    request: Request
    error: SidecarError
    records: tuple[Plan | Outcome, ...]


Response = Joined | DirectoryMissing | RecordsRead | Synced | RequestFailed


@dataclass(frozen=True, slots=True)
class Joining:
    """Mark a storage thread whose daemon has not joined a run yet."""


@dataclass(slots=True, kw_only=True)
class StorageThread:
    """Own the storage. The loop submits requests, and gets one response for each."""

    storage: Storage  # the storage on which the daemons of a run meet
    reconciler: PinReconciler  # scans and pins checkpoints
    clock: Clock
    post: Callable[[Response], None]  # called with each response
    new_id: Callable[[], str] = lambda: secrets.token_hex(16)  # makes ids of runs
    reads: ReadLimits = field(default_factory=ReadLimits)  # how often the heartbeats of others are read
    place: StateDirectory | None = None  # the directory of the state; None: unknown, so a run that is gone was deleted
    visibility_seconds: float = 60.0  # the seconds after which this machine certainly sees a write of another machine
    calls: Calls = call_directly  # makes calls that read heartbeats, and that may hang
    # Makes calls that write views, on which no decision depends, and that remove leftovers
    views: Calls = call_directly
    scans: Calls = call_directly  # makes the reconciler's calls, one at a time
    _requests: "SimpleQueue[Request | None]" = field(default_factory=SimpleQueue)
    membership: Joining | JoinedRun = field(default_factory=Joining)
    _grace: GracePeriod = field(init=False)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._grace = GracePeriod(self.visibility_seconds, self.clock)

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._carry_out_all, name="storage", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Accept a request. Exactly one response will be posted for it."""
        self._requests.put(request)

    def close(self, seconds: float) -> None:
        """Finish the submitted requests within these seconds, unless storage hangs, and stop."""
        self._requests.put(None)
        if self._thread is not None:
            self._thread.join(seconds)
        self.reconciler.close()

    def _carry_out_all(self) -> None:
        """Answer requests until None is received."""
        while (request := self._requests.get()) is not None:
            self.post(self.answer(request))

    def answer(self, request: Request) -> Response:
        """Carry out one request, and return its response, which contains any error."""
        try:
            return self._carry_out(request)
        except SidecarError as known:
            error = known
        except OSError as failure:
            error = _failure(failure)
        except Exception as unknown:  # noqa: BLE001 - else this thread would end, and the daemon would wait for ever
            error = machine_shortage(unknown) or SidecarError(
                f"{type(request).__name__} failed, please report it: {type(unknown).__name__}: {unknown}"
            )
        records = () if isinstance(self.membership, Joining) else self.membership.take_records()
        return RequestFailed(request, error, records)

    def _carry_out(self, request: Request) -> Response:
        """Carry out one request. Raises the error if it fails."""
        if isinstance(request, JoinRun):
            return self._join(request)
        run = self.membership
        if isinstance(run, Joining):
            raise SidecarError(f"{type(request).__name__} was asked for before a run was joined, please report it")
        if isinstance(request, Sync):
            return self._sync(run, request)
        if isinstance(request, PollJournal):
            run.read_on()
        elif isinstance(request, StoreSaves):
            if run.read_on() == 0 and self.reconciler.saves.store(request.plan):
                return RecordsRead(run.take_records(), request.plan.plan)
        else:
            self._create(run, request)
        return RecordsRead(run.take_records())

    def _join(self, request: JoinRun) -> Joined | DirectoryMissing:
        """Join a run, but never create the checkpoint directory in which the state directory lies."""
        if self._has_no_place():
            return DirectoryMissing(self._similar() if request.names_similar else "")
        self.storage.probe()
        if self.place is not None and find_run(self.storage, self._grace) is None:
            self.place.check_beginning()
        checkpoint_dir = None if self.place is None else place_of(self.place.checkpoint_dir)
        run = open_run(
            self.storage, self.clock.wall(), checkpoint_dir=checkpoint_dir, grace=self._grace, new_id=self.new_id
        )
        if self.place is not None and (found := find_run(self.storage, self._grace)) is not None:
            self.place.join(found)
        self.membership = JoinedRun(
            storage=self.storage,
            journal=Journal(self.storage, run, self._grace),
            heartbeats=Heartbeats(self.storage, run, self.reads, self.calls),
            unfinished_writes=UnfinishedWrites(self.storage),
            views=self.views,
            compaction=Compaction(self.storage, run),
        )
        return Joined(run, snapshot_store.resume(self.storage, self.membership.journal, self.calls))

    def _sync(self, run: JoinedRun, sync: Sync) -> Synced:
        """Write and read heartbeats first, so that later failures do not hide this node, and then do all the rest.

        Pins must not wait for a journal that cannot be read, so they are made in spite of that error. But if a newer
        release wrote the journal, nothing is pinned or unpinned any more, because this release may misjudge it.
        """
        certain = run.heartbeats.survey() and self.clock.now() < run.certain_until
        if not certain:
            self._check_place(run)
        try:
            run.heartbeats.write(sync.heartbeat)
        except StorageError as error:
            if _is_full(error):
                self._make_room(run, sync)
            raise
        more, unread = False, None
        try:
            more = run.read_more(certain=certain)
        except SidecarError as error:
            unread = error
        if not certain and unread is None and not more:
            run.certain_until = self.clock.now() + _CERTAIN_SECONDS
        view, snapshot = run.write_view(), run.write_snapshot(sync.snapshot)
        reading = run.heartbeats.read_due(now := self.clock.now(), sync.attended)
        upkeep, reconciliation, similar = None, None, ""
        if not isinstance(unread, NewerSchemaError):
            problems = (snapshot, run.compact(None if unread else sync.closed, self.clock))
            run.remove_unfinished_writes(now)
            tidied = self.reconciler.saves.tidy(sync.tidying)
            trouble = (view, *problems, *tidied.failed.values(), *tidied.unmeasured, tidied.old_failed)
            upkeep = Upkeep(tidied, _present(trouble), _present(problems))
            reconciliation = self._scan(sync) if sync.scan else None
        if sync.names_similar and isinstance(reconciliation, Reconciliation) and reconciliation.scan.missing:
            similar = self._similar()
        return Synced(
            request=sync,
            records=run.take_records(),
            more=more,
            unread=unread,
            reading=reading,
            upkeep=upkeep,
            reconciliation=reconciliation,
            similar=similar,
            done=sync.heartbeat.role == "chief" and self._is_training_done(),
        )

    def _make_room(self, run: JoinedRun, sync: Sync) -> None:
        """Remove the pins that the journal has settled, because nothing can be written, once the whole journal is read.

        A daemon that starts on a full disk does so, too, although its requests include no scan yet.
        """
        if run.read_on() == 0 and sync.heartbeat.role == "worker":
            with contextlib.suppress(HangingError):  # the running scan comes first
                self.scans("unpin", partial(self.reconciler.unpin, sync.pin_policy.of_the_journal()))

    def _create(self, run: JoinedRun, request: CreatePlan | CreateOutcome) -> None:
        """Create a record, and read the record of that number, which may be another node's."""
        self._check_place(run)
        expected = request.plan.plan if isinstance(request, CreatePlan) else request.outcome.plan
        if run.read_on():  # new records of other nodes must be applied before this one is written
            return
        journal = run.journal
        if isinstance(request, CreatePlan) and journal.through + 1 == expected and journal.open is None:
            journal.propose(request.plan)
        elif isinstance(request, CreateOutcome) and journal.open and journal.open.plan == expected:
            journal.close(request.outcome)
        run.read_on()

    def _check_place(self, joined: JoinedRun) -> None:
        """Raise `StateUnavailableError` if the run's state is missing, `RunReplacedError` if it will not come back.

        The directory may be unmounted for a while. Nothing may be written then, because that would create it.
        """
        run, joined.certain_until = joined.journal.run, float("-inf")
        found = read_run(self.storage, self._grace)
        if found == run:
            if self.place is not None:
                self.place.note_present()
            return
        if found is None and self._has_no_place():
            reason = "the checkpoint directory is gone, and this run's state with it: waiting until it is back"
            raise StateUnavailableError(reason)
        if self.place is None:
            raise RunReplacedError(f"the state directory of run {run} was deleted or replaced")
        raise self.place.lost(run, found)

    def _has_no_place(self) -> bool:
        """Return whether the state lies in a checkpoint directory that does not exist yet."""
        try:
            return self.scans("place", self.reconciler.has_no_place)
        except HangingError as error:
            raise StateUnavailableError(f"the state directory cannot be reached: {error.strerror}") from error

    def _similar(self) -> str:
        """Return the question that names a folder with a name like the checkpoint directory's, if there is one."""
        if self.place is None or isinstance(folder := self.place.checkpoint_dir, BucketFolder):
            return ""
        try:
            return self.scans("beside", lambda: similar_folder(folder))
        except HangingError:
            return ""

    def _is_training_done(self) -> bool:
        """Return whether the trainer's marker exists, as far as storage answers."""
        try:
            return self.scans("marker", self.reconciler.is_done)
        except (HangingError, OSError, SidecarError):
            return False

    def _scan(self, sync: Sync) -> Reconciliation | ScanRunning | SidecarError:
        """Scan the checkpoints and pin them. Return the error if that fails, because the rest of the sync is done."""
        leaving = sync.heartbeat.state == NodeState.LEFT  # there is no later scan that could unpin
        try:
            return self.scans(
                _SCAN, partial(self.reconciler.scan, sync.pin_policy, leaving=leaving, noticed=sync.noticed)
            )
        except HangingError:
            return ScanRunning()
        except SidecarError as error:
            return error
        except OSError as error:
            return _failure(error)


def _present(sentences: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sentence for sentence in sentences if sentence is not None)


def _is_full(error: StorageError) -> bool:
    """Return whether nothing can be written because the storage is full or read-only."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def _failure(error: OSError) -> SidecarError:
    """Return what an error of the system means: the machine lacks something, or storage fails."""
    if (lacking := machine_shortage(error)) is not None:
        return lacking
    remedy = ""
    if isinstance(error, PermissionError):
        remedy = f" (user id {os.geteuid()}): run all daemons of a run as one user, or in one group with umask 002"
    return StorageError(f"shared storage failed: {error}{remedy}")
