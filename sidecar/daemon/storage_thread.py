"""The one thread that touches shared storage: the daemon's loop hands it a request, it answers by message.

So storage that hangs blocks this thread and nothing else. It carries out what it is told and decides nothing. It speaks
with the journal and the members; what lies in folders is the keeper's. Whatever goes wrong is part of the answer.
"""

import contextlib
import errno
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Final

from sidecar.artifacts.retention import CleanupRequest, CleanupResult
from sidecar.bounded_calls import Calls, HangingError, call_directly
from sidecar.checkpoints.scan import ScanResult
from sidecar.clock import Clock
from sidecar.coordination import snapshot_store
from sidecar.coordination.dormant_heartbeats import DORMANT_SECONDS
from sidecar.coordination.heartbeats import HeartbeatReadings, Heartbeats
from sidecar.coordination.journal import Journal
from sidecar.coordination.journal_state import Closed, JournalState
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
from sidecar.pins.policy import PinPolicy
from sidecar.pins.reconciler import PinReconciler
from sidecar.records import Heartbeat, Key, Outcome, Plan, Settlement
from sidecar.states import NodeState, OutcomeStatus

_SCAN: Final = "scan"
_RECORDS_PER_ANSWER: Final = 1000  # a long journal is read in pieces, between which the loop shows that it lives


@dataclass(frozen=True, slots=True)
class JoinRun:
    """Join the run whose state directory this is, or create it."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Write the heartbeat, read the journal on, look at members and, if asked to, at checkpoints."""

    heartbeat: Heartbeat
    scan: bool
    pin_policy: PinPolicy
    tidying: CleanupRequest
    snapshot: Snapshot | None = None  # to be written


@dataclass(frozen=True, slots=True)
class PollJournal:
    """Read the journal on."""


@dataclass(frozen=True, slots=True)
class CreatePlan:
    """Create the next plan, if nobody did."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class CreateOutcome:
    """Create the outcome of the open plan, if nobody did."""

    outcome: Outcome


Request = JoinRun | Sync | PollJournal | CreatePlan | CreateOutcome


@dataclass(frozen=True, slots=True)
class Response:
    """What a request brought. With an `error` the rest may be missing, but records that were read never are."""

    request: Request
    run: str | None = None  # of `JoinRun`; None: there is no checkpoint directory yet
    history: JournalState | None = (
        None  # of `JoinRun`: what the journal said until a snapshot was taken; its records follow
    )
    entries: tuple[Plan | Outcome, ...] = ()
    more: bool = False  # the journal goes on
    unread: bool = False  # the journal cannot be read on, as `error` says; the rest of a visit is there
    reading: HeartbeatReadings | None = None
    scan: ScanResult | None = None
    given_up: tuple[Settlement, ...] = ()
    pins_bytes: int | None = None
    tidied: CleanupResult | None = None  # what came of `Sync.tidying`, once it was tried
    trouble: tuple[str, ...] = ()  # with views and saves, on which nothing rests, as sentences
    watch_problem: str | None = None
    no_room: Mapping[Key, str] = field(default_factory=dict)  # what could not be pinned, and why
    done: bool = False  # the trainer's marker is there
    scanning: bool = False  # the scan that was asked for, or the one before, has not come to an end
    error: SidecarError | None = None


def _is_full(error: StorageError) -> bool:
    """Whether it is for want of room that nothing can be written, or as the storage can only be read now."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(slots=True)
