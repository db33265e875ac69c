"""What one daemon knows: the journal, who else is there, which checkpoints lie in the directory, and since when.

Told by the loop, asked by it: `view` is what the policy decides on, `heartbeat` what others see, `status` what people
see. No I/O and no clock.
"""

from dataclasses import dataclass, field
from typing import Final

from sidecar.agreement.members import Freshness, Reading
from sidecar.checkpoints.catalog import Found, Look
from sidecar.history import Entry, History, Key
from sidecar.policy import View, pending, proposer
from sidecar.records import Checkpoint, Heartbeat, NodeState, Outcome, Plan, Settlement, Slot
from sidecar.roles import RoleDecision
from sidecar.status import Newest, Status, WorkerStatus

_NOTHING: Final = frozenset[str]()


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this daemon is."""

    run: str  # the run's name, as it stands in labels
    node: str
    incarnation: str
    version: str
    role: RoleDecision

    @property
    def workers(self) -> str:
        """What the names of this daemon's workers begin with: unique for all time."""
        return f"{self.node}.{self.incarnation}"


@dataclass(slots=True)
class World:
    """The daemon's knowledge. Times are seconds of its own clock."""

    identity: Identity
    lease: float
    start_new: bool  # checkpoints that were there before the first start do not count
    history: History = field(default_factory=History)
    run: str | None = None  # the run's id
    task: str | None = None  # digest of the task's code
    state: NodeState = "starting"
    caught_up: bool = False  # the journal was read to its end once
    missing: bool = False  # the checkpoint directory does not exist
    pins_bytes: int = 0
    saves_bytes: int = 0
    opened_at: float = 0.0
    groups_formed: int = 0
    found: dict[Key, Found] = field(default_factory=dict)
    _freshness: Freshness = field(init=False)
    _given_up: dict[Key, Settlement] = field(default_factory=dict)
    _unwanted: frozenset[Key] | None = None  # None: no look yet
    _incomplete: bool = False
    _appeared: dict[Key, float] = field(default_factory=dict)  # seconds since 1970, if it was seen to appear
    _undone_since: float | None = None
    _available: frozenset[str] = _NOTHING
    _gathering_since: float = 0.0
    _changed_at: float = 0.0
    _failed_at: dict[Key, float] = field(default_factory=dict)
    _active_at: float = 0.0
    _group: tuple[str, ...] = ()  # the workers of the newest evaluation

    def __post_init__(self) -> None:
        self._freshness = Freshness(self.identity.node, self.lease)

    # -- told ------------------------------------------------------------------------------------------------------

    def fold(self, record: Plan | Outcome, now: float) -> list[Entry]:
        """A record of the journal; returns the entries it made."""
        entries = self.history.apply(record)
        self._active_at = now
        if isinstance(record, Plan):
            for settlement in record.settles:
                self._given_up.pop(settlement.key, None)
            self.opened_at = now
            return entries
        closed = entries[-1]
        assert closed.plan.checkpoint is not None
        if record.status == "failed":
            self._failed_at[closed.plan.checkpoint.key] = now
        else:
            self._failed_at.pop(closed.plan.checkpoint.key, None)
            group = tuple(member.worker for member in closed.plan.members or ())
            self.groups_formed += self.caught_up and group != self._group
            self._group = group
        return entries

    def meet(self, own: Heartbeat, others: Reading, now: float) -> None:
        """The own heartbeat was written, those of others were read."""
        self._freshness.wrote(own, now)
        self._freshness.observe(others, now)

    def see(self, look: Look, given_up: tuple[Settlement, ...], now: float, wall: float) -> list[Found]:
        """The checkpoint directory was looked at; returns what is new there and needs an evaluation."""
        first = self._unwanted is None
        new = [found for found in look.found if found.checkpoint.key not in self.found]
        if new:
            self._active_at = now
        if first:
            fresh_run = self.start_new and self.history.through == 0
            self._unwanted = frozenset(found.checkpoint.key for found in new) if fresh_run else frozenset()
        else:
            self._appeared |= {found.checkpoint.key: wall for found in new}
        self.found = {found.checkpoint.key: found for found in look.found}
        self._given_up |= {settlement.key: settlement for settlement in given_up}
        self.missing, self._incomplete = look.missing, bool(look.waiting)
        return [found for found in new if not self.history.is_settled(found.checkpoint.key, self.task)]

    # -- asked -----------------------------------------------------------------------------------------------------

    @property
    def looked(self) -> bool:
        """Whether the checkpoint directory was looked at."""
        return self._unwanted is not None

    def detected_after(self, key: Key) -> float | None:
        """Seconds from the last write of a checkpoint to its being seen complete; None if that was not watched.

        The storage's clock is compared with this node's, so this is only ever shown, never decided on.
        """
        found, appeared = self.found.get(key), self._appeared.get(key)
        return max(0.0, appeared - found.written_at) if found is not None and appeared is not None else None

    def view(self, now: float, *, draining: bool) -> View:
        """What the policy decides on."""
        fresh = self._freshness.fresh_heartbeats(now)
        members = _ready_workers(fresh)
        available = frozenset(slot.standby for each in members for slot in each.slots if slot.standby is not None)
        if available != self._available:
            if not self._available:
                self._gathering_since = now
            self._available, self._changed_at = available, now
        unsettled = pending(self.history, self._checkpoints(), self.task)
        idle = unsettled == 0 or self.history.open is not None
        self._undone_since = None if idle else now if self._undone_since is None else self._undone_since
        return View(
            node=self.identity.node,
            incarnation=self.identity.incarnation,
            task=self.task,
            history=self.history,
            members=members,
            found=self._checkpoints(),
            given_up=list(self._given_up.values()),
            unwanted=self._unwanted or frozenset(),
            lost=self._lost(),
            chiefs=frozenset(each.node for each in fresh if each.role == "chief"),
            ready_to_propose=self._freshness.ready_to_propose(now),
            draining=draining,
            looked=self.caught_up and self.looked,
            incomplete=self._incomplete,
            opened_at=self.opened_at,
            undone_since=self._undone_since,
            gathering_since=self._gathering_since,
            changed_at=self._changed_at,
            failed_at=self._failed_at,
            active_at=self._active_at,
        )

    def heartbeat(self, beat: int, slots: tuple[Slot, ...]) -> Heartbeat:
        """What this node says of itself."""
        assert self.run is not None
        return Heartbeat(
            run=self.run,
            node=self.identity.node,
            incarnation=self.identity.incarnation,
            beat=beat,
            role=self.identity.role.role,
            role_source=self.identity.role.source,
            state=self.state,
            version=self.identity.version,
            task=self.task,
            plan=self.history.through,
            outcome=self.history.through - (self.history.open is not None),
            slots=slots,
        )

    def status(self, now: float, unready: str | None, workers: tuple[WorkerStatus, ...]) -> Status:
        """What people see."""
        fresh = self._freshness.fresh_heartbeats(now)
        states: dict[str, int] = {}
        for each in fresh:
            state = "chief" if each.role == "chief" else each.state
            states[state] = states.get(state, 0) + 1
        newest = next(reversed(self.found.values()), None)
        return Status(
            run=self.identity.run,
            node=self.identity.node,
            incarnation=self.identity.incarnation,
            version=self.identity.version,
            role=self.identity.role.role,
            role_source=self.identity.role.source,
            state=self.state,
            publisher=proposer(_ready_workers(fresh)) == self.identity.node,
            unready=unready,
            pending=pending(self.history, self._checkpoints(), self.task),
            newest=Newest(newest.checkpoint.step, newest.written_at) if newest is not None else None,
            plan=self.history.open.plan if self.history.open is not None else None,
            group_size=len(self._group),
            groups_formed=self.groups_formed,
            members=states,
            workers=workers,
            pins_bytes=self.pins_bytes,
            saves_bytes=self.saves_bytes,
        )

    def _checkpoints(self) -> list[Checkpoint]:
        return [found.checkpoint for found in self.found.values()]

    def _lost(self) -> dict[str, str]:
        """Other nodes of the open plan that will not finish it."""
        plan = self.history.open
        lost: dict[str, str] = {}
        for member in (plan.members or ()) if plan is not None else ():
            if member.node != self.identity.node:
                incarnation = member.worker.removeprefix(f"{member.node}.").split(".")[0]
                if why := self._freshness.lost(member.node, incarnation):
                    lost[member.node] = why
        return lost


def _ready_workers(fresh: list[Heartbeat]) -> list[Heartbeat]:
    return [each for each in fresh if each.role == "worker" and each.state == "ready"]
