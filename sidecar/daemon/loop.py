"""The daemon's loop: observe ▶ decide ▶ act ▶ publish. It never touches storage and waits for its queue alone.

Everything that happens arrives as a message: responses of the storage thread, reports of workers, file events, signals.
`tick` turns what is known into at most one request to storage and some commands to workers. The policy decides what is
done, `StorageSchedule` what storage is asked. Time is the injected clock's, so tests replay histories without sleeping.
"""

import queue
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from sidecar.artifacts.retention import Retention
from sidecar.clock import Clock
from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.snapshot import Snapshot, take
from sidecar.daemon.events import FilesChanged, JournalChanged, Message, Terminate
from sidecar.daemon.operator_warnings import OperatorWarnings
from sidecar.daemon.plan_execution import Success
from sidecar.daemon.plan_runner import PlanRunner
from sidecar.daemon.record_builder import RecordBuilder
from sidecar.daemon.response_observer import ResponseObserver
from sidecar.daemon.shutdown import Shutdown
from sidecar.daemon.state import DaemonState
from sidecar.daemon.status_report import report_status
from sidecar.daemon.storage_health import StorageHealth
from sidecar.daemon.storage_schedule import Ask, StorageSchedule, SyncDue
from sidecar.daemon.storage_thread import CreateOutcome, CreatePlan, JoinRun, PollJournal, Request, Response, Sync
from sidecar.daemon.timing import Timing
from sidecar.daemon.worker_supervisor import WorkerSupervisor
from sidecar.errors import SidecarError
from sidecar.observability.status import Status
from sidecar.policy.actions import Fail, Propose, Stop, Wait
from sidecar.policy.decide import decide
from sidecar.policy.rules import Rules
from sidecar.states import NodeState
from sidecar.workers.command_specs import EvaluateSpec
from sidecar.workers.messages import Failed


class StorageRequests(Protocol):
    """Carries requests to storage."""

    def submit(self, request: Request) -> None:
        """Take a request. Exactly one response will be posted for it."""
        ...


