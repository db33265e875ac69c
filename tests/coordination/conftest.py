"""Records as short as a test needs them, and storage that fails on schedule."""

from collections.abc import Iterable

import pytest
from heartbeats import make_heartbeat

from sidecar.coordination.compaction import Compaction
from sidecar.coordination.journal import Journal
from sidecar.coordination.liveness import Liveness
from sidecar.coordination.run import open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import StorageError
from sidecar.protocol.codec import dumps
from sidecar.protocol.records import Checkpoint, Member, Outcome, Plan, Result, Settlement, group_id

CHECKPOINT = Checkpoint(name="ckpt-5", digest="d" * 64, step=5, format="tf")
MEMBERS = (Member(0, "worker-1", "w1", "127.0.0.1:1"),)


class FaultyStorage:
    """Real files; each `create` meets the next fault of the schedule, and none once that is used up."""

    def __init__(self, storage, schedule: Iterable[str]):
        self.storage = storage
        self.schedule = list(schedule)
        self.created = 0

    def create(self, path, data):
        """Create, or fail, or pretend either."""
        self.created += 1
        fault = self.schedule.pop(0) if self.schedule else "works"
        assert fault in ("works", "lost_reply", "not_done", "silently_lost")
        if fault in ("works", "lost_reply"):
            self.storage.create(path, data)
        if fault in ("lost_reply", "not_done"):
            raise StorageError(f"cannot create {path}: Connection timed out")

    def read(self, path, limit=None):
        """Read the real file."""
        return self.storage.read(path, limit)

    def replace(self, path, data):
        """Replace the real file."""
        self.storage.replace(path, data)

    def sync(self, folder):
        """Make the real folder durable."""
        self.storage.sync(folder)

    def names(self, folder):
        """List the real folder."""
        return self.storage.names(folder)


@pytest.fixture
def faulty():
    return FaultyStorage


@pytest.fixture
def storage(tmp_path):
    return PosixStorage(tmp_path / "state" / "run-a")


@pytest.fixture
def run(storage):
    return open_run(storage, 0.0)


@pytest.fixture
def journal(storage, run):
    return Journal(storage, run)


@pytest.fixture
def new_plan(run):
    """Build a plan with a group, or with `members=None` one that only settles."""

    def build(number=1, nonce="mine", members=MEMBERS, **changes):
        checkpoint = CHECKPOINT if members is not None else None
        settles = (
            ()
            if members is not None
            else (Settlement(name="old", digest="0" * 64, step=1, verdict="skipped", reason="newer ones wait"),)
        )
        given = {
            "plan": number,
            "run": run,
            "nonce": nonce,
            "checkpoint": checkpoint,
            "attempt": 1,
            "members": members,
            "settles": settles,
            "task": "t",
            "proposer": "worker-1",
            "proposed_at": "2026-01-31T12:00:00.000Z",
        }
        return Plan(**(given | changes))

    return build


@pytest.fixture
def new_outcome(run):
    """Build a success, or with `kind` a failure."""

    def build(number=1, nonce="end", kind=None, **changes):
        result = Result(
            group=group_id(MEMBERS),
            workers=1,
            examples={"test": 3},
            metrics={"test": {}},
            phases={},
            variables="v",
            task="t",
            profile={},
            saves=(),
        )
        given = {
            "plan": number,
            "run": run,
            "nonce": nonce,
            "status": "failed" if kind else "succeeded",
            "closed_by": "worker-1",
            "completed_at": "2026-01-31T12:00:01.000Z",
            "result": None if kind else result,
            "kind": kind,
        }
        return Outcome(**(given | changes))

    return build


@pytest.fixture
def new_heartbeat():
    """Build what a ready worker node says."""

    def build(node="worker-1", beat=1, incarnation="i1", run="run-a", state="ready", **changes):
        named = {"node": node, "beat": beat, "incarnation": incarnation, "run": run, "state": state}
        return make_heartbeat(**named | changes)

    return build


@pytest.fixture
def put(storage):
    """Make a file stand in the state directory, whole or broken: a crash state, constructed."""

    def write(path, content):
        file = storage.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else dumps(content))
        return file

    return write


@pytest.fixture
def write(journal, new_plan, new_outcome):
    """Append closed plans to a journal: each third one only settles."""

    def append(through):
        for number in range(journal.through + 1, through + 1):
            settles = number % 3 == 0
            assert journal.propose(new_plan(number, f"plan-{number}", **({"members": None} if settles else {})))
            journal.read_new()
            if not settles:
                assert journal.close(new_outcome(number, f"end-{number}", plan_nonce=f"plan-{number}"))
                journal.read_new()

    return append


@pytest.fixture
def compact(storage, run):
    """Return a compaction with small segments, which did its work for the plans up to a number."""

    def work(closed, on=storage):
        compaction = Compaction(on, run, kept_plans=2, most_plans=3)
        compaction.work(closed, lambda: False)
        return compaction

    return work


@pytest.fixture
def freshness(new_heartbeat):
    """Build the view of node `me`, which wrote its own heartbeat at 0."""

    def build(lease=10.0):
        view = Liveness("me", lease)
        view.wrote(new_heartbeat("me"), 0.0)
        return view

    return build


class Crashing:
    """Real files on a storage that crashes when it is told to make a name durable: what was not yet is gone then."""

    def __init__(self, storage, lost):
        self.storage, self.lost = storage, lost

    def __getattr__(self, method):
        return getattr(self.storage, method)

    def sync(self, folder):
        """Lose the names of this folder that are to be lost, once."""
        for path in [path for path in self.lost if path.rpartition("/")[0] == folder]:
            (self.storage.root / path).unlink()
            self.lost.remove(path)
        self.storage.sync(folder)


class Counted:
    """Storage that counts what it is asked."""

    def __init__(self, storage):
        self.storage, self.asked = storage, []

    def __getattr__(self, method):
        def call(*arguments):
            self.asked.append((method, arguments[0]))
            return getattr(self.storage, method)(*arguments)

        return call


@pytest.fixture
def evaluated(journal, new_plan, new_outcome):
    """A journal of three evaluations, read to its end."""
    for number in (1, 2, 3):
        assert journal.propose(new_plan(number, nonce=f"plan-{number}"))
        journal.read_new()
        assert journal.close(new_outcome(number, plan_nonce=f"plan-{number}"))
        journal.read_new()
    return journal


def lose(storage, *paths):
    for path in paths:
        (storage.root / path).unlink()
