"""Run this node's part of the plans: start its workers once they can begin, and decide how and when the plan ends.

No I/O and no clock: commands go to the worker pool, and the loop writes the outcome.
"""

from dataclasses import dataclass
from pathlib import Path

from sidecar.checkpoints.inspect import restore_path
from sidecar.coordination.journal_state import Closed
from sidecar.daemon.plan_execution import Failure, PlanExecution, PlanTimes, Success
from sidecar.daemon.shutdown import Shutdown
from sidecar.daemon.state import DaemonState
from sidecar.daemon.storage_schedule import StorageSchedule
from sidecar.daemon.timing import Timing
from sidecar.daemon.worker_supervisor import WorkerSupervisor
from sidecar.daemon.workers.command_specs import EvaluateSpec
from sidecar.daemon.workers.process import Event
from sidecar.policy.actions import Fail
from sidecar.protocol.heartbeat import WorkerProgress
from sidecar.protocol.messages import SetFinished
from sidecar.protocol.records import Plan
from sidecar.protocol.states import FailureKind, OutcomeStatus, Verdict


@dataclass(slots=True, kw_only=True)
class PlanRunner:
    """Run the open plan on one node if the node's workers are among the members."""

    state: DaemonState
    supervisor: WorkerSupervisor | None  # None: this node never evaluates
    schedule: StorageSchedule
    shutdown: Shutdown
    evaluate: EvaluateSpec
    run_dir: Path
    timing: Timing
    execution: PlanExecution | None = None
    ended: int = 0  # plans in which this node had a part
    stored: int | None = None  # the newest plan whose saves are all in the bucket of the state
    _lost_before: frozenset[str] = frozenset()  # nodes that were gone when the saves were last asked for
    _proposal: tuple[int, float] | None = None  # the plan proposed here, and when

    @property
    def ending(self) -> Success | Failure | None:
        """Return the ending of the open plan by this node; None if it has no part in the plan, or no ending yet."""
        return self.execution.ending if self.execution is not None else None

    @property
    def progress(self) -> tuple[WorkerProgress, ...] | None:
        """Return the progress of this node's workers; None if it has no part in a plan."""
        return self.execution.progress() if self.execution is not None else None

    def note_proposal(self, plan: int, now: float) -> None:
        """Remember when this node proposed a plan, to measure how long agreement takes."""
        self._proposal = plan, now

    def observe(self, worker: str, report: Event, now: float) -> None:
        """Apply a report of one of this node's workers."""
        if self.execution is not None and isinstance(report, SetFinished):
            self.execution.note_set(worker, report)
        elif self.execution is not None:
            self.execution.observe(worker, report, now)

    def begin(self, plan: Plan, now: float) -> None:
        """Take part in a plan that was just opened, if it lists workers of this node."""
        proposal, self._proposal = self._proposal, None
        if self.supervisor is None or plan.checkpoint is None:
            return
        agree_seconds = now - proposal[1] if proposal is not None and proposal[0] == plan.plan else None
        execution = PlanExecution(
            plan=plan,
            checkpoint=plan.checkpoint,
            node=self.state.identity.node,
            workers=self.supervisor.workers,
            task=self.supervisor.spec,
            evaluate=self.evaluate,
            run_dir=self.run_dir,
            opened_at=now,
            times=PlanTimes(agree_seconds=agree_seconds),
            result_turn_seconds=self.timing.result_turn_seconds,
            second_thought_seconds=self.timing.beat_seconds,
        )
        self.supervisor.workers.kill_group(other_than=execution.group)
        if any(member.worker.startswith(f"{self.state.identity.workers}.") for member in execution.own):
            self.execution, self._lost_before = execution, frozenset()
            discovered = self.state.complete.get(plan.checkpoint.key)
            if discovered is None or discovered.checkpoint.pin is None:
                self.schedule.request_scan()  # the proposer saw the checkpoint, or its pin, before this node

    def end(self, closed: Closed) -> None:
        """Note that the journal closed the plan. Workers that were listed for nothing are dismissed."""
        execution, self.execution = self.execution, None
        self.ended += execution is not None
        succeeded = closed.outcome.status == OutcomeStatus.SUCCEEDED
        if execution is not None and self.supervisor is not None and not (succeeded and execution.started):
            self.supervisor.dismiss(member.worker for member in execution.own)

    def abandon(self) -> None:
        """Take no part in the open plan any more."""
        self.execution = None

    def advance(self, now: float, *, answered: bool) -> None:
        """Start this node's workers once it sees the checkpoint's pin; fail the plan if it never does.

        `answered`: no request to storage is open.
        """
        execution, tracker = self.execution, self.state.tracker
        if execution is None or execution.ending is not None:
            return
        if self.shutdown.drained(now):
            execution.fail(FailureKind.DRAINED, "the daemon was stopped before the evaluation ended", None, now)
            return
        if execution.started or self.schedule.is_absent(now):
            return
        checkpoint, wait_seconds = execution.checkpoint, self.timing.pin_wait_seconds
        discovered = self.state.complete.get(checkpoint.key)
        if discovered is not None and self.timing.transfer_seconds is not None:  # it is being downloaded
            wait_seconds = self.timing.transfer_seconds
        unreadable = tracker.unknown.get(checkpoint.folder)
        given_up = tracker.given_up.get(checkpoint.key)
        if discovered is not None and discovered.checkpoint.pin is not None and unreadable is None:
            execution.start(restore_path(discovered, discovered.folder), now)
        elif given_up is not None and given_up.verdict == Verdict.CORRUPT:
            execution.fail(FailureKind.CORRUPT, given_up.reason, None, now)
        elif self.schedule.has_scanned_since(execution.opened_at + wait_seconds, now, answered=answered):
            waited = f"{checkpoint.name} was not found on this node for {wait_seconds:.0f} s"
            if tracker.missing or unreadable is not None or self.schedule.scan_hangs(now):
                waited = waited if unreadable is None else f"{waited}: {unreadable}"
                execution.fail(FailureKind.STORAGE, waited, None, now)
            elif (broken := tracker.broken_pin(checkpoint.folder)) is not None:  # and other files seem whole
                execution.fail(FailureKind.CORRUPT, f"its pin cannot be read: {broken}", None, now)
            else:
                execution.fail(FailureKind.VANISHED, waited, None, now)

    def waits_for_download(self) -> bool:
        """Return whether this node's workers have begun, and a node of another member has no pin of its own yet."""
        execution = self.execution
        return execution is not None and execution.started and self.state.nodes.lacks_pin(execution.plan)

    def lacks_saves(self) -> Plan | None:
        """Return the open plan if it succeeded here, and its saves are not known to be in the bucket of the state."""
        if self.timing.transfer_seconds is None or self.execution is None or not isinstance(self.ending, Success):
            return None
        plan = self.execution.plan
        return None if self.stored == plan.plan else plan

    def why_saves_are_missing(self, now: float) -> Fail | None:
        """Return the failure of a plan whose saves are not waited for any longer; None as long as they are."""
        execution = self.execution
        assert execution is not None
        lost = self.state.lost(now)
        gone = next(
            (each for each in execution.plan.members or () if each.node in self._lost_before & lost.keys()), None
        )
        if gone is not None:
            message = f"{gone.node} is gone, and its saves are not in the bucket: {lost[gone.node]}"
            return Fail(kind=FailureKind.MEMBER_LOST, message=message, node=gone.place, rank=gone.rank)
        since, seconds = execution.times.done_at, self.timing.transfer_seconds
        if since is None or seconds is None or now < since + seconds:
            return None
        message = f"the saves of all workers were not in the bucket of the state after {seconds:.0f} s"
        return Fail(kind=FailureKind.STORAGE, message=message, node=execution.node)

    def note_stored(self, plan: int) -> None:
        """Note that the saves of all workers of a plan are in the bucket of the state."""
        self.stored = plan

    def note_saves_asked(self, now: float) -> None:
        """Remember who is gone while the saves are asked for: what such a node uploaded will be seen."""
        self._lost_before = frozenset(self.state.lost(now))

    def may_write(self, ending: Success | Failure, now: float) -> bool:
        """Return whether it is this node's turn to write how the plan ends.

        Every member may write a result. The nodes before this one have their turn first, unless they are gone.
        """
        if now >= ending.at:
            return True
        if isinstance(ending, Failure) or self.execution is None:
            return False
        return self.shutdown.draining or set(self.execution.before) <= self.state.lost(now).keys()
