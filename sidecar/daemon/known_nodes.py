"""Track which nodes are alive, and which members of a plan are gone or wait. No I/O and no clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sidecar.coordination.exclusions import incarnation_of
from sidecar.coordination.liveness import HeartbeatReadings, Liveness
from sidecar.policy.eligibility import ready_workers
from sidecar.protocol.export_rule import ExportRule
from sidecar.protocol.heartbeat import Heartbeat
from sidecar.protocol.records import Member, Plan
from sidecar.protocol.states import GROUP_PHASES, WorkerPhase


@dataclass(slots=True, kw_only=True)
class KnownNodes:
    """Hold the nodes whose heartbeats were read. Times are seconds of this daemon's own clock."""

    node: str  # this one
    lease_seconds: float
    liveness: Liveness = field(init=False)
    synced_at: float = 0.0  # when the newest reading was asked for
    unreadable_files: tuple[str, ...] = ()  # why files of other nodes gave no heartbeat

    def __post_init__(self) -> None:
        self.liveness = Liveness(self.node, self.lease_seconds)

    def record_heartbeats(self, own: Heartbeat, others: HeartbeatReadings, now: float) -> None:
        """Note that this node's heartbeat was written, and that those of other nodes were read."""
        self.synced_at = now
        self.liveness.wrote(own, now)
        self.liveness.observe(others, now)
        self.unreadable_files = others.unknown

    def alive(self, now: float) -> list[Heartbeat]:
        """Return the heartbeats of the nodes that are alive, in natural order; this node's is among them."""
        return self.liveness.fresh_heartbeats(now)

    def ready(self, now: float) -> list[Heartbeat]:
        """Return the heartbeats of the nodes that are alive and offer workers, in natural order."""
        return ready_workers(self.alive(now))

    def may_have_workers(self, now: float) -> bool:
        """Return whether a node that evaluates is alive, or may be alive."""
        is_known = self.liveness.ready_to_propose(now) and not self.has_unheard_workers(now)
        return not is_known or any(heartbeat.role == "worker" for heartbeat in self.alive(now))

    def has_unheard_workers(self, now: float) -> bool:
        """Return whether a worker node may be alive although its heartbeat cannot be read."""
        return any(heartbeat.role == "worker" for heartbeat in self.liveness.unheard(now))

    def tasks(self, now: float) -> frozenset[str]:
        """Return the digests of the tasks of live nodes."""
        return frozenset(heartbeat.task for heartbeat in self.alive(now) if heartbeat.task is not None)

    def unheard_tasks(self, now: float) -> frozenset[str]:
        """Return the digests of the tasks of nodes that may be alive although their heartbeats cannot be read."""
        return frozenset(heartbeat.task for heartbeat in self.liveness.unheard(now) if heartbeat.task is not None)

    def export_rules(self) -> set[ExportRule]:
        """Return the rules by which nodes export checkpoints, also those of nodes that are silent and may come back."""
        rules = (heartbeat.checkpoints.exports for heartbeat in self.liveness.remembered())
        return {rule for rule in rules if rule is not None}

    def lost_members(self, members: Sequence[Member], opened_at: float, now: float) -> dict[str, str]:
        """Return other nodes among the members of a plan that will not finish it, and why.

        `opened_at`: when the plan was first seen. A node without any heartbeat is lost a lease after that.
        """
        reasons = {}
        for member in members:
            if member.node != self.node and (why := self._why_lost(member, opened_at, now)) is not None:
                reasons[member.node] = why
        return reasons

    def lacks_pin(self, plan: Plan) -> bool:
        """Return whether another member has not begun, by its heartbeat, because its node has no pin yet.

        That node's daemon decides how long this may take. The members that wait for it to join must not be judged.
        """
        for member in plan.members or ():
            heartbeat = self.liveness.heartbeat(member.node)
            if member.node == self.node or heartbeat is None or heartbeat.journal.plan != plan.plan:
                continue
            if any((each.worker, each.phase) == (member.worker, WorkerPhase.STANDBY) for each in heartbeat.doing or ()):
                return True
        return False

    def collective_phases(self, plan: Plan) -> tuple[str, ...]:
        """Return the plan and the phase of each rank; empty unless every rank waits for the others by its heartbeat.

        As long as one rank works, or waits for a processor, the others wait for it, and its own daemon judges it.
        """
        phases = [str(plan.plan)]
        for member in plan.members or ():
            heartbeat = self.liveness.heartbeat(member.node)
            if heartbeat is None or heartbeat.journal.plan != plan.plan or heartbeat.journal.outcome >= plan.plan:
                return ()
            workers = {progress.worker: progress.phase for progress in heartbeat.doing or () if not progress.waits}
            phase = workers.get(member.worker)
            if phase not in GROUP_PHASES:
                return ()
            phases.append(phase)
        return tuple(phases)

    def _why_lost(self, member: Member, opened_at: float, now: float) -> str | None:
        """Return why a member's node will not finish the plan; None if it may."""
        if why := self.liveness.lost(member.node, incarnation_of(member.worker, member.node)):
            return why
        if self.liveness.heartbeat(member.node) is None and now >= opened_at + self.lease_seconds:
            return f"{member.node} has no heartbeat"
        return None
