"""Worker processes driven by hand as one group: the daemon's own messages, without agreement or watching."""

import contextlib
import os
import queue
import shutil
import sys
import time
from dataclasses import dataclass

from programs import PATIENCE_SECONDS, TASKS, environ

from sidecar.daemon.workers.engine import LocalEngine, WorkerLaunch
from sidecar.daemon.workers.pool import WorkerPool
from sidecar.daemon.workers.ports import Ports
from sidecar.daemon.workers.process import Exited
from sidecar.daemon.workers.timeouts import PhaseTimeouts
from sidecar.evaluation.framework_traits import traits_of
from sidecar.protocol.messages import Done, Evaluate, Failed, Join, Joined, Ready
from sidecar.protocol.records import Checkpoint, Member, group_id

_PATIENT = PhaseTimeouts(
    yield_seconds=300,
    join_timeout_seconds=120,
    restore_timeout_seconds=120,
    first_batch_timeout_seconds=120,
    stall_seconds=120,
    stall_factor=5,
    suspended_timeout_seconds=10,
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker process runs."""

    cores: frozenset[int] | None = None
    host: str = "127.0.0.1"
    interpreter: str = sys.executable


class WorkerGroup:
    """A group with one worker process in each place, which has joined and stays warm; `with` ends it."""

    def __init__(self, folder, task, places, env=None, framework="tensorflow", **join):
        self.folder = folder
        self._format = {"tensorflow": "tf", "torch": "torch_zip"}[framework]
        self._inbox = queue.SimpleQueue()
        self._nodes = []
        self._plan = 0
        ports = Ports(24000, 24999)
        for number, place in enumerate(places):
            launch = WorkerLaunch(
                interpreter=place.interpreter,
                traits=traits_of(framework),
                environment=environ(**(env or {})),
                changes={"PYTHONWARNINGS": "ignore"},
                devices=("-1",),
                logs=folder / "logs",
                directory=str(TASKS),
            )
            post = lambda worker, report: self._inbox.put((worker, report))  # noqa: E731
            self._nodes.append(
                WorkerPool(
                    engine=LocalEngine(launch=launch, host=place.host, ports=ports),
                    bounds=_PATIENT,
                    name=f"node-{number}",
                    post=post,
                    keep_standby=False,
                )
            )
        self._started = [node.fill(time.monotonic())[0] for node in self._on_cores(places)]
        self._collect(Ready)
        self.members = tuple(
            Member(rank, node.name, each.worker, each.address)
            for rank, (node, each) in enumerate(zip(self._nodes, self._started, strict=True))
        )
        for node, member in zip(self._nodes, self.members, strict=True):
            usual = {"framework": framework, "search_path": str(TASKS), "threads": 1, "cache_bytes": 1 << 30}
            command = Join(
                group=group_id(self.members),
                members=self.members,
                rank=member.rank,
                task=f"{task}:task",
                **usual | join,
            )
            node.join(command, member.worker, time.monotonic())
        self._collect(Joined)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for node in self._nodes:
            node.kill_all()
        with contextlib.suppress(queue.Empty):
            while any(each for node in self._nodes for each in node.all()):
                self._observe(*self._inbox.get(timeout=10))

    @property
    def pids(self):
        """Process ids by rank."""
        return [each.process.pid for each in self._started]

    def logs(self):
        """Return what the workers printed, by rank."""
        return [(self.folder / "logs" / f"{each.worker}.log").read_text(errors="replace") for each in self._started]

    def evaluate(self, path):
        """Evaluate a checkpoint and throw away what was saved: the result, and seconds until every rank had it."""
        self._plan += 1
        saves = self.folder / f"plan-{self._plan}"
        begin = time.monotonic()
        for node, member in zip(self._nodes, self.members, strict=True):
            checkpoint = Checkpoint(name="ckpt", digest=f"digest-{self._plan}", step=self._plan, format=self._format)
            command = Evaluate(
                plan=self._plan,
                checkpoint=checkpoint,
                path=path,
                save_to=str(saves / f"worker-{member.rank}"),
                save_weights="all",
                progress_seconds=1.0,
            )
            node.evaluate(command, member.worker, time.monotonic())
        done = self._collect(Done)
        seconds = time.monotonic() - begin
        shutil.rmtree(saves)
        return done[0].result, seconds

    def _on_cores(self, places):
        """Each node while this process, whose cores its workers inherit, is on that place's cores."""
        own = os.sched_getaffinity(0)
        try:
            for node, place in zip(self._nodes, places, strict=True):
                os.sched_setaffinity(0, place.cores or own)
                yield node
        finally:
            os.sched_setaffinity(0, own)

    def _collect(self, kind):
        """One report of this kind from each worker, by rank."""
        found, end = {}, time.monotonic() + PATIENCE_SECONDS
        while len(found) < len(self._started):
            worker, report = self._inbox.get(timeout=max(0.01, end - time.monotonic()))
            self._observe(worker, report)
            if isinstance(report, Failed | Exited):
                raise RuntimeError(f"{worker}: {report}; its log: {self.logs()}")  # noqa: TRY004 - it ended
            if isinstance(report, kind):
                found[worker] = report
        return [found[each.worker] for each in self._started]

    def _observe(self, worker, report):
        node = next(node for node in self._nodes if worker.startswith(f"{node.name}."))
        node.observe(worker, report, time.monotonic())
