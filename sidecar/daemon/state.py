"""What one daemon knows: the journal, who else is there, which checkpoints lie in the directory, and since when.

Told by the loop, asked by it: `view` is what the policy decides on, `heartbeat` what others see, `status` what people
see. No I/O and no clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.checkpoints.unseen_steps import UnseenSteps
from sidecar.coordination.heartbeats import HeartbeatReadings, Liveness
from sidecar.coordination.journal_state import Entry, JournalState, Settled, incarnation_of
from sidecar.coordination.snapshot import RECENT
from sidecar.daemon.checkpoint_tracker import CheckpointTracker
from sidecar.daemon.training_progress import TrainingProgress
from sidecar.observability.status import Newest, Status, WorkerStatus
from sidecar.pins.policy import PinPolicy
from sidecar.policy.disputes import is_disputed, is_seen_by_others
from sidecar.policy.eligibility import compatible_nodes, count_by_reason, left_out, may_release_pins, ready_workers
from sidecar.policy.group_formation import is_outgrown
from sidecar.policy.proposers import publisher
from sidecar.policy.roles import RoleDecision
from sidecar.policy.view import CheckpointsView, NodesView, TimersView, View
from sidecar.records import Checkpoint, Heartbeat, Key, Member, Outcome, Plan, Settlement, Slot
from sidecar.states import GROUP_PHASES, NodeState, OutcomeStatus, Verdict
from sidecar.workers.pool import group_id

_NOTHING: Final = frozenset[str]()
_NO_KEYS: Final = frozenset[Key]()
_UNREADABLE_TOLD: Final = 32  # names of checkpoints in a heartbeat
_TOLD: Final = 20  # sentences on a status page


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
class DaemonState:
    """The daemon's knowledge. Times are seconds of its own clock."""

    identity: Identity
    lease_seconds: float
    tracker: CheckpointTracker
    min_workers: int = 1
    history: JournalState = field(default_factory=lambda: JournalState(keep=RECENT))
    run: str | None = None  # the run's id
    task: str | None = None  # digest of the task's code
    profile: str | None = None  # digests of the numeric profile, see `Heartbeat`
    joined_profile: str | None = None
    node_state: NodeState = NodeState.STARTING
    withdrawn: bool = False  # the journal cannot be read: the others must not count on this node
    caught_up: bool = False  # the journal was read to its end once
    pins_bytes: int = 0
    saves_bytes: int = 0
    opened_at: float = 0.0
    groups_formed: int = 0
    gaps: UnseenSteps = field(default_factory=UnseenSteps)
    _liveness: Liveness = field(init=False)
    _undone_since: float | None = None
    _available: frozenset[str] = _NOTHING
    _gathering_since: float = 0.0
    _changed_at: float = 0.0
    _failed_at: dict[Key, float] = field(default_factory=dict)
    _active_at: float = 0.0
    _met_at: float = 0.0  # when the newest visit to the storage was asked for
    _looked_at: float = 0.0  # and the newest with a look
    _waiting: tuple[str, ...] = ()  # the open plan and the phases of its ranks, if each is one in which it waits
    _waiting_since: float = 0.0
    _unknown_members: tuple[str, ...] = ()  # why members' files gave no heartbeat
    _group: tuple[str, ...] = ()  # the workers of the newest evaluation
    _training: TrainingProgress = field(init=False)

    def __post_init__(self) -> None:
        self._liveness = Liveness(self.identity.node, self.lease_seconds)
        self._training = TrainingProgress(self._counts)

    # -- told ------------------------------------------------------------------------------------------------------

    def resume(self, history: JournalState) -> None:
        """Go on from a snapshot of the journal."""
        self.history = history
        self._training.follow((), history.reached, live=False)
        newest = history.newest
        self._group = tuple(member.worker for member in newest.plan.members or ()) if newest is not None else ()

    def fold(self, record: Plan | Outcome, now: float) -> list[Entry]:
        """A record of the journal; returns the entries it made."""
        entries = self.history.apply(record)
        self.tracker.fold(record, now)
        self._fold_names(record, entries)
        self._training.follow(entries, self.history.reached, live=self.caught_up)
        self._active_at = now
        if isinstance(record, Plan):
            for settlement in record.settles:
                if settlement.verdict == Verdict.REQUEUED:  # a person wants it at once
                    self._failed_at.pop(settlement.key, None)
            self._undone_since = None  # whoever proposes goes on
            self.opened_at = now
            return entries
        closed = entries[-1]
        assert closed.plan.checkpoint is not None
        if record.status == OutcomeStatus.FAILED:
            self._failed_at[closed.plan.checkpoint.key] = now
        else:
            self._failed_at.pop(closed.plan.checkpoint.key, None)
            group = tuple(member.worker for member in closed.plan.members or ())
            self.groups_formed += self.caught_up and group != self._group
            self._group = group
        return entries

    def _fold_names(self, record: Plan | Outcome, entries: list[Entry]) -> None:
        """Checkpoints that a record names were seen by somebody; what ended has all before it behind it."""
        if isinstance(record, Plan) and record.checkpoint is not None:
            self.gaps.journaled(record.checkpoint.name, self._is_there, settled=False)
        for entry in entries:
            about = entry.settlement if isinstance(entry, Settled) else entry.plan.checkpoint
            if about is not None:
                ended = isinstance(entry, Settled) or entry.outcome.status == OutcomeStatus.SUCCEEDED
                self.gaps.journaled(about.name, self._is_there, settled=ended)

    def _counts(self, key: Key) -> bool:
        """Whether a checkpoint was not there before the start, with start=new."""
        return key not in self.history.before_start and key not in (self.tracker.unwanted or ())

    def _is_there(self, name: str) -> bool:
        return any(name == key[0] for key in self.found)

    def meet(self, own: Heartbeat, others: HeartbeatReadings, now: float) -> None:
        """The own heartbeat was written, those of others were read."""
        self._met_at = now
        self._liveness.wrote(own, now)
        self._liveness.observe(others, now)
        self._unknown_members = others.unknown
        if (waiting := self._all_waiting()) != self._waiting:
            self._waiting, self._waiting_since = waiting, now

    def see(
        self, look: ScanResult, given_up: tuple[Settlement, ...], now: float, wall: float
    ) -> list[DiscoveredCheckpoint]:
        """The checkpoint directory was looked at; returns what is new there and needs an evaluation."""
        is_first, self._looked_at = not self.looked, self._met_at
        new = self.tracker.see(look, given_up, self.history, self.task, now, wall)
        self.gaps.look(new, now)
        self._training.see(new, self.found)
        if new or is_first:
            self._active_at = now
        return [found for found in new if not self.history.is_settled(found.checkpoint.key, self.task)]

    # -- asked -----------------------------------------------------------------------------------------------------

    @property
    def found(self) -> Mapping[Key, DiscoveredCheckpoint]:
        """Complete checkpoints that are there, in order of discovery."""
        return self.tracker.found

    @property
    def shown_state(self) -> NodeState:
        """What the others are told: `starting` where this node could not follow what they do, as all releases know."""
        return NodeState.STARTING if self.withdrawn and self.node_state == NodeState.READY else self.node_state

    @property
    def looked(self) -> bool:
        """Whether the checkpoint directory was looked at."""
        return self.tracker.looked

    def view(self, now: float, *, draining: bool) -> View:
        """What the policy decides on."""
        fresh = self._liveness.fresh_heartbeats(now)
        members = ready_workers(fresh)
        available = frozenset(slot.standby for each in members for slot in each.slots if slot.standby is not None)
        if available - self._available:  # who goes is not waited for: nobody comes with it
            if not self._available:
                self._gathering_since = now
            self._changed_at = now
        self._available = available
        seen = self.tracker
        choice, draws_line = seen.choice(self.history, self.task), self.looked and seen.only_new(self.history)
        tasks, returned = self._tasks(fresh), seen.returned(self.history, now)
        unreadable = self._unreadable(fresh, members)
        undone = draws_line or bool(returned or choice.settled)  # what only others can do is no work of this node
        undone |= any(each.folder not in unreadable for each in choice.evaluate)
        judges = seen.given_up or self.history.failures or self.history.unusable  # nothing else asks for it
        unheard = bool(judges) and any(each.role == "worker" for each in self._liveness.unheard(now))
        undone |= not all(
            is_disputed(each, self.identity.node, members, liveness_unknown=unheard) for each in seen.given_up.values()
        )
        if not undone or self.history.open is not None:
            self._undone_since = None
        elif self._undone_since is None:
            self._undone_since = now
        return View(
            node=self.identity.node,
            incarnation=self.identity.incarnation,
            task=self.task,
            history=self.history,
            nodes=NodesView(
                ready=members,
                liveness_unknown=unheard,
                chiefs=frozenset(each.node for each in fresh if each.role == "chief"),
                lost_members=self.lost(now),
                tasks=tasks,
                may_propose=self._liveness.ready_to_propose(now),
            ),
            checkpoints=CheckpointsView(
                complete=seen.relevant(self.history, self.task),
                given_up=list(seen.given_up.values()),
                returned=returned,
                unreadable=unreadable,
                before_start=seen.unwanted or _NO_KEYS,
                backlog_cutoff_pending=draws_line,
                without_room=seen.no_room.keys(),
                unpinnable=seen.failed.keys(),
                training_done=seen.done,
                last_step=self._training.last_step,
                incomplete_since=seen.incomplete_since,
                scanned_at=self._looked_at,
            ),
            timers=TimersView(
                plan_opened_at=self.opened_at,
                all_ranks_waiting_since=self._waiting_since if self._waiting else None,
                work_waiting_since=self._undone_since,
                first_standby_at=self._gathering_since,
                newest_standby_at=self._changed_at,
                failed_at=self._failed_at,
                last_activity_at=self._active_at,
            ),
            draining=draining,
            caught_up=self.caught_up and self.looked,
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
        ready = ready_workers(self._liveness.fresh_heartbeats(now))
        outgrown = is_outgrown(ready, self.history, self.identity.node, self.min_workers, self.task)
        return group_id(newest.plan.members or ()) if outgrown else None

    def wanted(self, now: float) -> PinPolicy:
        """Which checkpoints must be held against deletion: those that any node's task still needs.

        The answer is asked from another thread, which only looks things up.
        """
        plan, fresh, seen = self.history.open, self._liveness.fresh_heartbeats(now), self.tracker
        unheard = {each.task for each in self._liveness.unheard(now) if each.task is not None}
        ready, me = ready_workers(fresh), self.identity.node
        nodes = [each.node for each in ready]
        alike = compatible_nodes(ready, me)
        return PinPolicy(
            self.history,
            seen.selection,
            self._tasks(fresh) | unheard,
            plan.checkpoint.key if plan is not None and plan.checkpoint is not None else None,
            seen.unwanted or set(),
            nothing_yet=seen.only_new(self.history) and not seen.looked,
            done=seen.done,
            releases=self._liveness.ready_to_propose(now) and may_release_pins(alike, me),
            before=nodes.index(me) if me in nodes else len(nodes),
            reopened=seen.reopened,
        )

    def heartbeat(self, beat: int, slots: tuple[Slot, ...]) -> Heartbeat | None:
        """Return what this node says of itself; None until it has joined a run."""
        if self.run is None:
            return None
        return Heartbeat(
            run=self.run,
            node=self.identity.node,
            incarnation=self.identity.incarnation,
            beat=beat,
            role=self.identity.role.role,
            role_source=self.identity.role.source,
            state=self.shown_state,
            version=self.identity.version,
            task=self.task,
            plan=self.history.through,
            outcome=self.history.through - (self.history.open is not None),
            slots=slots,
            profile=self.profile,
            joined_profile=self.joined_profile,
        )

    def with_sightings(self, heartbeat: Heartbeat, now: float) -> Heartbeat:
        """Add to a heartbeat what this node sees and what it cannot read; it makes no beat of its own."""
        fresh, seen = self._liveness.fresh_heartbeats(now), self.tracker
        unreadable = sorted(self._unreadable(fresh, ready_workers(fresh)))[:_UNREADABLE_TOLD]
        sees, more = seen.sees(self.history, self.task, self._tasks(fresh))
        return replace(heartbeat, unreadable=tuple(unreadable), sees=sees, sees_more=more)

    def status(self, now: float, unready: str | None, workers: tuple[WorkerStatus, ...]) -> Status:
        """What people see."""
        fresh = self._liveness.fresh_heartbeats(now)
        states: dict[str, int] = {}
        for each in fresh:
            state = "chief" if each.role == "chief" else each.state
            states[state] = states.get(state, 0) + 1
        waiting = self.tracker.choice(self.history, self.task).evaluate
        without = left_out(ready_workers(fresh), self.history, self.identity.node, self.min_workers)
        unknown = {**self.tracker.failed, **self.tracker.unknown}
        sentences = *(f"{name}: {unknown[name]}" for name in sorted(unknown)), *self._unknown_members
        return Status(
            run=self.identity.run,
            node=self.identity.node,
            incarnation=self.identity.incarnation,
            version=self.identity.version,
            role=self.identity.role.role,
            role_source=self.identity.role.source,
            state=self.shown_state,
            publisher=self._first_of(fresh),
            unready=unready,
            hint=self.tracker.hint,
            journal_read=self.caught_up,
            pending=len(waiting),
            oldest_pending=min((self.found[each.key].written_at for each in waiting), default=None),
            newest=self._newest(),
            unseen=self.gaps.count,
            plan=self.history.open.plan if self.history.open is not None else None,
            group_size=len(self._group),
            groups_formed=self.groups_formed,
            members=states,
            workers=workers,
            pins_bytes=self.pins_bytes,
            saves_bytes=self.saves_bytes,
            left_out={node: each.why for node, each in without.items()},
            left_out_reasons=count_by_reason(without),
            unknown=sentences[:_TOLD],
            unknown_count=len(sentences),
        )

    def _newest(self) -> Newest | None:
        """The checkpoint discovered last; without a step, with the number that it has or will have in the journal."""
        newest, ordinals = self.tracker.newest, self.history.ordinals
        if newest is None or newest.step is not None or not self.caught_up:
            return newest
        waiting = self.tracker.relevant(self.history, self.task)
        unnumbered = sum(each.step is None and each.key not in ordinals for each in waiting)
        number = ordinals.get((newest.checkpoint, newest.digest), len(ordinals) + max(1, unnumbered))
        return replace(newest, step=number, step_source="order")

    def publishes(self, now: float) -> bool:
        """Whether this node shows the results: it proposes, too."""
        return self._first_of(self._liveness.fresh_heartbeats(now))

    def _first_of(self, fresh: list[Heartbeat]) -> bool:
        return publisher(ready_workers(fresh)) == self.identity.node

    def _unreadable(self, fresh: Sequence[Heartbeat], workers: Sequence[Heartbeat]) -> frozenset[str]:
        """Names of checkpoints that this node cannot read, or gave up though another one finds them whole."""
        found = self.tracker.unreadable(self.history, self._tasks(fresh))
        given_up = [
            each for each in self.tracker.given_up.values() if is_seen_by_others(each, self.identity.node, workers)
        ]
        return found | {Checkpoint(each.name, each.digest, each.step, "").folder for each in given_up}

    def _tasks(self, fresh: Sequence[Heartbeat]) -> frozenset[str | None]:
        """The tasks for which something may have to be evaluated."""
        return frozenset({each.task for each in fresh if each.task is not None} | {self.task})

    def _all_waiting(self) -> tuple[str, ...]:
        """The open plan and the phase of each rank; empty unless all of them wait for the others, as their nodes say.

        As long as one of them works the others wait for it, and its own daemon judges it.
        """
        plan = self.history.open
        if plan is None:
            return ()
        phases = [str(plan.plan)]
        for member in plan.members or ():
            told = self._liveness.heartbeat(member.node)
            in_it = told is not None and told.plan == plan.plan and told.outcome < plan.plan
            doing = (told.doing or ()) if told is not None and in_it else ()
            phase = next((each.phase for each in doing if each.worker == member.worker), None)
            if phase not in GROUP_PHASES:
                return ()
            phases.append(phase)
        return tuple(phases)

    def _lost_among(self, members: tuple[Member, ...], now: float) -> dict[str, str]:
        others = [each for each in members if each.node != self.identity.node]
        return {each.node: why for each in others if (why := self._lost_by(each, now))}

    def _lost_by(self, member: Member, now: float) -> str | None:
        incarnation = incarnation_of(member.worker, member.node)
        if why := self._liveness.lost(member.node, incarnation):
            return why
        if self._liveness.heartbeat(member.node) is None and now >= self.opened_at + self.lease_seconds:
            return f"{member.node} has no heartbeat"
        return None
