"""Replay a daemon whose shared storage hangs, fails or is another's, and what its loop costs: as histories."""

import queue
import threading

import pytest
from fakes import TIMING, done, failed, outcomes, pass_time, restarted, save

from sidecar.coordination.journal import outcome_path, plan_path
from sidecar.daemon.storage_thread import StorageThread, Sync
from sidecar.errors import StorageLostError
from sidecar.protocol.messages import Evaluate, Join, Phase, Progress
from sidecar.protocol.states import WorkerPhase


def test_deadlines_of_workers_hold_while_storage_hangs(evaluating):
    """Bounds are the loop's own: a stalled worker is killed, and the journal hears of it later."""
    node, worker = evaluating, evaluating.active
    node.report(worker, Phase(WorkerPhase.EVALUATE, 1))
    node.report(worker, Progress(1, 1, 9))
    node.hangs = True
    pass_time(62, node)
    assert worker.killed
    node.hangs, node.silent = False, set()
    pass_time(10, node)
    assert outcomes(node.history) == [("failed", "stalled"), ("succeeded", "ckpt-5")]


def test_a_result_that_came_while_storage_hung_is_not_lost(evaluating):
    """It is written when storage answers again."""
    node = evaluating
    node.hangs = True
    pass_time(1, node)
    node.report(node.active, done(1, node.active.told(Join)[0]))
    pass_time(20, node)
    node.hangs = False
    pass_time(1, node)
    assert outcomes(node.history) == [("succeeded", "ckpt-5")]


def test_a_stopped_daemon_does_not_blame_its_workers_for_the_silence(evaluating):
    """Suspended for an hour with its workers: the open plan still lists them, so it goes on."""
    node, worker = evaluating, evaluating.active
    node.report(worker, Phase(WorkerPhase.EVALUATE, 1))
    node.report(worker, Progress(1, 1, 9))
    node.clock.seconds += 3600
    node.silent = set()
    node.settle()
    assert not worker.killed
    assert outcomes(node.history) == [("succeeded", "ckpt-5")]
    assert node.log.of("loop_was_stopped") == [{"seconds": 3600.0}]


def test_a_suspended_machine_is_no_slow_batch(evaluating):
    """Reports of a worker that wakes up may be read before the loop turns: its next batches still have a bound."""
    node, worker = evaluating, evaluating.active
    node.report(worker, Phase(WorkerPhase.EVALUATE, 1))
    node.report(worker, Progress(1, 1, 9))
    node.clock.seconds += 8 * 3600
    node.report(worker, Progress(1, 2, 9))
    node.settle()
    assert not worker.killed
    pass_time(100, node)
    assert worker.killed


def test_a_loop_that_does_not_turn_is_unhealthy(node):
    """For longer than a lease: then the others count this node out anyway."""
    node.settle()
    node.clock.seconds += 9
    assert node.daemon.healthy() is None
    node.clock.seconds += 2
    assert "11 s" in node.daemon.healthy()


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), RuntimeError("a bug")])
def test_the_storage_thread_answers_whatever_happens(node, error):
    """An answer that never comes would leave the daemon blind for ever."""
    save(node.checkpoint_dir, 5)
    pass_time(5, node)

    def fail(_):
        raise error

    node.catalog.around = fail
    pass_time(5, node)
    if isinstance(error, OSError):
        assert "Input/output error" in node.status.unready
    else:
        assert node.exited.exit_code == 70
        assert "a bug" in str(node.exited)


def test_what_failed_workers_left_is_removed_once_they_write_no_more(evaluating):
    """A killed process may still be in a write when its plan fails: the folder goes a minute later, even so."""
    node = evaluating
    folder = node.active.told(Evaluate)[0].save_to
    node.report(node.active, failed("task_error"))
    node.settle()
    (node.run_dir / folder).mkdir(parents=True)
    (node.run_dir / folder / "states.json").write_text("half")
    pass_time(55, node)
    assert (node.run_dir / folder).exists()
    pass_time(10, node)
    assert not (node.run_dir / folder).exists()


def test_weights_are_kept_for_the_newest_evaluations_only(node):
    """Metric states stay for ever; and storage that fails meanwhile only delays it."""
    for step in (1, 2, 3):
        save(node.checkpoint_dir, step)
        pass_time(5, node)
        (plan,) = [entry.plan for entry in node.history.entries if entry.plan.checkpoint.step == step]
        folder = node.run_dir / f"evaluations/{plan.checkpoint.folder}/plan-{plan.plan}/worker-0-of-1"
        folder.mkdir(parents=True)
        (folder / "weights.npz").write_bytes(b"w" * 100)
        (folder / "states.json").write_bytes(b"{}")
        node.storage.fails = {"names"}
        pass_time(3, node)
        node.storage.fails = set()
        pass_time(3, node)
    save(node.checkpoint_dir, 4)
    pass_time(10, node)
    kept = sorted(path.parts[-4].split("@")[0] for path in node.run_dir.glob("evaluations/*/*/*/weights.npz"))
    assert kept == ["ckpt-3"]  # and ckpt-4, whose worker is a fake
    assert len(list(node.run_dir.glob("evaluations/*/*/*/states.json"))) == 3
    assert node.status.disk.saves_bytes == 102


