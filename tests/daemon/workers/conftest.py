"""Real worker processes, and what is needed to command them by hand."""

import contextlib
import queue
import sys
import time
from pathlib import Path

import pytest
from daemon.workers.slots import node

from sidecar.daemon.workers.command_specs import TaskSpec
from sidecar.daemon.workers.engine import LocalEngine, WorkerLaunch
from sidecar.daemon.workers.pool import WorkerPool
from sidecar.daemon.workers.ports import Ports
from sidecar.daemon.workers.process import Exited
from sidecar.daemon.workers.timeouts import PhaseTimeouts
from sidecar.evaluation.framework_traits import traits_of
from sidecar.protocol.messages import Done, Evaluate, Failed, Joined, Ready
from sidecar.protocol.records import Checkpoint, Member, group_id

__all__ = ["node"]


TASKS = Path(__file__).parents[2] / "tasks"
PATIENT = PhaseTimeouts(
    yield_seconds=300,
    join_timeout_seconds=120,
    restore_timeout_seconds=120,
    first_batch_timeout_seconds=120,
    stall_seconds=120,
    stall_factor=5,
    suspended_timeout_seconds=10,
)


class WorkerGroup:
    """The worker processes of one node; every wait ends after two minutes."""

    def __init__(self, folder, environment, size, bounds=PATIENT, framework="tensorflow"):
        self.inbox = queue.SimpleQueue()
        self.folder = folder
        launch = WorkerLaunch(
            interpreter=sys.executable,
            traits=traits_of(framework),
            environment=environment,
            changes={"PYTHONWARNINGS": "ignore"},
            devices=("-1",) * size,
            logs=folder / "logs",
            directory=str(TASKS),
        )
        post = lambda worker, report: self.inbox.put((worker, report))  # noqa: E731
        ports = Ports(23000, 23999)
        self.workers = WorkerPool(
            engine=LocalEngine(launch=launch, host="127.0.0.1", ports=ports),
            bounds=bounds,
            name=f"node.{folder.name}",
            post=post,
            keep_standby=False,
        )
        self.members = ()
        self._standbys = ()

    def task_spec(self, task, **changes):
        """Return the task as these workers run it."""
        usual = {"framework": "tensorflow", "threads": 2, "cache_bytes": 1 << 20}
        named = task if ".py:" in task else f"digits.py:{task}"
        return TaskSpec(task=named, search_path=str(TASKS), **usual | changes)

    def collect(self, *kinds, count):
        """That many reports of these kinds, in order of worker; whatever else comes is observed only."""
        found, end = {}, time.monotonic() + 120
        while len(found) < count:
            worker, report = self.inbox.get(timeout=max(0.01, end - time.monotonic()))
            self.workers.observe(worker, report, time.monotonic())
            if isinstance(report, kinds):
                found[worker] = report
            elif isinstance(report, Failed | Exited):
                pytest.fail(f"{worker}: {report}")
        return [found[worker] for worker in sorted(found)]

    def start(self):
        """Start the processes, unless they run already; those that stand by."""
        if started := self.workers.fill(time.monotonic()):
            self.collect(Ready, count=len(started))
            self._standbys = started
        return self._standbys

    def form(self, task, **changes):
        """Let the processes join a group; their reports of it."""
        started = self.start()
        self.members = tuple(Member(rank, "node", each.worker, each.address) for rank, each in enumerate(started))
        for member in self.members:
            command = self.task_spec(task, **changes).join(
                group=group_id(self.members), members=self.members, rank=member.rank
            )
            self.workers.join(command, member.worker, time.monotonic())
        return self.collect(Joined, count=len(started))

    def evaluate(self, *paths, plans=None, digests=None):
        """One evaluation; paths, plans and digests may differ between ranks."""
        self.send(*paths, plans=plans, digests=digests)
        return self.collect(Done, Failed, count=len(self.members))

    def send(self, *paths, plans=None, digests=None):
        """Command an evaluation, as `evaluate` does."""
        size = len(self.members)
        paths = paths * size if len(paths) == 1 else paths
        plans, digests = plans or [1] * size, digests or ["digest"] * size
        for member in self.members:
            rank = member.rank
            folder = self.folder / f"plan-{plans[rank]}" / f"worker-{rank}-of-{size}"
            command = Evaluate(
                plan=plans[rank],
                checkpoint=Checkpoint(name="ckpt-1", digest=digests[rank], step=1, format="tf"),
                path=paths[rank],
                save_to=str(folder),
                save_weights="all",
                progress_seconds=0.0,
            )
            self.workers.evaluate(command, member.worker, time.monotonic())


@pytest.fixture(scope="module")
def worker_group(tmp_path_factory, quiet_environment):
    """Make groups of workers; all are killed at the end of the module."""
    with contextlib.ExitStack() as stack:

        def make(size, *, environment=(), **changes):
            made = WorkerGroup(
                tmp_path_factory.mktemp("worker_group"), quiet_environment | dict(environment), size, **changes
            )

            @stack.callback
            def end():
                made.workers.kill_all()
                while any(made.workers.all()):
                    worker, report = made.inbox.get(timeout=240)
                    made.workers.observe(worker, report, 0.0)

            return made

        yield make
