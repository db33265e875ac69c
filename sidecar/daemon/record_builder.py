"""Writes what was decided as the records that the journal holds. It creates nothing in storage."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from sidecar.clock import Clock, timestamp
from sidecar.daemon.plan_execution import PlanExecution
from sidecar.daemon.state import DaemonState
from sidecar.policy.actions import Fail, Propose
from sidecar.records import Outcome, Plan


@dataclass(slots=True)
class RecordBuilder:
    """Knows who writes, and when."""

    state: DaemonState
    clock: Clock
    new_nonce: Callable[[], str]

    def plan(self, action: Propose) -> Plan:
        """The next plan of the journal."""
        assert self.state.run is not None
        return Plan(
            plan=self.state.history.through + 1,
            run=self.state.run,
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

    def success(self, part: PlanExecution, agree_seconds: float | None, now: float) -> Outcome:
        """The outcome of the plan in which this node's workers found a result."""
        assert part.plan.checkpoint is not None
        assert part.ending is not None
        assert part.ending.result is not None
        here = {"detect": self.state.tracker.detected_after(part.plan.checkpoint.key), "agree": agree_seconds}
        known = {name: seconds for name, seconds in here.items() if seconds is not None}
        found = part.ending.result
        result = replace(found, phases=part.phases(known, now), changed=self.state.history.changed(found))
        return replace(self._outcome(part.plan), status="succeeded", result=result)

    def failure(self, plan: Plan, fail: Fail) -> Outcome:
        """The outcome of a plan that cannot succeed."""
        return replace(
            self._outcome(plan),
            kind=fail.kind,
            message=fail.message,
            node=fail.node,
            rank=fail.rank,
            odd=fail.odd,
            lasting=fail.lasting,
        )

    def _outcome(self, plan: Plan) -> Outcome:
        return Outcome(
            plan=plan.plan,
            run=plan.run,
            nonce=self.new_nonce(),
            status="failed",
            closed_by=self.state.identity.node,
            completed_at=timestamp(self.clock.wall()),
            plan_nonce=plan.nonce,
        )
