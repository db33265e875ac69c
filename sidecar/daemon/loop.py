"""The loop: observe ▶ decide ▶ act ▶ tell. It never touches storage and never waits for anything but its queue.

Everything that happens arrives as a message: answers of the courier (shared storage), reports of workers, file events,
signals. `tick` turns what is known into at most one request to storage and some commands to workers; the policy
decides, this carries out. Time is the injected clock's, so tests replay histories without sleeping.
"""

import queue
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from sidecar.artifacts.retention import Retention
from sidecar.checkpoints.inspect import restore_path
from sidecar.clock import Clock
from sidecar.coordination.journal_state import Closed, JournalState
from sidecar.coordination.snapshot import Snapshot, take
from sidecar.daemon.operator_warnings import OperatorWarnings
from sidecar.daemon.plan_execution import Conclusion, PlanExecution
from sidecar.daemon.record_builder import RecordBuilder
from sidecar.daemon.shutdown import Shutdown
from sidecar.daemon.state import DaemonState
from sidecar.daemon.storage_health import StorageHealth
from sidecar.daemon.storage_thread import CreateOutcome, CreatePlan, JoinRun, PollJournal, Request, Response, Sync
from sidecar.daemon.worker_supervisor import WorkerSupervisor
from sidecar.errors import NewerSchemaError, RunReplacedError, SidecarError, StateUnavailableError
from sidecar.observability.status import Status
from sidecar.policy.actions import Fail, Propose, Stop, Wait
from sidecar.policy.decide import decide
from sidecar.policy.rules import Rules
from sidecar.records import Heartbeat, Outcome, Plan
from sidecar.workers.messages import Evaluate, Failed
from sidecar.workers.process import Event

_EVENT_PAUSE_SECONDS: Final = 0.02  # a burst of file events is worth one look: a save makes dozens
_IDLE_TICK_SECONDS: Final = 1.0  # the longest sleep: /healthz and systemd's watchdog want to see the loop turn
_SHORTEST_SLEEP_SECONDS: Final = 0.01  # rounding in clocks must not make the loop spin
_NEWER: Final = "the journal needs a newer release of this daemon"
_LISTEN_SECONDS: Final = 0.05  # reading one name of the journal costs less than what waits for it


class FilesChanged:
    """Something changed in the checkpoint directory: look again."""


class JournalChanged:
    """Somebody wrote into the journal, perhaps: read on."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM or SIGINT: drain; the second one means at once."""

    signal: str


Message = Response | tuple[str, Event] | FilesChanged | JournalChanged | Terminate


class StorageRequests(Protocol):
    """Whoever carries requests to storage."""

    def submit(self, request: Request) -> None:
        """Take a request; exactly one answer will be posted for it."""
        ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Hold the settings of the loop's own waits."""

    beat_seconds: float
    lease_seconds: float
    loop_timeout_seconds: float
    sweep_seconds: float
    storage_timeout_seconds: float
    pin_wait_seconds: float
    result_turn_seconds: float
    drain_seconds: float
    nothing_seen_seconds: float = 300.0


