"""The worker processes of a node, without processes and with a time that tests give."""

from pathlib import Path

import pytest
from fakes import FakePorts, FakeProcess

from sidecar.daemon.workers.engine import LocalEngine, WorkerLaunch
from sidecar.daemon.workers.pool import WorkerPool
from sidecar.daemon.workers.timeouts import PhaseTimeouts
from sidecar.evaluation.framework_traits import traits_of
from sidecar.protocol.messages import Evaluate, Join, Joined, Ready
from sidecar.protocol.records import Checkpoint

BOUNDS = PhaseTimeouts(
    yield_seconds=300,
    join_timeout_seconds=120,
    restore_timeout_seconds=1800,
    first_batch_timeout_seconds=900,
    stall_seconds=60,
    stall_factor=5,
    suspended_timeout_seconds=10,
)


@pytest.fixture
def node():
    """Makes the workers of a node with fake processes."""

    def make(devices=("-1",), *, host="10.0.0.7", start=None, **changes):
        launch = WorkerLaunch(
            interpreter="python",
            traits=traits_of("tensorflow"),
            environment={"RANK": "1"},
            changes={},
            devices=devices,
            logs=Path("/logs"),
            directory="/work",
        )

        def fake(worker, **how):
            assert how["log"] == Path(f"/logs/{worker}.log")
            return FakeProcess(pid=100 + ports.taken, environment=how["environment"])

        ports = FakePorts()
        engine = LocalEngine(launch=launch, host=host, ports=ports, start=start or fake)
        return WorkerPool(engine=engine, bounds=BOUNDS, name="n.1", post=print, **changes)

    return make


def join(group="g"):
    return Join(group=group, members=(), rank=0, task="t", framework="tensorflow", search_path="/", threads=2)


def evaluation(plan=7):
    return Evaluate(
        plan=plan,
        checkpoint=Checkpoint(name="c", digest="d", step=1, format="tf"),
        path="/c",
        save_to="/s",
        save_weights="all",
        progress_seconds=1,
    )


def grouped(workers, now=0.0):
    """Worker n.1.1 has joined group g, at this time."""
    workers.fill(now)
    workers.observe("n.1.1", Ready("tensorflow", "2"), now)
    workers.join(join(), "n.1.1", now)
    workers.observe("n.1.1", Joined("g", "t", {}), now)
    return workers.find("n.1.1")
