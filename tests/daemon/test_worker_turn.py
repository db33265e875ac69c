"""Have worker processes in the turn of a run only."""

import pytest
from fakes import FakeClock, Node, outcomes, pass_time, save

from sidecar.daemon.worker_turn import WorkerTurn
from sidecar.daemon.workers.process import Exited
from sidecar.policy.fair_shares import FairShares, RunTurn
from sidecar.protocol.messages import Ready


class OneTurn:
    """The turn of a run among others."""

    def __init__(self):
        self.begun, self.over, self.ended_at = False, False, None

    def note(self, now, *, wants, done, evaluated):
        """It never wants anything."""

    def has_begun(self):
        """Return what the test says."""
        return self.begun

    def must_end(self, now):
        """Return what the test says."""
        return self.over and now >= 0

    def end(self, now):
        """Remember when that was."""
        self.begun, self.over, self.ended_at = False, False, now


@pytest.fixture
def supervisor(tmp_path):
    """Workers that are tended by hand, of a task that was checked."""
    made = Node(tmp_path, FakeClock()).daemon.supervisor
    made.task = "t1"
    return made


@pytest.fixture
def turn(supervisor):
    return WorkerTurn(turn=OneTurn(), workers=supervisor.workers)


def standby(supervisor, turn):
    """Start a worker process, in the turn of its run."""
    turn.turn.begun = True
    supervisor.tend(0.0, filling=True, evaluating=False, may_start=turn.may_start())
    (worker,) = supervisor.workers.all()
    supervisor.observe(worker.worker, Ready("tensorflow", "2"), 0.0, evaluating=False)
    return worker


def test_no_process_starts_before_the_turn(supervisor, turn):
    """Another run has the memory."""
    supervisor.tend(0.0, filling=True, evaluating=False, may_start=turn.may_start())
    assert not any(supervisor.workers.all())


def test_workers_are_killed_only_when_no_plan_can_list_them(supervisor, turn):
    """A plan that lists a killed worker fails."""
    worker = standby(supervisor, turn)
    assert supervisor.workers.slots()[0].standby == worker.worker
    turn.turn.over = True
    turn.take(10.0, wants=True, done=0, evaluated=False, unlisted_since=None)  # a plan lists it
    assert supervisor.workers.slots() == ()
    assert not turn.may_start()
    turn.take(
        12.0, wants=True, done=0, evaluated=False, unlisted_since=9.0
    )  # others may have read the heartbeat before
    assert not worker.killed
    turn.take(14.0, wants=True, done=0, evaluated=False, unlisted_since=10.0)
    assert worker.killed
    assert turn.turn.ended_at is None
    supervisor.observe(worker.worker, Exited(-9, ""), 14.0, evaluating=False)
    turn.take(14.0, wants=True, done=0, evaluated=False, unlisted_since=10.0)
    assert turn.turn.ended_at == 14.0


def test_workers_are_offered_again_if_no_other_run_waits_any_more(supervisor, turn):
    """Nothing was killed yet."""
    worker = standby(supervisor, turn)
    turn.turn.over = True
    turn.take(10.0, wants=True, done=0, evaluated=False, unlisted_since=None)
    turn.turn.over = False
    turn.take(11.0, wants=True, done=0, evaluated=False, unlisted_since=None)
    assert supervisor.workers.slots()[0].standby == worker.worker


@pytest.fixture
def among(tmp_path):
    """A node that serves the run `a`, beside a run `b`, and the shares of both."""
    shares = FairShares(at_once=1, turn_seconds=1.0)
    for run in "ab":
        shares.join(run, 1.0)
    node = Node(tmp_path, FakeClock())
    node.daemon.turn = WorkerTurn(turn=RunTurn(shares, "a"), workers=node.daemon.supervisor.workers)
    save(node.checkpoint_dir, 5)
    return node, shares


def test_a_run_gives_its_turn_back_between_two_evaluations(among):
    """Its first checkpoint is evaluated to the end, and the second one in its next turn."""
    node, shares = among
    node.silent.add("Evaluate")
    node.settle()
    save(node.checkpoint_dir, 6)
    pass_time(10, node)
    shares.note("b", node.clock.now(), wants=True, done=0)
    pass_time(10, node)
    assert not shares.has_turn("b"), "no evaluation is broken off"
    node.silent.clear()
    pass_time(3, node)
    assert shares.has_turn("b")
    assert outcomes(node.history) == [("succeeded", "ckpt-5")]
    shares.note("b", node.clock.now() + 60, wants=False, done=1)
    shares.end_turn("b", node.clock.now())
    pass_time(10, node)
    assert outcomes(node.history) == [("succeeded", "ckpt-5"), ("succeeded", "ckpt-6")]


def test_a_run_whose_storage_hangs_keeps_no_other_run_waiting(among):
    """Not even in an evaluation: other nodes have counted this one out."""
    node, shares = among
    node.silent.add("Evaluate")
    node.settle()
    pass_time(5, node)
    shares.note("b", node.clock.now(), wants=True, done=0)
    node.hangs = True
    pass_time(40, node)
    assert shares.has_turn("b")
    assert not any(node.daemon.supervisor.workers.all())
    node.hangs = False
    node.silent.clear()
    shares.note("b", node.clock.now(), wants=False, done=1)
    pass_time(3, node)
    shares.end_turn("b", node.clock.now())
    pass_time(60, node)
    assert outcomes(node.history)[-1] == ("succeeded", "ckpt-5")
