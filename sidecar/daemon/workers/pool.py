"""Start, command and kill the worker processes of this node, and track their phases and time limits.

Each replica is a slot with at most one active worker, which has joined a group, and one standby, which has imported the
framework but not the task. The daemon's main thread owns the pool: reports arrive through `observe`, time is an
argument, and nothing here waits.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.daemon.workers.engine import PROBE, Engine, Placed
from sidecar.daemon.workers.process import Event, Exited, Halted, Post, Process
from sidecar.daemon.workers.timeouts import PhaseProgress, PhaseTimeouts, TimedOut
from sidecar.protocol.heartbeat import Slot
from sidecar.protocol.messages import Checked, Done, Evaluate, Failed, Join, Joined, Phase, Progress, Ready
from sidecar.protocol.states import WorkerPhase
from sidecar.publishing.status import WorkerStatus


@dataclass(slots=True, kw_only=True)
class Worker:
    """Hold the state of one worker process, as its reports describe it."""

    worker: str
    process: Process
    placed: Placed  # its address
    progress: PhaseProgress
    ready: bool = False  # the framework is imported
    group: str | None = None
    alone: bool = False  # its group is this process alone
    joined: Joined | None = None
    plan: int | None = None
    killed: bool = False
    yields: bool = False  # it computes only with what other programs leave

    @property
    def rests(self) -> bool:
        """Return whether it waits for a command, ready for any: the run does not matter to it."""
        is_waiting = self.ready and self.progress.phase in (WorkerPhase.STANDBY, WorkerPhase.IDLE)
        return is_waiting and not self.killed and self.progress.halted is None

    @property
    def address(self) -> str:
        """Return HOST:PORT; empty until the engine has found a place for the process."""
        return self.placed.address

    def overrun(self, timeouts: PhaseTimeouts, now: float) -> TimedOut | None:
        """Return the time limit that the worker has exceeded, if any. Measure how long it waits for a processor."""
        if self.killed:
            return None
        if not self.progress.rests:
            self.progress.waits.measure(self.process.waits, now)
        overrun = self.progress.overrun(timeouts, now)
        return None if overrun is None else TimedOut(self.worker, *overrun, self.progress.phase)


@dataclass(slots=True)
class _Replica:
    """Hold the workers of one slot of the node, which share a set of devices."""

    slot: int
    active: Worker | None = None
    standby: Worker | None = None
    warm: Worker | None = None  # was alone in the group of another run; takes the place of a standby that joins alone

    def can_be_handed_over(self) -> list[Worker]:
        """Return the workers that another run can use as they are, once all of them rest."""
        standby, built = self.standby, self.active if self.active is not None else self.warm
        is_able = standby is not None and not standby.killed and standby.progress.halted is None
        is_built = built is not None and built.alone and built.rests
        return [each for each, stays in ((standby, is_able), (built, is_built)) if each is not None and stays]


@dataclass(slots=True, kw_only=True)
class WorkerPool:
    """Manage all worker processes of this node."""

    engine: Engine
    bounds: PhaseTimeouts
    name: str  # node and incarnation: unique for all time
    post: Post
    keep_standby: bool = True
    offered: bool = True  # whether plans may list the workers
    yields: bool = False  # whether new workers compute only with what other programs leave
    _replicas: list[_Replica] = field(default_factory=list)
    _leaving: list[Worker] = field(default_factory=list)  # killed after they were replaced, and not ended yet
    _probe: Worker | None = None
    _started: int = 0

    def __post_init__(self) -> None:
        self._replicas = [_Replica(slot) for slot in range(self.engine.slots)]

    def fill(self, now: float) -> list[Worker]:
        """Start a standby in every slot that should have one, and return the workers that were started.

        No standby is started while the active worker joins and builds: its import would delay the next evaluation.
        """
        started = []
        for replica in self._replicas:
            has_joined = replica.active is not None and replica.active.joined is not None
            if replica.standby is None and (replica.active is None or (self.keep_standby and has_joined)):
                replica.standby = self._start(replica.slot, now)
                started.append(replica.standby)
        return started

    def probe(self, now: float) -> bool:
        """Start the probe unless it runs already, and return whether it was started.

        The probe is a process that checks the task and never joins a group.
        """
        if self._probe is not None:
            return False
        self._probe = self._start(PROBE, now)
        return True

    def log_of(self, worker: str) -> Path | None:
        """Return the log of a worker process that this daemon started; None for any other worker."""
        return self.engine.log_of(worker) if worker.startswith(f"{self.name}.") else None

    def is_probe(self, worker: str) -> bool:
        """Return whether a worker is the probe, which checks the task."""
        return self._probe is not None and self._probe.worker == worker

    def release(self, idle_since: float) -> None:
        """Kill the workers that built the task and have been idle since then, so that others can use their GPUs."""
        for worker in [each for replica in self._replicas for each in (replica.active, replica.warm)]:
            if (
                worker is not None
                and not worker.killed
                and worker.progress.phase == WorkerPhase.IDLE
                and worker.progress.since <= idle_since
            ):
                self.kill(worker)

    def slots(self) -> tuple[Slot, ...]:
        """Return the slots for the heartbeat, with the workers that can be listed in a plan."""
        slots = []
        for replica in self._replicas if self.offered else ():
            found = [worker for worker in (replica.active, replica.standby) if worker is not None and worker.address]
            if not found and not self.engine.granted:
                continue  # a group must not wait for what a cluster may grant in an hour
            active = replica.active if replica.active and not replica.active.killed else None
            standby = (
                replica.standby if replica.standby and replica.standby.ready and not replica.standby.killed else None
            )
            slots.append(
                Slot(
                    worker=active.worker if active else None,
                    group=active.group if active else None,
                    address=active.address if active else None,
                    standby=standby.worker if standby else None,
                    standby_address=standby.address if standby else None,
                    host=found[0].placed.host if found else None,
                )
            )
        return tuple(slots)

    def find(self, worker_id: str) -> Worker | None:
        """Return the worker process with that id, or None if it has ended."""
        return next((worker for worker in self.all() if worker.worker == worker_id), None)

    def all(self) -> Iterator[Worker]:
        """Yield every worker process that has not ended."""
        for replica in self._replicas:
            if replica.active is not None:
                yield replica.active
            if replica.standby is not None:
                yield replica.standby
            if replica.warm is not None:
                yield replica.warm
        yield from self._leaving
        if self._probe is not None:
            yield self._probe

    def join(self, command: Join, worker: str, now: float) -> None:
        """Let a standby join a group. It replaces the active worker of its slot, which is killed."""
        replica = next(slot for slot in self._replicas if slot.standby and slot.standby.worker == worker)
        assert replica.standby is not None
        if replica.active is not None:
            self._leave(replica.active)
        alone = len(command.members) == 1 and command.processes == 1
        alone = alone and not command.options.get("always_cluster")  # a cluster has bound the worker's address
        warm, replica.warm = replica.warm, None
        if warm is not None and alone and not warm.killed and self._make_room(replica.standby):
            self._take(warm, worker)
            warm.placed, replica.standby.placed = replica.standby.placed, warm.placed  # the plan lists the address
            replica.active = warm
        else:
            if warm is not None:
                self._leave(warm)
            replica.active, replica.standby = replica.standby, None
        replica.active.group, replica.active.alone, replica.active.joined = command.group, alone, None
        replica.active.progress.begin(WorkerPhase.JOIN, now)
        replica.active.process.send(command)

    def evaluate(self, command: Evaluate, worker: str, now: float) -> None:
        """Let an active worker evaluate a checkpoint."""
        active = self.find(worker)
        assert active is not None
        active.plan = command.plan
        if active.joined is not None:
            active.progress.begin(WorkerPhase.RESTORE, now)
        active.process.send(command)

    def observe(self, worker_id: str, event: Event, now: float) -> None:
        """Note an event of a worker. A worker that exited releases its slot and its port."""
        worker = self.find(worker_id)
        if worker is None:
            return
        if isinstance(event, Halted):  # not a sign of life, even if the process continues
            worker.progress.halted = now if event.halted else None
            return
        if isinstance(event, Progress):
            worker.progress.advance(event, now)
        worker.progress.hear(now)
        if isinstance(event, Ready):
            worker.ready = True
            worker.progress.enter(WorkerPhase.STANDBY, now)
        elif isinstance(event, Phase):
            worker.progress.enter(event.phase, now)
        elif isinstance(event, Joined):
            worker.joined = event
            worker.progress.enter(WorkerPhase.IDLE, now)
        elif isinstance(event, Done | Checked):
            worker.plan = None
            worker.progress.enter(WorkerPhase.IDLE, now)
        elif isinstance(event, Failed):
            worker.progress.enter(WorkerPhase.FAILED, now)
        elif isinstance(event, Exited):
            self._remove(worker)

    def excuse_joining(self, now: float) -> None:
        """Restart the time limit of the workers that form a group, because another member has not begun yet."""
        for worker in self.all():
            if worker.progress.phase is WorkerPhase.JOIN:
                worker.progress.hear(now)

    def overruns(self, now: float) -> list[TimedOut]:
        """Return the workers that exceeded a time limit. The caller kills them, so no worker is returned twice."""
        return [overrun for worker in self.all() if (overrun := worker.overrun(self.bounds, now)) is not None]

    def starving(self) -> list[Worker]:
        """Return the workers that have waited for processors, which other programs use, for long enough."""
        return [
            worker
            for worker in self.all()
            if worker.yields and not worker.killed and worker.progress.waited >= self.bounds.yield_seconds
        ]

    def kill(self, worker: Worker) -> None:
        """SIGKILL a worker and its children. The event `Exited` follows."""
        worker.killed = True
        worker.process.kill()

    def retire(self, *, keep_warm: bool) -> bool:
        """Kill all workers, except those that can be handed over if `keep_warm`.

        Return whether the others are gone and these rest, with a standby in each slot: a worker that was alone in its
        group can only be alone again. A standby that imports the framework goes on, as another one would take longer.
        """
        keep_warm = keep_warm and self.keep_standby
        kept = [worker for replica in self._replicas if keep_warm for worker in replica.can_be_handed_over()]
        others = [worker for worker in self.all() if not any(worker is each for each in kept)]
        for worker in others:
            self.kill(worker)
        is_complete = not keep_warm or all(replica.standby is not None for replica in self._replicas)
        return not others and is_complete and all(worker.rests for worker in kept)

    def hand_over(self, heir: "WorkerPool") -> None:
        """Give all workers to the pool of another run, as its standbys. Its engine starts equal workers.

        They get new names, because the name of a worker says to which daemon of which run it belongs.
        """
        for replica in self._replicas:
            built = replica.active if replica.active is not None else replica.warm
            heir.take_over(replica.slot, replica.standby, built)
            replica.standby = replica.active = replica.warm = None

    def take_over(self, slot: int, standby: Worker | None, built: Worker | None) -> None:
        """Take the workers of a slot from the pool of another run: a standby, and one that was alone in its group."""
        replica = self._replicas[slot]
        replica.standby, replica.warm = standby, built
        for worker in (standby, built):
            if worker is not None:
                worker.group = None
                self._take(worker, self._new_name())

    def kill_all(self) -> None:
        """SIGKILL every worker process."""
        for worker in self.all():
            self.kill(worker)

    def kill_group(self, group: str | None = None, *, other_than: str | None = None) -> None:
        """SIGKILL the active workers of `group`, or of every group except `other_than`."""
        for replica in self._replicas:
            active = replica.active
            if active is not None and (active.group == group if other_than is None else active.group != other_than):
                self.kill(active)

    def statuses(self) -> tuple[WorkerStatus, ...]:
        """Return the status of each worker process, for display."""
        return tuple(
            WorkerStatus(
                worker=worker.worker,
                pid=worker.process.pid,
                state=worker.progress.phase,
                batches=worker.progress.batches,
                total_batches=worker.progress.total_batches,
                waits=worker.progress.is_waiting,
            )
            for worker in self.all()
        )

    def _leave(self, worker: Worker) -> None:
        """Kill a worker that another one replaces."""
        self.kill(worker)
        self._leaving.append(worker)

    def _take(self, worker: Worker, name: str) -> None:
        """Have the events of a worker posted here, under a name. If it has ended, its old name got the last event."""
        worker.worker = name
        if not worker.process.rename(name, self.post, self.engine.log_of(name)):
            self.post(name, Exited(0, "", why="it ended while it was given to another run"))

    def _make_room(self, standby: Worker) -> bool:
        """Give a standby a new name, so that another worker can have the one that a plan lists.

        Return False if it has ended: its last event, which was posted under the old name, must not concern another one.
        """
        name = self._new_name()
        renamed = standby.process.rename(name, self.post, self.engine.log_of(name))
        standby.worker = name if renamed else standby.worker
        return renamed

    def _new_name(self) -> str:
        """Return the name of a further worker."""
        self._started += 1
        return f"{self.name}.{self._started}"

    def _start(self, slot: int | None, now: float) -> Worker:
        """Start a worker process."""
        worker = self._new_name()
        running = {running.worker for running in self.all()}
        placed = self.engine.place(worker, slot, running=running, post=self.post, yields=self.yields)
        progress = PhaseProgress(since=now, heard=now, phase=placed.phase)
        return Worker(worker=worker, process=placed.process, placed=placed, progress=progress, yields=self.yields)

    def _remove(self, worker: Worker) -> None:
        """Forget a worker that has ended, and release its port."""
        worker.placed.close()
        self._leaving = [leaving for leaving in self._leaving if leaving is not worker]
        if self._probe is worker:
            self._probe = None
        for replica in self._replicas:
            if replica.active is worker:
                replica.active = None
            if replica.standby is worker:
                replica.standby = None
            if replica.warm is worker:
                replica.warm = None
