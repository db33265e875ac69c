"""The one thread that touches shared storage: the daemon's loop hands it a request, it answers by message.

So storage that hangs blocks this thread and nothing else. It carries out what it is told and decides nothing: what it
pins and lets go is what the request says is wanted. Whatever goes wrong is part of the answer.
"""

import contextlib
import shutil
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from sidecar.agreement import snapshots
from sidecar.agreement.journal import Journal, check_run, open_run
from sidecar.agreement.members import Members, Reading
from sidecar.agreement.storage import Storage
from sidecar.checkpoints.catalog import Catalog, Found, Look
from sidecar.checkpoints.pin import clean, pins_bytes, unpin
from sidecar.checkpoints.watch import Watch
from sidecar.clock import Clock
from sidecar.daemon.pinner import Pinner
from sidecar.daemon.retention import Tidying
from sidecar.errors import IncompleteError, RecordError, SidecarError, StorageError, VanishedError
from sidecar.history import Closed, History
from sidecar.records import Heartbeat, Key, Outcome, Plan, Settlement
from sidecar.snapshot import Snapshot

_ABANDONED_SECONDS: Final = 86400.0  # another daemon may still copy into a pin that is younger than a day
_STATES: Final = "states.json"  # what a worker found: small, and kept for ever
_RECORDS_PER_ANSWER: Final = 1000  # a long journal is read in pieces, between which the loop shows that it lives


@dataclass(frozen=True, slots=True)
class Open:
    """Join the run whose state directory this is, or create it."""


@dataclass(frozen=True, slots=True)
class Visit:
    """Write the heartbeat, read the journal on, look at members and, if asked to, at checkpoints."""

    heartbeat: Heartbeat
    look: bool
    is_wanted: Callable[[Key], bool]  # called from the courier's thread; it only looks things up
    tidying: Tidying
    snapshot: Snapshot | None = None  # to be written


@dataclass(frozen=True, slots=True)
class Listen:
    """Read the journal on."""


@dataclass(frozen=True, slots=True)
class CreatePlan:
    """Create the next plan, if nobody did."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class CreateOutcome:
    """Create the outcome of the open plan, if nobody did."""

    outcome: Outcome


Request = Open | Visit | Listen | CreatePlan | CreateOutcome


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request brought. With an `error` the rest may be missing, but records that were read never are."""

    request: Request
    run: str | None = None  # of `Open`; None: there is no checkpoint directory yet
    history: History | None = None  # of `Open`: what the journal said until a snapshot was taken; its records follow
    entries: tuple[Plan | Outcome, ...] = ()
    more: bool = False  # the journal goes on
    reading: Reading | None = None
    look: Look | None = None
    given_up: tuple[Settlement, ...] = ()
    pins_bytes: int | None = None
    saves_bytes: Mapping[str, int] = field(default_factory=dict)  # of the folders that were to be measured
    watch_problem: str | None = None
    error: SidecarError | None = None


