"""Have worker processes in the turn of a run only."""

from dataclasses import replace
from operator import attrgetter

import pytest
from fakes import FakeClock, Node, outcomes, pass_time, save

from sidecar.daemon.worker_turn import WorkerTurn
from sidecar.daemon.workers.pool import WorkerPool
from sidecar.daemon.workers.process import Exited
from sidecar.policy.fair_shares import FairShares, RunTurn
from sidecar.protocol.messages import Evaluate, Join, Ready


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

    def heir(self):
        """Return the other run."""
        return "b"

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
    return WorkerTurn(turn=OneTurn(), supervisor=supervisor, supervisor_of=lambda _: None)


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


def test_the_check_of_a_task_is_not_broken_off(supervisor, turn):
    """On a busy machine it takes long. Two runs that end each other's check would never be done."""
    supervisor.task, turn.turn.begun = None, True
    supervisor.tend(0.0, filling=True, evaluating=False, may_start=turn.may_start())
    (probe,) = supervisor.workers.all()
    turn.turn.over = True
    found = {"wants": True, "done": 0, "evaluated": False, "unlisted_since": 20.0}
    turn.take(10.0, **found)
    assert not probe.killed
    supervisor.observe(probe.worker, Exited(-9, ""), 11.0, evaluating=False)
    turn.take(11.0, **found)
    assert turn.turn.ended_at == 11.0


def test_a_daemon_that_leaves_does_not_wait_for_a_standby_that_it_never_starts(supervisor, turn):
    """The other run gets its turn at once, and starts workers of its own."""
    turn.supervisor_of = lambda _: supervisor
    turn.turn.begun = turn.turn.over = True
    found = {"wants": True, "done": 0, "evaluated": False, "unlisted_since": 20.0}
    turn.take(10.0, **found)
    assert turn.turn.ended_at is None
    assert turn.may_start(), "the other run needs a standby"
    turn.take(11.0, **found, may_fill=False)
    assert turn.turn.ended_at == 11.0


def turn_of(node, shares, run, others=()):
    """The turn of a run, on a node that has these others."""
    found = {name: other.daemon.supervisor for name, other in dict(others).items()}
    return WorkerTurn(turn=RunTurn(shares, run), supervisor=node.daemon.supervisor, supervisor_of=found.get)


@pytest.fixture
def among(tmp_path):
    """A node that serves the run `a`, beside a run `b`, and the shares of both."""
    shares = FairShares(at_once=1, turn_seconds=1.0)
    for run in "ab":
        shares.join(run, 1.0)
    node = Node(tmp_path, FakeClock())
    node.daemon.turn = turn_of(node, shares, "a")
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


class TwoRuns:
    """Two runs in one process on one node, which take turns, and whose worker processes are started alike."""

    def __init__(self, folder):
        self.clock, self.shares = FakeClock(), FairShares(at_once=1, turn_seconds=1.0)
        self.runs = {run: Node(folder / run, self.clock, incarnation=f"i{run}") for run in "ab"}
        first = self.runs["a"].daemon.supervisor
        for run, node in self.runs.items():
            self.shares.join(run, 1.0)
            supervisor, others = node.daemon.supervisor, {name: each for name, each in self.runs.items() if name != run}
            supervisor.spec, supervisor.task = first.spec, "t1"
            supervisor.workers.post = lambda *report, node=node: node.daemon.observe(report)
            engine = supervisor.workers.engine
            engine.launch = replace(first.workers.engine.launch, logs=engine.launch.logs)
            node.daemon.turn = turn_of(node, self.shares, run, others)

    def pass_time(self, seconds):
        """Let both loops turn. A process belongs to the run whose daemon its name begins with."""
        for _ in range(int(seconds * 4)):
            pass_time(0.25, *self.runs.values(), step=0.25)
            every = [process for node in self.runs.values() for process in node.processes.values()]
            for run, node in self.runs.items():
                node.processes = {each.worker: each for each in every if each.worker.startswith(f"worker-1.i{run}.")}


