"""Build the records of the journal from decisions. This writes nothing to storage."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from sidecar.checkpoints.several_models import remedy_for_several_models
from sidecar.coordination.journal_records import unreadable
from sidecar.daemon.plan_execution import PlanExecution
from sidecar.daemon.state import DaemonState
from sidecar.policy.actions import Fail, Propose
from sidecar.protocol.codec import dumps
from sidecar.protocol.records import Outcome, Plan, Result
from sidecar.protocol.states import FailureKind, OutcomeStatus
from sidecar.system.clock import Clock, timestamp


@dataclass(slots=True, kw_only=True)
class RecordBuilder:
    """Build records that add the writer and the time to a decision."""

    state: DaemonState
    clock: Clock
    new_nonce: Callable[[], str]

    def plan(self, action: Propose, run: str) -> Plan:
        """Return the next plan of the journal."""
        return Plan(
            plan=self.state.history.through + 1,
            run=run,
            nonce=self.new_nonce(),
            checkpoint=action.checkpoint,
            attempt=action.attempt,
            members=action.members,
            settles=action.settles,
            task=self.state.task,
            proposer=self.state.identity.node,
            proposed_at=timestamp(self.clock.wall()),
            evaluated=action.evaluated,
            line_open=action.line_open,
        )

    def success(self, execution: PlanExecution, result: Result, now: float) -> Outcome:
        """Return the outcome of a plan for which this node's workers have a result.

        It is a failure if other daemons would set the record aside, because it is too large.
        """
        detected = self.state.tracker.detected_after(execution.checkpoint.key)
        phases = execution.times.durations(result.phases, detected, now)
        lag = self.state.tracker.lag(execution.checkpoint.key, self.clock.wall())
        complete = replace(result, phases=phases, changed=self.state.history.changed(result), lag_seconds=lag)
        outcome = replace(self._outcome(execution.plan), status=OutcomeStatus.SUCCEEDED, result=complete)
        if why := unreadable(outcome, dumps(outcome)):
            message = f"the result does not fit into a record of the journal: {why}. Measure fewer metrics or classes"
            own = next((member for member in execution.plan.members or () if member.node == outcome.closed_by), None)
            rank = None if own is None else own.rank
            fail = Fail(kind=FailureKind.TASK_ERROR, message=message, node=outcome.closed_by, rank=rank, lasting="task")
            return self.failure(execution.plan, fail)
        return outcome

    def failure(self, plan: Plan, fail: Fail) -> Outcome:
        """Return the outcome of a plan that cannot succeed."""
        message = fail.message
        if plan.checkpoint is not None and fail.kind == FailureKind.MISMATCH and fail.lasting == "checkpoint":
            names = (discovered.checkpoint.name for discovered in self.state.complete.values())
            message = " ".join(filter(None, (message, remedy_for_several_models(plan.checkpoint.name, names))))
        return replace(
            self._outcome(plan),
            kind=fail.kind,
            message=message,
            node=fail.node,
            rank=fail.rank,
            odd=fail.odd,
            lasting=fail.lasting,
        )

    def _outcome(self, plan: Plan) -> Outcome:
        """Return an outcome with the fields that every outcome has."""
        return Outcome(
            plan=plan.plan,
            run=plan.run,
            nonce=self.new_nonce(),
            status=OutcomeStatus.FAILED,
            closed_by=self.state.identity.node,
            completed_at=timestamp(self.clock.wall()),
            plan_nonce=plan.nonce,
        )