@dataclass(slots=True, kw_only=True)
class Daemon:
    """One node's daemon, as its loop runs it. A chief has no supervisor, so it cannot start a process."""

    # settings
    rules: Rules
    timing: Timing
    evaluate: EvaluateSpec
    run_dir: Path
    snapshot_plans: int = 200  # between two snapshots: a start reads at most this many plans, which takes some 0.1 s

    # parts
    state: DaemonState
    retention: Retention
    storage_thread: StorageRequests
    supervisor: WorkerSupervisor | None
    clock: Clock
    log: Any
    publish: Callable[[Status, JournalState], None]
    record_builder: RecordBuilder
    runner: PlanRunner = field(init=False)
    schedule: StorageSchedule = field(init=False)
    _shutdown: Shutdown = field(init=False)
    _storage_health: StorageHealth = field(init=False)
    _responses: ResponseObserver = field(init=False)
    _turned_at: float = field(init=False)

    def __post_init__(self) -> None:
        timing = self.timing
        self._turned_at = self.clock.now()
        self._storage_health = StorageHealth(
            answered_at=self._turned_at,
            timeout_seconds=timing.storage_timeout_seconds,
            beat_seconds=timing.beat_seconds,
        )
        self._shutdown = Shutdown(
            drain_seconds=timing.drain_seconds,
            beat_seconds=timing.beat_seconds,
            storage_seconds=timing.storage_timeout_seconds,
        )
        self.schedule = StorageSchedule(timing=timing)
        self.runner = PlanRunner(
            state=self.state,
            supervisor=self.supervisor,
            schedule=self.schedule,
            shutdown=self._shutdown,
            evaluate=self.evaluate,
            run_dir=self.run_dir,
            timing=timing,
        )
        self._responses = ResponseObserver(
            rules=self.rules,
            timing=timing,
            state=self.state,
            retention=self.retention,
            supervisor=self.supervisor,
            schedule=self.schedule,
            runner=self.runner,
            storage_health=self._storage_health,
            shutdown=self._shutdown,
            clock=self.clock,
            log=self.log,
            warnings=OperatorWarnings(log=self.log),
        )
        if self.supervisor is None:
            self.state.node_state = NodeState.READY

    @property
    def exit(self) -> SidecarError | int | None:
        """Return how the daemon ended: an exit code or an error; None while it runs."""
        return self._shutdown.exit

    def run(self, inbox: "queue.SimpleQueue[Message]") -> int:
        """Run until the end, and return the exit code or raise what ended it. No worker process outlives this."""
        try:
            while (ended := self.exit) is None:
                pause = max(0.0, self.tick() - self.clock.now())
                try:
                    self.observe(inbox.get(timeout=pause))
                    while not inbox.empty():
                        self.observe(inbox.get_nowait())
                except queue.Empty:
                    continue
        finally:
            if self.supervisor is not None:
                self.supervisor.workers.kill_all()
        if isinstance(ended, SidecarError):
            raise ended
        return ended

    def observe(self, message: Message) -> None:
        """Take in one message. `tick` acts on it."""
        now = self._note_turn()
        if isinstance(message, Response):
            self._responses.observe(message, now)
        elif isinstance(message, FilesChanged):
            self.schedule.request_scan()
        elif isinstance(message, JournalChanged):
            self.schedule.note_journal_event()
        elif isinstance(message, Terminate):
            self._terminate(message, now)
        elif self.supervisor is not None:
            self.supervisor.observe(*message, now, evaluating=self.runner.execution is not None)
            self.runner.observe(*message, now)

    def tick(self) -> float:
        """Act on what is known, and return when to act again if nothing happens before."""
        now = self._note_turn()
        self.schedule.begin_turn(now)
        if self.supervisor is not None and not self._storage_health.needs_newer_release:
            self._supervise(self.supervisor, now)
        self.runner.advance(now, answered=self._storage_health.asked is None)
        self._wind_down(now)
        if self._storage_health.asked is None and (request := self._next_request(now)) is not None:
            self._storage_health.ask(request, now)
            self.storage_thread.submit(request)
        self.publish(self.status(), self.state.history)
        return self._next_turn_at(now)

    def healthy(self) -> str | None:
        """Return why the loop is not turning, for /healthz; None if it is. Called from other threads."""
        silent = self.clock.now() - self._turned_at
        return f"the loop has not turned for {silent:.0f} s" if silent > self.timing.loop_timeout_seconds else None

    def status(self) -> Status:
        """Return what people see of this node, also before the loop has turned."""
        now = self.clock.now()
        workers = self.supervisor.workers.statuses() if self.supervisor is not None else ()
        return report_status(self.state, now, self._why_unready(now), workers)

    def _note_turn(self) -> float:
        """Return the time. While this process or the machine was suspended, its workers could not be heard."""
        now = self.clock.now()
        away, self._turned_at = now - self._turned_at, now
        if self.supervisor is not None and away > self.timing.loop_timeout_seconds:
            self.log.warning("loop_was_stopped", seconds=round(away, 1))
            self.supervisor.forgive(away)
        return now

    # -- observe ---------------------------------------------------------------------------------------------------

    def _terminate(self, message: Terminate, now: float) -> None:
        if self._shutdown.draining:
            self.log.warning("stopped_at_once", signal=message.signal)
            self._shutdown.exit = 0
            return
        self._shutdown.drain(now)
        if self._shutdown.code is None:
            self.state.node_state = NodeState.DRAINING
        hint = "the evaluation may end first; the same signal again stops at once"
        self.log.info("draining", signal=message.signal, evaluating=self.runner.execution is not None, hint=hint)

    # -- decide ----------------------------------------------------------------------------------------------------

    def _next_request(self, now: float) -> Request | None:
        """Return the one thing that storage is asked for next."""
        run = self.state.run
        if run is not None and now < self._storage_health.blocked_until:
            return None

        def record() -> Request | None:
            return None if run is None else self._next_record(run, now)

        slots = self.supervisor.workers.slots() if self.supervisor is not None else ()
        ask: Ask | SyncDue | Request | None = self.schedule.next_request(
            now,
            self.state.heartbeat(self.schedule.beats, slots),
            may_scan=self._may_scan(),
            may_poll=self.state.caught_up,
            record=record,
        )
        if isinstance(ask, SyncDue):
            return self._sync(ask, now)
        if isinstance(ask, Ask):
            return JoinRun() if ask is Ask.JOIN else PollJournal()
        return ask

    def _may_scan(self) -> bool:
        """Return whether checkpoints are looked for. Before it is known which are settled, all would be pinned."""
        return self.supervisor is not None and self.state.caught_up and self._shutdown.code is None

    def _next_record(self, run: str, now: float) -> Request | None:
        """Return the request for the record that this node should write now; or for another node's, if one is due."""
        if self.supervisor is None or not self.state.caught_up:
            return None
        execution, ending = self.runner.execution, self.runner.ending
        if execution is None or ending is None or self.state.history.open is None:
            return self._decide(run, now)
        if not self.runner.may_write(ending, now):
            return PollJournal() if self.schedule.is_poll_due(now) else None
        if isinstance(ending, Success):
            return CreateOutcome(self.record_builder.success(execution, ending.result, now))
        return CreateOutcome(self.record_builder.failure(execution.plan, ending.fail))

    def _decide(self, run: str, now: float) -> Request | None:
        """Ask the policy, and return the request for the record that it wants."""
        plan = self.state.history.open
        if self._shutdown.code is not None or (plan is None and self.state.task is None):
            return None
        action = decide(self.state.view(now, draining=self._shutdown.draining), self.rules, now)
        if isinstance(action, Propose):
            self.runner.note_proposal(self.state.history.through + 1, now)
            return CreatePlan(self.record_builder.plan(action, run))
        if isinstance(action, Fail) and plan is not None:
            return CreateOutcome(self.record_builder.failure(plan, action))
        if isinstance(action, Stop):
            self.log.info("run_ended", reason=action.why, failed=action.failed)
            self._leave(1 if action.failed else 0, now)
        if isinstance(action, Wait):
            self.schedule.wake_at = self.schedule.wake_at if action.until is None else action.until
            if action.listen:
                return PollJournal() if self.schedule.is_poll_due(now) else None
            self.schedule.stop_polling()
        return None

    def _sync(self, due: SyncDue, now: float) -> Sync:
        # A change of what is added here does not make a sync due.
        heartbeat = replace(self.state.with_checkpoints(due.heartbeat, now), doing=self.runner.progress)
        is_last = heartbeat.state == NodeState.LEFT and self.supervisor is not None and self.state.has_scanned
        tidying = self.retention.due(now)
        return Sync(heartbeat, due.scan or is_last, self.state.pin_policy(now), tidying, self._snapshot(now))

    def _snapshot(self, now: float) -> Snapshot | None:
        """Return the journal's state to be written, if a snapshot is due and this node publishes.

        A daemon that starts reads the newest snapshot, and only the records after it.
        """
        history, run = self.state.history, self.state.run
        due = history.through >= self.schedule.snapshot_through + self.snapshot_plans
        between_plans = history.open is None and not history.backlog_cutoff_pending
        if run is None or not (due and between_plans and self.state.caught_up and self.state.publishes(now)):
            return None
        self.schedule.snapshot_through = history.through
        return take(history, run)

    # -- act -------------------------------------------------------------------------------------------------------

    def _supervise(self, supervisor: WorkerSupervisor, now: float) -> None:
        """Keep the worker processes that are needed, and learn what they found."""
        filling, evaluating = not self._shutdown.begun, self.state.history.open is not None
        for overrun in supervisor.tend(now, filling=filling, evaluating=evaluating):
            report = Failed(kind=overrun.kind, message=f"the worker {overrun.message}", phase=overrun.phase)
            self.runner.observe(overrun.worker, report, now)
        if (broken := self.state.broken_group(now)) is not None:
            supervisor.workers.kill_group(broken)  # without standbys nothing else would make room for new workers
        elif not supervisor.workers.keep_standby and (outgrown := self.state.outgrown_group(now)) is not None:
            supervisor.workers.kill_group(outgrown)  # likewise: a worker that is in a group joins no other
        if supervisor.task is not None and self.state.task != supervisor.task:
            self.state.task = supervisor.task
            if self.state.node_state == NodeState.STARTING:
                self.state.node_state = NodeState.READY
        self.state.profile, self.state.joined_profile = supervisor.profile, supervisor.joined_profile
        if supervisor.failure is not None:
            self._shutdown.exit = supervisor.failure

    def _wind_down(self, now: float) -> None:
        """After a signal, leave as soon as no plan needs this node; when the time is over, leave in any case."""
        proposing = isinstance(self._storage_health.asked, CreatePlan)
        if self._shutdown.draining and self.runner.execution is None and not proposing:
            self._leave(0, now)
        if self._shutdown.code is not None and self.state.run is None:
            self._shutdown.exit = self._shutdown.code  # no other node knows of this one
        elif self._shutdown.is_over(now):
            self.log.warning("left_unheard", unready=self._why_unready(now))
            self._shutdown.exit = self._shutdown.code or 0

    def _leave(self, code: int, now: float) -> None:
        if self._shutdown.leave(code, now):
            self.state.node_state = NodeState.LEFT

    def _next_turn_at(self, now: float) -> float:
        """Return when the loop must turn again: soon enough for every bound."""
        others = [] if self.runner.ending is None else [self.runner.ending.at]
        busy_until = self._storage_health.busy_until(now)
        return self.schedule.next_turn_at(now, *others, may_scan=self._may_scan(), busy_until=busy_until)

    # -- publish ---------------------------------------------------------------------------------------------------

    def _why_unready(self, now: float) -> str | None:
        """Return why /readyz says no; None if it says yes."""
        evaluates, scan_hangs = self.supervisor is not None, self.schedule.scan_hangs(now)
        reasons = {
            "the checkpoint directory does not exist yet": self.state.tracker.missing,
            "the journal is not read yet": not self.state.caught_up,
            "the task is being checked": evaluates and self.state.task is None,
            "the checkpoint directory is not read yet": evaluates and not self.state.has_scanned,
            "the scan of checkpoints and pins does not come to an end: look at their storage": scan_hangs,
            f"the daemon is {self.state.node_state}": self.state.node_state in (NodeState.DRAINING, NodeState.LEFT),
        }
        return self._storage_health.unready(now) or next((reason for reason, holds in reasons.items() if holds), None)
