"""Execute one plan on this node: its workers join and evaluate, and their reports decide how the plan ends.

No I/O and no clock: reports and times are arguments, commands go to the workers, and the result is an ending.

`plan_runner` makes a `PlanExecution` for each plan that lists workers of this node, passes the reports of these workers
to it, and asks for `ending`: a `Success` or a `Failure`, and the time from which this node may write it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sidecar.daemon.workers.command_specs import EvaluateSpec, TaskSpec
from sidecar.daemon.workers.pool import WorkerPool
from sidecar.daemon.workers.process import Event, Exited
from sidecar.policy.actions import Fail
from sidecar.protocol.heartbeat import WorkerProgress
from sidecar.protocol.messages import Done, Failed, Joined, Phase, SetFinished
from sidecar.protocol.records import (
    MOST_FINISHED_SETS,
    Checkpoint,
    FinishedSet,
    Lasting,
    Member,
    Plan,
    Result,
    group_id,
)
from sidecar.protocol.states import SECONDARY_KINDS, FailureKind, WorkerPhase


@dataclass(slots=True, kw_only=True)
class PlanTimes:
    """Hold the times at which this node's part of a plan reached each point, in seconds of the daemon's clock."""

    # Seconds from this node's proposal to the plan being read back; None if another node proposed it
    agree_seconds: float | None = None
    # When the last worker of this node was commanded to join; None if the workers are warm
    joining_since: float | None = None
    joined_at: float | None = None  # when the last worker of this node reported that it had joined
    done_at: float | None = None  # when the first worker of this node reported a result

    def durations(self, phases: Mapping[str, float], detect_seconds: float | None, now: float) -> dict[str, float]:
        """Return the seconds of each phase from the checkpoint's last write until `now`, when the result is written.

        `phases`: seconds by phase, as the workers measured them, the slowest rank's where ranks differ.
        `detect_seconds`: from the last write of the checkpoint to its discovery; None if that was not watched.
        """
        daemon = {"detect": detect_seconds, "agree": self.agree_seconds}
        known = {name: seconds for name, seconds in daemon.items() if seconds is not None}
        join = 0.0
        if self.joined_at is not None and self.joining_since is not None:
            join = self.joined_at - self.joining_since
        publish = now - self.done_at if self.done_at is not None else 0.0
        measured = {**known, "join": join, **phases, "publish": publish}
        return {name: round(seconds, 6) for name, seconds in measured.items()}


@dataclass(frozen=True, slots=True)
class Success:
    """End the plan with a result. This node does not write it before `at`."""

    at: float
    result: Result


@dataclass(frozen=True, slots=True)
class Failure:
    """End the plan as failed. This node does not write that before `at`."""

    at: float
    fail: Fail


@dataclass(slots=True, kw_only=True)
class PlanExecution:
    """Execute one plan on one node, whose workers are members of the plan."""

    plan: Plan
    checkpoint: Checkpoint
    node: str
    workers: WorkerPool
    task: TaskSpec
    evaluate: EvaluateSpec
    run_dir: Path
    opened_at: float
    result_turn_seconds: float  # each node leaves this time to those before it to write the result
    second_thought_seconds: float  # a secondary failure leaves this time to the failure that caused it
    times: PlanTimes = field(default_factory=PlanTimes)
    started: bool = False
    ending: Success | Failure | None = None
    _finished: dict[str, dict[str, FinishedSet]] = field(default_factory=dict)  # by worker of this node and eval set
    _phases: dict[str, str] = field(default_factory=dict)  # by worker of this node: its phase in this plan

    @property
    def own(self) -> tuple[Member, ...]:
        """Return the members that run on this node."""
        return tuple(member for member in self.plan.members or () if member.node == self.node)

    @property
    def group(self) -> str:
        """Return the group's id."""
        return group_id(self.plan.members or ())

    @property
    def before(self) -> tuple[str, ...]:
        """Return the nodes whose turn to write the result comes before this one's. The node of rank 0 is the first."""
        nodes = list(dict.fromkeys(member.node for member in self.plan.members or ()))
        return tuple(nodes[: nodes.index(self.node)])

    @property
    def folder(self) -> str:
        """Return the folder in which the ranks of this plan save, relative to the run's state directory."""
        return self.plan.folder

    def progress(self) -> tuple[WorkerProgress, ...]:
        """Return the progress of this node's workers."""
        workers = [worker for member in self.own if (worker := self.workers.find(member.worker)) is not None]
        return tuple(
            WorkerProgress(
                worker.worker,
                worker.progress.phase,
                worker.progress.batches,
                worker.progress.total_batches,
                worker.progress.is_waiting or None,
                tuple(self._finished.get(worker.worker, {}).values()),
            )
            for worker in workers
        )

    def start(self, path: str, now: float) -> None:
        """Let this node's workers evaluate, after they joined the group if necessary. They restore from `path`."""
        self.started = True
        members = self.plan.members or ()
        for member in self.own:
            worker = self.workers.find(member.worker)
            if worker is None or worker.killed:
                message = "the worker process ended before it could join"
                self.fail(FailureKind.WORKER_DIED, message, member.rank, now)
                return
            if worker.group not in (None, self.group):
                message = f"{member.worker} is in group {worker.group}: a worker joins only one group in its life"
                self.fail(FailureKind.JOIN, message, member.rank, now)
                return
            if worker.group is None:
                self.times.joining_since = now
                join = self.task.join(group=self.group, members=members, rank=member.rank)
                self.workers.join(join, member.worker, now)
            folder = self.run_dir / self.folder / f"worker-{member.rank}-of-{len(members)}"
            command = self.evaluate.evaluate(
                plan=self.plan.plan,
                checkpoint=self.checkpoint,
                path=path,
                save_to=str(folder),
                save_root=str(self.run_dir),
                evaluated=self.plan.evaluated,
                attempt=self.plan.attempt,
                finished_sets=str(self.run_dir / self.plan.finished_sets),
            )
            self.workers.evaluate(command, member.worker, now)

    def note_set(self, worker: str, report: SetFinished) -> None:
        """Note the numbers of an eval set that are known before those of the others. Nothing is decided by them."""
        found = self._finished.setdefault(worker, {})
        if report.plan == self.plan.plan and len(found) < MOST_FINISHED_SETS:
            found[report.finished.eval_set] = report.finished

    def observe(self, worker: str, report: Event, now: float) -> None:
        """Apply a report of one of this node's workers."""
        rank = next((member.rank for member in self.own if member.worker == worker), None)
        if rank is None:
            return
        if isinstance(report, Failed) and report.plan not in (None, self.plan.plan):
            message = f"the worker process could not end plan {report.plan}: {report.message}"
            self.fail(FailureKind.WORKER_DIED, message, rank, now)
        elif isinstance(report, Failed):
            lost = self._last if (report.kind, report.phase) == (FailureKind.JOIN, WorkerPhase.JOIN) else report.lost
            odd = odd_nodes(self.plan, report.sides)
            self.fail(report.kind, report.message, rank, now, lost=lost, odd=odd, lasting=report.lasting)
        elif isinstance(report, Exited) and report.crashed and self._is_restoring(worker):
            self.fail(FailureKind.CRASHED, f"while it read the checkpoint {report}", rank, now)
        elif isinstance(report, Exited):
            self.fail(FailureKind.WORKER_DIED, str(report), rank, now)
        elif isinstance(report, Phase) and report.plan == self.plan.plan:
            self._phases[worker] = report.phase
        elif isinstance(report, Joined):
            self.times.joined_at = now
            if self.plan.task is not None and report.task != self.plan.task:
                message = "the task's code changed while the daemon ran; the changed one is used from now on"
                self.fail(FailureKind.MISMATCH, message, rank, now, odd=(self._place_of(rank),))
        elif isinstance(report, Done) and report.plan == self.plan.plan and self.times.done_at is None:
            self.times.done_at = now
            self._succeed(report, now)

    @property
    def _last(self) -> int | None:
        """Return the rank to blame if the group did not form for an unknown reason: the same rank on every node."""
        return self.plan.members[-1].rank if self.plan.members else None

    def _place_of(self, rank: int | None) -> str:
        """Return the place of a rank of this node; the node if it is not one rank's failure."""
        return next((member.place for member in self.own if member.rank == rank), self.node)

    def fail(
        self,
        kind: FailureKind,
        message: str,
        rank: int | None,
        now: float,
        *,
        lost: int | None = None,
        odd: tuple[str, ...] = (),
        lasting: Lasting | None = None,
    ) -> None:
        """Note a failure of a rank of this node. The first one that is not a consequence of another one counts.

        If no better reason is found, the rank that was lost is to blame, so that the next attempt goes without its
        node. Each side of a broken link would blame the other, and excluding one side is enough.
        """
        secondary, ending = kind in SECONDARY_KINDS, self.ending
        if ending is not None and (isinstance(ending, Success) or secondary or ending.at <= now):
            return
        members = self.plan.members or ()
        if not secondary:
            at_fault = next((member for member in members if member.place in odd or member.rank == lost), None)
            node, rank = (self._place_of(rank), rank) if at_fault is None else (at_fault.place, at_fault.rank)
            own_fault = lasting if at_fault is None else None
            self.ending = Failure(
                now, Fail(kind=kind, message=message, node=node, rank=rank, odd=odd, lasting=own_fault)
            )
            return
        others = [member for member in members if member.place != self._place_of(rank)]
        blamed = next((member for member in members if member.rank == lost), others[-1] if others else None)
        fail = Fail(kind=kind, message=message)
        if blamed is not None:
            fail = Fail(kind=kind, message=message, node=blamed.place, rank=blamed.rank)
        self.ending = Failure(now + self.second_thought_seconds, fail)

    def _is_restoring(self, worker: str) -> bool:
        """Return whether a worker reads the checkpoint. The first attempt reads data meanwhile, see `Evaluate`."""
        phase = self._phases.get(worker)
        return phase == WorkerPhase.RESTORE or (phase == WorkerPhase.READ and self.plan.attempt == 1)

    def _succeed(self, done: Done, now: float) -> None:
        """Note the result. It replaces a secondary failure whose time has not come, but no other failure."""
        if isinstance(self.ending, Failure) and self.ending.at <= now:
            return
        turn = now + len(self.before) * self.result_turn_seconds
        self.ending = Success(turn, replace(done.result, saves=self.plan.saves))


def odd_nodes(plan: Plan, sides: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """Return the places whose ranks differ from those of most places; empty if there is no majority.

    `sides`: the ranks by answer. If two sides have equally many nodes, the side with the proposer counts as the larger.
    If there are more sides and none is the largest, or if the ranks of one node differ, all nodes share the cause.
    """
    members = {member.rank: member.place for member in plan.members or ()}
    nodes = [{members[rank] for rank in side if rank in members} for side in sides]
    most = max(map(len, nodes), default=0)
    largest = [side for side in nodes if len(side) == most]
    if len(largest) > 1 and len(nodes) == 2:  # noqa: PLR2004 - one against the other
        largest = [side for side in nodes if plan.proposer in side] or largest[:1]
    if len(largest) != 1:
        return ()
    odd = set().union(*(side for side in nodes if side is not largest[0]))
    return tuple(node for node in dict.fromkeys(members.values()) if node in odd) if largest[0] - odd else ()
