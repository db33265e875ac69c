"""Start, replace and end worker processes."""

import pytest
from fakes import FakeClock, Node, done, failed

from sidecar.daemon.workers.process import Exited, Halted
from sidecar.errors import ShortageError, StorageError
from sidecar.protocol.messages import Evaluate, Join, Joined, Phase, Ready
from sidecar.protocol.records import Checkpoint, Member
from sidecar.protocol.states import WorkerPhase

CHECKPOINT = Checkpoint(name="ckpt-5", digest="d" * 64, step=5, format="tf_object")
EVALUATE = Evaluate(plan=1, checkpoint=CHECKPOINT, path="/c", save_to="/s", save_weights="all", progress_seconds=1)


@pytest.fixture
def node(tmp_path):
    """A node whose workers are tended by hand: the task was tried, nothing else was done."""
    made = Node(tmp_path, FakeClock())
    made.daemon.supervisor.task = "t1"
    return made


@pytest.fixture
def supervisor(node):
    return node.daemon.supervisor


def tend(supervisor, now, **changes):
    return supervisor.tend(now, **({"filling": True, "evaluating": False} | changes))


def ready(supervisor, now=0.0):
    """Start one standby worker and report it as ready."""
    tend(supervisor, now)
    (worker,) = [each for each in supervisor.workers.all() if each.progress.phase == "import"]
    supervisor.observe(worker.worker, Ready("tensorflow", "2"), now, evaluating=False)
    return worker


def join(supervisor, worker, now=0.0):
    """It forms a group of one."""
    members = (Member(0, "worker-1", worker.worker, worker.address),)
    supervisor.workers.join(
        Join(
            group="g", members=members, rank=0, task="task.py:task", framework="tensorflow", search_path=".", threads=2
        ),
        worker.worker,
        now,
    )
    supervisor.observe(worker.worker, Joined("g", "t1", {}), now, evaluating=True)


def test_a_standby_takes_the_place_of_each_worker_that_joins(supervisor):
    """So that the next group can be formed at once."""
    worker = ready(supervisor)
    join(supervisor, worker)
    tend(supervisor, 1.0)
    assert len(list(supervisor.workers.all())) == 2


@pytest.fixture
def starved(supervisor):
    """A worker that has waited for a processor for yield_seconds while it evaluated, and a standby."""
    supervisor.workers.yields = True
    worker = ready(supervisor)
    join(supervisor, worker)
    ready(supervisor)
    supervisor.workers.evaluate(EVALUATE, worker.worker, 0.0)
    limit = supervisor.workers.bounds.yield_seconds
    for second in range(0, int(limit), 5):
        worker.process.waited = {7: float(second)}
        assert tend(supervisor, float(second), evaluating=True) == []
    worker.process.waited = {7: limit}
    return worker, limit


def test_a_starving_worker_takes_turns_until_its_evaluation_ends(supervisor, starved):
    """Its priority is raised in time, for this evaluation only; its heartbeats say meanwhile why it is slow."""
    worker, now = starved
    assert worker.progress.is_waiting
    assert (tend(supervisor, now, evaluating=True), worker.process.yields) == ([], False)
    supervisor.observe(worker.worker, done(1, worker.process.told(Join)[0]), now, evaluating=True)
    assert (worker.process.yields, worker.process.kills) == (True, 0)
    assert not worker.progress.is_waiting
    supervisor.workers.evaluate(EVALUATE, worker.worker, now)
    assert (tend(supervisor, now + 5, evaluating=True), worker.process.yields) == ([], True)


def test_starving_workers_whose_priority_may_not_be_raised_are_replaced(supervisor, starved):
    """By ones that do not give way: otherwise each evaluation would starve anew."""
    worker, now = starved
    worker.process.may_be_raised = False
    standby = next(each for each in supervisor.workers.all() if each is not worker)
    lost = tend(supervisor, now, evaluating=True)
    assert {each.worker for each in lost} == {worker.worker, standby.worker}
    assert {each.kind for each in lost} == {"stalled"}
    assert "yield_seconds" in lost[0].message
    for each in (worker, standby):
        supervisor.observe(each.worker, Exited(-9, ""), now, evaluating=True)
    tend(supervisor, now)
    assert [each.yields for each in supervisor.workers.all()] == [False]


