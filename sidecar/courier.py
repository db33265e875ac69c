"""The one thread that touches shared storage: the daemon's loop hands it a request, it answers by message.

So storage that hangs blocks this thread and nothing else. It carries out what it is told and decides nothing: what it
pins and lets go is what the request says is wanted.
"""

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from sidecar.agreement.journal import Journal, check_run, open_run
from sidecar.agreement.members import Members, Reading
from sidecar.agreement.storage import Storage
from sidecar.checkpoints.catalog import Catalog, Found, Look
from sidecar.checkpoints.pin import clean, pin, pins_bytes, unpin
from sidecar.checkpoints.watch import Watch
from sidecar.clock import Clock
from sidecar.errors import IncompleteError, RecordError, SidecarError, VanishedError
from sidecar.history import Closed, Key
from sidecar.records import Heartbeat, Outcome, Plan, Settlement
from sidecar.retention import Tidying

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


@dataclass(frozen=True, slots=True)
class CreatePlan:
    """Create the next plan, if nobody did."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class CreateOutcome:
    """Create the outcome of the open plan, if nobody did."""

    outcome: Outcome


Request = Open | Visit | CreatePlan | CreateOutcome


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request brought. With an `error` the rest may be missing."""

    request: Request
    run: str | None = None
    entries: tuple[Plan | Outcome, ...] = ()
    more: bool = False  # the journal goes on
    reading: Reading | None = None
    look: Look | None = None
    given_up: tuple[Settlement, ...] = ()
    pins_bytes: int | None = None
    saves_bytes: int | None = None
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
    _requests: "SimpleQueue[Request | None]" = field(default_factory=SimpleQueue)
    _journal: Journal | None = None
    _members: Members | None = None
    _thread: threading.Thread | None = None
    _pins_changed: bool = True

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
            if isinstance(request, Open):
                return Answer(request, run=self._open())
            if isinstance(request, Visit):
                return self._visit(request)
            return self._create(request)
        except SidecarError as error:
            return Answer(request, error=error)

    def _open(self) -> str:
        run = open_run(self.storage, self.clock.wall())
        self._journal, self._members = Journal(self.storage, run), Members(self.storage, run)
        clean(self._pins, clock=self.clock)
        return run

    def _visit(self, visit: Visit) -> Answer:
        assert self._journal is not None
        assert self._members is not None
        check_run(self.storage, self._journal.run)
        self._members.write(visit.heartbeat)
        entries = self._read()
        reading = self._members.read_all()
        self._tidy(visit.tidying)
        look, given_up = self._look(visit) if visit.look else (None, ())
        return Answer(
            visit,
            entries=entries,
            more=len(entries) == _RECORDS_PER_ANSWER,
            reading=reading,
            look=look,
            given_up=given_up,
            pins_bytes=self._measure_pins() if look is not None else None,
            saves_bytes=self._measure_saves(visit.tidying.measure) if visit.tidying.measure else None,
            watch_problem=self.watch.problem if self.watch is not None else None,
        )

    def _create(self, request: CreatePlan | CreateOutcome) -> Answer:
        """Create a record and read what stands there now: it may be another's."""
        assert self._journal is not None
        expected = request.plan.plan if isinstance(request, CreatePlan) else request.outcome.plan
        entries = self._read()  # what others wrote meanwhile decides first
        if entries:
            return Answer(request, entries=entries)
        if isinstance(request, CreatePlan) and self._journal.through + 1 == expected and self._journal.open is None:
            self._journal.propose(request.plan)
        elif isinstance(request, CreateOutcome) and self._journal.open and self._journal.open.plan == expected:
            plan = self._journal.open
            if self._journal.close(request.outcome) and request.outcome.status == "succeeded":
                self._journal.write_result(Closed(plan, request.outcome))
        return Answer(request, entries=self._read())

    def _read(self) -> tuple[Plan | Outcome, ...]:
        assert self._journal is not None
        return tuple(self._journal.read_new(_RECORDS_PER_ANSWER))

    def _look(self, visit: Visit) -> tuple[Look, tuple[Settlement, ...]]:
        """Pin what is wanted, let go what is not; returns what is found now and what was lost on the way."""
        if self.watch is not None:
            self.watch.ensure()
        look = self.catalog.look()
        found: list[Found] = []
        lost = list(look.corrupt)
        for each in look.found:
            wanted = visit.is_wanted(each.checkpoint.key)
            pinned = each.checkpoint.pin is not None
            try:
                if wanted and not pinned:
                    found.append(pin(each, self._pins))
                    self._pins_changed = True
                elif pinned and not wanted:
                    unpin(each.checkpoint, self._pins)
                    self._pins_changed = True
                else:
                    found.append(each)
            except VanishedError as error:
                checkpoint = each.checkpoint
                lost.append(Settlement(checkpoint.name, checkpoint.digest, checkpoint.step, "vanished", str(error)))
            except IncompleteError:
                continue  # it changed while it was pinned: the next look finds what it became
        return replace(look, found=tuple(found)), tuple(lost)

    def _tidy(self, tidying: Tidying) -> None:
        """Remove what failed plans left, and weights that are no longer kept. Metric states stay for ever."""
        for folder in tidying.drop:
            shutil.rmtree(self._inside(folder), ignore_errors=True)
        for folder in tidying.drop_weights:
            for path in self._inside(folder).glob("worker-*/weights*"):
                path.unlink(missing_ok=True)

    def _measure_pins(self) -> int | None:
        if not self._pins_changed:
            return None
        self._pins_changed = False
        return pins_bytes(self._pins)

    def _measure_saves(self, folders: tuple[str, ...]) -> int:
        files = (path for folder in folders for path in self._inside(folder).glob("worker-*/*"))
        return sum(path.stat().st_size for path in files if path.is_file())

    @property
    def _pins(self) -> Path:
        return self.root / "pins"

    def _inside(self, folder: str) -> Path:
        """A folder of the state directory; a record that points out of it is refused."""
        path = (self.root / folder).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise RecordError(f"{folder!r} leaves the state directory")
        return path