class StorageThread:
    """Owns storage: agreement and checkpoints on one side, two queues on the other."""

    storage: Storage
    reconciler: PinReconciler
    clock: Clock
    post: Callable[[Response], None]
    new_id: Callable[[], str] = lambda: secrets.token_hex(16)
    dormant_seconds: float = DORMANT_SECONDS
    place: StateDirectory | None = None  # None: where the state lies is not known, so a run that is gone was deleted
    visibility_seconds: float = 60.0
    calls: Calls = call_directly  # reads members' files, of which one may hang
    views: Calls = call_directly  # writes what nothing rests on, and removes what is left over
    scans: Calls = call_directly  # makes the keeper's, one at a time
    _requests: "SimpleQueue[Request | None]" = field(default_factory=SimpleQueue)
    _journal: Journal | None = None
    _members: Heartbeats | None = None
    _leftovers: UnfinishedWrites | None = None
    _grace: GracePeriod = field(init=False)
    _thread: threading.Thread | None = None
    _read: list[Plan | Outcome] = field(default_factory=list)  # not yet part of an answer
    _success: Closed | None = None  # the newest, until its view is there

    def __post_init__(self) -> None:
        self._grace = GracePeriod(self.visibility_seconds, self.clock)

    def start(self) -> None:
        """Begin to carry."""
        self._thread = threading.Thread(target=self._run, name="storage", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Hand over a request; exactly one answer will be posted for it."""
        self._requests.put(request)

    def close(self, seconds: float) -> None:
        """Finish what was handed over, if storage lets it."""
        self._requests.put(None)
        if self._thread is not None:
            self._thread.join(seconds)
        self.reconciler.close()

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            self.post(self.answer(request))

    def answer(self, request: Request) -> Response:
        """Carry out one request; errors are part of the answer."""
        try:
            answer = self._carry_out(request)
        except SidecarError as error:
            answer = Response(request, error=error)
        except OSError as error:
            answer = Response(request, error=StorageError(f"shared storage failed: {error}"))
        except Exception as error:  # noqa: BLE001 - else this thread would end, and the daemon wait for it for ever
            unknown = SidecarError(
                f"{type(request).__name__} failed, please report it: {type(error).__name__}: {error}"
            )
            answer = Response(request, error=unknown)
        if not self._read:
            return answer
        entries, self._read = tuple(self._read), []
        return replace(answer, entries=entries)

    def _carry_out(self, request: Request) -> Response:
        if isinstance(request, JoinRun):
            return self._open(request)
        if isinstance(request, Sync):
            return self._visit(request)
        if isinstance(request, PollJournal):
            self._read_on()
            return Response(request)
        return self._create(request)

    def _open(self, request: JoinRun) -> Response:
        """Join. A state directory inside a checkpoint directory that is not there yet must not create that."""
        if self._has_no_place():
            return Response(request)
        if self.place is not None and find_run(self.storage, self._grace) is None:
            self.place.check_beginning()
        seen_as = None if self.place is None else str(self.place.checkpoint_dir)
        run = open_run(self.storage, self.clock.wall(), checkpoint_dir=seen_as, grace=self._grace, new_id=self.new_id)
        if self.place is not None and (found := find_run(self.storage, self._grace)) is not None:
            self.place.join(found)
        self._journal, self._leftovers = Journal(self.storage, run, self._grace), UnfinishedWrites(self.storage)
        self._members = Heartbeats(self.storage, run, dormant_seconds=self.dormant_seconds, calls=self.calls)
        return Response(request, run=run, history=snapshot_store.resume(self.storage, self._journal, self.calls))

    def _visit(self, visit: Sync) -> Response:
        """Say that this node lives and hear of the others first; whatever fails after that does not hide it.

        That holds for a journal that cannot be read on as well: what is held against deletion must not wait for it.
        Where a newer release wrote it, nothing is held or let go any more: that release may know better.
        """
        assert self._journal is not None
        assert self._members is not None
        self._check_place(self._journal.run)
        try:
            self._members.write(visit.heartbeat)
        except StorageError as error:
            if _is_full(error):
                self._make_room(visit)
            raise
        more, unread = False, None
        try:
            more = self._read_on() == _RECORDS_PER_ANSWER or not self._journal.reaches_end()
        except SidecarError as error:
            unread = error
        trouble = [self._write_view(), self._write_snapshot(visit.snapshot)]
        reading = self._members.look(now := self.clock.now())
        answer = Response(visit, more=more, unread=unread is not None, reading=reading, error=unread)
        if isinstance(unread, NewerSchemaError):
            return answer
        self._sweep(now)
        tidied = self.reconciler.tidy(visit.tidying)
        trouble += [*tidied.failed.values(), *tidied.unmeasured]
        answer = replace(answer, tidied=tidied, trouble=tuple(each for each in trouble if each is not None))
        try:
            return self._scan(visit, answer) if visit.scan else answer
        except SidecarError as error:
            return replace(answer, error=unread or error)
        except OSError as error:
            return replace(answer, error=unread or StorageError(f"shared storage failed: {error}"))

    def _make_room(self, visit: Sync) -> None:
        """Let go what the journal has settled, as nothing can be written; not before all of it is read and known.

        A daemon that was started on a full disk does so, too, though it is told to look at nothing yet.
        """
        if self._read_on() == 0 and visit.heartbeat.role == "worker":
            with contextlib.suppress(HangingError):  # the scan that is going on comes first
                self.scans("unpin", partial(self.reconciler.unpin, visit.pin_policy.of_the_journal()))

    def _create(self, request: CreatePlan | CreateOutcome) -> Response:
        """Create a record and read what stands there now: it may be another's."""
        assert self._journal is not None
        self._check_place(self._journal.run)
        expected = request.plan.plan if isinstance(request, CreatePlan) else request.outcome.plan
        if self._read_on():  # what others wrote meanwhile decides first
            return Response(request)
        if isinstance(request, CreatePlan) and self._journal.through + 1 == expected and self._journal.open is None:
            self._journal.propose(request.plan)
        elif isinstance(request, CreateOutcome) and self._journal.open and self._journal.open.plan == expected:
            self._journal.close(request.outcome)
        self._read_on()
        return Response(request)

    def _check_place(self, run: str) -> None:
        """Raise `StateUnavailableError` if the run is not there, `RunReplacedError` if it will not come back.

        It may be unmounted for a while; and nothing may be written then, as that would create it.
        """
        found = read_run(self.storage, self._grace)
        if found == run:
            if self.place is not None:
                self.place.stands()
            return
        if found is None and self._has_no_place():
            reason = "the checkpoint directory is gone, and this run's state with it: waiting until it is back"
            raise StateUnavailableError(reason)
        if self.place is None:
            raise RunReplacedError(f"the state directory of run {run} was deleted or replaced")
        raise self.place.lost(run, found)

    def _read_on(self) -> int:
        """Read the journal on; returns how many records there were."""
        assert self._journal is not None
        plan = self._journal.open
        records = self._journal.read_new(_RECORDS_PER_ANSWER)
        self._read += records
        for record in records:
            if isinstance(record, Plan):
                plan = record
            elif record.status == OutcomeStatus.SUCCEEDED and plan is not None:
                self._success = Closed(plan, record)
        return len(records)

    def _write_view(self) -> str | None:
        """See to the view of the newest result: its writer may have died before that. No gauge waits for it.

        Returns why that failed: it is only a view, and the next visit tries again.
        """
        if self._journal is not None and self._success is not None:
            try:
                written = self.views("view", partial(_write_result, self._journal, self._success))
            except (RecordError, StorageError, HangingError) as error:
                return str(error)
            if written is self._success:
                self._success = None
        return None

    def _write_snapshot(self, snapshot: Snapshot | None) -> str | None:
        """Put a snapshot where daemons look that start, if one is due; returns why that failed."""
        if snapshot is None:
            return None
        try:
            return self.views("snapshot", partial(snapshot_store.write, self.storage, snapshot))
        except HangingError as error:
            return str(error)

    def _sweep(self, now: float) -> None:
        """Remove what killed writers left."""
        assert self._members is not None
        if self._leftovers is not None:
            with contextlib.suppress(HangingError):
                self.views("sweep", partial(self._leftovers.sweep, now, self._members.storage_time(now)))

    def _has_no_place(self) -> bool:
        try:
            return self.scans("place", self.reconciler.has_no_place)
        except HangingError as error:
            raise StateUnavailableError(f"the state directory cannot be looked for: {error.strerror}") from error

    def _scan(self, visit: Sync, answer: Response) -> Response:
        """Add what the keeper finds and what it lost on the way."""
        leaving = visit.heartbeat.state == NodeState.LEFT  # there is no later scan that could let go
        try:
            found = self.scans(_SCAN, partial(self.reconciler.scan, visit.pin_policy, leaving=leaving))
        except HangingError:
            return replace(answer, scanning=True)
        return replace(
            answer,
            scan=found.scan,
            given_up=found.given_up,
            pins_bytes=found.pins_bytes,
            watch_problem=found.watch_problem,
            no_room=found.no_room,
            done=found.done,
        )


def _write_result(journal: Journal, success: Closed) -> Closed:
    """Write the view of a success; returns which it was, since that may have come to an end late."""
    journal.write_result(success)
    return success
