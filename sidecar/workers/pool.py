"""The worker processes of this node: the phase of each, and the bound that one has overrun.

Each replica is a slot with at most one active worker, which joined a group, and one standby, which imported the
framework but not the task. The daemon's main thread owns the pool: reports arrive through `observe`, time is an
argument, and nothing here waits.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sidecar.observability.status import WorkerStatus
from sidecar.records import Slot, group_id
from sidecar.states import WorkerPhase
from sidecar.workers.environment import worker_environment
from sidecar.workers.messages import Checked, Done, Evaluate, Failed, Join, Joined, Phase, Progress, Ready
from sidecar.workers.phase_progress import PhaseProgress
from sidecar.workers.ports import Port, Ports
from sidecar.workers.process import Event, Exited, Halted, Post, Process, start
from sidecar.workers.timeouts import PhaseTimeouts, TimedOut

__all__ = ["PhaseTimeouts", "TimedOut", "Worker", "WorkerLaunch", "WorkerPool", "group_id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLaunch:
    """How worker processes are started on this node."""

    interpreter: str
    framework: str
    environment: Mapping[str, str]
    changes: Mapping[str, str | None]
    devices: Sequence[str]  # CUDA_VISIBLE_DEVICES of each replica's workers
    logs: Path
    directory: str


class Start(Protocol):
    """Start a worker process; see `process.start`."""

    def __call__(
        self,
        worker: str,
        *,
        interpreter: str,
        framework: str,
        environment: Mapping[str, str],
        directory: str,
        log: Path,
        keep_logs: Collection[str],
        post: Post,
    ) -> Process:
        """Start it."""
        ...


@dataclass(slots=True)
class Worker:
    """The state of one worker process, as its reports say."""

    worker: str
    process: Process
    port: Port
    address: str
    progress: PhaseProgress
    ready: bool = False  # the framework is imported
    group: str | None = None
    joined: Joined | None = None
    plan: int | None = None
    killed: bool = False

    def overrun(self, timeouts: PhaseTimeouts, now: float) -> TimedOut | None:
        """Return the time limit that the worker has passed, if any."""
        overrun = None if self.killed else self.progress.overrun(timeouts, now)
        return None if overrun is None else TimedOut(self.worker, *overrun, self.progress.phase)


@dataclass(slots=True)
class _Replica:
    """A slot of the node: the workers of one set of devices."""

    devices: str
    active: Worker | None = None
    standby: Worker | None = None


@dataclass(slots=True)
class WorkerPool:
    """All worker processes of this node."""

    launch: WorkerLaunch
    bounds: PhaseTimeouts
    name: str  # unique for all time: node and incarnation
    host: str
    ports: Ports
    post: Post
    start: Start = start
    keep_standby: bool = True
    _replicas: list[_Replica] = field(default_factory=list)
    _leaving: list[Worker] = field(default_factory=list)  # replaced and killed, not yet ended
    _probe: Worker | None = None
    _started: int = 0

    def __post_init__(self) -> None:
        self._replicas = [_Replica(devices) for devices in self.launch.devices]

    def fill(self, now: float) -> list[Worker]:
        """Start a standby in every slot that should have one; return those that were started.

        None is started while the active worker joins and builds: the import would delay the next evaluation.
        """
        started = []
        for replica in self._replicas:
            has_joined = replica.active is not None and replica.active.joined is not None
            if replica.standby is None and (replica.active is None or (self.keep_standby and has_joined)):
                replica.standby = self._start(replica.devices, now)
                started.append(replica.standby)
        return started

    def probe(self, now: float) -> bool:
        """Start, unless it runs, a process of its own in which the task is tried: it never joins a group.

        Returns whether it was started now.
        """
        if self._probe is not None:
            return False
        self._probe = self._start("-1", now)
        return True

    def log_of(self, worker: str) -> Path | None:
        """Return where a worker process of this node and incarnation writes its log; None: it is another's."""
        return self.launch.logs / f"{worker}.log" if worker.startswith(f"{self.name}.") else None

    def is_probe(self, worker: str) -> bool:
        """Whether that worker is the one in which the task is tried."""
        return self._probe is not None and self._probe.worker == worker

    def release(self, idle_since: float) -> None:
        """End the active workers that have been idle since then, so that others get their GPU."""
        for replica in self._replicas:
            active = replica.active
            if (
                active is not None
                and not active.killed
                and active.progress.phase == WorkerPhase.IDLE
                and active.progress.since <= idle_since
            ):
                self.kill(active)

    def slots(self) -> tuple[Slot, ...]:
        """Return the slots for the heartbeat, with the workers that can be listed in a plan."""
        found = []
        for replica in self._replicas:
            active = replica.active if replica.active and not replica.active.killed else None
            standby = (
                replica.standby if replica.standby and replica.standby.ready and not replica.standby.killed else None
            )
            found.append(
                Slot(
                    worker=active.worker if active else None,
                    group=active.group if active else None,
                    address=active.address if active else None,
                    standby=standby.worker if standby else None,
                    standby_address=standby.address if standby else None,
                )
            )
        return tuple(found)

    def find(self, worker: str) -> Worker | None:
        """Return the live worker with that id, or None."""
        return next((each for each in self.all() if each.worker == worker), None)

    def all(self) -> Iterator[Worker]:
        """Yield every worker process."""
        for replica in self._replicas:
            if replica.active is not None:
                yield replica.active
            if replica.standby is not None:
                yield replica.standby
        yield from self._leaving
        if self._probe is not None:
            yield self._probe

    def join(self, command: Join, worker: str, now: float) -> None:
        """Let a standby form a group; the slot's former active worker is replaced."""
        replica = next(each for each in self._replicas if each.standby and each.standby.worker == worker)
        assert replica.standby is not None
        if replica.active is not None:
            self.kill(replica.active)
            self._leaving.append(replica.active)
        replica.active, replica.standby = replica.standby, None
        replica.active.group = command.group
        replica.active.progress.enter(WorkerPhase.JOIN, now)
        replica.active.process.send(command)

    def evaluate(self, command: Evaluate, worker: str, now: float) -> None:
        """Give an active worker a checkpoint."""
        active = self.find(worker)
        assert active is not None
        active.plan = command.plan
        if active.joined is not None:
            active.progress.enter(WorkerPhase.RESTORE, now)
        active.process.send(command)

    def observe(self, worker: str, report: Event, now: float) -> None:
        """Note a report of a worker. A worker that exited gives its slot and its port back."""
        found = self.find(worker)
        if found is None:
            return
        if isinstance(report, Halted):  # no sign of life, even if it goes on
            found.progress.halted = now if report.halted else None
            return
        if isinstance(report, Progress):
            found.progress.advance(report, now)
        found.progress.heard = now
        if isinstance(report, Ready):
            found.ready = True
            found.progress.enter(WorkerPhase.STANDBY, now)
        elif isinstance(report, Phase):
            found.progress.enter(report.phase, now)
        elif isinstance(report, Joined):
            found.joined = report
            found.progress.enter(WorkerPhase.IDLE, now)
        elif isinstance(report, Done | Checked):
            found.plan = None
            found.progress.enter(WorkerPhase.IDLE, now)
        elif isinstance(report, Failed):
            found.progress.enter(WorkerPhase.FAILED, now)
        elif isinstance(report, Exited):
            self._remove(found)

    def overruns(self, now: float) -> list[TimedOut]:
        """Return the workers that passed a bound. The caller kills them, so each is returned once."""
        return [overrun for each in self.all() if (overrun := each.overrun(self.bounds, now)) is not None]

    def kill(self, worker: Worker) -> None:
        """SIGKILL a worker and everything that it started; `Exited` reports its end."""
        worker.killed = True
        worker.process.kill()

    def kill_all(self) -> None:
        """SIGKILL every worker process."""
        for worker in self.all():
            self.kill(worker)

    def kill_group(self, group: str | None = None, *, other_than: str | None = None) -> None:
        """SIGKILL the active workers of a group, or of every group but one."""
        for replica in self._replicas:
            active = replica.active
            if active is not None and (active.group == group if other_than is None else active.group != other_than):
                self.kill(active)

    def statuses(self) -> tuple[WorkerStatus, ...]:
        """Return what each worker process is doing, for people."""
        return tuple(
            WorkerStatus(
                each.worker, each.process.pid, each.progress.phase, each.progress.batches, each.progress.total_batches
            )
            for each in self.all()
        )

    def _start(self, devices: str, now: float) -> Worker:
        self._started += 1
        worker = f"{self.name}.{self._started}"
        port = self.ports.reserve()
        environment = worker_environment(
            self.launch.environment,
            framework=self.launch.framework,
            devices=devices,
            hosts=[self.host],
            changes=self.launch.changes,
        )
        try:
            process = self.start(
                worker,
                interpreter=self.launch.interpreter,
                framework=self.launch.framework,
                environment=environment,
                directory=self.launch.directory,
                log=self.launch.logs / f"{worker}.log",
                keep_logs={each.worker for each in self.all()},
                post=self.post,
            )
        except BaseException:
            port.close()
            raise
        host = f"[{self.host}]" if ":" in self.host else self.host
        return Worker(worker, process, port, f"{host}:{port.number}", PhaseProgress(since=now, heard=now))

    def _remove(self, worker: Worker) -> None:
        worker.port.close()
        self._leaving = [each for each in self._leaving if each is not worker]
        if self._probe is worker:
            self._probe = None
        for replica in self._replicas:
            if replica.active is worker:
                replica.active = None
            if replica.standby is worker:
                replica.standby = None
