"""Run the daemon's loop: observe ▶ decide ▶ act ▶ publish. The loop never touches storage and waits for its queue only.

Everything that happens arrives as a message: responses of the storage thread, reports of workers, file events, signals.
`tick` sends at most one request to storage and some commands to workers. `RequestBuilder` chooses the request. Time is
the injected clock's, so tests replay histories without sleeping.
"""

import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from sidecar.coordination.journal_state import JournalState
from sidecar.daemon.events import FilesChanged, JournalChanged, Message, SaveNoticed, Terminate
from sidecar.daemon.plan_runner import PlanRunner
from sidecar.daemon.request_builder import RequestBuilder
from sidecar.daemon.response_observer import ResponseObserver
from sidecar.daemon.shutdown import Shutdown
from sidecar.daemon.state import DaemonState
from sidecar.daemon.status_report import report_status
from sidecar.daemon.storage_health import StorageHealth
from sidecar.daemon.storage_schedule import StorageSchedule
from sidecar.daemon.storage_thread import CreatePlan, Request, Response
from sidecar.daemon.timing import Timing
from sidecar.daemon.worker_supervisor import WorkerSupervisor
from sidecar.daemon.worker_turn import WorkerTurn
from sidecar.errors import SidecarError
from sidecar.protocol.messages import Failed
from sidecar.protocol.states import NodeState
from sidecar.publishing.status import Status
from sidecar.system.clock import Clock
from sidecar.system.event_log import EventLog

_READ_BEATS: Final = 2  # after which other nodes have read a heartbeat
_SILENT_LEASES: Final = 3  # after which storage that does not answer costs a run its turn


class StorageRequests(Protocol):
    """Carry requests to storage."""

    def submit(self, request: Request) -> None:
        """Accept a request. Exactly one response will be posted for it."""