@dataclass(slots=True)
class Courier:
    """Owns storage: agreement and checkpoints on one side, two queues on the other."""

    storage: Storage
    root: Path  # the run's state directory
    catalog: Catalog
    watch: Watch | None  # None: this node does not look at checkpoints
    clock: Clock
    post: Callable[[Answer], None]
    pin_max_bytes: int | None = None
    _requests: "SimpleQueue[Request | None]" = field(default_factory=SimpleQueue)
    _journal: Journal | None = None
    _members: Members | None = None
    _thread: threading.Thread | None = None
    _pins_changed: bool = True
    # Pins in the last look: a node that just came may want them, so they go in the next.
    _unwanted: set[Key] = field(default_factory=set)
    _read: list[Plan | Outcome] = field(default_factory=list)  # not yet part of an answer
    _success: Closed | None = None  # the newest, until its view is there
    _pinner: Pinner = field(init=False)

    def __post_init__(self) -> None:
        self._pinner = Pinner(self._pins)

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
        if self.watch is not None:
            self.watch.stop()

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            self.post(self.answer(request))

    def answer(self, request: Request) -> Answer:
        """Carry out one request; errors are part of the answer."""
        try:
            answer = self._carry_out(request)
        except SidecarError as error:
            answer = Answer(request, error=error)
        except OSError as error:
            answer = Answer(request, error=StorageError(f"shared storage failed: {error}"))
        except Exception as error:  # noqa: BLE001 - else this thread would end, and the daemon wait for it for ever
            unknown = SidecarError(
                f"{type(request).__name__} failed, please report it: {type(error).__name__}: {error}"
            )
            answer = Answer(request, error=unknown)
        entries, self._read = tuple(self._read), []
        return replace(answer, entries=entries)

    def _carry_out(self, request: Request) -> Answer:
        if isinstance(request, Open):
            return self._open(request)
        if isinstance(request, Visit):
            return self._visit(request)
        if isinstance(request, Listen):
            self._read_on()
            return Answer(request)
        return self._create(request)

    def _open(self, request: Open) -> Answer:
        """Join. A state directory inside a checkpoint directory that is not there yet must not create that."""
        if not self.root.is_dir():
            with contextlib.suppress(StorageError):  # what is in the way is explained by who writes there
                if self.catalog.look().missing:
                    return Answer(request)
        run = open_run(self.storage, self.clock.wall())
        self._journal, self._members = Journal(self.storage, run), Members(self.storage, run)
        clean(self._pins, older_than_seconds=_ABANDONED_SECONDS, clock=self.clock)
        return Answer(request, run=run, history=snapshots.resume(self.storage, self._journal))

    def _visit(self, visit: Visit) -> Answer:
        """Say that this node lives and hear of the others first; whatever fails after that does not hide it."""
        assert self._journal is not None
        assert self._members is not None
        check_run(self.storage, self._journal.run)
        self._members.write(visit.heartbeat)
        more = self._read_on() == _RECORDS_PER_ANSWER
        self._write_view()
        if visit.snapshot is not None:
            snapshots.write(self.storage, visit.snapshot)
        answer = Answer(visit, more=more, reading=self._members.read_all())
        try:
            answer = replace(answer, saves_bytes=self._tidy(visit.tidying))
            return self._look(visit, answer) if visit.look else answer
        except SidecarError as error:
            return replace(answer, error=error)
        except OSError as error:
            return replace(answer, error=StorageError(f"shared storage failed: {error}"))

    def _create(self, request: CreatePlan | CreateOutcome) -> Answer:
        """Create a record and read what stands there now: it may be another's."""
        assert self._journal is not None
        expected = request.plan.plan if isinstance(request, CreatePlan) else request.outcome.plan
        if self._read_on():  # what others wrote meanwhile decides first
            return Answer(request)
        if isinstance(request, CreatePlan) and self._journal.through + 1 == expected and self._journal.open is None:
            self._journal.propose(request.plan)
        elif isinstance(request, CreateOutcome) and self._journal.open and self._journal.open.plan == expected:
            self._journal.close(request.outcome)
        self._read_on()
        return Answer(request)

    def _read_on(self) -> int:
        """Read the journal on; returns how many records there were."""
        assert self._journal is not None
        plan = self._journal.open
        records = self._journal.read_new(_RECORDS_PER_ANSWER)
        self._read += records
        for record in records:
            if isinstance(record, Plan):
                plan = record
            elif record.status == "succeeded" and plan is not None:
                self._success = Closed(plan, record)
        return len(records)

    def _write_view(self) -> None:
        """See to the view of the newest result: its writer may have died before that. No gauge waits for it."""
        if self._journal is not None and self._success is not None:
            with contextlib.suppress(StorageError):  # it is only a view: the next visit tries again
                self._journal.write_result(self._success)
                self._success = None

    def _look(self, visit: Visit, answer: Answer) -> Answer:
        """Pin what is wanted, let go what is not; adds what is found now and what was lost on the way."""
        if self.watch is not None:
            self.watch.ensure()
        look = self.catalog.look()
        leaving = visit.heartbeat.state == "left"  # there is no later look that could let go
        found: list[Found] = []
        lost, waiting = list(look.corrupt), list(look.waiting)
        for each in look.found:
            checkpoint = each.checkpoint
            wanted, pinned = visit.is_wanted(checkpoint.key), checkpoint.pin is not None
            try:
                if wanted and not pinned and self._has_room(each):
                    held_now = self._pinner.pin(each)
                    found.append(held_now or each)
                    self._pins_changed |= held_now is not None
                elif pinned and not wanted and (leaving or checkpoint.key in self._unwanted):
                    unpin(checkpoint, self._pins)
                    found.append(replace(each, checkpoint=replace(checkpoint, pin=None)))
                    self._pins_changed = True
                else:
                    found.append(each)
            except VanishedError as error:
                lost.append(Settlement(checkpoint.name, checkpoint.digest, checkpoint.step, "vanished", str(error)))
            except IncompleteError as error:  # it changed while it was pinned: the next look finds what it became
                waiting.append((checkpoint.name, str(error)))
        held = {each.checkpoint.key for each in found if each.checkpoint.pin is not None}
        self._unwanted = {key for key in held if not visit.is_wanted(key)}
        return replace(
            answer,
            look=replace(look, found=tuple(found), waiting=tuple(waiting)),
            given_up=tuple(lost),
            pins_bytes=self._measure_pins(),
            watch_problem=self.watch.problem if self.watch is not None else None,
        )

    def _has_room(self, found: Found) -> bool:
        """Whether one more pin stays within the user's bound; the first is held in any case, or nothing would go on."""
        if self.pin_max_bytes is None:
            return True
        held = pins_bytes(self._pins)
        return held == 0 or held + sum(file.size for file in found.files) <= self.pin_max_bytes

    def _tidy(self, tidying: Tidying) -> dict[str, int]:
        """Remove what failed plans left, and what is no longer kept; returns the bytes of what is to be measured.

        Metric states stay for ever. What cannot be removed stays, too: nothing waits for it.
        """
        for folder in tidying.drop:
            shutil.rmtree(self._inside(folder), ignore_errors=True)
        for folder in tidying.thin:
            for path in self._inside(folder).glob("worker-*/*"):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                elif path.name != _STATES:
                    with contextlib.suppress(OSError):
                        path.unlink()
        return {folder: _bytes_below(self._inside(folder)) for folder in tidying.measure}

    def _measure_pins(self) -> int | None:
        if not self._pins_changed:
            return None
        self._pins_changed = False
        return pins_bytes(self._pins)

    @property
    def _pins(self) -> Path:
        return self.root / "pins"

    def _inside(self, folder: str) -> Path:
        """A folder of the state directory; a record that points out of it is refused."""
        path = (self.root / folder).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise RecordError(f"{folder!r} leaves the state directory")
        return path


def _bytes_below(folder: Path) -> int:
    size = 0
    for path in folder.glob("worker-*/**/*"):
        with contextlib.suppress(FileNotFoundError):  # another node tidies, too
            found = path.stat(follow_symlinks=False)
            size += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return size
