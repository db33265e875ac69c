"""Hold the knowledge of one daemon: the journal, the live nodes, the checkpoints in the directory, and its timers.

The loop reports events to it. The policy decides by `view`, other nodes read `heartbeat`, and `status_report` shows the
state to people. `Timers` are the times by which the policy waits; `Statistics` are counts, on which no decision
depends. No I/O and no clock. Times are seconds of the daemon's own clock.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.checkpoints.unseen_steps import UnseenSteps
from sidecar.coordination.journal_state import Closed, Entry, EntryLog, JournalState, Settled
from sidecar.coordination.liveness import HeartbeatReadings
from sidecar.coordination.snapshot import RECENT
from sidecar.daemon.checkpoint_tracker import CheckpointTracker
from sidecar.daemon.known_nodes import KnownNodes
from sidecar.daemon.shutdown import Shutdown
from sidecar.daemon.training_progress import TrainingProgress
from sidecar.policy.eligibility import MOST_UNREADABLE, compatible_nodes, may_release_pins
from sidecar.policy.group_formation import is_outgrown
from sidecar.policy.node_identity import Identity
from sidecar.policy.proposers import publisher
from sidecar.policy.rules import GroupRules
from sidecar.policy.settlements import is_disputed, is_seen_by_others
from sidecar.policy.view import CheckpointsView, NodesView, TimersView, View
from sidecar.protocol.export_rule import ExportRule
from sidecar.protocol.heartbeat import (
    SEGMENTS_KNOWN,
    AboutNode,
    CheckpointSightings,
    Heartbeat,
    JournalPosition,
    NumericProfiles,
    Slot,
)
from sidecar.protocol.records import Key, Outcome, Plan, Settlement, folder_name, group_id, node_of
from sidecar.protocol.states import NodeState, OutcomeStatus, Verdict
from sidecar.retention.exports.export_report import NO_EXPORTS, ExportsReport
from sidecar.retention.pins.policy import PinPolicy
from sidecar.retention.saves.best import exported

_NO_KEYS: Final = frozenset[Key]()

_ATTENDED: Final = 6
"""The most nodes of one kind whose heartbeats are read before those of others."""


@dataclass(slots=True, kw_only=True)
class Timers:
    """Hold the times at which one daemon saw each condition begin."""

    plan_opened_at: float = 0.0
    scanned_at: float = 0.0  # when the newest scan of the checkpoint directory was requested
    last_activity_at: float = 0.0  # when the journal or the directory last changed
    failed_at: dict[Key, float] = field(default_factory=dict)  # when a checkpoint's last failure was read
    _work_waiting_since: float | None = None
    _standbys: frozenset[str] = frozenset()  # workers that could be listed
    _first_standby_at: float = 0.0
    _newest_standby_at: float = 0.0
    _waiting_phases: tuple[str, ...] = ()  # of the open plan's ranks, if all of them wait for each other
    _phases_since: float = 0.0

    def note_activity(self, now: float) -> None:
        """Note that something changed for this node."""
        self.last_activity_at = now

    def note_plan(self, plan: Plan, now: float) -> None:
        """Note that a plan was read, so that nobody waits for a proposal any more."""
        self.last_activity_at = self.plan_opened_at = now
        self._work_waiting_since = None
        for settlement in plan.settles:
            if settlement.verdict == Verdict.REQUEUED:  # a person wants the next attempt at once
                self.failed_at.pop(settlement.key, None)

    def note_outcome(self, key: Key, now: float, *, failed: bool) -> None:
        """Note that the outcome of an attempt at a checkpoint was read."""
        self.last_activity_at = now
        if failed:
            self.failed_at[key] = now
        else:
            self.failed_at.pop(key, None)

    def note_scan(self, requested_at: float, now: float, *, changed: bool) -> None:
        """Note a scan of the checkpoint directory, and whether it found anything new."""
        self.scanned_at = requested_at
        if changed:
            self.last_activity_at = now

    def note_collective_phases(self, phases: tuple[str, ...], now: float) -> None:
        """Note the phases in which all ranks of the open plan wait for each other; empty if not all of them do."""
        if phases != self._waiting_phases:
            self._waiting_phases, self._phases_since = phases, now

    def note_ready(self, ready: Sequence[Heartbeat], now: float) -> None:
        """Note the workers that could be listed. Only a new worker restarts the wait for more of them."""
        standbys = frozenset(
            slot.standby for heartbeat in ready for slot in heartbeat.slots if slot.standby is not None
        )
        if standbys - self._standbys:
            if not self._standbys:
                self._first_standby_at = now
            self._newest_standby_at = now
        self._standbys = standbys

    def note_work(self, now: float, *, waiting: bool) -> None:
        """Note whether there is work and no plan."""
        if not waiting:
            self._work_waiting_since = None
        elif self._work_waiting_since is None:
            self._work_waiting_since = now

    @property
    def work_waiting(self) -> bool:
        """Return whether there is work and no plan."""
        return self._work_waiting_since is not None

    def view(self) -> TimersView:
        """Return the times by which the policy decides."""
        return TimersView(
            plan_opened_at=self.plan_opened_at,
            all_ranks_waiting_since=self._phases_since if self._waiting_phases else None,
            work_waiting_since=self._work_waiting_since,
            first_standby_at=self._first_standby_at,
            newest_standby_at=self._newest_standby_at,
            failed_at=self.failed_at,
            last_activity_at=self.last_activity_at,
        )


@dataclass(slots=True, kw_only=True)
class Statistics:
    """Hold the counts and sizes of one daemon since it started."""

    pins_bytes: int = 0
    saves_bytes: int = 0
    exports: ExportsReport = NO_EXPORTS
    journal_problems: tuple[str, ...] = ()  # why the newest snapshot or segment could not be written
    groups_formed: int = 0
    group: tuple[str, ...] = ()  # the workers of the newest evaluation
    gaps: UnseenSteps = field(default_factory=UnseenSteps)

    def note_saves(self, saves_bytes: int, journal_problems: tuple[str, ...]) -> None:
        """Note the size of what workers saved, and why the journal grows."""
        self.saves_bytes, self.journal_problems = saves_bytes, journal_problems

    def note_scan(self, pins_bytes: int, exports: ExportsReport) -> None:
        """Note the size of pins, and the exports."""
        self.pins_bytes, self.exports = pins_bytes, exports

    def note_group(self, plan: Plan | None, *, live: bool) -> None:
        """Note the group of the newest evaluation, and count it if it is new. `live`: its record is new, too."""
        group = tuple(member.worker for member in plan.members or ()) if plan is not None else ()
        self.groups_formed += live and group != self.group
        self.group = group

    def note_names(self, record: Plan | Outcome, entries: Sequence[Entry], is_there: Callable[[str], bool]) -> None:
        """Note that some node saw the checkpoints that a record names, which ends the gaps before settled ones."""
        if isinstance(record, Plan) and record.checkpoint is not None:
            self.gaps.journaled(record.checkpoint.name, is_there, settled=False)
        for entry in entries:
            about = entry.settlement if isinstance(entry, Settled) else entry.plan.checkpoint
            if about is not None:
                settled = isinstance(entry, Settled) or entry.outcome.status == OutcomeStatus.SUCCEEDED
                self.gaps.journaled(about.name, is_there, settled=settled)


@dataclass(slots=True, kw_only=True)
class DaemonState:
    """Hold the knowledge of one daemon."""

    # settings
    identity: Identity
    groups: GroupRules = field(default_factory=GroupRules)

    # of itself
    shutdown: Shutdown
    started: bool  # whether its task was checked; a chief has none to check
    task: str | None = None  # digest of the task's code; None until it was checked
    numerics: NumericProfiles = field(default_factory=NumericProfiles)
    withdrawn: bool = False  # the journal cannot be read, so other nodes must not count on this one

    # of the run
    run: str | None = None  # the run's id; None until it was joined
    history: JournalState = field(default_factory=lambda: JournalState(log=EntryLog(keep=RECENT)))
    caught_up: bool = False  # the journal was read to its end once
    nodes: KnownNodes
    tracker: CheckpointTracker
    timers: Timers = field(default_factory=Timers)
    statistics: Statistics = field(default_factory=Statistics)
    training: TrainingProgress = field(init=False)

    def __post_init__(self) -> None:
        self.training = TrainingProgress(self._is_of_this_training)

    # -- what happens ----------------------------------------------------------------------------------------------

    def join(self, run: str) -> None:
        """Note the run that was joined."""
        self.run = run

    def note_task(self, task: str | None, numerics: NumericProfiles) -> None:
        """Note the digest of the task's code, None until it was checked, and the numeric profiles of the workers."""
        self.numerics = numerics
        if task is not None:
            self.task, self.started = task, True

    def note_caught_up(self, now: float) -> None:
        """Note that the journal was read to its end."""
        self.caught_up = True
        self.timers.note_activity(now)

    def withdraw(self, *, withdrawn: bool) -> None:
        """Note whether this node cannot follow the journal, so that other nodes must not count on it."""
        self.withdrawn = withdrawn

    def resume(self, history: JournalState) -> None:
        """Continue from a snapshot of the journal."""
        self.history = history
        self.training.apply((), history.last_planned_step, live=False)
        self.statistics.note_group(history.newest.plan if history.newest is not None else None, live=False)

    def apply(self, record: Plan | Outcome, now: float) -> list[Entry]:
        """Apply the next record of the journal, and return the entries that it made."""
        entries = self.history.apply(record)
        self.tracker.fold(record, now)
        self.statistics.note_names(record, entries, lambda name: any(name == key[0] for key in self.complete))
        self.training.apply(entries, self.history.last_planned_step, live=self.caught_up)
        if isinstance(record, Plan):
            self.timers.note_plan(record, now)
        for entry in entries:
            if isinstance(entry, Closed) and entry.plan.checkpoint is not None:
                succeeded = entry.outcome.status == OutcomeStatus.SUCCEEDED
                self.timers.note_outcome(entry.plan.checkpoint.key, now, failed=not succeeded)
                if succeeded:
                    self.statistics.note_group(entry.plan, live=self.caught_up)
        return entries

    def record_heartbeats(self, own: Heartbeat, others: HeartbeatReadings, now: float) -> None:
        """Note that this node's heartbeat was written, and that those of other nodes were read."""
        self.nodes.record_heartbeats(own, others, now)
        plan = self.history.open
        self.timers.note_collective_phases(self.nodes.collective_phases(plan) if plan is not None else (), now)

    def record_scan(
        self, scan: ScanResult, given_up: tuple[Settlement, ...], now: float, wall: float
    ) -> list[DiscoveredCheckpoint]:
        """Apply a scan of the checkpoint directory, and return the new checkpoints that need an evaluation."""
        is_first = not self.has_scanned
        new = self.tracker.see(scan, given_up, self.history, self.task, now, wall)
        self.statistics.gaps.scan(new, now)
        self.training.record_scan(new, self.complete)
        self.timers.note_scan(self.nodes.synced_at, now, changed=bool(new) or is_first)
        is_settled = self.history.verdicts.is_settled
        return [discovered for discovered in new if not is_settled(discovered.checkpoint.key, self.task)]

    # -- what is known ---------------------------------------------------------------------------------------------

    @property
    def complete(self) -> Mapping[Key, DiscoveredCheckpoint]:
        """Return the complete checkpoints of the newest scan, in order of discovery."""
        return self.tracker.found

    @property
    def node_state(self) -> NodeState:
        """Return how far this node is between its start and its end."""
        if self.shutdown.code is not None:
            return NodeState.LEFT
        if self.shutdown.draining:
            return NodeState.DRAINING
        return NodeState.READY if self.started else NodeState.STARTING

    @property
    def shown_state(self) -> NodeState:
        """Return the state that other nodes read. If this node cannot read the journal, it is `starting` for them."""
        return NodeState.STARTING if self.withdrawn and self.node_state == NodeState.READY else self.node_state

    @property
    def has_scanned(self) -> bool:
        """Return whether the checkpoint directory was scanned."""
        return self.tracker.has_scanned

    def view(self, now: float, *, draining: bool) -> View:
        """Return the view by which the policy decides, and update the timers in it."""
        ready, tracker, history = self.nodes.ready(now), self.tracker, self.history
        # Only these decisions depend on nodes whose liveness is unknown.
        needs_judges = tracker.given_up or history.verdicts.failures or history.exclusions.unusable
        nodes = NodesView(
            ready=ready,
            liveness_unknown=bool(needs_judges) and self.nodes.has_unheard_workers(now),
            chiefs=frozenset(heartbeat.node for heartbeat in self.nodes.alive(now) if heartbeat.role == "chief"),
            lost_members=self.lost(now),
            tasks=self._tasks(now),
            may_propose=self.nodes.liveness.ready_to_propose(now),
        )
        checkpoints = CheckpointsView(
            complete=tracker.relevant(history, self.task),
            given_up=list(tracker.given_up.values()),
            returned=tracker.returned(history, now),
            unreadable=self._unreadable(now),
            before_start=tracker.unwanted or _NO_KEYS,
            backlog_cutoff_pending=self.has_scanned and tracker.only_new(history),
            without_room=tracker.no_room.keys(),
            unpinnable=tracker.failed.keys(),
            training_done=tracker.done,
            last_step=self.training.last_step,
            incomplete_since=tracker.incomplete.since,
            scanned_at=self.timers.scanned_at,
        )
        self.timers.note_ready(ready, now)
        self.timers.note_work(now, waiting=history.open is None and self._has_work(checkpoints, nodes))
        return View(
            node=self.identity.node,
            incarnation=self.identity.incarnation,
            task=self.task,
            history=history,
            nodes=nodes,
            checkpoints=checkpoints,
            timers=self.timers.view(),
            draining=draining,
            caught_up=self.caught_up and self.has_scanned,
        )

    def lost(self, now: float) -> dict[str, str]:
        """Return other nodes of the open plan that will not finish it, and why."""
        plan = self.history.open
        return self._lost_members(plan, now) if plan is not None else {}

    def attended(self) -> tuple[str, ...]:
        """Return a few nodes whose heartbeats are read before those of others: the next plan depends on them.

        They are the daemons that lost plans last, and all members of the open plan if these are few. Among many nodes
        each member is watched by some of them.
        """
        plan, losses = self.history.open, self.history.exclusions.losses
        losers = list(dict.fromkeys(node_of(place) for place, _ in reversed(losses)))[:_ATTENDED]
        members = dict.fromkeys(member.node for member in (plan.members or () if plan is not None else ()))
        return (*losers, *(members if len(members) <= _ATTENDED else ()))

    def broken_group(self, now: float) -> str | None:
        """Return the group of the newest evaluation if a member on another node is gone: it cannot be used again."""
        newest = self.history.newest
        if newest is None or self.history.open is not None or not self._lost_members(newest.plan, now):
            return None
        return group_id(newest.plan.members or ())

    def outgrown_group(self, now: float) -> str | None:
        """Return the group of the newest evaluation if a larger one could be formed."""
        newest = self.history.newest
        if newest is None or self.history.open is not None:
            return None
        outgrown = is_outgrown(self.nodes.ready(now), self.history, self.identity.node, self.groups, self.task)
        return group_id(newest.plan.members or ()) if outgrown else None

    def publishes(self, now: float) -> bool:
        """Return whether this node exports the results as metrics."""
        return publisher(self.nodes.ready(now)) == self.identity.node

    def pin_policy(self, now: float) -> PinPolicy:
        """Return the policy that pins the checkpoints which any node's task still needs.

        Another thread calls the policy, and only reads.
        """
        plan, tracker, own = self.history.open, self.tracker, self.identity.node
        ready = self.nodes.ready(now)
        names = [heartbeat.node for heartbeat in ready]
        compatible = compatible_nodes(ready, own)
        return PinPolicy(
            history=self.history,
            selection=tracker.choices.selection,
            tasks=self._tasks(now) | self.nodes.unheard_tasks(now),
            evaluated=plan.checkpoint.key if plan is not None and plan.checkpoint is not None else None,
            unwanted=tracker.unwanted or set(),
            nothing_yet=tracker.only_new(self.history) and not tracker.has_scanned,
            done=tracker.done,
            releases=self.nodes.liveness.ready_to_propose(now) and may_release_pins(compatible, own),
            before=names.index(own) if own in names else len(names),
            exports=tuple((rule, exported(self.history, rule)) for rule in self.export_rules()),
        )

    def has_pins_to_export(self, now: float) -> bool:
        """Return whether this node still holds a pin of one of the best checkpoints, by the newest scan."""
        wanted = self.pin_policy(now).exported()
        found = (discovered.checkpoint for discovered in self.tracker.found.values()) if wanted else ()
        return any(checkpoint.pin is not None and checkpoint.folder in wanted for checkpoint in found)

    def export_rules(self) -> list[ExportRule]:
        """Return the rules by which this node and others export checkpoints, in the same order on all nodes."""
        own = self.identity.exports
        rules = self.nodes.export_rules() | (set() if own is None else {own})
        return sorted(rules, key=lambda rule: (rule.metric, -rule.count, rule.by))

    def heartbeat(self, beat: int, slots: tuple[Slot, ...]) -> Heartbeat | None:
        """Return the heartbeat of this node; None until it has joined a run."""
        if self.run is None:
            return None
        through, is_open = self.history.through, self.history.open is not None
        return Heartbeat(
            run=self.run,
            node=self.identity.node,
            incarnation=self.identity.incarnation,
            beat=beat,
            role=self.identity.role.role,
            about=AboutNode(
                role_source=self.identity.role.source,
                page_url=self.identity.page_url,
                version=self.identity.version,
            ),
            state=self.shown_state,
            task=self.task,
            journal=JournalPosition(plan=through, outcome=through - is_open, segments=SEGMENTS_KNOWN),
            slots=slots,
            numerics=self.numerics,
            evaluation_code=self.identity.evaluation_code,
        )

    def with_checkpoints(self, heartbeat: Heartbeat, now: float) -> Heartbeat:
        """Return a heartbeat with the checkpoints that this node sees, and those that it cannot read."""
        unreadable = sorted(self._unreadable(now))[:MOST_UNREADABLE]
        sees, sees_more = self.tracker.sees(self.history, self.task, self._tasks(now))
        corrupt = (lost.key for lost in self.tracker.given_up.values() if lost.verdict == Verdict.CORRUPT)
        damaged = sorted(map(folder_name, corrupt))[:MOST_UNREADABLE]
        sightings = CheckpointSightings(tuple(unreadable), sees, sees_more, self.identity.exports, tuple(damaged))
        return replace(heartbeat, checkpoints=sightings)

    def _has_work(self, checkpoints: CheckpointsView, nodes: NodesView) -> bool:
        """Return whether there is work for a plan of this node, without work that only other nodes can do."""
        choice = self.tracker.choice(self.history, self.task)
        if checkpoints.backlog_cutoff_pending or checkpoints.returned or choice.settled:
            return True
        if any(checkpoint.folder not in checkpoints.unreadable for checkpoint in choice.evaluate):
            return True
        unknown = nodes.liveness_unknown
        return not all(
            is_disputed(lost, self.identity.node, nodes.ready, liveness_unknown=unknown)
            for lost in checkpoints.given_up
        )

    def _unreadable(self, now: float) -> frozenset[str]:
        """Return names of checkpoints that this node cannot read, or gave up although another node finds them whole."""
        unreadable, ready = self.tracker.unreadable(self.history, self._tasks(now)), self.nodes.ready(now)
        given_up = self.tracker.given_up.values()
        seen_by_others = (lost for lost in given_up if is_seen_by_others(lost, self.identity.node, ready))
        return unreadable | {folder_name(lost.key) for lost in seen_by_others}

    def _tasks(self, now: float) -> frozenset[str | None]:
        """Return the tasks for which something may have to be evaluated."""
        return self.nodes.tasks(now) | {self.task}

    def _lost_members(self, plan: Plan, now: float) -> dict[str, str]:
        """Return other nodes among a plan's members that will not finish it, and why."""
        return self.nodes.lost_members(plan.members or (), self.timers.plan_opened_at, now)

    def _is_of_this_training(self, key: Key) -> bool:
        """Return whether a checkpoint belongs to this training; with start=new, if it was saved after the start."""
        return key not in self.history.verdicts.before_start and key not in (self.tracker.unwanted or ())