@dataclass(slots=True, kw_only=True)
class Daemon:
    """Run the loop of one node's daemon. A chief has no supervisor, so it cannot start a process."""

    timing: Timing
    state: DaemonState
    supervisor: WorkerSupervisor | None
    requests: RequestBuilder
    responses: ResponseObserver
    runner: PlanRunner
    schedule: StorageSchedule
    shutdown: Shutdown
    storage_health: StorageHealth
    storage_thread: StorageRequests
    clock: Clock
    log: EventLog
    publish: Callable[[Status, JournalState], None]
    turn: WorkerTurn | None = None  # None: no other run wants the worker processes of this node
    _turned_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._turned_at = self.clock.now()

    @property
    def exit(self) -> SidecarError | int | None:
        """Return how the daemon ended: an exit code or an error; None while it runs."""
        return self.shutdown.exit

    def run(self, inbox: "queue.SimpleQueue[Message]") -> int:
        """Run until the end, and return the exit code or raise the final error. No worker process outlives this."""
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
        """Apply one message to the state. `tick` acts on it."""
        now = self._note_turn()
        if isinstance(message, Response):
            entries = self.state.history.log.count
            self.responses.observe(message, now)
            if self.state.history.log.count != entries:  # people wait for a result, and nobody for what follows it
                self.publish(self.status(), self.state.history)
        elif isinstance(message, FilesChanged):
            self.schedule.request_scan()
        elif isinstance(message, SaveNoticed):
            self.schedule.note_save(now)
        elif isinstance(message, JournalChanged):
            self.schedule.note_journal_event()
        elif isinstance(message, Terminate):
            self._terminate(message, now)
        elif self.supervisor is not None:
            self.supervisor.observe(*message, now, evaluating=self.runner.execution is not None)
            self.runner.observe(*message, now)

    def tick(self) -> float:
        """Act on the present state, and return when to act again if nothing happens before."""
        now = self._note_turn()
        self.schedule.begin_turn(now)
        if self.supervisor is not None and not self.storage_health.needs_newer_release:
            self._supervise(self.supervisor, now)
        self.runner.advance(now, answered=self.storage_health.asked is None)
        self._wind_down(now)
        if self._may_ask(now) and (request := self.requests.next(now)) is not None:
            self.storage_health.ask(request, now)
            self.storage_thread.submit(request)
        self.publish(self.status(), self.state.history)
        return self._next_turn_at(now)

    def healthy(self) -> str | None:
        """Return why the loop is not turning, for /healthz; None if it is turning. Other threads call this."""
        silent = self.clock.now() - self._turned_at
        return f"the loop has not turned for {silent:.0f} s" if silent > self.timing.loop_timeout_seconds else None

    def status(self) -> Status:
        """Return this node's status for people, also before the loop has turned."""
        now = self.clock.now()
        workers = self.supervisor.workers.statuses() if self.supervisor is not None else ()
        return report_status(self.state, now, self._why_unready(now), workers)

    def worker_log(self, worker: str) -> Path | None:
        """Return the log of a worker process of this node; None: the worker ran on another node."""
        return None if self.supervisor is None else self.supervisor.workers.log_of(worker)

    def _note_turn(self) -> float:
        """Return the time, and forgive workers their silence while this process or the machine was suspended."""
        now = self.clock.now()
        away, self._turned_at = now - self._turned_at, now
        if self.supervisor is not None and away > self.timing.loop_timeout_seconds:
            self.log.warning("loop_was_stopped", seconds=round(away, 1))
            self.supervisor.forgive(away)
        return now

    # -- observe ---------------------------------------------------------------------------------------------------

    def _terminate(self, message: Terminate, now: float) -> None:
        """Drain at the first signal, and end at the second."""
        if self.shutdown.draining:
            self.log.warning("stopped_at_once", signal=message.signal)
            self.shutdown.end(0)
            return
        self.shutdown.drain(now)
        hint = "the evaluation may end first, within drain_seconds; the same signal again stops at once"
        seconds, evaluating = self.shutdown.drain_seconds, self.runner.execution is not None
        self.log.info("draining", signal=message.signal, evaluating=evaluating, drain_seconds=seconds, hint=hint)

    # -- act -------------------------------------------------------------------------------------------------------

    def _supervise(self, supervisor: WorkerSupervisor, now: float) -> None:
        """Start and kill worker processes as needed, and note the task, the numerics and the failure they found."""
        if self.turn is not None:
            wants, unlisted_since = self._wants_workers(supervisor, now), self._unlisted_since(now)
            done = self.runner.ended + (supervisor.task is not None)
            evaluated = self.state.history.open is not None
            self.turn.take(
                now,
                wants=wants,
                done=done,
                evaluated=evaluated,
                unlisted_since=unlisted_since,
                may_fill=not self.shutdown.begun,
            )
        may_start = self.turn is None or self.turn.may_start()
        filling, evaluating = not self.shutdown.begun, self.state.history.open is not None
        waiting = self.state.timers.work_waiting
        if self.runner.waits_for_download():
            supervisor.workers.excuse_joining(now)
        for overrun in supervisor.tend(
            now, filling=filling, evaluating=evaluating, waiting=waiting, may_start=may_start
        ):
            report = Failed(kind=overrun.kind, message=f"the worker {overrun.message}", phase=overrun.phase)
            self.runner.observe(overrun.worker, report, now)
        if (broken := self.state.broken_group(now)) is not None:
            supervisor.workers.kill_group(broken)  # without standbys nothing else would make room for new workers
        elif not supervisor.workers.keep_standby and (outgrown := self.state.outgrown_group(now)) is not None:
            supervisor.workers.kill_group(outgrown)  # likewise, because a worker joins only one group
        self.state.note_task(supervisor.task, supervisor.numerics)
        if supervisor.failure is not None:
            self.shutdown.end(supervisor.failure)

    def _wants_workers(self, supervisor: WorkerSupervisor, now: float) -> bool:
        """Return whether this node has use for worker processes: for its part in a plan, or for the next one."""
        if supervisor.task is not None and self._is_silent(now):
            return False
        if self.runner.execution is not None:
            return True
        needs = supervisor.task is None or self.requests.needs_workers
        return needs and not self.shutdown.begun and now >= supervisor.fill_at

    def _is_silent(self, now: float) -> bool:
        """Return whether storage has not answered for so long that other nodes have surely counted this one out."""
        return self.schedule.is_absent(now - (_SILENT_LEASES - 1) * self.timing.lease_seconds)

    def _unlisted_since(self, now: float) -> float | None:
        """Return since when the workers must not be offered, so that no plan can list them any more; None: one may.

        Other nodes have read the newest heartbeat two beats after it was written. If storage does not answer, a plan
        that lists the workers is lost, and they must not keep other runs waiting.
        """
        if self._is_silent(now):
            return now
        nodes, own = self.state.nodes, self.state.nodes.liveness.heartbeat(self.state.identity.node)
        proposing = isinstance(self.storage_health.asked, CreatePlan)
        if self.runner.execution is not None or proposing or (own is not None and own.slots):
            return None
        alone = all(heartbeat.node == self.state.identity.node for heartbeat in nodes.alive(now))
        return now if alone else now - _READ_BEATS * self.timing.beat_seconds

    def _may_ask(self, now: float) -> bool:
        """Return whether storage may get a request: it has answered, and the last failure was long enough ago."""
        is_blocked = self.state.run is not None and now < self.storage_health.blocked_until
        return self.storage_health.asked is None and not is_blocked

    def _wind_down(self, now: float) -> None:
        """Leave after a signal as soon as no plan needs this node, and in any case when the time is over."""
        proposing = isinstance(self.storage_health.asked, CreatePlan)
        if self.shutdown.draining and self.runner.execution is None and not proposing:
            self.shutdown.leave(0, now)
        if self.shutdown.code is not None and self.state.run is None:
            self.shutdown.end(self.shutdown.code)  # no other node knows of this one
        elif self.shutdown.is_over(now):
            self.log.warning("left_unheard", unready=self._why_unready(now))
            self.shutdown.end(self.shutdown.code or 0)

    def _next_turn_at(self, now: float) -> float:
        """Return when the loop must turn again, which is soon enough for every bound."""
        others = [] if self.runner.ending is None else [self.runner.ending.at]
        busy_until = self.storage_health.busy_until(now)
        return self.schedule.next_turn_at(now, *others, may_scan=self.requests.may_scan(), busy_until=busy_until)

    # -- publish ---------------------------------------------------------------------------------------------------

    def _why_unready(self, now: float) -> str | None:
        """Return why /readyz reports that this node is not ready; None if it is ready."""
        evaluates, scan_hangs = self.supervisor is not None, self.schedule.scan_hangs(now)
        reasons = {
            "the checkpoint directory does not exist yet": self.state.tracker.missing,
            "the journal is not read yet": not self.state.caught_up,
            "the task is being checked": evaluates and self.state.task is None,
            "the checkpoint directory is not read yet": evaluates and not self.state.has_scanned,
            "the scan of checkpoints and pins does not end: check their storage": scan_hangs,
            f"the daemon is {self.state.node_state}": self.state.node_state in (NodeState.DRAINING, NodeState.LEFT),
        }
        return self.storage_health.unready(now) or next((reason for reason, holds in reasons.items() if holds), None)
