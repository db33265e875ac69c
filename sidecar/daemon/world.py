"""What one daemon knows: the journal, who else is there, which checkpoints lie in the directory, and since when.

Told by the loop, asked by it: `view` is what the policy decides on, `heartbeat` what others see, `status` what people
see. No I/O and no clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sidecar.agreement.members import Freshness, Reading
from sidecar.checkpoints.found import Found, Look
from sidecar.daemon.wants import Wants
from sidecar.group.member import group_id
from sidecar.history import Entry, History
from sidecar.policy import BEFORE_START, View, pending, proposer
from sidecar.records import Checkpoint, Heartbeat, Key, Member, NodeState, Outcome, Plan, Settlement, Slot
from sidecar.roles import RoleDecision
from sidecar.selection import Choice, Selection
from sidecar.snapshot import RECENT
from sidecar.status import Newest, Status, WorkerStatus

_NOTHING: Final = frozenset[str]()
_DELETED: Final = "it was deleted before it was evaluated"
_NO_KEYS: Final = frozenset[Key]()
_TOGETHER: Final = ("hello", "reduce")  # phases that last as long as the last rank takes to come


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
    selection: Selection = field(default_factory=Selection)
    history: History = field(default_factory=lambda: History(keep=RECENT))
    run: str | None = None  # the run's id
    task: str | None = None  # digest of the task's code
    profile: str | None = None  # digest of the numeric profile
    state: NodeState = "starting"
    caught_up: bool = False  # the journal was read to its end once
    missing: bool = False  # the checkpoint directory does not exist
    hint: str | None = None  # what a person may want to look at
    pins_bytes: int = 0
    saves_bytes: int = 0
    opened_at: float = 0.0
    groups_formed: int = 0
    found: Mapping[Key, Found] = field(default_factory=dict)  # in order of discovery
    _freshness: Freshness = field(init=False)
    _given_up: dict[Key, Settlement] = field(default_factory=dict)
    _broken: dict[Key, Settlement] = field(default_factory=dict)  # told as corrupt, settled or not
    # Vanished, unless the next look finds them after all; and when they were discovered.
    _missed: dict[Key, tuple[Settlement, float]] = field(default_factory=dict)
    _unwanted: set[Key] | None = None  # None: no look yet
    _no_room: Mapping[Key, str] = field(default_factory=dict)
    _done: bool = False
    _incomplete: frozenset[tuple[str, str]] = frozenset()  # names, and what they lack: being written is no rest
    _incomplete_since: float = 0.0
    _appeared: dict[Key, float] = field(default_factory=dict)  # seconds since 1970, if it was seen to appear
    _newest: Newest | None = None  # the one discovered last, also when it is gone
    _seen_something: bool = False
    _empty_since: float | None = None
    _undone_since: float | None = None
    _available: frozenset[str] = _NOTHING
    _gathering_since: float = 0.0
    _changed_at: float = 0.0
    _failed_at: dict[Key, float] = field(default_factory=dict)
    _active_at: float = 0.0
    _met_at: float = 0.0  # when the newest visit to the storage was asked for
    _looked_at: float = 0.0  # and the newest with a look
    _finds: int = 0  # looks that found or lost something
    _told_waiting: tuple[object, frozenset[tuple[str, str]]] = (None, frozenset())  # by the last look
    _look: Look = field(default_factory=lambda: Look((), (), (), missing=False))  # the last one
    _chosen: list[Checkpoint] = field(default_factory=list)
    _news: set[Key] = field(default_factory=set)  # since these were chosen
    _reopened: int = 0  # how often a checkpoint that was settled may have become one that is not
    _chosen_for: tuple[str | None, int] | None = None
    _chosen_in: tuple[int, int, bool, str | None, bool] | None = None
    _choice: Choice = field(default_factory=lambda: Selection().choose((), History()))
    _waiting: tuple[str, ...] = ()  # the open plan and the phases of its ranks, if each is one in which it waits
    _waiting_since: float = 0.0
    _group: tuple[str, ...] = ()  # the workers of the newest evaluation

    def __post_init__(self) -> None:
        self._freshness = Freshness(self.identity.node, self.lease)

    # -- told ------------------------------------------------------------------------------------------------------

    def resume(self, history: History) -> None:
        """Go on from a snapshot of the journal."""
        self.history = history
        newest = history.newest
        self._group = tuple(member.worker for member in newest.plan.members or ()) if newest is not None else ()

    def fold(self, record: Plan | Outcome, now: float) -> list[Entry]:
        """A record of the journal; returns the entries it made."""
        entries = self.history.apply(record)
        self._active_at, self._done = now, False  # a new run may have begun meanwhile: the next look says
        if isinstance(record, Plan):
            for settlement in record.settles:
                self._given_up.pop(settlement.key, None)
                self._reopened += settlement.verdict in ("requeued", "failed")  # this may be of one task only
                if settlement.verdict == "requeued":  # a person wants it: what was known against it is void
                    self._failed_at.pop(settlement.key, None)
                    if (broken := self._broken.get(settlement.key)) is not None:  # but for what still holds
                        self._given_up[settlement.key] = broken
            self._undone_since = None  # whoever proposes goes on
            if self._unwanted and not record.line_open:  # what was there before the start is settled, for all nodes
                self._unwanted = set()
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
        self._met_at = now
        self._freshness.wrote(own, now)
        self._freshness.observe(others, now)
        if (waiting := self._all_waiting()) != self._waiting:
            self._waiting, self._waiting_since = waiting, now

    def see(self, look: Look, given_up: tuple[Settlement, ...], now: float, wall: float) -> list[Found]:
        """The checkpoint directory was looked at; returns what is new there and needs an evaluation."""
        here, before = look.by_key, self.found
        news = {key for key in look.news_since(before) if here.get(key) is not before.get(key)}
        new = [here[key] for key in look.in_order(key for key in news if key not in before)]
        gone = [key for key in news if key not in here]
        if new and new[-1] is look.found[-1] and not self._is_older(new[-1]):
            self._newest = Newest(new[-1].checkpoint.step, new[-1].written_at)
        if new or self._unwanted is None:
            self._active_at = now
        if self._unwanted is None:
            self._unwanted = {found.checkpoint.key for found in new} if self._only_new else set()
        else:
            self._appeared |= {found.checkpoint.key: wall for found in new}
            for key in gone:
                self._appeared.pop(key, None)
        if not look.missing:  # a directory that is gone may come back, with all that was in it
            held = look.copied.union(each.found.checkpoint.key for each in look.broken)
            self._miss(here, [key for key in gone if key not in held], new, given_up, now)
        self.found, self._look, self._looked_at = here, replace(look, before=None), self._met_at
        self._finds += bool(news)
        self._news |= news
        if self._told_waiting[0] is not look.waiting:
            self._told_waiting = look.waiting, frozenset(look.waiting)
        incomplete = self._told_waiting[1] | self._missed.keys()
        if incomplete != self._incomplete or look.copied:  # a copy that grows ends as a pin, or is told of
            self._incomplete, self._incomplete_since = incomplete, now
        self.missing = look.missing
        if here or look.waiting or given_up or self.history.count:
            self._seen_something, self.hint = True, None
        elif not look.missing and self._empty_since is None:
            self._empty_since = now
        return [found for found in new if not self.history.is_settled(found.checkpoint.key, self.task)]

    def note(self, no_room: Mapping[Key, str], *, done: bool) -> Mapping[Key, str]:
        """What the look could not pin, and whether the trainer says that it is done; returns what is new of the first.

        One that found no room is followed by others, so as long as there is one the next are not new.
        """
        before, self._no_room, self._done = self._no_room, no_room, done
        return no_room if not before else {}

    def _miss(
        self,
        here: Mapping[Key, Found],
        gone: Iterable[Key],
        new: Sequence[Found],
        given_up: tuple[Settlement, ...],
        now: float,
    ) -> None:
        """Note what this look lost. What vanished is given up for ever, so it must be gone in the next look too."""
        missed = {}
        for key in self.history.unsettled(gone, self.task):
            found, each = self.found[key], self.found[key].checkpoint
            missed[key] = Settlement(each.name, each.digest, each.step, "vanished", _DELETED), found.seen_at
        # What was lost on the way to its pin was discovered with what is new here, if it was not known before.
        lately = min((found.seen_at for found in new), default=now)
        for lost in given_up:
            if lost.verdict == "vanished":
                missed[lost.key] = lost, self.found[lost.key].seen_at if lost.key in self.found else lately
        certain = {settlement.key: settlement for settlement in given_up if settlement.verdict != "vanished"}
        still = {key: each for key, each in self._missed.items() if key not in here}
        certain |= {key: each for key, (each, _) in self._passed_over(still, here).items()}
        missed = {key: each for key, each in missed.items() if key not in certain}
        self._missed = self._passed_over(missed, here)
        self._broken |= {each.key: each for each in given_up if each.verdict == "corrupt"}
        self._broken = {key: each for key, each in self._broken.items() if key not in here}
        self._given_up = {
            key: settlement
            for key, settlement in (self._given_up | certain).items()
            if key not in here and not self.history.is_settled(key, self.task)
        }

    def _is_older(self, found: Found) -> bool:
        """Whether it is another's pin of what training deleted, perhaps, before it saved what was discovered last."""
        newest = self._newest
        return found.checkpoint.pin is not None and newest is not None and found.written_at < newest.written_at

    def _passed_over(
        self, missed: dict[Key, tuple[Settlement, float]], here: Mapping[Key, Found]
    ) -> dict[Key, tuple[Settlement, float]]:
        """How these end: what would not have been evaluated anyway is skipped, and let go on purpose, perhaps."""
        if not missed:
            return missed
        gone = [(seen, Checkpoint(each.name, each.digest, each.step, "")) for each, seen in missed.values()]
        there = [(here[key].seen_at, here[key].checkpoint) for key in self.history.unsettled(here, self.task)]
        waiting = [each for _, each in sorted([*gone, *there], key=_by_discovery)]
        choice = self.selection.choose(self._waiting_among(waiting), self.history)
        reasons = choice.passed | dict.fromkeys(self._unwanted or (), BEFORE_START)
        return {
            key: (replace(each, verdict="skipped", reason=reasons[key]), seen) if key in reasons else (each, seen)
            for key, (each, seen) in missed.items()
        }

    def _waiting_among(self, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Those that need an evaluation and were not there before the start, with start=new."""
        waiting = pending(self.history, checkpoints, self.task)
        return [each for each in waiting if each.key not in self._unwanted] if self._unwanted else waiting

    # -- asked -----------------------------------------------------------------------------------------------------

    @property
    def looked(self) -> bool:
        """Whether the checkpoint directory was looked at."""
        return self._unwanted is not None

    @property
    def empty_since(self) -> float | None:
        """Since when the checkpoint directory shows nothing at all; None once it showed anything."""
        return None if self._seen_something else self._empty_since

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
        if available - self._available:  # who goes is not waited for: nobody comes with it
            if not self._available:
                self._gathering_since = now
            self._changed_at = now
        self._available = available
        undone = bool(self._pending() or self._choice.settled or self._given_up or self._draws_line)
        if not undone or self.history.open is not None:
            self._undone_since = None
        elif self._undone_since is None:
            self._undone_since = now
        return View(
            node=self.identity.node,
            incarnation=self.identity.incarnation,
            task=self.task,
            history=self.history,
            members=members,
            found=self._relevant(),
            given_up=list(self._given_up.values()),
            unwanted=self._unwanted or _NO_KEYS,
            draws_line=self._draws_line,
            no_room=frozenset(self._no_room),
            tasks=self._tasks(fresh),
            done=self._done,
            lost=self.lost(now),
            chiefs=frozenset(each.node for each in fresh if each.role == "chief"),
            ready_to_propose=self._freshness.ready_to_propose(now),
            draining=draining,
            looked=self.caught_up and self.looked,
            looked_at=self._looked_at,
            incomplete_since=self._incomplete_since if self._incomplete else None,
            opened_at=self.opened_at,
            stuck_since=self._waiting_since if self._waiting else None,
            undone_since=self._undone_since,
            gathering_since=self._gathering_since,
            changed_at=self._changed_at,
            failed_at=self._failed_at,
            active_at=self._active_at,
        )

    def lost(self, now: float) -> dict[str, str]:
        """Other nodes of the open plan that will not finish it, and why."""
        plan = self.history.open
        return self._lost_among(plan.members or (), now) if plan is not None else {}

    def broken_group(self, now: float) -> str | None:
        """The group of the newest evaluation, if a member on another node is gone: it cannot be used again."""
        newest = self.history.newest
        if newest is None or self.history.open is not None:
            return None
        members = newest.plan.members or ()
        return group_id(members) if self._lost_among(members, now) else None

    def outgrown_group(self, now: float) -> str | None:
        """The group of the newest evaluation, if workers stand by that no group has: together they would be more."""
        newest = self.history.newest
        if newest is None or self.history.open is not None:
            return None
        ready = _ready_workers(self._freshness.fresh_heartbeats(now))
        alike = [each for each in ready if (each.version, each.task) == (self.identity.version, self.task)]
        members = newest.plan.members or ()
        joined = {None, *(each.worker for each in members), *self.history.spent_workers}  # a heartbeat may be late
        free = {slot.standby for each in alike for slot in each.slots if slot.worker is None}
        return group_id(members) if free - joined else None

    def wanted(self, now: float) -> Wants:
        """Which checkpoints must be held against deletion: those that any node's task still needs.

        What is passed over but not settled yet, as a plan is open, is let go by who publishes: he proposes, too, and
        others may have other settings. The answer is asked from another thread, which only looks things up.
        """
        plan, fresh = self.history.open, self._freshness.fresh_heartbeats(now)
        nodes = [each.node for each in _ready_workers(fresh)]
        return Wants(
            self.history,
            self.selection,
            self._tasks(fresh),
            plan.checkpoint.key if plan is not None and plan.checkpoint is not None else None,
            self._unwanted or set(),
            nothing_yet=self._only_new and not self.looked,
            done=self._done,
            publishes=self._first_of(fresh),
            before=nodes.index(self.identity.node) if self.identity.node in nodes else len(nodes),
            reopened=self._reopened,
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
            profile=self.profile,
        )

    def status(self, now: float, unready: str | None, workers: tuple[WorkerStatus, ...]) -> Status:
        """What people see."""
        fresh = self._freshness.fresh_heartbeats(now)
        states: dict[str, int] = {}
        for each in fresh:
            state = "chief" if each.role == "chief" else each.state
            states[state] = states.get(state, 0) + 1
        waiting = self._pending()
        return Status(
            run=self.identity.run,
            node=self.identity.node,
            incarnation=self.identity.incarnation,
            version=self.identity.version,
            role=self.identity.role.role,
            role_source=self.identity.role.source,
            state=self.state,
            publisher=self._first_of(fresh),
            unready=unready,
            hint=self.hint,
            journal_read=self.caught_up,
            pending=len(waiting),
            oldest_pending=min((self.found[each.key].written_at for each in waiting), default=None),
            newest=self._newest,
            plan=self.history.open.plan if self.history.open is not None else None,
            group_size=len(self._group),
            groups_formed=self.groups_formed,
            members=states,
            workers=workers,
            pins_bytes=self.pins_bytes,
            saves_bytes=self.saves_bytes,
        )

    def publishes(self, now: float) -> bool:
        """Whether this node shows the results: it proposes, too."""
        return self._first_of(self._freshness.fresh_heartbeats(now))

    def _first_of(self, fresh: list[Heartbeat]) -> bool:
        return proposer(_ready_workers(fresh)) == self.identity.node

    @property
    def _only_new(self) -> bool:
        """Whether what the first look finds does not count."""
        return self.start_new and self.history.line_open

    @property
    def _draws_line(self) -> bool:
        return self._only_new and self.looked

    def _tasks(self, fresh: Sequence[Heartbeat]) -> frozenset[str | None]:
        """The tasks for which something may have to be evaluated."""
        return frozenset({each.task for each in fresh if each.task is not None} | {self.task})

    def _pending(self) -> Sequence[Checkpoint]:
        """Complete checkpoints that are to be evaluated, in order of discovery."""
        self._relevant()
        return self._choice.evaluate

    def _relevant(self) -> list[Checkpoint]:
        """Those that need an evaluation or are pinned: the rest is looked through only when something has changed."""
        history = self.history
        state = self._finds, history.through, history.open is None, self.task, self._done
        if self._chosen_in != state:
            among: Iterable[Key] = self.found
            if self._chosen_for == (self.task, self._reopened):  # what was settled is settled still
                among = filter(self.found.__contains__, self._news.union(each.key for each in self._chosen))
            chosen = {*history.unsettled(among, self.task), *self._look.pinned}
            self._chosen = [self.found[key].checkpoint for key in self._look.in_order(chosen)]
            self._chosen_for, self._news = (self.task, self._reopened), set()
            self._choice = self.selection.choose(self._waiting_among(self._chosen), history, over=self._done)
            self._chosen_in = state
        return self._chosen

    def _all_waiting(self) -> tuple[str, ...]:
        """The open plan and the phase of each rank; empty unless all of them wait for the others, as their nodes say.

        As long as one of them works the others wait for it, and its own daemon judges it.
        """
        plan = self.history.open
        if plan is None:
            return ()
        phases = [str(plan.plan)]
        for member in plan.members or ():
            told = self._freshness.heartbeat(member.node)
            in_it = told is not None and told.plan == plan.plan and told.outcome < plan.plan
            doing = (told.doing or ()) if told is not None and in_it else ()
            phase = next((each.phase for each in doing if each.worker == member.worker), None)
            if phase not in _TOGETHER:
                return ()
            phases.append(phase)
        return tuple(phases)

    def _lost_among(self, members: tuple[Member, ...], now: float) -> dict[str, str]:
        others = [each for each in members if each.node != self.identity.node]
        return {each.node: why for each in others if (why := self._lost_by(each, now))}

    def _lost_by(self, member: Member, now: float) -> str | None:
        incarnation = member.worker.removeprefix(f"{member.node}.").split(".")[0]
        if why := self._freshness.lost(member.node, incarnation):
            return why
        if self._freshness.heartbeat(member.node) is None and now >= self.opened_at + self.lease:
            return f"{member.node} has no heartbeat"
        return None


def _ready_workers(fresh: list[Heartbeat]) -> list[Heartbeat]:
    return [each for each in fresh if each.role == "worker" and each.state == "ready"]


def _by_discovery(seen: tuple[float, Checkpoint]) -> tuple[float, bool, int]:
    """As in the catalog: within one look by step."""
    at, checkpoint = seen
    return at, checkpoint.step is None, checkpoint.step or 0
