"""Looks after this node's worker processes: the task is tried once, standbys are kept, bounds enforced, GPUs released.

Between the daemon's loop and `group.member`: it knows why workers are started and killed, but nothing of plans.
"""

from dataclasses import dataclass
from typing import Any, Final

from sidecar.errors import SidecarError, TaskError
from sidecar.group.member import Overrun, Worker, Workers
from sidecar.group.messages import Check, Checked, Failed, Join, Ready, Report
from sidecar.group.process import Exited

_MAX_DOUBLINGS: Final = 16


@dataclass(slots=True)
class Crew:
    """The worker processes of a node that evaluates."""

    workers: Workers
    join: Join  # names the task
    backoff_first: float  # seconds before a standby that died is replaced; doubled each time
    backoff_last: float
    release_idle: float | None  # seconds after which an idle worker leaves its GPU; None: a CPU needs no release
    log: Any
    task: str | None = None  # digest of its code, once it was tried
    failure: SidecarError | None = None  # why this daemon cannot go on
    _failures: int = 0
    _fill_at: float = 0.0

    def tend(self, now: float, *, filling: bool, evaluating: bool) -> list[Overrun]:
        """Start what is missing, kill what overran its bound; returns the latter."""
        overruns = self.workers.overruns(now)
        for overrun in overruns:
            self.log.warning("worker_overran", worker=overrun.worker, kind=overrun.kind, message=overrun.message)
            if self.workers.is_probe(overrun.worker):
                self.failure = TaskError(f"task {self.join.task!r} cannot be checked: the process {overrun.message}")
            if (worker := self.workers.find(overrun.worker)) is not None:
                self.workers.kill(worker)
        if self.task is None:
            self.workers.probe(now)
        elif filling and now >= self._fill_at:
            for worker in self.workers.fill(now):
                self.log.info("worker_started", worker=worker.worker, pid=worker.process.pid, address=worker.address)
        if self.release_idle is not None and not evaluating:
            self.workers.release(now - self.release_idle)
        return overruns

    def observe(self, name: str, report: Report | Exited, now: float) -> None:
        """Learn from a worker's report, and tell what is worth a line."""
        worker = self.workers.find(name)
        if worker is None:
            return
        probing, killed = self.workers.is_probe(name), worker.killed
        self.workers.observe(name, report, now)
        if probing:
            self._probed(worker, report)
        elif isinstance(report, Ready):
            self._failures = 0
            self.log.info("worker_ready", worker=name, pid=worker.process.pid, framework=report.version)
        elif isinstance(report, Failed) and worker.group is None:
            self.log.warning("worker_failed", worker=name, kind=report.kind, message=report.message)
            self.workers.kill(worker)
        elif isinstance(report, Exited):
            if not killed:
                self.log.warning("worker_exited", worker=name, message=str(report))
            if worker.group is None:
                pause = self.backoff_first * 2.0 ** min(self._failures, _MAX_DOUBLINGS)
                self._failures += 1
                self._fill_at = now + min(self.backoff_last, pause)

    def _probed(self, probe: Worker, report: Report | Exited) -> None:
        """The task is tried in a process of its own: the user hears of a mistake now, not at the first checkpoint."""
        if isinstance(report, Ready):
            probe.process.send(Check(self.join.task, self.join.framework, self.join.search_path))
        elif isinstance(report, Checked):
            self.task = report.task
            self.log.info("task_checked", task=self.join.task, digest=report.task[:12], eval_sets=report.eval_sets)
            self.workers.kill(probe)
        elif isinstance(report, Failed):
            self.failure = TaskError(f"task {self.join.task!r} cannot be used: {report.message}")
        elif isinstance(report, Exited) and self.task is None:
            self.failure = TaskError(f"task {self.join.task!r} cannot be checked: {report}")
