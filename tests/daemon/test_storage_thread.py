"""Answer requests to storage in one thread."""

import errno
import re

import pytest
from fakes import AllAlike, FakeClock, Node, pass_time, save
from heartbeats import make_heartbeat
from records import make_plan

from sidecar.coordination.journal import Journal, outcome_path, plan_path
from sidecar.daemon.storage_thread import CreateOutcome, CreatePlan, DirectoryMissing, Joined, JoinRun, Sync
from sidecar.errors import ShortageError
from sidecar.protocol.codec import dumps
from sidecar.protocol.records import Checkpoint, Member, Outcome
from sidecar.retention.saves.retention import CleanupRequest


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path, FakeClock())


@pytest.fixture
def storage_thread(node):
    """The one of a node in whose directory a checkpoint lies; the run is open."""
    save(node.checkpoint_dir, 5)
    assert isinstance(node.storage_thread.answer(JoinRun()), Joined)
    return node.storage_thread


def visit(storage_thread, *, look=True, wanted=True, tidying=CleanupRequest()):  # noqa: B008 - frozen
    beat = make_heartbeat(run=storage_thread.membership.journal.run)
    return storage_thread.answer(Sync(heartbeat=beat, scan=look, pin_policy=AllAlike(wanted), tidying=tidying))


def plan(storage_thread, number=1, nonce="mine"):
    members = (Member(0, "n1", "n1.i.1", "h:1"),)
    checkpoint = Checkpoint(name="ckpt-5", digest="d" * 64, step=5, format="tf_object")
    return make_plan(
        number, checkpoint, run=storage_thread.membership.journal.run, nonce=nonce, members=members, task="t"
    )


def outcome(storage_thread, number=1, nonce="mine"):
    return Outcome(
        plan=number,
        run=storage_thread.membership.journal.run,
        nonce=nonce,
        status="failed",
        closed_by="n1",
        completed_at="now",
        kind="stalled",
    )


def test_a_state_directory_in_a_directory_that_is_missing_is_not_created(node):
    """It would create the checkpoint directory, maybe under a mount point that is not mounted yet."""
    assert node.storage_thread.answer(JoinRun()) == DirectoryMissing()
    assert not node.checkpoint_dir.exists()


def test_a_file_in_place_of_the_state_directory_is_explained(node):
    """By the sentence of who would write there, not of who looked for pins."""
    node.checkpoint_dir.mkdir(parents=True)
    (node.checkpoint_dir / ".sidecar").write_text("")
    assert "there is a file where a folder is expected" in str(node.storage_thread.answer(JoinRun()).error)


def test_a_state_directory_elsewhere_is_used_when_it_is_there(node):
    """The checkpoint directory may come later: others hear of this node meanwhile."""
    node.run_dir.mkdir(parents=True)
    assert isinstance(node.storage_thread.answer(JoinRun()), Joined)


def test_what_is_wanted_is_pinned_at_once(storage_thread):
    """Found, pinned and measured in one look."""
    answer = visit(storage_thread)
    (found,) = answer.reconciliation.scan.found
    assert found.checkpoint.pin == f"pins/{found.checkpoint.folder}"
    assert answer.reconciliation.pins_bytes == sum(path.stat().st_size for path in found.folder.glob("ckpt-*"))


def test_what_is_not_wanted_is_let_go_in_the_second_look(storage_thread):
    """A node that just came may want it: it is heard of in between."""
    folder = visit(storage_thread).reconciliation.scan.found[0].folder
    visit(storage_thread, wanted=False)
    assert folder.is_dir()
    let_go = visit(storage_thread, wanted=False)
    assert not folder.exists()
    assert [found.checkpoint.pin for found in let_go.reconciliation.scan.found] == [
        None
    ]  # it lies in the directory as before
    assert visit(storage_thread, wanted=False).reconciliation.scan.found[0].checkpoint.pin is None


def test_what_changes_while_it_is_pinned_is_incomplete(storage_thread):
    """Not held, not lost: somebody is writing it, and the next look sees what it became."""

    def look_before_it_changes(look):
        seen = look()
        save(storage_thread.reconciler.root.parents[1], 5)
        path = storage_thread.reconciler.root.parents[1] / "ckpt-5.data-00000-of-00001"
        path.write_bytes(b"longer than before")
        return seen

    storage_thread.reconciler.checkpoints.catalog.around = look_before_it_changes
    answer = visit(storage_thread)
    assert [each.checkpoint.pin for each in answer.reconciliation.scan.found] == [None]
    assert (answer.reconciliation.given_up, answer.error) == ((), None)
    assert [name for name, _ in answer.reconciliation.scan.waiting] == ["ckpt-5"]


def test_who_is_late_with_a_plan_reads_the_one_that_stands(storage_thread):
    """Nothing is created; the answer brings what decides."""
    storage_thread.storage.create(plan_path(1), dumps(plan(storage_thread, nonce="theirs")))
    answer = storage_thread.answer(CreatePlan(plan(storage_thread)))
    assert [record.nonce for record in answer.records] == ["theirs"]
    assert storage_thread.answer(CreatePlan(plan(storage_thread))).records == ()


