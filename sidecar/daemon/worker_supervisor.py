"""Looks after this node's worker processes: the task is tried once, standbys are kept, bounds enforced, GPUs released.

Between the daemon's loop and `group.member`: it knows why workers are started and killed, but nothing of plans.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sidecar.errors import SidecarError, StorageError, TaskError
from sidecar.workers.messages import Check, Checked, Done, Failed, Join, Joined, Ready
from sidecar.workers.pool import TimedOut, Worker, WorkerPool
from sidecar.workers.process import Event, Exited

_MAX_DOUBLINGS: Final = 16


@dataclass(slots=True)
class WorkerSupervisor:
    """The worker processes of a node that evaluates."""

    workers: WorkerPool
    join: Join  # names the task
    backoff_first_seconds: float  # seconds before a standby that died is replaced; doubled each time
    backoff_last_seconds: float
    release_idle: float | None  # seconds after which an idle worker leaves its GPU; None: a CPU needs no release
    gpus: str  # their names, as part of the numeric profile: the process that tries the task sees none
    log: Any
    task: str | None = None  # digest of its code, once it was tried
    profile: str | None = None  # digest of the numeric profile, as it was when the task was tried
    joined_profile: str | None = None  # and as a worker told it that had joined a group
    failure: SidecarError | None = None  # why this daemon cannot go on
    _failures: int = 0
    _fill_at: float = 0.0

    def tend(self, now: float, *, filling: bool, evaluating: bool) -> list[TimedOut]:
        """Start what is missing, kill what overran its bound; returns the latter."""
        overruns = self.workers.overruns(now)
        for overrun in overruns:
            self._warn("worker_overran", overrun.worker, kind=overrun.kind, message=overrun.message)
            if (worker := self.workers.find(overrun.worker)) is None:
                continue
            # Else it was the framework, as storage may be slow, or somebody stopped it: neither is the task's fault.
            if worker.ready and worker.halted is None and self.workers.is_probe(overrun.worker):
                self.failure = TaskError(f"task {self.join.task!r} cannot be checked: the process {overrun.message}")
            self._give_up(worker, now)
        if now >= self._fill_at:
            if self.task is None:
                self._start(lambda: self._probe(now), now)
            elif filling:
                self._start(lambda: self._fill(now), now)
        if self.release_idle is not None and not evaluating:
            self.workers.release(now - self.release_idle)
        return overruns

    def observe(self, name: str, report: Event, now: float, *, evaluating: bool) -> None:
        """Learn from a worker's report, and tell what is worth a line. `evaluating`: this node has a part in a plan."""
        worker = self.workers.find(name)
        if worker is None:
            return
        if isinstance(report, Done) and report.plan != worker.plan:
            return  # it was told of the next plan already, and must not look idle
        probing, since = self.workers.is_probe(name), worker.since
        self.workers.observe(name, report, now)
        if probing:
            self._probed(worker, report, now)
        elif isinstance(report, Ready):
            self.log.info("worker_ready", worker=name, pid=worker.process.pid, framework=report.version)
        elif isinstance(report, Joined):
            self._failures = 0
            self._learn(report.task)
            self.joined_profile = _digest(report.profile)
        elif isinstance(report, Failed | Exited):
            self._lost(worker, report, now, evaluating=evaluating, served_seconds=now - since if worker.ready else 0.0)

    def forgive(self, seconds: float) -> None:
        """This process itself was stopped for so long: the silence of its workers meanwhile says nothing."""
        for worker in self.workers.all():
            worker.heard += seconds
            worker.halted = None if worker.halted is None else worker.halted + seconds

    def dismiss(self, names: Iterable[str]) -> None:
        """Kill those of these workers that are here: what they were there for is over."""
        for worker in [worker for name in names if (worker := self.workers.find(name)) is not None]:
            self.workers.kill(worker)

    def _start(self, start: Callable[[], None], now: float) -> None:
        """Start processes. What a machine without memory or ports refuses now may be had later."""
        try:
            start()
        except StorageError as error:
            self._not_started(error, now)
        except SidecarError as error:
            if self.task is None:  # not one was ever started: a wrong interpreter, and the like
                self.failure = error
            else:
                self._not_started(error, now)
        except (OSError, RuntimeError) as error:
            self._not_started(error, now)

    def _not_started(self, error: Exception, now: float) -> None:
        self.log.warning("worker_not_started", message=str(error))
        self._pause(now)

    def _warn(self, event: str, worker: str, **fields: Any) -> None:
        """Tell of a worker's end, with the place of its log."""
        self.log.warning(event, worker=worker, **fields, log=str(self.workers.log_of(worker)))

    def _probe(self, now: float) -> None:
        if self.workers.probe(now):
            self.log.info("task_check_begun", task=self.join.task, framework=self.join.framework)

    def _fill(self, now: float) -> None:
        for worker in self.workers.fill(now):
            self.log.info("worker_started", worker=worker.worker, pid=worker.process.pid, address=worker.address)

    def _lost(
        self, worker: Worker, report: Failed | Exited, now: float, *, evaluating: bool, served_seconds: float
    ) -> None:
        """A worker is of no use any more. What it means for an open plan is told by that plan's failure."""
        if isinstance(report, Exited) and not worker.killed:
            self._warn("worker_exited", worker.worker, message=str(report))
        elif isinstance(report, Failed) and not (evaluating and worker.group):
            self._warn("worker_failed", worker.worker, kind=report.kind, message=report.message)
        if served_seconds >= self.backoff_last_seconds:
            self._failures = 0  # that it ends after so long is no habit
        if worker.group is None:
            self._give_up(worker, now)
        elif not evaluating:
            self.workers.kill_group(worker.group)  # what is left of a group without it cannot be used

    def _give_up(self, worker: Worker, now: float) -> None:
        """Kill it; what ends before it was of use is replaced ever later."""
        if worker.group is None and not worker.killed:
            self._pause(now)
        self.workers.kill(worker)

    def _pause(self, now: float) -> None:
        pause = self.backoff_first_seconds * 2.0 ** min(self._failures, _MAX_DOUBLINGS)
        self._failures += 1
        self._fill_at = now + min(self.backoff_last_seconds, pause)

    def _learn(self, task: str) -> None:
        """Workers import the task when they join, so they see first that its code was changed."""
        if task != self.task:
            self.log.warning("task_changed", task=self.join.task, digest=task[:12], before=(self.task or "")[:12])
            self.task, self.profile = task, None  # it may import other libraries now

    def _probed(self, probe: Worker, report: Event, now: float) -> None:
        """The task is tried in a process of its own: the user hears of a mistake now, not at the first checkpoint."""
        if isinstance(report, Ready):
            join = self.join
            probe.process.send(Check(join.task, join.framework, join.search_path, join.threads, join.options))
        elif isinstance(report, Checked):
            self.task = report.task
            self.profile = _digest({**report.profile, "gpus": self.gpus})
            self.log.info("task_checked", task=self.join.task, digest=report.task[:12], eval_sets=report.eval_sets)
            self.workers.kill(probe)
        elif isinstance(report, Failed):
            named = report.message.startswith("task ")  # the message says which one
            message = report.message if named else f"task {self.join.task!r} cannot be used: {report.message}"
            self.failure = TaskError(self._with_log(message, probe))
        elif isinstance(report, Exited) and self.task is None:
            if report.status < 0:  # somebody killed it, or memory was short: that says nothing of the task
                self.log.warning("task_check_interrupted", message=str(report))
                self._pause(now)
            else:
                self.failure = TaskError(self._with_log(f"task {self.join.task!r} cannot be checked: {report}", probe))

    def _with_log(self, message: str, worker: Worker) -> str:
        separator = "\n" if "\n" in message else "; "
        return f"{message}{separator}log of the process: {self.workers.log_of(worker.worker)}"


def _digest(profile: Mapping[str, str]) -> str:
    return hashlib.sha256(repr(sorted(profile.items())).encode()).hexdigest()[:12]