def turns(node, seconds):
    """How often the loop turns by itself when it sleeps as long as it says, answers included."""
    end, count = node.clock.seconds + seconds, 0
    while node.clock.seconds < end:
        node.settle()
        assert node.next_turn > node.clock.seconds
        node.clock.seconds = min(end, node.next_turn)
        count += 1
    return count


def test_what_workers_left_of_a_drained_plan_goes_with_the_next_daemon(evaluating):
    """The one that was stopped did not live to see their grace end; weights would stay, at each preemption."""
    folder = evaluating.run_dir / evaluating.history.open.folder
    (folder / ".worker-0-of-1.part").mkdir(parents=True)
    evaluating.terminate()
    pass_time(40, evaluating)
    assert evaluating.exited == 0
    assert outcomes(evaluating.history) == [("failed", "drained")]
    fresh = restarted(evaluating, "i2")
    pass_time(70, fresh)
    assert outcomes(fresh.history)[1:] == [("succeeded", "ckpt-5")]
    assert not folder.exists()


def test_a_restarted_daemon_goes_on_from_a_snapshot(node):
    """It knows what is settled, best and newest, and reads no plan that was closed before."""
    node.daemon.requests.snapshot_plans = 3
    for step in range(1, 6):
        save(node.checkpoint_dir, step, keep=range(1, step))
        pass_time(5, node)
    again = restarted(node, "i2")
    again.settle()
    asked = again.storage.asked["read"]
    assert plan_path(3) in asked  # the newest in the snapshot: is it the same journal
    assert not {plan_path(1), plan_path(2), outcome_path(2)} & set(asked)
    assert again.state.history.verdicts.succeeded == node.history.verdicts.succeeded
    assert again.state.history.newest == node.history.newest
    assert again.status.checkpoints.pending == 0
    measured = [visit.tidying.measure for visit in again.of(Sync) if visit.tidying.measure]
    assert [folder.split("/")[-1] for folder in measured[-1]] == ["plan-4", "plan-5"]  # what is kept
    save(node.checkpoint_dir, 6, keep=range(1, 6))
    pass_time(30, again)
    assert outcomes(again.history) == [("succeeded", f"ckpt-{step}") for step in range(1, 7)]


def test_an_idle_daemon_turns_at_most_once_a_second_and_for_its_beats(node):
    """Idle is the usual state: it must cost next to nothing."""
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    assert turns(node, 100) <= 200
    assert len(node.carried) < 150


@pytest.mark.parametrize("trouble", ["storage fails", "storage hangs", "the directory is missing", "a result waits"])
def test_trouble_does_not_make_the_loop_spin(node, trouble):
    """Not while it cannot do what is due: that is when a busy loop shows."""
    if trouble != "the directory is missing":
        save(node.checkpoint_dir, 5)
        node.silent = {"Evaluate"} if trouble == "a result waits" else set()
        pass_time(10, node)
    node.wake()
    if trouble == "storage fails":
        node.storage.fails = {"all"}
    elif trouble == "storage hangs":
        node.hangs = True
    elif trouble == "a result waits":
        node.storage.fails = {"create"}
        node.report(node.active, done(1, node.active.told(Join)[0]))
    assert turns(node, 100) <= 250


def test_file_events_cause_few_looks_for_a_burst(node):
    """A save makes dozens: they are worth a look at once, and others at growing distances, and not one each."""
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    looks = len([request for request in node.of(Sync) if request.scan])
    for _ in range(40):
        node.clock.seconds += 0.001
        node.wake()
        node.settle()
    node.clock.seconds = node.next_turn
    node.settle()
    assert len([request for request in node.of(Sync) if request.scan]) - looks <= 4


def test_storage_that_takes_longer_than_a_beat_for_a_visit_does_not_keep_records_from_being_written(node):
    """The next heartbeat is always due then; plans and outcomes have their turn in between."""
    save(node.checkpoint_dir, 5)
    for _ in range(60):
        node.daemon.tick()
        node.clock.seconds += TIMING.beat_seconds + 0.5
        node.answer()
        node.let_workers_work()
    assert outcomes(node.history) == [("succeeded", "ckpt-5")]


def test_the_storage_thread_answers_and_ends(node):
    """The storage thread answers each request by a message, and closing waits for the requests before it."""
    answers = queue.SimpleQueue()
    node.checkpoint_dir.mkdir(parents=True)
    storage_thread = StorageThread(
        storage=node.storage_thread.storage,
        reconciler=node.storage_thread.reconciler,
        clock=node.clock,
        post=answers.put,
    )
    before = set(threading.enumerate())
    storage_thread.start()
    node.settle()
    storage_thread.submit(node.carried[0])
    assert answers.get(timeout=60).run == node.state.run
    storage_thread.close(10)
    assert set(threading.enumerate()) == before


def test_no_worker_process_outlives_the_loop(node):
    """However `run` ends, it kills them."""
    save(node.checkpoint_dir, 5)
    pass_time(5, node)
    node.daemon.shutdown.exit = StorageLostError("gone")
    with pytest.raises(StorageLostError):
        node.daemon.run(queue.SimpleQueue())
    assert node.alive() == []
