"""A run as its files tell it: storage, a catalog, and a journal that tests write."""

import pytest
from catalogs import make_catalog
from fakes import FakeClock
from heartbeats import make_heartbeat
from journals import Journal as MiniatureJournal
from journals import settlement

from sidecar.commands.status.collect import RunObserver
from sidecar.coordination.heartbeats import Heartbeats
from sidecar.coordination.journal import Journal
from sidecar.coordination.run import open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.records import Checkpoint, Member, Outcome, Plan, Result, Slot, group_id

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
        slot = Slot(worker=f"{node}.a.1", group="g", address="h:1", standby=f"{node}.a.2", standby_address="h:2")
        known = {"incarnation": "a", "role_source": "role = worker", "version": "1.0", "task": "t1", "slots": (slot,)}
        beating = make_heartbeat(**known | {"run": self.run, "node": node, "beat": beat} | given)
        Heartbeats(self.storage, self.run).write(beating)

    def propose(self, *settles, checkpoint=None, nodes=("node-0",)):
        """The next plan."""
        self.journal.read_new()
        members = tuple(Member(rank, node, f"{node}.a.1", "h:1") for rank, node in enumerate(nodes))
        number = self.journal.through + 1
        plan = Plan(
            plan=number,
            run=self.run,
            nonce=f"plan-{number}",
            checkpoint=checkpoint,
            attempt=1,
            members=members if checkpoint else None,
            settles=settles,
            task="t1",
            proposer="node-0",
            proposed_at=AT,
        )
        assert self.journal.propose(plan)
        self.journal.read_new()

    def close(self, kind=None, message=None, metrics=None):
        """The end of the open plan: a success, unless a kind of failure is named."""
        number = self.journal.through
        group = group_id(self.journal.open.members)
        result = (
            None
            if kind
            else Result(
                group=group,
                workers=1,
                examples={"test": 10},
                metrics={"test": metrics or {}},
                phases={},
                variables="v",
                task="t1",
                profile={},
                saves=(),
            )
        )
        status = "failed" if kind else "succeeded"
        outcome = Outcome(
            plan=number,
            run=self.run,
            nonce=f"end-{number}",
            status=status,
            closed_by="node-0",
            completed_at=AT,
            result=result,
            kind=kind,
            message=message,
        )
        assert self.journal.close(outcome)
        self.journal.read_new()


@pytest.fixture
def writers(storage, run):
    return Writers(storage, run)


@pytest.fixture
def checkpoint():
    """A checkpoint by the number of its step."""
    return lambda step, digest="e": Checkpoint(name=f"ckpt-{step}", digest=digest * 64, step=step, format="tf_object")


@pytest.fixture
def journal():
    """An empty journal in memory."""
    return MiniatureJournal()


@pytest.fixture
def settle():
    """Make settlements."""
    return settlement