def test_a_check_of_the_task_that_was_killed_is_repeated(tmp_path):
    """A process that was killed says nothing of the task: the daemon goes on, after a pause."""
    supervisor = Node(tmp_path, FakeClock()).daemon.supervisor
    tend(supervisor, 0.0)
    (probe,) = supervisor.workers.all()
    supervisor.observe(probe.worker, Exited(-9, ""), 0.0, evaluating=False)
    tend(supervisor, 0.5)
    assert (supervisor.failure, list(supervisor.workers.all())) == (None, [])
    tend(supervisor, 1.0)
    assert [each.worker == probe.worker for each in supervisor.workers.all()] == [False]


def test_a_check_of_the_task_that_ended_by_itself_ends_the_daemon(tmp_path):
    """A wrong interpreter, say, is a mistake to mend."""
    supervisor = Node(tmp_path, FakeClock()).daemon.supervisor
    tend(supervisor, 0.0)
    (probe,) = supervisor.workers.all()
    supervisor.observe(probe.worker, Exited(2, "Unknown option: -P"), 0.0, evaluating=False)
    assert "Unknown option: -P" in str(supervisor.failure)


def test_nothing_is_started_while_stopping(supervisor):
    """A daemon that is stopping starts no worker, because it would kill that worker at once."""
    tend(supervisor, 0.0, filling=False)
    assert list(supervisor.workers.all()) == []


def test_pauses_double_and_end_with_a_worker_that_joins(supervisor):
    """Being ready proves nothing, having joined does."""
    pauses = []
    for _ in range(4):
        worker = ready(supervisor, 1000.0)
        supervisor.observe(worker.worker, Exited(1, ""), 1000.0, evaluating=False)
        pauses.append(supervisor.fill_at - 1000.0)
        supervisor.fill_at = 0.0
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    join(supervisor, ready(supervisor, 1000.0), 1000.0)
    worker = ready(supervisor, 1000.0)
    supervisor.observe(worker.worker, Exited(1, ""), 1000.0, evaluating=False)
    assert supervisor.fill_at == 1001.0


def test_a_standby_that_ends_after_a_long_time_is_replaced_soon(supervisor):
    """Once a month is no habit."""
    supervisor.failures = 7
    worker = ready(supervisor, 0.0)
    supervisor.observe(worker.worker, Exited(-9, ""), 301.0, evaluating=False)
    assert supervisor.fill_at == 302.0


def test_a_standby_that_failed_counts_once(supervisor):
    """Its report and its end are one failure; one that was dismissed is none."""
    worker = ready(supervisor, 0.0)
    supervisor.observe(worker.worker, failed("join", "no module"), 10.0, evaluating=False)
    supervisor.observe(worker.worker, Exited(-9, ""), 11.0, evaluating=False)
    assert (supervisor.failures, supervisor.fill_at) == (1, 11.0)
    supervisor.fill_at = 0.0
    worker = ready(supervisor, 20.0)
    supervisor.dismiss([worker.worker, "unknown"])
    supervisor.observe(worker.worker, Exited(-9, ""), 21.0, evaluating=False)
    assert (supervisor.failures, supervisor.fill_at) == (1, 0.0)


def test_a_standby_that_hangs_at_import_is_replaced_later(supervisor):
    """It is killed for its overrun, and that counts as well."""
    tend(supervisor, 0.0)
    (overrun,) = tend(supervisor, 121.0)
    assert overrun.kind == "join"
    assert supervisor.fill_at == 122.0
    assert tend(supervisor, 122.0) == []


def test_a_worker_that_cannot_be_started_is_tried_again_later(supervisor, node):
    """The disk of the logs may be full: the daemon lives, and says so."""

    def refuse(*_, **__):
        raise StorageError("the worker's log cannot be written: No space left on device")

    supervisor.workers.engine.start, start = refuse, supervisor.workers.engine.start
    tend(supervisor, 0.0)
    tend(supervisor, 0.5)
    assert node.log.names() == ["worker_not_started"]
    supervisor.workers.engine.start = start
    tend(supervisor, 1.0)
    assert node.log.names()[-1] == "worker_started"


def test_a_machine_without_processes_is_no_reason_to_end(supervisor, node):
    """Also at the check of the task: a wrong interpreter would be one."""

    def refuse(*_, **__):
        raise ShortageError("a worker process cannot be started: Too many open files")

    supervisor.task = None
    supervisor.workers.engine.start = refuse
    tend(supervisor, 0.0)
    assert node.log.names() == ["worker_not_started"]
    assert supervisor.failure is None