@pytest.fixture
def two(tmp_path):
    return TwoRuns(tmp_path)


def test_the_next_run_takes_over_the_workers_with_the_task_built(two):
    """Turns change several times, and only the processes of the first turn are ever started."""
    a, b = two.runs.values()
    for step in (5, 6, 7):
        save(a.checkpoint_dir, step)
        save(b.checkpoint_dir, step)
        two.pass_time(30)
    save(b.checkpoint_dir, 8)
    two.pass_time(30)
    expected = [("succeeded", f"ckpt-{step}") for step in (5, 6, 7, 8)]
    assert outcomes(a.history) == expected[:3]
    assert outcomes(b.history) == expected
    processes = [*a.processes.values(), *b.processes.values()]
    assert len(processes) == 2
    assert not any(process.killed for process in processes)
    (built,) = [process for process in processes if process.told(Join)]
    groups = [join.group for join in built.told(Join)]
    assert len(groups) == len(set(groups)) >= 4, "turns changed several times"
    assert len(built.told(Evaluate)) == 7, "b evaluates the last one in the group that it has"


@pytest.mark.parametrize("differs", ["task", "environment", "not served"])
def test_a_run_that_would_start_other_workers_gets_new_ones(two, differs):
    """Another version of the task, another environment, or a run that ends."""
    a, b = two.runs.values()
    save(a.checkpoint_dir, 5)
    two.pass_time(10)
    if differs == "task":
        b.task = b.daemon.supervisor.task = "t2"
    elif differs == "environment":
        engine = b.daemon.supervisor.workers.engine
        engine.launch = replace(engine.launch, changes={"X": "1"})
    else:
        a.daemon.turn.supervisor_of = lambda _: None
    before = {process.pid for process in a.processes.values()}
    save(b.checkpoint_dir, 5)
    two.pass_time(20)
    assert outcomes(b.history) == [("succeeded", "ckpt-5")]
    assert all(process.exited for process in a.processes.values())
    assert before == {process.pid for process in a.processes.values()}


@pytest.mark.parametrize("which", ["standby", "built"])
def test_a_worker_that_ends_while_it_is_handed_over_is_replaced(two, which):
    """Its last event reached the run that had it, which does not know it any more."""
    a, b = two.runs.values()
    save(a.checkpoint_dir, 5)
    two.pass_time(10)
    (a.standby if which == "standby" else a.active).exited = True
    save(b.checkpoint_dir, 5)
    two.pass_time(20)
    assert outcomes(b.history) == [("succeeded", "ckpt-5")]
    assert not any(process.exited for process in map(b.processes.get, map(attrgetter("worker"), workers_of(b))))


def workers_of(node):
    """The workers in the pool of a node."""
    return list(node.daemon.supervisor.workers.all())


def test_a_group_of_two_takes_the_standby_and_not_the_built_worker(two):
    """A worker that was alone cannot join another one: TensorFlow refuses a cluster after any operation."""
    a, b = two.runs.values()
    save(a.checkpoint_dir, 5)
    two.pass_time(10)
    built = a.active
    save(b.checkpoint_dir, 5)
    b.silent.add("Join")
    two.pass_time(8)
    pool, (join,) = b.daemon.supervisor.workers, built.told(Join)[1:]
    assert pool.find(join.members[0].worker).process is built
    other = replace(join.members[0], rank=1, node="other")
    two.shares.note("a", two.clock.now(), wants=True, done=9)
    fresh = WorkerPool(engine=pool.engine, bounds=pool.bounds, name="n.i", post=pool.post)
    standby, warm = b.standby, built
    fresh.take_over(0, pool.find(standby.worker), pool.find(warm.worker))
    name = fresh.slots()[0].standby
    fresh.join(replace(join, members=(*join.members, other)), name, 0.0)
    assert fresh.find(name).process is standby
    assert warm.killed
    assert not standby.killed
