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

from sidecar.agreement.members import Freshness
from sidecar.checkpoints.catalog import Found, restore_path
from sidecar.clock import Clock, timestamp
from sidecar.courier import Answer, CreateOutcome, CreatePlan, Open, Request, Visit
from sidecar.errors import SidecarError, StorageError, TaskError
from sidecar.group.member import Workers
from sidecar.group.messages import Check, Checked, Evaluate, Failed, Join, Ready, Report
from sidecar.group.process import Exited
from sidecar.history import Closed, History, Key
from sidecar.part import Part, plan_folder
from sidecar.policy import Fail, Propose, Rules, Stop, View, decide, pending, proposer
from sidecar.records import Checkpoint, Heartbeat, NodeState, Outcome, Plan, Settlement
from sidecar.roles import RoleDecision
from sidecar.status import Newest, Status

_EVENT_PAUSE_SECONDS: Final = 0.05  # a burst of file events is worth one look: a save makes dozens
_IDLE_TICK_SECONDS: Final = 1.0  # the longest sleep: /healthz and systemd's watchdog want to see the loop turn
_OLD_SUCCESSES_TIDIED: Final = 20  # how far back a restart looks for weights that should have been removed


class Woke:
    """Something changed in the checkpoint directory: look again."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM or SIGINT: drain; the second one means at once."""

    signal: str


Message = Answer | tuple[str, Report | Exited] | Woke | Terminate


class Carrier(Protocol):
    """Whoever carries requests to storage."""

    def submit(self, request: Request) -> None:
        """Take a request; exactly one answer will be posted for it."""
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this daemon is."""

    run: str  # the run's name, as it stands in labels
    node: str
    incarnation: str
    version: str
    role: RoleDecision


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations in seconds that the loop itself keeps."""

    beat: float
    lease: float
    sweep: float
    storage: float
    visibility: float
    drain: float
    release_idle: float | None  # None: a CPU needs no release


