"""A run as its files tell it: storage, a catalog, and a journal that tests write."""

from dataclasses import replace

import pytest
from catalogs import make_catalog
from fakes import FakeClock

from sidecar.commands.status.collect import RunObserver
from sidecar.coordination.heartbeats import Heartbeats
from sidecar.coordination.journal import Journal
from sidecar.coordination.run import open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.records import Checkpoint, Heartbeat, Member, Outcome, Plan, Result, Slot, group_id

AT = "2027-01-15T08:16:30.000Z"


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def storage(tmp_path):
    return PosixStorage(tmp_path / "state")


@pytest.fixture
def place(tmp_path):
    """The checkpoint directory."""
    (tmp_path / "ckpts").mkdir()
    return tmp_path / "ckpts"


@pytest.fixture
def catalog(tmp_path, clock, place):
    return make_catalog(place, tmp_path / "state" / "pins", quiet_seconds=3, clock=clock)


@pytest.fixture
def observer(storage, catalog, clock):
    return RunObserver(storage, catalog, clock, lease_seconds=10.0)


@pytest.fixture
def run(storage):
    return open_run(storage, 0.0)


class Writers:
    """The daemons of a run, as far as their files go."""

    def __init__(self, storage, run):
        self.storage, self.run = storage, run
        self.journal = Journal(storage, run)

    def beat(self, node, beat, **given):
        """A node writes its heartbeat."""
        slot = Slot(f"{node}.a.1", "g", "h:1", f"{node}.a.2", "h:2")
        known = Heartbeat(self.run, node, "a", beat, "worker", "role = worker", "ready", "1.0", "t1", 0, 0, (slot,))
        Heartbeats(self.storage, self.run).write(replace(known, **given))

    def propose(self, *settles, checkpoint=None, nodes=("node-0",)):
        """The next plan."""
        self.journal.read_new()
        members = tuple(Member(rank, node, f"{node}.a.1", "h:1") for rank, node in enumerate(nodes))
        number = self.journal.through + 1
        plan = Plan(
            number,
            self.run,
            f"plan-{number}",
            checkpoint,
            1,
            members if checkpoint else None,
            settles,
            "t1",
            "node-0",
            AT,
        )
        assert self.journal.propose(plan)
        self.journal.read_new()

    def close(self, kind=None, message=None, metrics=None):
        """The end of the open plan: a success, unless a kind of failure is named."""
        number = self.journal.through
        group = group_id(self.journal.open.members)
        result = None if kind else Result(group, 1, {"test": 10}, {"test": metrics or {}}, {}, "v", "t1", {}, ())
        status = "failed" if kind else "succeeded"
        outcome = Outcome(number, self.run, f"end-{number}", status, "node-0", AT, result, kind, message=message)
        assert self.journal.close(outcome)
        self.journal.read_new()


@pytest.fixture
def writers(storage, run):
    return Writers(storage, run)


@pytest.fixture
def checkpoint():
    """A checkpoint by the number of its step."""
    return lambda step, digest="e": Checkpoint(f"ckpt-{step}", digest * 64, step, "tf_object")