@dataclass(slots=True)
class Daemon:
    """One node's daemon, seen from its loop. A chief has no crew: there is nothing that could start a process."""

    state: DaemonState
    rules: Rules
    timing: Timing
    retention: Retention
    storage_thread: StorageRequests
    supervisor: WorkerSupervisor | None
    evaluate: Evaluate  # a template: plan, checkpoint and paths are filled in
    run_dir: Path
    clock: Clock
    log: Any
    show: Callable[[Status, JournalState], None]
    record_builder: RecordBuilder
    fold_plans: int = 200  # between two snapshots: a start reads no more than so many plans, some 0.1 s
    exit: SidecarError | int | None = None
    _execution: PlanExecution | None = None
    _storage_health: StorageHealth = field(init=False)
    _warnings: OperatorWarnings = field(init=False)
    _beat: int = 0
    _told: Heartbeat | None = None
    _visited_at: float | None = None
    _next_visit: float = 0.0
    _visited_last: bool = False  # no record had its turn since
    _looked_last: bool = False  # and it was with a look
    _looked_at: float = float("-inf")
    _woken: bool = True
    _scanning_since: float | None = None  # since when a look has not come to an end
    _decided: tuple[int, float] | None = None  # the plan proposed here, and when
    _agree_seconds: float | None = None  # what the open plan took from there to being read back
    _shutdown: Shutdown = field(init=False)
    _unread_since: float | None = None  # since when the journal cannot be read on
    _stands_by: bool = False  # a newer release wrote the journal: this one takes no part in it
    _heard: bool = False  # of a record that may be there
    _listens: tuple[float, float] | None = None  # to other nodes' records: since when, and when next
    _folded: int = 0  # plans in the newest snapshot, as far as this node knows
    _wake_at: float = float("inf")  # when the policy wants to be asked again
    _ticked_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._ticked_at = self.clock.now()
        self._warnings = OperatorWarnings(self.log)
        self._storage_health = StorageHealth(
            self._ticked_at, self.timing.storage_timeout_seconds, self.timing.beat_seconds
        )
        self._shutdown = Shutdown(
            self.timing.drain_seconds, self.timing.beat_seconds, self.timing.storage_timeout_seconds
        )
        if self.supervisor is None:
            self.state.node_state = "ready"

    def run(self, inbox: "queue.SimpleQueue[Message]") -> int:
        """Turn until the end; returns the exit code or raises what ended it. No worker process outlives this."""
        try:
            while self.exit is None:
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
        if isinstance(self.exit, SidecarError):
            raise self.exit
        return self.exit

    def observe(self, message: Message) -> None:
        """Take in one message; acting on it is `tick`'s."""
        now = self._awake()
        if isinstance(message, Response):
            self._answered(message, now)
        elif isinstance(message, FilesChanged):
            self._woken = True
        elif isinstance(message, JournalChanged):
            self._heard = True
        elif isinstance(message, Terminate):
            self._terminate(message, now)
        elif self.supervisor is not None:
            self.supervisor.observe(*message, now, evaluating=self._execution is not None)
            if self._execution is not None:
                self._execution.observe(*message, now)

    def tick(self) -> float:
        """Act on what is known; returns when to act again if nothing happens before."""
        now = self._awake()
        self._wake_at = now + _IDLE_TICK_SECONDS
        if self.supervisor is not None and not self._stands_by:
            self._tend(self.supervisor, now)
        if self._execution is not None:
            self._execute(self._execution, now)
        self._wind_down(now)
        if self._storage_health.asked is None and (request := self._request(now)) is not None:
            self._storage_health.ask(request, now)
            self.storage_thread.submit(request)
        self.show(self.status(), self.state.history)
        return self._next(now)

    def healthy(self) -> str | None:
        """Why the loop is not turning, for /healthz; called from other threads."""
        silent = self.clock.now() - self._ticked_at
        return f"the loop has not turned for {silent:.0f} s" if silent > self.timing.loop_timeout_seconds else None

    def _awake(self) -> float:
        """Now; while this process was stopped, or the machine suspended, its workers could not be heard."""
        now = self.clock.now()
        away, self._ticked_at = now - self._ticked_at, now
        if self.supervisor is not None and away > self.timing.loop_timeout_seconds:
            self.log.warning("loop_was_stopped", seconds=round(away, 1))
            self.supervisor.forgive(away)
        return now

    # -- observe ---------------------------------------------------------------------------------------------------

    def _answered(self, answer: Response, now: float) -> None:
        asked_at, request = self._storage_health.answer(now), answer.request
        if isinstance(request, JoinRun) and answer.error is None:
            self._opened(answer, now)
        for record in answer.entries:
            self._follow(record, now)
        if isinstance(request, Sync) and answer.reading is not None:
            # As of when it was asked for: with storage that takes long, what it tells may be as old as that.
            self.state.meet(request.heartbeat, answer.reading, asked_at)
            self._note_unread(asked_at, unread=answer.unread)
            self._visited(answer, request, now)
        if answer.error is not None:
            self._failed(answer, answer.error, now)
        elif self._storage_health.succeed(looked=answer.look is not None):
            self.log.info("storage_recovered")

    def _opened(self, answer: Response, now: float) -> None:
        """The run is known; or its place is not there yet, and is looked for again."""
        self.state.run = answer.run
        self._note_missing(missing=answer.run is None)
        if answer.run is None:
            self._next_visit, self.state.tracker.began_first = now + self.timing.sweep_seconds, True
        if answer.history is not None:
            self.state.resume(answer.history)
            self.retention.resume(answer.history)
            self._folded = answer.history.through

    def _note_missing(self, *, missing: bool) -> None:
        if missing and not self.state.tracker.missing:
            self._warnings.missing()
        self.state.tracker.missing = missing

    def _note_scan(self, visit: Sync, now: float, *, scanning: bool) -> None:
        """Note whether a look has not come to an end; it is asked for again at once, and answers when it has."""
        if scanning:
            self._scanning_since = now if self._scanning_since is None else self._scanning_since
            self._woken = True
        elif visit.look:
            self._scanning_since = None

    def _scan_hangs(self, now: float) -> bool:
        return self._scanning_since is not None and now >= self._scanning_since + self.timing.storage_timeout_seconds

    def _note_unread(self, asked_at: float, *, unread: bool) -> None:
        """Note whether the journal could be read on; who cannot for a lease asks the others not to count on it."""
        if unread:
            self._unread_since = asked_at if self._unread_since is None else self._unread_since
        else:
            self._visited_at, self._unread_since, self._stands_by = asked_at, None, False
        too_long = self._unread_since is not None and asked_at >= self._unread_since + self.timing.lease_seconds
        self.state.withdrawn = too_long or self._stands_by

    def _failed(self, answer: Response, error: SidecarError, now: float) -> None:
        """What can pass is tried again a beat later; what cannot, or fails at the very start, ends the daemon."""
        if isinstance(error, NewerSchemaError):
            self._stand_by()
        elif isinstance(error, RunReplacedError) and self._shutdown.begun:
            self.exit = self._shutdown.code or 0  # no run is left to take leave of
            return
        elif not error.retryable or (
            isinstance(answer.request, JoinRun) and not isinstance(error, StateUnavailableError)
        ):
            self.exit = error
            return
        in_look = answer.reading is not None and not answer.unread
        message = f"{_NEWER}: {error}" if self._stands_by else str(error)
        if self._storage_health.fail(message, now, in_look=in_look):
            self.log.warning("storage_failed", message=message)
        if not in_look:
            self._next_visit = self._storage_health.blocked_until

    def _stand_by(self) -> None:
        """Take no part any more: a plan that this release cannot read may be open, and its own workers in none."""
        self._stands_by = self.state.withdrawn = True
        self._execution = None
        if self.supervisor is not None:
            self.supervisor.workers.kill_all()

    def _visited(self, answer: Response, visit: Sync, now: float) -> None:
        state = self.state
        if answer.tidied is not None:
            for folder in self.retention.done(visit.tidying, answer.tidied, now):
                self._warnings.left(folder, answer.tidied.failed[folder])
            state.saves_bytes = self.retention.bytes
        self._warnings.trouble(answer.trouble)
        if answer.more:
            self._next_visit = now
        elif not state.caught_up and not answer.unread:
            state.caught_up = True
            self.log.info("journal_read", plans=state.history.through, evaluated=len(state.history.succeeded))
        state.pins_bytes = state.pins_bytes if answer.pins_bytes is None else answer.pins_bytes
        self._note_scan(visit, now, scanning=answer.scanning)
        if answer.look is not None:
            self._note_missing(missing=answer.look.missing)
            self._warnings.below(answer.look.below)
            new = state.see(answer.look, answer.given_up, now, self.clock.wall())
            for found in new:
                self.log.info("checkpoint_found", checkpoint=found.checkpoint.name, step=found.checkpoint.step)
                if self.rules.every_steps is not None and found.checkpoint.step is None:
                    self._warnings.unknown_step(found.checkpoint)
            self._warnings.steps([found.checkpoint for found in new])
            self._warnings.no_room(state.tracker.note(answer.no_room, done=answer.done))
            self._warnings.watched(None if answer.look.missing else answer.watch_problem)
            self._warnings.entries({**answer.look.failed, **answer.look.unknown})
            self._warn_of_nothing(now)
        if visit.heartbeat.state == "left" and self._shutdown.code is not None:
            self.exit = self._shutdown.code

    def _warn_of_nothing(self, now: float) -> None:
        seen, seconds = self.state.tracker, self.timing.nothing_seen_seconds
        if seen.empty_since is not None and now >= seen.empty_since + seconds and seen.hint is None:
            seen.hint = self._warnings.empty(seconds)

    def _follow(self, record: Plan | Outcome, now: float) -> None:
        """A new record of the journal: fold it, tell it, and do this node's part."""
        told = self.log.entry if self.state.caught_up else lambda _: None
        self._listens = None
        entries = self.state.fold(record, now)
        for entry in entries:
            told(entry)
        for gap in self.state.gaps.take():
            self._warnings.unseen(gap)
        if isinstance(record, Outcome):
            assert isinstance(entries[-1], Closed)
            self._end_execution(entries[-1], now)
        elif self.state.history.open is not None:
            told(record)
            decided, self._decided = self._decided, None
            self._agree_seconds = now - decided[1] if decided is not None and decided[0] == record.plan else None
            self._begin_execution(record, now)

    def _begin_execution(self, plan: Plan, now: float) -> None:
        if self.supervisor is None:
            return
        assert plan.checkpoint is not None
        part = PlanExecution(
            plan,
            self.state.identity.node,
            self.supervisor.workers,
            self.supervisor.join,
            replace(
                self.evaluate,
                plan=plan.plan,
                checkpoint=plan.checkpoint,
                evaluated=plan.evaluated,
                attempt=plan.attempt,
            ),
            self.run_dir,
            now,
            result_turn_seconds=self.timing.result_turn_seconds,
            second_thought_seconds=self.timing.beat_seconds,
        )
        self.supervisor.workers.kill_group(other_than=part.group)
        if any(member.worker.startswith(f"{self.state.identity.workers}.") for member in part.own):
            self._execution = part
            found = self.state.found.get(plan.checkpoint.key)
            self._woken |= found is None or found.checkpoint.pin is None  # the proposer saw it, or its pin, first

    def _end_execution(self, closed: Closed, now: float) -> None:
        part, self._execution = self._execution, None
        succeeded = closed.outcome.status == "succeeded"
        if part is not None and self.supervisor is not None and not (succeeded and part.started):
            self.supervisor.dismiss(
                member.worker for member in part.own
            )  # also who only stood by: it is never listed again
        if succeeded:
            self.retention.succeeded(self.state.history)
            if self.state.caught_up:
                self._warnings.best(self.retention.best.complaint(self.state.history))
        else:
            self.retention.failed(closed.plan, now)

    def _terminate(self, message: Terminate, now: float) -> None:
        if self._shutdown.draining:
            self.log.warning("stopped_at_once", signal=message.signal)
            self.exit = 0
            return
        self._shutdown.drain(now)
        if self._shutdown.code is None:
            self.state.node_state = "draining"
        hint = "the evaluation may end first; the same signal again stops at once"
        self.log.info("draining", signal=message.signal, evaluating=self._execution is not None, hint=hint)

    # -- act -------------------------------------------------------------------------------------------------------

    def _tend(self, supervisor: WorkerSupervisor, now: float) -> None:
        for overrun in supervisor.tend(
            now, filling=not self._shutdown.begun, evaluating=self.state.history.open is not None
        ):
            if self._execution is not None:
                report = Failed(overrun.kind, f"the worker {overrun.message}", phase=overrun.phase)
                self._execution.observe(overrun.worker, report, now)
        if (broken := self.state.broken_group(now)) is not None:
            supervisor.workers.kill_group(broken)  # without standbys nothing else would make room for new workers
        elif not supervisor.workers.keep_standby and (outgrown := self.state.outgrown_group(now)) is not None:
            supervisor.workers.kill_group(outgrown)  # likewise: a worker that is in a group joins no other
        if supervisor.task is not None and self.state.task != supervisor.task:
            self.state.task = supervisor.task
            self.state.node_state = "ready" if self.state.node_state == "starting" else self.state.node_state
        self.state.profile, self.state.joined_profile = supervisor.profile, supervisor.joined_profile
        if supervisor.failure is not None:
            self.exit = supervisor.failure

    def _wind_down(self, now: float) -> None:
        """Once told to stop: leave as soon as no plan needs this node, and go, heard or not, when the time is over."""
        proposing = isinstance(self._storage_health.asked, CreatePlan)
        if self._shutdown.draining and self._execution is None and not proposing:
            self._leave(0, now)
        if self._shutdown.code is not None and self.state.run is None:
            self.exit = self._shutdown.code  # nobody knows of this node
        elif self._shutdown.is_over(now):
            self.log.warning("left_unheard", unready=self._unready(now))
            self.exit = self._shutdown.code or 0

    def _leave(self, code: int, now: float) -> None:
        if self._shutdown.leave(code, now):
            self.state.node_state = "left"

    def _execute(self, part: PlanExecution, now: float) -> None:
        """Start the own workers once this node sees the checkpoint; give up if it is stopped meanwhile."""
        if part.ending is not None:
            return
        if self._shutdown.drained(now):
            part.fail("drained", "the daemon was stopped before the evaluation ended", None, now)
        elif not part.started and not self._is_absent(now):
            checkpoint = part.plan.checkpoint
            assert checkpoint is not None
            found = self.state.found.get(checkpoint.key)
            unreadable = checkpoint.folder in self.state.tracker.unknown
            given_up = self.state.tracker.given_up.get(checkpoint.key)
            if found is not None and found.checkpoint.pin is not None and not unreadable:
                part.start(restore_path(found, found.folder), now)
            elif given_up is not None and given_up.verdict == "corrupt":
                part.fail("corrupt", given_up.reason, None, now)
            elif self._has_looked_since(part.opened_at + self.timing.pin_wait_seconds, now):
                waited = f"{checkpoint.name} was not seen on this node for {self.timing.pin_wait_seconds:.0f} s"
                if unreadable:
                    waited = f"{waited}: {self.state.tracker.unknown[checkpoint.folder]}"
                blind = self.state.tracker.missing or unreadable or self._scan_hangs(now)
                part.fail("storage" if blind else "vanished", waited, None, now)

    def _has_looked_since(self, when: float, now: float) -> bool:
        """Return whether a look that began at that time or later was answered; ask for one if none began."""
        self._woken |= self._looked_at < when <= now
        return self._looked_at >= when and self._storage_health.asked is None

    def _request(self, now: float) -> Request | None:
        """The one thing that storage is asked for next: the own heartbeat comes first, but not twice in a row.

        Where a visit takes longer than a beat the next is due at once, and no record would ever be written.
        """
        if self.state.run is None:
            return JoinRun() if now >= self._next_visit else None
        if now < self._storage_health.blocked_until:
            return None
        slots = self.supervisor.workers.slots() if self.supervisor is not None else ()
        heartbeat = self.state.heartbeat(self._beat, slots)
        look, absent = now >= self._look_due(), self._is_absent(now)
        due = look or absent or now >= self._next_visit or heartbeat != self._told
        if absent:  # not with a look again: one that takes longer than the lease would make this node absent for ever
            return self._visit(heartbeat, now, look=look and not self._looked_last)
        if due and not self._visited_last:
            return self._visit(heartbeat, now, look=look)
        self._visited_last = False
        if self._heard and self.state.caught_up:
            self._heard = False
            return PollJournal()
        record = self._record(now) if self.state.caught_up and self.supervisor is not None else None
        return record or (self._visit(heartbeat, now, look=look) if due else None)

    def _is_absent(self, now: float) -> bool:
        """Whether the others may have counted this node out: then the journal is read to its end before anything."""
        return self._visited_at is None or now - self._visited_at > self.timing.lease_seconds

    def _look_due(self) -> float:
        """When to look at checkpoints; not before it is known which of them are settled, or all would be pinned."""
        if self.supervisor is None or not self.state.caught_up or self._shutdown.code is not None:
            return float("inf")
        return self._looked_at + (_EVENT_PAUSE_SECONDS if self._woken else self.timing.sweep_seconds)

    def _visit(self, heartbeat: Heartbeat, now: float, *, look: bool) -> Sync:
        self._beat += 1
        self._visited_last, self._looked_last = True, look
        self._told = replace(heartbeat, beat=self._beat)
        doing = (
            self._execution.doing() if self._execution is not None else None
        )  # not in `_told`: it makes no beat of its own
        self._next_visit = now + self.timing.beat_seconds
        self._heard = False  # a visit reads on, too
        if look:
            self._looked_at, self._woken = now, False
        last = heartbeat.state == "left" and self.supervisor is not None and self.state.looked
        written = replace(self.state.with_sightings(self._told, now), doing=doing)
        return Sync(written, look or last, self.state.wanted(now), self.retention.due(now), self._snapshot(now))

    def _snapshot(self, now: float) -> Snapshot | None:
        """The past in one piece, now and then, from whoever publishes: who starts next reads only what came after."""
        history = self.state.history
        due = history.through >= self._folded + self.fold_plans and history.open is None and not history.line_open
        if not due or not self.state.caught_up or self.state.run is None or not self.state.publishes(now):
            return None
        self._folded = history.through
        return take(history, self.state.run)

    def _record(self, now: float) -> Request | None:
        """The record that this daemon should write now, if any."""
        plan, part = self.state.history.open, self._execution
        if plan is not None and part is not None and part.ending is not None:
            return self._end(part, part.ending, now) or self._listen(now)
        if self._shutdown.code is not None or (plan is None and self.state.task is None):
            return None
        action = decide(self.state.view(now, draining=self._shutdown.draining), self.rules, now)
        if isinstance(action, Propose):
            self._decided = self.state.history.through + 1, now
            return CreatePlan(self.record_builder.plan(action))
        if isinstance(action, Fail) and plan is not None:
            return CreateOutcome(self.record_builder.failure(plan, action))
        if isinstance(action, Stop):
            self.log.info("run_ended", reason=action.why, failed=action.failed)
            self._leave(1 if action.failed else 0, now)
        if isinstance(action, Wait):
            self._wake_at = self._wake_at if action.until is None else action.until
            if action.listen:
                return self._listen(now)
            self._listens = None
        return None

    def _listen(self, now: float) -> Request | None:
        """Read the journal between beats, ever less often while nothing comes."""
        since, due = self._listens or (now, now + _LISTEN_SECONDS)
        listens = now >= due
        self._listens = since, now + max(_LISTEN_SECONDS, (now - since) / 2) if listens else due
        self._wake_at = min(self._wake_at, self._listens[1])
        return PollJournal() if listens else None

    def _end(self, part: PlanExecution, ending: Conclusion, now: float) -> Request | None:
        if ending.fail is not None:
            return CreateOutcome(self.record_builder.failure(part.plan, ending.fail)) if now >= ending.at else None
        nobody_before = set(part.before) <= self.state.lost(now).keys()
        if now < ending.at and not nobody_before and not self._shutdown.draining:
            return None
        return CreateOutcome(self.record_builder.success(part, self._agree_seconds, now))

    # -- tell ------------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """What people see of this node; before the loop turns, too."""
        now = self.clock.now()
        workers = self.supervisor.workers.statuses() if self.supervisor is not None else ()
        return self.state.status(now, self._unready(now), workers)

    def _unready(self, now: float) -> str | None:
        """Why /readyz says no."""
        reasons = {
            "the checkpoint directory does not exist yet": self.state.tracker.missing,
            "the journal is not read yet": not self.state.caught_up,
            "the task is being checked": self.supervisor is not None and self.state.task is None,
            "the checkpoint directory is not read yet": self.supervisor is not None and not self.state.looked,
            "the scan of checkpoints and pins does not come to an end: look at their storage": self._scan_hangs(now),
            f"the daemon is {self.state.node_state}": self.state.node_state in ("draining", "left"),
        }
        known = (reason for reason, holds in reasons.items() if holds)
        return self._storage_health.unready(now) or next(known, None)

    def _next(self, now: float) -> float:
        """When the loop must turn again: soon enough for every bound."""
        idle = now + _IDLE_TICK_SECONDS
        if self._storage_health.asked is not None:
            blind = self._storage_health.blind_at(now) + _SHORTEST_SLEEP_SECONDS
            return min(idle, blind) if blind > now else idle
        if now < self._storage_health.blocked_until:
            return min(idle, self._storage_health.blocked_until)
        times = [idle, self._next_visit, self._look_due(), self._wake_at]
        if self._execution is not None and self._execution.ending is not None:
            times.append(self._execution.ending.at)
        return max(min(times), now + _SHORTEST_SLEEP_SECONDS)