@dataclass(slots=True)
class Daemon:
    """One node's daemon, seen from its loop."""

    identity: Identity
    rules: Rules
    timing: Timing
    courier: Carrier
    workers: Workers | None  # None on a chief: there is nothing that could start a process
    join: Join
    evaluate: Evaluate
    start_new: bool
    keep_saves: int
    run_dir: Path
    clock: Clock
    log: Any
    show: Callable[[Status, History], None]
    new_nonce: Callable[[], str]

    history: History = field(default_factory=History)
    exit: SidecarError | int | None = None
    _freshness: Freshness = field(init=False)
    _run: str | None = None
    _task: str | None = None
    _state: NodeState = "starting"
    _asked: tuple[Request, float] | None = None
    _visited_at: float | None = None
    _caught_up: bool = False
    _next_visit: float = 0.0
    _next_look: float = 0.0
    _woken: bool = True
    _beat: int = 0
    _told: Heartbeat | None = None
    _found: dict[Key, Found] = field(default_factory=dict)
    _given_up: dict[Key, Settlement] = field(default_factory=dict)
    _unwanted: frozenset[Key] | None = None
    _incomplete: bool = False
    _missing: bool = False
    _first_seen: dict[Key, float] = field(default_factory=dict)  # wall seconds
    _decided_at: dict[int, float] = field(default_factory=dict)  # plan: when it was proposed here
    _agreed: dict[int, float] = field(default_factory=dict)  # plan: seconds from proposal to reading it back
    _part: Part | None = None
    _opened_at: float = 0.0
    _undone_since: float | None = None
    _available: frozenset[str] = frozenset()
    _gathering_since: float = 0.0
    _changed_at: float = 0.0
    _failed_at: dict[Key, float] = field(default_factory=dict)
    _active_at: float = 0.0
    _standby_failures: int = 0
    _fill_at: float = 0.0
    _drain_by: float | None = None
    _leaving: int | None = None
    _problem: str | None = None
    _watch_problem: str | None = None
    _groups_formed: int = 0
    _group_size: int = 0
    _saves: list[str] = field(default_factory=list)
    _drop: list[str] = field(default_factory=list)
    _pins_bytes: int = 0
    _saves_bytes: int = 0
    _ticked_at: float = 0.0

    def __post_init__(self) -> None:
        self._freshness = Freshness(self.identity.node, self.timing.lease)
        self._ticked_at = self.clock.now()

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self, inbox: "queue.SimpleQueue[Message]") -> int:
        """Turn until the end; returns the exit code or raises what ended it."""
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
            if self.workers is not None:
                self.workers.kill_all()
        if isinstance(self.exit, SidecarError):
            raise self.exit
        return self.exit

    def observe(self, message: Message) -> None:
        """Take in one message; acting on it is `tick`'s."""
        now = self.clock.now()
        if isinstance(message, Answer):
            self._asked = None
            self._answered(message, now)
        elif isinstance(message, Woke):
            self._woken = True
        elif isinstance(message, Terminate):
            self._terminate(message, now)
        else:
            self._reported(*message, now)

    def tick(self) -> float:
        """Act on what is known; returns when to act again if nothing happens before."""
        now = self._ticked_at = self.clock.now()
        if self.workers is not None:
            self._tend(self.workers, now)
        if self._part is not None:
            self._take_part(self._part, now)
        if self._asked is None:
            request = self._request(now)
            if request is not None:
                self._asked = request, now
                self.courier.submit(request)
        self.show(self.status(now), self.history)
        return self._next(now)

    def healthy(self) -> str | None:
        """Why the loop is not turning, for /healthz; called from other threads."""
        silent = self.clock.now() - self._ticked_at
        return f"the loop has not turned for {silent:.0f} s" if silent > self.timing.lease else None

    # -- observe ---------------------------------------------------------------------------------------------------

    def _answered(self, answer: Answer, now: float) -> None:
        if answer.run is not None:
            self._run = answer.run
        for record in answer.entries:
            self._apply(record, now)
        if isinstance(answer.request, Visit) and answer.reading is not None:
            self._visited(answer, answer.request, now)
        if answer.error is None:
            if self._problem is not None:
                self.log.info("storage_recovered")
            self._problem = None
        else:
            self._failed(answer.error, now)

    def _failed(self, error: SidecarError, now: float) -> None:
        """A request failed: what can pass is tried again a beat later, what cannot ends the daemon."""
        if not error.retryable:
            self.exit = error
            return
        if self._problem != str(error):
            self.log.warning("storage_failed", message=str(error))
        self._problem = str(error)
        self._next_visit = now + self.timing.beat

    def _visited(self, answer: Answer, visit: Visit, now: float) -> None:
        assert answer.reading is not None
        self._freshness.wrote(visit.heartbeat, now)
        self._freshness.observe(answer.reading, now)
        self._visited_at = now
        if not answer.more and not self._caught_up:
            self._caught_up = True
            self.log.info("journal_read", plans=self.history.through, evaluated=len(self.history.succeeded))
        if answer.more:
            self._next_visit = now
        if visit.heartbeat.state == "left" and self._leaving is not None:
            self.exit = self._leaving
        if answer.watch_problem != self._watch_problem and not (answer.look and answer.look.missing):
            self._watch_problem = answer.watch_problem
            if answer.watch_problem is not None:
                self.log.info("file_events_unavailable", reason=answer.watch_problem, remedy="sweeps find everything")
        self._pins_bytes = answer.pins_bytes if answer.pins_bytes is not None else self._pins_bytes
        self._saves_bytes = answer.saves_bytes if answer.saves_bytes is not None else self._saves_bytes
        if answer.look is not None:
            self._looked(answer, now)

    def _looked(self, answer: Answer, now: float) -> None:
        assert answer.look is not None
        look = answer.look
        if look.missing and not self._missing:
            self.log.warning(
                "checkpoint_dir_missing",
                remedy="waiting until training creates it; is this path shared with the chief?",
            )
        first = self._unwanted is None
        self._missing, self._incomplete = look.missing, bool(look.waiting)
        for found in look.found:
            key = found.checkpoint.key
            if key not in self._found:
                self._active_at = now
                if not first:
                    self._first_seen[key] = self.clock.wall()
                if not self.history.is_settled(key, self._task):
                    self.log.info("checkpoint_found", checkpoint=key[0], step=found.checkpoint.step)
        self._found = {found.checkpoint.key: found for found in look.found}
        self._given_up |= {settlement.key: settlement for settlement in answer.given_up}
        if first:
            fresh = self.history.through == 0 and self.start_new
            self._unwanted = frozenset(self._found) if fresh else frozenset()

    def _apply(self, record: Plan | Outcome, now: float) -> None:
        """Fold a record of the journal, and follow it."""
        entries = self.history.apply(record)
        self._active_at = now
        if self._caught_up:
            for entry in entries:
                self.log.entry(entry)
        if isinstance(record, Plan):
            self._unsettled_anew(record)
            if self.history.open is not None:
                self._opened(record, now)
        elif isinstance(entries[-1], Closed):
            self._closed(entries[-1], now)

    def _unsettled_anew(self, plan: Plan) -> None:
        for settlement in plan.settles:
            self._given_up.pop(settlement.key, None)

    def _opened(self, plan: Plan, now: float) -> None:
        if self._caught_up:
            self.log.entry(plan)
        self._opened_at = now
        if (decided := self._decided_at.pop(plan.plan, None)) is not None:
            self._agreed = {plan.plan: now - decided}
        self._decided_at.clear()
        if self.workers is None:
            return
        assert plan.checkpoint is not None
        part = Part(
            plan,
            self.identity.node,
            self.workers,
            self.join,
            replace(self.evaluate, plan=plan.plan, checkpoint=plan.checkpoint),
            self.run_dir,
            now,
            patience=self.rules.patience,
            second_thought=self.timing.beat,
        )
        self.workers.kill_group(other_than=part.group)
        own = f"{self.identity.node}.{self.identity.incarnation}."
        if any(member.worker.startswith(own) for member in part.own):
            self._part = part

    def _closed(self, closed: Closed, now: float) -> None:
        plan, outcome = closed.plan, closed.outcome
        assert plan.checkpoint is not None
        part, self._part = self._part, None
        if outcome.status == "failed":
            self._failed_at[plan.checkpoint.key] = now
            if self.workers is not None and part is not None:
                self.workers.kill_group(part.group)
            if self._caught_up:
                self._drop.append(plan_folder(plan))
            return
        self._failed_at.pop(plan.checkpoint.key, None)
        members = plan.members or ()
        previous = self._group_size
        self._group_size = len(members)
        self._groups_formed += bool(part is not None and part.joining_since is not None) or previous == 0
        self._saves.append(plan_folder(plan))
        del self._saves[: -(self.keep_saves + _OLD_SUCCESSES_TIDIED)]

    def _reported(self, worker: str, report: Report | Exited, now: float) -> None:
        if self.workers is None:
            return
        known = self.workers.find(worker)
        if known is None:
            return
        was_killed, probing = known.killed, self.workers.is_probe(worker)
        self.workers.observe(worker, report, now)
        if probing:
            self._probed(worker, report)
            return
        if self._part is not None:
            self._part.observe(worker, report, now)
        if isinstance(report, Ready):
            self._standby_failures = 0
            self.log.info("worker_ready", worker=worker, pid=known.process.pid, framework=report.version)
        elif isinstance(report, Failed) and report.plan is None and known.group is None:
            self.log.warning("worker_failed", worker=worker, kind=report.kind, message=report.message)
            self.workers.kill(known)
        elif isinstance(report, Exited) and not was_killed:
            self.log.warning("worker_exited", worker=worker, message=str(report))
        if isinstance(report, Exited) and known.group is None:
            self._standby_failures += 1
            pause = self.rules.backoff_first * 2.0 ** min(self._standby_failures - 1, 16)
            self._fill_at = now + min(self.rules.backoff_last, pause)

    def _probed(self, worker: str, report: Report | Exited) -> None:
        """The task was tried in a process of its own: the user hears of a mistake now, not at the first checkpoint."""
        assert self.workers is not None
        probe = self.workers.find(worker)
        if isinstance(report, Ready) and probe is not None:
            probe.process.send(Check(self.join.task, self.join.framework, self.join.search_path))
        elif isinstance(report, Checked):
            self._task, self._state = report.task, "ready"
            self.log.info("task_checked", task=self.join.task, digest=report.task[:12], eval_sets=report.eval_sets)
            if probe is not None:
                self.workers.kill(probe)
        elif isinstance(report, Failed):
            self.exit = TaskError(f"task {self.join.task!r} cannot be used: {report.message}")
        elif isinstance(report, Exited) and self._task is None:
            self.exit = TaskError(f"task {self.join.task!r} cannot be checked: {report}")

    def _terminate(self, message: Terminate, now: float) -> None:
        if self._drain_by is not None:
            self.log.warning("stopped_at_once", signal=message.signal)
            self.exit = 0
            return
        self._drain_by, self._state = now + self.timing.drain, "draining"
        self.log.info("draining", signal=message.signal, seconds=self.timing.drain, evaluating=self._part is not None)

    # -- act -------------------------------------------------------------------------------------------------------

    def _tend(self, workers: Workers, now: float) -> None:
        """Look after the worker processes: bounds, the check of the task, standbys, idle GPUs."""
        for overrun in workers.overruns(now):
            worker = workers.find(overrun.worker)
            if worker is None:
                continue
            self.log.warning("worker_overran", worker=overrun.worker, kind=overrun.kind, message=overrun.message)
            if self._part is not None:
                self._part.observe(overrun.worker, Failed(overrun.kind, f"the worker {overrun.message}"), now)
            if workers.is_probe(overrun.worker):
                self.exit = TaskError(f"task {self.join.task!r} cannot be checked: the process {overrun.message}")
            workers.kill(worker)
        if self._task is None:
            workers.probe(now)
        elif self._drain_by is None and self._leaving is None and now >= self._fill_at:
            for worker in workers.fill(now):
                self.log.info("worker_started", worker=worker.worker, pid=worker.process.pid, address=worker.address)
        if self.timing.release_idle is not None and self.history.open is None:
            workers.release(now - self.timing.release_idle)

    def _take_part(self, part: Part, now: float) -> None:
        if part.ending is not None or part.started:
            if part.ending is None and self._drain_by is not None and now >= self._drain_by:
                part.fail("drained", "the daemon was stopped before the evaluation ended", None, now)
            return
        checkpoint = part.plan.checkpoint
        assert checkpoint is not None
        found = self._found.get(checkpoint.key)
        if found is not None and found.checkpoint.pin is not None:
            part.start(restore_path(found.checkpoint, found.folder), now)
        elif now >= part.opened_at + self.timing.visibility:
            message = f"{checkpoint.name} was not seen on {self.identity.node} for {self.timing.visibility:.0f} s"
            part.fail("vanished" if not self._missing else "storage", message, None, now)

    def _request(self, now: float) -> Request | None:
        """The one thing that storage is asked for next."""
        if self._run is None:
            return Open() if now >= self._next_visit else None
        heartbeat = self._heartbeat()
        changed = self._told is None or replace(heartbeat, beat=self._told.beat) != self._told
        absent = self._visited_at is None or now - self._visited_at > self.timing.lease
        look_due = now >= self._next_look or (
            self._woken and now >= self._next_look - self.timing.sweep + _EVENT_PAUSE_SECONDS
        )
        if self._problem is not None and now < self._next_visit:
            return None
        if now >= self._next_visit or changed or absent or (look_due and self.workers is not None):
            return self._visit(heartbeat, now, look=look_due and self.workers is not None)
        return self._decide(now) if self._caught_up and self.workers is not None else None

    def _visit(self, heartbeat: Heartbeat, now: float, *, look: bool) -> Visit:
        self._beat += 1
        self._told = replace(heartbeat, beat=self._beat)
        self._next_visit = now + self.timing.beat
        if look:
            self._next_look, self._woken = now + self.timing.sweep, False
        drop, self._drop = tuple(self._drop), []
        kept = tuple(self._saves[-self.keep_saves :])
        old = tuple(self._saves[: -self.keep_saves])
        self._saves = list(kept)
        task = self._task

        def is_wanted(key: Key) -> bool:
            return not self.history.is_settled(key, task)

        tidy = bool(old) or self._saves_bytes == 0
        return Visit(self._told, look, is_wanted, drop, old, kept if tidy else ())

    def _decide(self, now: float) -> Request | None:
        """Ask the policy, and turn its action into a record."""
        plan = self.history.open
        ending = self._part.ending if self._part is not None else None
        if plan is not None and ending is not None:
            if now < ending.at:
                return None
            return self._close(plan, ending.fail) if ending.fail is not None else self._publish(plan, now)
        if self._leaving is not None or self._task is None:
            return None
        view = self._view(now)
        action = decide(view, self.rules, now)
        if isinstance(action, Propose):
            self._decided_at[self.history.through + 1] = now
            return CreatePlan(self._plan(action))
        if isinstance(action, Fail) and plan is not None:
            return self._close(plan, action)
        if isinstance(action, Stop):
            self.log.info("run_ended", reason=action.why, failed=action.failed)
            self._leaving, self._state = (1 if action.failed else 0), "left"
        elif plan is None and self._drain_by is not None:
            self._leaving, self._state = 0, "left"
        return None

    def _plan(self, action: Propose) -> Plan:
        assert self._run is not None
        return Plan(
            plan=self.history.through + 1,
            run=self._run,
            nonce=self.new_nonce(),
            checkpoint=action.checkpoint,
            attempt=action.attempt,
            members=action.members,
            settles=action.settles,
            task=self._task,
            proposer=self.identity.node,
            proposed_at=timestamp(self.clock.wall()),
        )

    def _close(self, plan: Plan, fail: Fail) -> CreateOutcome:
        return CreateOutcome(
            replace(
                self._outcome(plan),
                status="failed",
                kind=fail.kind,
                message=fail.message,
                node=fail.node,
                rank=fail.rank,
            )
        )

    def _publish(self, plan: Plan, now: float) -> CreateOutcome:
        assert self._part is not None
        assert self._part.ending is not None
        assert self._part.ending.result is not None
        assert plan.checkpoint is not None
        extra: dict[str, float] = {}
        key = plan.checkpoint.key
        if key in self._first_seen and key in self._found:
            extra["detect"] = max(0.0, self._first_seen[key] - self._found[key].written_at)
        if plan.plan in self._agreed:
            extra["agree"] = self._agreed[plan.plan]
        result = replace(self._part.ending.result, phases=self._part.phases(extra, now))
        return CreateOutcome(replace(self._outcome(plan), status="succeeded", result=result))

    def _outcome(self, plan: Plan) -> Outcome:
        return Outcome(
            plan=plan.plan,
            run=plan.run,
            nonce=self.new_nonce(),
            status="failed",
            closed_by=self.identity.node,
            completed_at=timestamp(self.clock.wall()),
        )

    # -- tell ------------------------------------------------------------------------------------------------------

    def status(self, now: float) -> Status:
        """What this daemon shows of itself."""
        fresh = self._freshness.fresh_heartbeats(now)
        states: dict[str, int] = {}
        for each in fresh:
            state = "chief" if each.role == "chief" else each.state
            states[state] = states.get(state, 0) + 1
        newest = next(reversed(self._found.values()), None)
        return Status(
            run=self.identity.run,
            node=self.identity.node,
            incarnation=self.identity.incarnation,
            version=self.identity.version,
            role=self.identity.role.role,
            role_source=self.identity.role.source,
            state=self._state,
            publisher=proposer(self._workers_of(fresh)) == self.identity.node,
            unready=self._unready(now),
            pending=pending(self._view(now)),
            newest=Newest(newest.checkpoint.step, newest.written_at) if newest is not None else None,
            plan=self.history.open.plan if self.history.open is not None else None,
            group_size=self._group_size,
            groups_formed=self._groups_formed,
            members=states,
            workers=self.workers.statuses() if self.workers is not None else (),
            pins_bytes=self._pins_bytes,
            saves_bytes=self._saves_bytes,
        )

    def _unready(self, now: float) -> str | None:
        if self._problem is not None:
            return self._problem
        if self._asked is not None and now - self._asked[1] > self.timing.storage:
            return f"shared storage has not answered for {now - self._asked[1]:.0f} s"
        if not self._caught_up:
            return "the journal is not read yet"
        if self.workers is not None and self._task is None:
            return "the task is being checked"
        if self.workers is not None and self._unwanted is None:
            return "the checkpoint directory is not read yet"
        if self._missing:
            return "the checkpoint directory does not exist yet"
        return "draining" if self._state != "ready" and self.workers is not None else None

    def _heartbeat(self) -> Heartbeat:
        assert self._run is not None
        open_plan = self.history.open
        return Heartbeat(
            run=self._run,
            node=self.identity.node,
            incarnation=self.identity.incarnation,
            beat=self._beat,
            role=self.identity.role.role,
            role_source=self.identity.role.source,
            state=self._state if self.workers is not None or self._state == "left" else "ready",
            version=self.identity.version,
            task=self._task,
            plan=self.history.through,
            outcome=self.history.through - (open_plan is not None),
            slots=self.workers.slots() if self.workers is not None else (),
        )

    def _view(self, now: float) -> View:
        fresh = self._freshness.fresh_heartbeats(now)
        members = self._workers_of(fresh)
        available = frozenset(slot.standby for each in members for slot in each.slots if slot.standby is not None)
        if available != self._available:
            if not self._available:
                self._gathering_since = now
            self._available, self._changed_at = available, now
        plan = self.history.open
        found = [each.checkpoint for each in self._found.values()]
        view = View(
            node=self.identity.node,
            incarnation=self.identity.incarnation,
            task=self._task,
            history=self.history,
            members=members,
            found=found,
            given_up=list(self._given_up.values()),
            unwanted=self._unwanted or frozenset(),
            lost=self._lost(plan),
            chiefs=frozenset(each.node for each in fresh if each.role == "chief"),
            ready_to_propose=self._freshness.ready_to_propose(now),
            draining=self._drain_by is not None,
            looked=self._caught_up and self._unwanted is not None,
            incomplete=self._incomplete,
            opened_at=self._opened_at,
            undone_since=self._undone_since,
            gathering_since=self._gathering_since,
            changed_at=self._changed_at,
            failed_at=self._failed_at,
            active_at=self._active_at,
        )
        undone = plan is None and pending(view) > 0
        self._undone_since = (now if self._undone_since is None else self._undone_since) if undone else None
        return view

    def _workers_of(self, fresh: list[Heartbeat]) -> list[Heartbeat]:
        return [each for each in fresh if each.role == "worker" and each.state == "ready"]

    def _lost(self, plan: Plan | None) -> dict[str, str]:
        lost: dict[str, str] = {}
        for member in (plan.members or ()) if plan is not None else ():
            if member.node != self.identity.node:
                incarnation = member.worker.removeprefix(f"{member.node}.").split(".")[0]
                if why := self._freshness.lost(member.node, incarnation):
                    lost[member.node] = why
        return lost

    def _next(self, now: float) -> float:
        """When the loop must turn again: soon enough for every bound."""
        times = [now + _IDLE_TICK_SECONDS, self._next_visit]
        if self._asked is None and self._woken:
            times.append(self._next_look - self.timing.sweep + _EVENT_PAUSE_SECONDS)
        if self._part is not None and self._part.ending is not None:
            times.append(self._part.ending.at)
        return max(min(times), now + 0.01) if self._asked is None else now + _IDLE_TICK_SECONDS


__all__ = ["Carrier", "Checkpoint", "Daemon", "Identity", "Message", "StorageError", "Terminate", "Timing", "Woke"]
