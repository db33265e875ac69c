import json

import pytest

from sidecar.agreement.journal import Journal, open_run, read_history
from sidecar.agreement.members import Members
from sidecar.agreement.storage import PosixStorage
from sidecar.checkpoints.catalog import Catalog
from sidecar.clock import SystemClock
from sidecar.commands.operate import as_json, requeue, standing
from sidecar.errors import SettingsError, StorageError
from sidecar.records import Checkpoint, Heartbeat, Member, Plan, Settlement


@pytest.fixture
def storage(tmp_path):
    return PosixStorage(tmp_path / "state")


@pytest.fixture
def catalog(tmp_path):
    return Catalog(tmp_path / "ckpts", tmp_path / "state" / "pins", settle_seconds=3, clock=SystemClock())


@pytest.fixture
def run(storage):
    return open_run(storage, 0.0)


def make_plan(run, number, *, settles=(), checkpoint=None):
    members = (Member(0, "node-0", "node-0.a.1", "h:1"),) if checkpoint else None
    return Plan(
        number, run, f"nonce-{number}", checkpoint, 1, members, settles, "t1", "node-0", "2026-01-31T12:00:00.000Z"
    )


GIVEN_UP = Settlement("ckpt-5", "d" * 64, 500, "failed", "task_error: no", "t1")


def test_a_run_that_never_was_has_nothing_to_show(storage, catalog):
    """Looking creates nothing, not even the state directory."""
    found = standing(storage, catalog)
    assert (found.history.through, found.members, found.pending) == (0, (), ())
    assert not catalog._pins.parent.exists()


def test_status_tells_members_and_what_is_settled(storage, catalog, run):
    """It is read from shared storage alone: no daemon needs to be alive."""
    beat = Heartbeat(run, "node-0", "a", 7, "worker", "role = worker", "left", "1.0", "t1", 1, 1, ())
    Members(storage, run).write(beat)
    Journal(storage, run).propose(make_plan(run, 1, settles=(GIVEN_UP,)))
    shown = json.loads(json.dumps(as_json("mnist", standing(storage, catalog)), allow_nan=False))
    assert shown["members"] == [{"node": "node-0", "role": "worker", "state": "left", "version": "1.0", "beat": 7}]
    assert (shown["evaluated"], shown["settled"], shown["plan"]) == (0, 1, None)


def test_a_requeued_checkpoint_needs_an_evaluation_again(storage, run):
    """The journal holds both the end and the reopening, and the last word counts."""
    Journal(storage, run).propose(make_plan(run, 1, settles=(GIVEN_UP,)))
    assert read_history(storage).is_settled(GIVEN_UP.key, "t1")
    reopened = requeue(storage, "ckpt-5", by="node-9", clock=SystemClock())
    history = read_history(storage)
    assert reopened.reason == "by node-9; it was failed"
    assert history.through == 2
    assert not history.is_settled(GIVEN_UP.key, "t1")


def test_what_was_not_given_up_cannot_be_requeued(storage, run):
    """The message names those that were."""
    Journal(storage, run).propose(make_plan(run, 1, settles=(GIVEN_UP,)))
    with pytest.raises(SettingsError, match=r"'ckpt-6' was not given up.*given up: ckpt-5"):
        requeue(storage, "ckpt-6", by="node-9", clock=SystemClock())


def test_nothing_is_requeued_while_a_plan_is_open(storage, run):
    """Plan N+1 may not be created before outcome N."""
    journal = Journal(storage, run)
    journal.propose(make_plan(run, 1, settles=(GIVEN_UP,), checkpoint=Checkpoint("ckpt-6", "e" * 64, 600, "tf_object")))
    with pytest.raises(StorageError, match=r"plan 1 is open: requeue 'ckpt-5' when it has ended"):
        requeue(storage, "ckpt-5", by="node-9", clock=SystemClock())


def test_requeue_where_no_daemon_was(storage):
    """It says so instead of creating a run."""
    with pytest.raises(SettingsError, match="there is no run here yet"):
        requeue(storage, "ckpt-5", by="node-9", clock=SystemClock())
