"""Build the next request to storage. The schedule decides which request is due, and the policy which record to write.

`RecordBuilder` builds the records of the journal from decisions. No I/O: the loop hands the request to the storage
thread.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from sidecar.checkpoints.several_models import remedy_for_several_models
from sidecar.coordination.journal_records import unreadable
from sidecar.coordination.snapshot import Snapshot, take
from sidecar.daemon.plan_execution import PlanExecution, Success
from sidecar.daemon.plan_runner import PlanRunner
from sidecar.daemon.shutdown import Shutdown
from sidecar.daemon.state import DaemonState
from sidecar.daemon.storage_schedule import Ask, StorageSchedule, SyncDue
from sidecar.daemon.storage_thread import CreateOutcome, CreatePlan, JoinRun, PollJournal, Request, StoreSaves, Sync
from sidecar.daemon.worker_supervisor import WorkerSupervisor
from sidecar.policy.actions import Fail, Propose, Stop, Wait
from sidecar.policy.decide import decide, why_over
from sidecar.policy.rules import Rules
from sidecar.protocol.codec import dumps
from sidecar.protocol.records import Outcome, Plan, Result
from sidecar.protocol.states import FailureKind, NodeState, OutcomeStatus
from sidecar.publishing.status import Ended
from sidecar.retention.saves.retention import Retention
from sidecar.system.clock import Clock, timestamp
from sidecar.system.event_log import EventLog

_EXPORTS_PAUSE_SECONDS: Final = 1.0  # between two checks whether the best checkpoints are in the bucket of the state
_SINKS_PAUSE_SECONDS: Final = 0.05  # between two checks whether the sinks have taken the end of the run


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


@dataclass(slots=True, kw_only=True)
class RequestBuilder:
    """Build the requests of one daemon."""

    rules: Rules
    # Plans between two snapshots. A start reads at most this many plans, which takes some 0.1 s.
    snapshot_plans: int = 200
    state: DaemonState
    retention: Retention
    supervisor: WorkerSupervisor | None  # None on a chief, which neither scans nor decides
    records: RecordBuilder
    runner: PlanRunner
    schedule: StorageSchedule
    shutdown: Shutdown
    log: EventLog
    # Returns whether the sinks of this node have everything; it never waits
    delivered: Callable[[], bool] = lambda: True
    # Returns how busy the processors of this node are, as `AboutNode.load`
    load: Callable[[], float | None] = lambda: None
    # Whether worker processes would have something to do, by the policy's newest decision
    needs_workers: bool = False
    _exports_by: float | None = None  # until then the end of the run waits for exports

    def next(self, now: float) -> Request | None:
        """Return the next request to storage; None if nothing is due."""
        if self.schedule.timing.quiet_factor > 1 and not self._is_quiet(now):
            self.schedule.end_quiet()
        slots = self.supervisor.workers.slots() if self.supervisor is not None else ()
        heartbeat = self.state.heartbeat(self.schedule.beats, slots)
        asked = self.schedule.due(
            now,
            heartbeat,
            may_scan=self.may_scan(),
            may_poll=self.state.caught_up,
            is_ending=self.runner.ending is not None,
        )
        for due in asked:
            if (request := self._build(due, now)) is not None:
                return request
        return None

    def _build(self, due: Ask | SyncDue, now: float) -> Request | None:
        """Return a request that is due; None if there is no record to write."""
        if isinstance(due, SyncDue):
            return self._sync(due, now)
        if due is Ask.RECORD:
            return self._next_record(now)
        return JoinRun(names_similar=not self.state.tracker.missing) if due is Ask.JOIN else PollJournal()

    def may_scan(self) -> bool:
        """Return whether checkpoints may be scanned. Before the journal is read, all of them would be pinned."""
        return self.supervisor is not None and self.state.caught_up and self.shutdown.code is None

    def _next_record(self, now: float) -> Request | None:
        """Return the request that writes this node's next record, or polls the journal; None if neither is due."""
        run = self.state.run
        if self.supervisor is None or run is None or not self.state.caught_up:
            if self.state.caught_up and run is not None:
                self._leave_after_workers(now)
            return None
        execution, ending = self.runner.execution, self.runner.ending
        if execution is None or ending is None or self.state.history.open is None:
            return self._decide(run, now)
        if (unsaved := self.runner.lacks_saves()) is not None:
            return self._wait_for_saves(unsaved, now)
        if not self.runner.may_write(ending, now):
            return PollJournal() if self.schedule.is_poll_due(now) else None
        if isinstance(ending, Success):
            return CreateOutcome(self.records.success(execution, ending.result, now))
        return CreateOutcome(self.records.failure(execution.plan, ending.fail))

    def _wait_for_saves(self, plan: Plan, now: float) -> Request | None:
        """Return the request that uploads saves, or that fails the plan because some will never come; None: not now."""
        if (fail := self.runner.why_saves_are_missing(now)) is not None:
            return CreateOutcome(self.records.failure(plan, fail))
        if not self.schedule.is_poll_due(now):
            return None
        self.runner.note_saves_asked(now)
        return StoreSaves(plan)

    def _decide(self, run: str, now: float) -> Request | None:
        """Let the policy decide, and return the request that its action needs; None if it needs none."""
        plan = self.state.history.open
        if self.shutdown.code is not None or (plan is None and self.state.task is None):
            return None
        action = decide(self.state.view(now, draining=self.shutdown.draining), self.rules, now)
        self.needs_workers = isinstance(action, Wait) and action.for_workers
        if isinstance(action, Stop):
            self._stop(action, now)
            return None
        self.shutdown.go_on()
        if isinstance(action, Propose):
            self.runner.note_proposal(self.state.history.through + 1, now)
            self.needs_workers = action.checkpoint is not None
            return CreatePlan(self.records.plan(action, run))
        if isinstance(action, Fail) and plan is not None:
            return CreateOutcome(self.records.failure(plan, action))
        if isinstance(action, Wait):
            if action.until is not None:
                self.schedule.wake_by(action.until)
            if action.listen:
                return PollJournal() if self.schedule.is_poll_due(now) else None
            self.schedule.stop_polling()
        return None

    def _leave_after_workers(self, now: float) -> None:
        """End the daemon of a chief if its settings end the run, and no other node evaluates any more.

        A chief does not know which checkpoints wait, so it leaves this to the nodes that evaluate, and outlives them.
        """
        if self.shutdown.code is not None or self.state.nodes.may_have_workers(now):
            return
        if isinstance(why_over(self.state.view(now, draining=False), self.rules.ending, now), str):
            self.log.info("run_ended", reason="the settings end it, and no other node evaluates any more", failed=0)
            self.shutdown.leave(0, now)

    def _stop(self, action: Stop, now: float) -> None:
        """Leave the run that is over, once the sinks of this node have taken its end."""
        if self._waits_for_exports(now):
            self.schedule.wake_by(now + _EXPORTS_PAUSE_SECONDS)
            return
        ended = Ended(action.why, action.failed)
        if not self.shutdown.may_leave(ended, now, delivered=self.delivered()):
            self.schedule.wake_by(now + _SINKS_PAUSE_SECONDS)
            return
        self.log.info("run_ended", reason=action.why, failed=action.failed)
        self.shutdown.leave(1 if action.failed else 0, now)

    def _waits_for_exports(self, now: float) -> bool:
        """Return whether pins of this node are uploaded as exports, by any node, for as long as a transfer may take.

        After its end nobody would upload them. Nodes that share pins make exports at once, by the last scan.
        """
        seconds = self.runner.timing.transfer_seconds
        if seconds is None or not self.state.has_pins_to_export(now):
            self._exports_by = None
            return False
        self._exports_by = now + seconds if self._exports_by is None else self._exports_by
        return now < self._exports_by

    def _sync(self, due: SyncDue, now: float) -> Sync:
        """Return the request that writes the heartbeat, with everything else that is due."""
        # The fields that are added here do not make a sync due when they change.
        heartbeat = self.state.with_checkpoints(self.schedule.number(due, now, quiet=self._is_quiet(now)), now)
        heartbeat = replace(heartbeat, doing=self.runner.progress, about=replace(heartbeat.about, load=self.load()))
        is_last = heartbeat.state == NodeState.LEFT and self.supervisor is not None and self.state.has_scanned
        tidying = self.retention.due(now)
        if self.state.caught_up and self.state.publishes(now):
            tidying = replace(tidying, retained=self.retention.retained_states(self.state.history))
        return Sync(
            heartbeat=heartbeat,
            scan=due.scan or is_last,
            noticed=due.noticed,
            names_similar=not self.state.tracker.missing,
            pin_policy=self.state.pin_policy(now),
            tidying=tidying,
            snapshot=self._snapshot(now),
            attended=self.state.attended(),
            closed=self._closed(now),
        )

    def _closed(self, now: float) -> int | None:
        """Return the newest plan if this node publishes results and no plan is open; else None.

        Old plans are moved into segments then, so that this costs no evaluation its time.
        """
        history = self.state.history
        return history.through if self.is_between_plans() and self.state.publishes(now) else None

    def _is_quiet(self, now: float) -> bool:
        """Return whether nobody waits for this node's heartbeat: no other node may be alive, and no plan is open."""
        nodes = self.state.nodes
        return self.is_between_plans() and len(nodes.alive(now)) <= 1 and not nodes.liveness.unheard(now)

    def is_between_plans(self) -> bool:
        """Return whether this node has read the journal, and no plan is open or follows at once."""
        history = self.state.history
        return self.state.caught_up and history.open is None and not history.backlog_cutoff_pending

    def _snapshot(self, now: float) -> Snapshot | None:
        """Return a snapshot of the journal if one is due and this node publishes results; else None.

        A daemon that starts reads the newest snapshot, and only the records after it.
        """
        history, run = self.state.history, self.state.run
        due = history.through >= self.schedule.snapshot_through + self.snapshot_plans
        if run is None or not (due and self.is_between_plans() and self.state.publishes(now)):
            return None
        self.schedule.note_snapshot(history.through)
        return take(history, run)
