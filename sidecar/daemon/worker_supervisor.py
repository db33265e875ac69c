"""Supervise this node's worker processes: check the task once, provide standbys, enforce time limits, release GPUs.

This module stands between the daemon's loop and `workers.pool`. It decides when workers are started and killed, but
knows no plans.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sidecar.daemon.workers.command_specs import TaskSpec, cannot_be_used
from sidecar.daemon.workers.pool import Worker, WorkerPool
from sidecar.daemon.workers.process import Event, Exited
from sidecar.daemon.workers.timeouts import TimedOut
from sidecar.errors import SidecarError, TaskError
from sidecar.protocol.heartbeat import NumericProfiles
from sidecar.protocol.messages import Checked, Done, Failed, Joined, Phase, Ready
from sidecar.protocol.states import FailureKind
from sidecar.system.event_log import EventLog

_MAX_DOUBLINGS: Final = 16


@dataclass(slots=True, kw_only=True)
class WorkerSupervisor:
    """Supervise the worker processes of a node that evaluates."""

    workers: WorkerPool
    spec: TaskSpec
    backoff_first_seconds: float  # seconds before a standby that died is replaced; doubled each time
    backoff_last_seconds: float
    release_idle: float | None  # seconds after which an idle worker leaves its GPU; None: a CPU needs no release
    release_all: float | None = None  # seconds without work after which a cluster gets its machines back
    gpus: str  # their names, part of the numeric profile: the process that checks the task does not see them
    log: EventLog
    task: str | None = None  # digest of its code, once it was checked
    numerics: NumericProfiles = field(default_factory=NumericProfiles)
    failure: SidecarError | None = None  # why this daemon must end
    failures: int = 0  # processes in a row that never served
    fill_at: float = 0.0  # no process starts before that time
    _worked_at: float = 0.0  # when there was last a checkpoint to evaluate
    _holds: bool = True  # whether the slots may have machines of a cluster

    def tend(
        self, now: float, *, filling: bool, evaluating: bool, waiting: bool = True, may_start: bool = True
    ) -> list[TimedOut]:
        """Start missing workers, kill workers that exceeded a time limit, and return these.

        `waiting`: a checkpoint needs an evaluation. `may_start`: it is the turn of this run among others.
        """
        overruns = self.workers.overruns(now)
        for overrun in overruns:
            self._warn("worker_overran", overrun.worker, kind=overrun.kind, message=overrun.message)
            if (worker := self.workers.find(overrun.worker)) is None:
                continue
            # If the framework was slow to start, or the process was stopped, the task is not to blame.
            if worker.ready and worker.progress.halted is None and self.workers.is_probe(overrun.worker):
                self.failure = TaskError(f"task {self.spec.task!r} cannot be checked: the process {overrun.message}")
            self._give_up(worker, now)
        if may_start and now >= self.fill_at:
            if self.task is None:
                self._start(lambda: self._probe(now), now)
            elif filling and self._has_work(now, working=evaluating or waiting):
                self._start(lambda: self._fill(now), now)
        if self.release_idle is not None and not evaluating:
            self.workers.release(now - self.release_idle)
        return overruns + self._replace_starving()

    def observe(self, name: str, report: Event, now: float, *, evaluating: bool) -> None:
        """Apply a worker's report, and log it if it matters. `evaluating`: this node takes part in the open plan."""
        worker = self.workers.find(name)
        if worker is None:
            return
        if isinstance(report, Done) and report.plan != worker.plan:
            return  # the worker already has the next plan, and must not appear idle
        if isinstance(report, Done) and self.workers.yields and not worker.yields:
            worker.yields = worker.process.yield_processors(True)
        probing, since = self.workers.is_probe(name), worker.progress.since
        self.workers.observe(name, report, now)
        if probing:
            self._probed(worker, report, now)
        elif isinstance(report, Phase) and not worker.ready:
            self.log.info("worker_placed", worker=name, pid=worker.process.pid, address=worker.address)
        elif isinstance(report, Ready):
            self.log.info("worker_ready", worker=name, pid=worker.process.pid, framework=report.version)
        elif isinstance(report, Joined):
            self.failures = 0
            self._learn(report.task)
            self.numerics = replace(self.numerics, joined_profile=_digest(report.profile))
        elif isinstance(report, Failed | Exited):
            self._lost(worker, report, now, evaluating=evaluating, served_seconds=now - since if worker.ready else 0.0)

    def evaluates_like(self, other: "WorkerSupervisor") -> bool:
        """Return whether the workers of another run are started in the same way, for the same task."""
        return self.spec == other.spec and self.workers.engine.starts_like(other.workers.engine)

    def adopt(self, other: "WorkerSupervisor") -> None:
        """Take over what the workers of another run found out about the task. Workers notice if its code changes."""
        self.task, self.numerics = other.task, replace(other.numerics, joined_profile=None)

    def forgive(self, seconds: float) -> None:
        """Ignore the silence of workers for this time, because this process itself was stopped."""
        for worker in self.workers.all():
            worker.progress.forgive(seconds)

    def dismiss(self, names: Iterable[str]) -> None:
        """Kill the workers of these names that run on this node, because they are not needed any more."""
        for worker in [worker for name in names if (worker := self.workers.find(name)) is not None]:
            self.workers.kill(worker)

    def _has_work(self, now: float, *, working: bool) -> bool:
        """Return whether workers are needed, and give a cluster its machines back after a time without work."""
        if self.release_all is None:
            return True
        if working:
            self._worked_at, self._holds = now, True
        elif self._holds and now - self._worked_at >= self.release_all:
            self._holds = False
            self.workers.kill_all()
            self.workers.engine.release()
            self.log.info("cluster_released", idle_seconds=self.release_all)
        return self._holds and (working or any(self.workers.all()))

    def _replace_starving(self) -> list[TimedOut]:
        """Let starving workers take turns with other programs.

        Their priority may be raised only with a right that few have. Without it, all workers of this node are killed
        and returned. Those that follow do not give way any more.
        """
        starving = self.workers.starving()
        for worker in starving:
            worker.yields = not worker.process.yield_processors(False)
            seconds = round(worker.progress.waited, 1)
            self.log.warning("worker_starved", worker=worker.worker, waited_seconds=seconds, restarted=worker.yields)
        if not any(worker.yields for worker in starving):
            return []
        self.workers.yields = False
        message = (
            "had waited for processors, which other programs use, for yield_seconds, and is replaced by one that takes "
            "turns with them"
        )
        replaced = [worker for worker in self.workers.all() if worker.yields and not worker.killed]
        for worker in replaced:
            self.workers.kill(worker)
        return [TimedOut(worker.worker, FailureKind.STALLED, message, worker.progress.phase) for worker in replaced]

    def _start(self, start: Callable[[], None], now: float) -> None:
        """Start processes, and note a failure. A machine without memory or ports now may have them later."""
        try:
            start()
        except SidecarError as error:
            if (
                self.task is None and not error.retryable
            ):  # no process was ever started: a wrong interpreter, for example
                self.failure = error
            else:
                self._not_started(error, now)
        except (OSError, RuntimeError) as error:
            self._not_started(error, now)

    def _not_started(self, error: Exception, now: float) -> None:
        """Warn that a process could not be started, and try again later."""
        self.log.warning("worker_not_started", message=str(error))
        self._pause(now)

    def _warn(self, event: str, worker: str, **fields: Any) -> None:
        """Warn of a worker's end, with the path of its log."""
        self.log.warning(event, worker=worker, **fields, log=str(self.workers.log_of(worker)))

    def _probe(self, now: float) -> None:
        """Start the process that checks the task, unless it runs."""
        if self.workers.probe(now):
            self.log.info("task_check_begun", task=self.spec.task, framework=self.spec.framework)

    def _fill(self, now: float) -> None:
        """Start the standbys that are missing."""
        for worker in self.workers.fill(now):
            if worker.address:
                self.log.info("worker_started", worker=worker.worker, pid=worker.process.pid, address=worker.address)

    def _lost(
        self, worker: Worker, report: Failed | Exited, now: float, *, evaluating: bool, served_seconds: float
    ) -> None:
        """Log that a worker is lost, and replace it. `PlanExecution` decides what becomes of the open plan."""
        if isinstance(report, Exited) and not worker.killed:
            self._warn("worker_exited", worker.worker, message=str(report))
        elif isinstance(report, Failed) and not (evaluating and worker.group):
            self._warn("worker_failed", worker.worker, kind=report.kind, message=report.message)
        if served_seconds >= self.backoff_last_seconds:
            self.failures = 0  # a worker that served so long did not fail because of its start
        if worker.group is None:
            self._give_up(worker, now)
        elif not evaluating:
            self.workers.kill_group(worker.group)  # the other workers of its group cannot be used without it

    def _give_up(self, worker: Worker, now: float) -> None:
        """Kill a worker. If it never joined a group, delay its replacement, for longer with each failure."""
        if worker.group is None and not worker.killed:
            self._pause(now)
        self.workers.kill(worker)

    def _pause(self, now: float) -> None:
        """Start no process for a while, which doubles with each failure."""
        pause = self.backoff_first_seconds * 2.0 ** min(self.failures, _MAX_DOUBLINGS)
        self.failures += 1
        self.fill_at = now + min(self.backoff_last_seconds, pause)

    def _learn(self, task: str) -> None:
        """Note the task's digest. Workers import the task when they join, so they notice changes of its code."""
        if task != self.task:
            self.log.warning("task_changed", task=self.spec.task, digest=task[:12], before=(self.task or "")[:12])
            self.task, self.numerics = task, replace(self.numerics, profile=None)  # it may import other libraries now

    def _probed(self, probe: Worker, report: Event, now: float) -> None:
        """Apply a report of the process that checks the task, which finds mistakes before the first checkpoint."""
        if isinstance(report, Ready):
            probe.process.send(self.spec.check())
        elif isinstance(report, Checked):
            self.task, self._worked_at = report.task, now
            self.numerics = replace(self.numerics, profile=_digest({**report.profile, "gpus": self.gpus}))
            self.log.info("task_checked", task=self.spec.task, digest=report.task[:12], eval_sets=report.eval_sets)
            self.workers.kill(probe)
        elif isinstance(report, Failed):
            self.failure = TaskError(self._with_log(cannot_be_used(self.spec.task, report.message), probe))
        elif isinstance(report, Exited) and self.task is None:
            if report.status < 0:  # it was killed, perhaps for lack of memory, so the task may be good
                self.log.warning("task_check_interrupted", message=str(report))
                self._pause(now)
            else:
                self.failure = TaskError(self._with_log(f"task {self.spec.task!r} cannot be checked: {report}", probe))

    def _with_log(self, message: str, worker: Worker) -> str:
        """Return a message with the path of a worker's log."""
        separator = "\n" if "\n" in message else "; "
        return f"{message}{separator}log of the process: {self.workers.log_of(worker.worker)}"


def _digest(profile: Mapping[str, str]) -> str:
    """Return a short digest of a numeric profile."""
    return hashlib.sha256(repr(sorted(profile.items())).encode()).hexdigest()[:12]