def test_a_plan_and_its_outcome_are_created_and_read_back(storage_thread):
    """A record counts as created only after it was read back."""
    assert storage_thread.answer(CreatePlan(plan(storage_thread))).records == (plan(storage_thread),)
    assert storage_thread.answer(CreateOutcome(outcome(storage_thread))).records == (outcome(storage_thread),)
    assert storage_thread.answer(CreateOutcome(outcome(storage_thread))).records == ()


def test_an_outcome_of_a_plan_that_is_not_open_is_not_created(storage_thread):
    """It was closed meanwhile: the number belongs to what stands there."""
    storage_thread.answer(CreatePlan(plan(storage_thread)))
    storage_thread.storage.create(outcome_path(1), dumps(outcome(storage_thread, nonce="theirs")))
    assert [record.nonce for record in storage_thread.answer(CreateOutcome(outcome(storage_thread))).records] == [
        "theirs"
    ]


def test_records_read_before_an_error_come_with_it(storage_thread):
    """They are delivered once, and never again by the journal."""
    visit(storage_thread)
    storage_thread.storage.create(plan_path(1), dumps(plan(storage_thread)))
    storage_thread.storage.fails = {"names"}
    answer = visit(storage_thread)
    assert answer.error is not None
    assert answer.records == (plan(storage_thread),)
    storage_thread.storage.fails = set()
    assert visit(storage_thread).records == ()


def test_an_error_at_the_checkpoints_does_not_hide_the_others(storage_thread):
    """The heartbeat is written and the members are read: agreement goes on."""

    def fail(_):
        raise OSError(13, "Permission denied", "/ckpts")

    storage_thread.reconciler.checkpoints.catalog.around = fail
    answer = visit(storage_thread)
    assert answer.error.retryable
    assert re.search(r"/ckpts.*user id \d+\): run all daemons of a run as one user, or in one", str(answer.error))
    assert answer.reading.complete


def test_a_long_journal_is_read_in_pieces(storage_thread, monkeypatch):
    """The loop shows between them that it lives."""
    monkeypatch.setattr("sidecar.daemon.storage_thread._MOST_RECORDS", 2)
    journal = Journal(storage_thread.storage, storage_thread.membership.journal.run)
    for number in (1, 2):
        journal.propose(plan(storage_thread, number))
        journal.read_new()
        journal.close(outcome(storage_thread, number))
        journal.read_new()
    answers = [visit(storage_thread, look=False) for _ in range(3)]
    assert [(len(answer.records), answer.more) for answer in answers] == [(2, True), (2, True), (0, False)]


def test_tidying_never_leaves_the_state_directory(storage_thread):
    """Folders come out of records, which are not trusted."""
    outside = storage_thread.reconciler.root.parent / "precious"
    outside.mkdir()
    answer = visit(storage_thread, tidying=CleanupRequest(drop=("../precious",)))
    assert "not the name of a file" in answer.upkeep.tidied.failed["../precious"]
    assert answer.reconciliation is not None
    assert outside.is_dir()


def test_states_stay_when_weights_and_predictions_go(storage_thread):
    """Keep states next to other saves of any worker, and measure by folder what stays."""
    outside = storage_thread.reconciler.root / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"p")
    for number in (1, 2):
        folder = storage_thread.reconciler.root / f"evaluations/x/plan-{number}/worker-0-of-1"
        (folder / "predictions" / "test").mkdir(parents=True)
        (folder / "predictions" / "test" / "y.npy").write_bytes(b"y" * 10)
        (folder / "weights.index").write_bytes(b"w" * 5)
        (folder / "states.json").write_bytes(b"{}")
        (folder / "link").symlink_to(outside)
        (folder / "other").symlink_to(outside / "precious")
    tidying = CleanupRequest(thin=("evaluations/x/plan-1",), measure=("evaluations/x/plan-2", "evaluations/x/plan-1"))
    answer = visit(storage_thread, tidying=tidying)
    assert answer.upkeep.tidied.sizes == {"evaluations/x/plan-2": 17, "evaluations/x/plan-1": 2}
    assert [
        path.name for path in (storage_thread.reconciler.root / "evaluations/x/plan-1/worker-0-of-1").iterdir()
    ] == ["states.json"]
    assert (outside / "precious").exists()


def test_a_pin_is_always_possible_when_there_is_none(tmp_path):
    """A bound smaller than one checkpoint would otherwise end the run without a word."""
    node = Node(tmp_path, FakeClock(), pin_max_bytes=1)
    for step in (1, 2):
        save(node.checkpoint_dir, step, keep=range(1, step))
    node.silent = {"Evaluate"}
    pass_time(3, node)
    assert [found.checkpoint.pin is not None for found in node.state.complete.values()] == [True, False]


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), MemoryError(), OSError(errno.EMFILE, "Too many open files")]
)
def test_what_the_machine_lacks_is_tried_again(storage_thread, error):
    """A task that forks without end takes every thread there is: no bug of the daemon, and nothing about storage."""

    def fail(*_):
        raise error

    storage_thread.reconciler.checkpoints.catalog.around = fail
    found = visit(storage_thread).error
    assert isinstance(found, ShortageError)
    assert found.retryable
    assert "storage" not in str(found)
