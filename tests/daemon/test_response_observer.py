"""Make sense of what storage answers: late, in parts, with errors, or not at all."""

from types import SimpleNamespace

import pytest
from fakes import done, outcomes, pass_time, restarted, save

from sidecar.coordination.run import RUN_PATH
from sidecar.daemon.storage_thread import CreateOutcome, CreatePlan, Sync
from sidecar.errors import NodeNameTakenError, RunReplacedError, StorageError
from sidecar.protocol.messages import Join
from sidecar.retention.saves.best import BestBy


def test_a_node_whose_storage_hangs_says_so_and_goes_on_by_itself(node):
    """After storage_timeout it is not ready; once storage answers it is, and nothing was lost.

    Counted from the last answer, since nothing is asked for a beat after that.
    """
    save(node.checkpoint_dir, 5)
    pass_time(5, node)
    node.hangs = True
    pass_time(8, node)
    assert node.status.unready is None
    pass_time(3, node)
    assert "has not answered" in node.status.unready
    assert node.daemon.healthy() is None
    save(node.checkpoint_dir, 6, keep=[5])
    node.hangs = False
    pass_time(5, node)
    assert node.status.unready is None
    assert outcomes(node.history) == [("succeeded", "ckpt-5"), ("succeeded", "ckpt-6")]


def test_after_an_absence_the_journal_is_read_before_anything_is_done(node):
    """An answer that took longer than the lease tells of a world that may be gone: the node looks again, then acts."""
    save(node.checkpoint_dir, 5)
    pass_time(1, node)
    node.hangs = True
    pass_time(15, node)
    node.hangs = False
    seen = len(node.carried)
    pass_time(2, node)
    kinds = [type(request) for request in node.carried[seen - 1 :]]
    assert kinds[:2] == [Sync, Sync]
    assert CreatePlan in kinds[2:]


@pytest.mark.parametrize("all_visits", [False, True])
def test_looks_that_take_longer_than_the_lease_do_not_hold_up_all_the_rest(node, all_visits):
    """A slow directory: the node is counted out now and then, but records have their turn. Slow storage: it looks."""
    answer = node.storage_thread.answer

    def slowly(request):
        node.clock.seconds += 12.0 if isinstance(request, Sync) and (request.scan or all_visits) else 0.0
        return answer(request)

    node.storage_thread = SimpleNamespace(answer=slowly)
    save(node.checkpoint_dir, 5)
    end = node.clock.seconds + 300
    while node.clock.seconds < end:
        node.turn()
        node.clock.seconds += 0.5
    if all_visits:
        assert [each.checkpoint.pin for each in node.state.complete.values()] == [f"pins/{next(iter(pins(node)))}"]
    else:
        assert outcomes(node.history) == [("succeeded", "ckpt-5")]


def pins(node):
    return [path.name for path in (node.run_dir / "pins").iterdir()]


def test_a_storage_error_passes(node):
    """Told once, not ready meanwhile, tried again a beat later."""
    save(node.checkpoint_dir, 5)
    pass_time(5, node)
    node.storage.fails = {"all"}
    pass_time(20, node)
    assert "Input/output error" in node.status.unready
    assert 8 <= sum(1 for answer in node.carried[-12:] if isinstance(answer, Sync)) <= 12
    assert node.log.names().count("storage_failed") == 1
    node.storage.fails = set()
    pass_time(5, node)
    assert node.status.unready is None
    assert node.log.names().count("storage_recovered") == 1


@pytest.mark.parametrize("lost_reply", [False, True], ids=["nothing was created", "it was created after all"])
def test_an_outcome_that_cannot_be_written_is_written_later(evaluating, lost_reply):
    """The result stays with the daemon until the journal has one, and the journal has exactly one."""
    node = evaluating
    node.storage.fails, node.storage.lost_reply = {"create"}, lost_reply
    node.report(node.active, done(1, node.active.told(Join)[0], accuracy=0.5))
    pass_time(7, node)
    assert len(node.of(CreateOutcome)) >= 1
    node.storage.fails = set()
    pass_time(5, node)
    assert outcomes(node.history) == [("succeeded", "ckpt-5")]
    assert node.history.newest.outcome.result.metrics["test"]["accuracy"].value == 0.5
    assert not node.active.killed


def test_records_that_were_read_before_storage_failed_are_not_lost(node):
    """The journal is read on, then listing the members fails: who lost these records could never follow again."""
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    again = restarted(node, "i2")
    again.storage.fails = {"names"}
    pass_time(4, again)
    again.storage.fails = set()
    pass_time(10, again)
    assert again.exited is None
    assert again.state.history.newest == node.history.newest


def test_a_checkpoint_directory_that_cannot_be_read_stops_no_evaluation(evaluating):
    """Agreement works: the result of what runs is written, and only then are new checkpoints seen again."""
    node = evaluating

    def fail(_):
        raise StorageError("cannot read the checkpoint directory: Permission denied")

    node.catalog.around = fail
    pass_time(5, node)
    assert "Permission denied" in node.status.unready
    node.silent = set()
    pass_time(5, node)
    assert outcomes(node.history) == [("succeeded", "ckpt-5")]
    assert node.log.names().count("storage_failed") == 1
    node.catalog.around = None
    pass_time(5, node)
    assert node.status.unready is None


def test_a_state_directory_that_cannot_be_written_ends_the_daemon_at_the_start(node):
    """The person who started it is there to read why."""
    node.checkpoint_dir.mkdir(parents=True)
    node.storage.fails = {"create", "read"}
    node.settle()
    assert isinstance(node.exited, StorageError)
    assert node.exited.exit_code == 4


def test_a_state_directory_that_belongs_to_another_run_ends_the_daemon(node):
    """It was wiped and begun anew under it: nothing is written there, and another daemon follows after a lease."""
    save(node.checkpoint_dir, 5)
    pass_time(5, node)
    node.storage.storage.replace(RUN_PATH, b'{"run":"another","nonce":"n"}')
    pass_time(3, node)
    assert "holds run another now" in node.status.unready
    pass_time(12, node)
    assert isinstance(node.exited, RunReplacedError)


def test_the_later_of_two_daemons_of_one_name_ends(node):
    """Two live incarnations: the one that came second notices and exits with a code that units do not restart."""
    node.checkpoint_dir.mkdir(parents=True)
    pass_time(5, node)
    second = restarted(node, "i2")
    pass_time(20, second, node)
    assert isinstance(second.exited, NodeNameTakenError)
    assert node.exited is None


def test_a_best_metric_that_nobody_measures_is_told_once(node):
    """Nothing would be kept as the best, and nobody would know why."""
    node.daemon.requests.retention.best = BestBy("test/f1")
    for step in (1, 2):
        save(node.checkpoint_dir, step)
        pass_time(5, node)
    assert node.log.of("best_metric_unknown") == [
        {"message": "best_metric 'test/f1' was not measured; these could be: none"}
    ]