def test_a_late_result_leaves_a_worker_with_its_next_plan(supervisor):
    """It was told of plan 2 before it said done to plan 1."""
    worker = ready(supervisor)
    join(supervisor, worker)
    for plan in (1, 2):
        command = Evaluate(
            plan=plan, checkpoint=CHECKPOINT, path="p", save_to="s", save_weights="all", progress_seconds=1.0
        )
        supervisor.workers.evaluate(command, worker.worker, 5.0)
    late = done(1, worker.process.told(Join)[0])
    supervisor.observe(worker.worker, late, 6.0, evaluating=True)
    assert (worker.progress.phase, worker.plan) == ("restore", 2)
    supervisor.observe(worker.worker, done(2, worker.process.told(Join)[0]), 7.0, evaluating=True)
    assert (worker.progress.phase, worker.plan) == ("idle", None)


@pytest.mark.parametrize("evaluating", [False, True])
@pytest.mark.parametrize("report", [Exited(1, ""), failed("worker_died")])
def test_what_is_left_of_a_group_is_killed_unless_its_plan_is_open(tmp_path, report, evaluating):
    """In a plan the other ranks may still say what happened; its outcome kills them."""
    supervisor = Node(tmp_path, FakeClock(), replicas=2).daemon.supervisor
    supervisor.task = "t1"
    tend(supervisor, 0.0)
    first, second = supervisor.workers.all()
    for worker in (first, second):
        supervisor.observe(worker.worker, Ready("tensorflow", "2"), 0.0, evaluating=False)
        join(supervisor, worker)
    supervisor.observe(first.worker, report, 1.0, evaluating=evaluating)
    assert second.killed == (not evaluating)


def test_idle_workers_leave_their_gpu(supervisor):
    """After release_idle_seconds, and not in the middle of a plan."""
    supervisor.release_idle = 600.0
    worker = ready(supervisor)
    join(supervisor, worker, 0.0)
    tend(supervisor, 600.0, evaluating=True)
    assert not worker.killed
    tend(supervisor, 600.0)
    assert worker.killed


def test_a_probe_that_somebody_stops_says_nothing_of_the_task(supervisor):
    """Another one is tried, later; a task that hangs by itself ends the daemon."""
    supervisor.task = None
    tend(supervisor, 0.0)
    (probe,) = supervisor.workers.all()
    supervisor.observe(probe.worker, Ready("tensorflow", "2"), 0.0, evaluating=False)
    supervisor.observe(probe.worker, Phase(WorkerPhase.IMPORT), 0.0, evaluating=False)
    supervisor.observe(probe.worker, Halted(halted=True), 1.0, evaluating=False)
    (overrun,) = tend(supervisor, 12.0)
    assert overrun.kind == "stalled"
    assert probe.killed
    assert supervisor.failure is None
    supervisor.observe(probe.worker, Exited(-9, ""), 12.0, evaluating=False)
    tend(supervisor, 20.0)
    (again,) = supervisor.workers.all()
    supervisor.observe(again.worker, Ready("tensorflow", "2"), 20.0, evaluating=False)
    supervisor.observe(again.worker, Phase(WorkerPhase.IMPORT), 20.0, evaluating=False)
    tend(supervisor, 200.0)
    assert "cannot be checked" in str(supervisor.failure)


def test_silence_while_this_process_was_stopped_is_forgiven(supervisor):
    """A suspended machine suspends its workers too."""
    worker = ready(supervisor)
    join(supervisor, worker)
    supervisor.observe(worker.worker, Phase(WorkerPhase.RESTORE, 1), 0.0, evaluating=True)
    supervisor.forgive(5000.0)
    assert tend(supervisor, 6000.0, filling=False) == []
    assert len(tend(supervisor, 6801.0, filling=False)) == 1


def test_a_cluster_gets_its_machines_back_when_nothing_waits(supervisor, node):
    """After a time without work no process is left, and the next checkpoint starts workers again."""
    supervisor.release_all = 300.0
    worker = ready(supervisor)
    tend(supervisor, 299.0, waiting=False)
    assert "cluster_released" not in node.log.names()
    tend(supervisor, 300.0, waiting=False)
    assert node.log.names().count("cluster_released") == 1
    assert worker.process.kills == 1
    supervisor.observe(worker.worker, Exited(-9, ""), 301.0, evaluating=False)
    tend(supervisor, 400.0, waiting=False)
    assert list(supervisor.workers.all()) == []
    tend(supervisor, 500.0, waiting=True)
    assert len(list(supervisor.workers.all())) == 1
    assert node.log.names().count("cluster_released") == 1
