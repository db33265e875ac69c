import pytest
from fakes import FakeClock, Node, done, failed

from sidecar.errors import StorageError
from sidecar.records import Checkpoint, Member
from sidecar.workers.messages import Evaluate, Join, Joined, Phase, Ready
from sidecar.workers.process import Exited, Halted

CHECKPOINT = Checkpoint("ckpt-5", "d" * 64, 5, "tf_object")


@pytest.fixture
def node(tmp_path):
    """A node whose crew is tended by hand: the task was tried, nothing else was done."""
    made = Node(tmp_path, FakeClock())
    made.daemon.crew.task = "t1"
    return made


@pytest.fixture
def crew(node):
    return node.daemon.crew


def tend(crew, now, **changes):
    return crew.tend(now, **({"filling": True, "evaluating": False} | changes))


def ready(crew, now=0.0):
    """One standby, ready."""
    tend(crew, now)
    (worker,) = [each for each in crew.workers.all() if each.phase == "import"]
    crew.observe(worker.worker, Ready("tensorflow", "2"), now, evaluating=False)
    return worker


def join(crew, worker, now=0.0):
    """It forms a group of one."""
    members = (Member(0, "worker-1", worker.worker, worker.address),)
    crew.workers.join(Join("g", members, 0, "task.py:task", "tensorflow", ".", 2), worker.worker, now)
    crew.observe(worker.worker, Joined("g", "t1", {}), now, evaluating=True)


def test_a_standby_takes_the_place_of_each_worker_that_joins(crew):
    """So that the next group can be formed at once."""
    worker = ready(crew)
    join(crew, worker)
    tend(crew, 1.0)
    assert len(list(crew.workers.all())) == 2


def test_a_check_of_the_task_that_was_killed_is_repeated(tmp_path):
    """Whoever killed the process, it says nothing of the task: the daemon goes on, after a pause."""
    crew = Node(tmp_path, FakeClock()).daemon.crew
    tend(crew, 0.0)
    (probe,) = crew.workers.all()
    crew.observe(probe.worker, Exited(-9, ""), 0.0, evaluating=False)
    tend(crew, 0.5)
    assert (crew.failure, list(crew.workers.all())) == (None, [])
    tend(crew, 1.0)
    assert [each.worker == probe.worker for each in crew.workers.all()] == [False]


def test_a_check_of_the_task_that_ended_by_itself_ends_the_daemon(tmp_path):
    """A wrong interpreter, say, is a mistake to mend."""
    crew = Node(tmp_path, FakeClock()).daemon.crew
    tend(crew, 0.0)
    (probe,) = crew.workers.all()
    crew.observe(probe.worker, Exited(2, "Unknown option: -P"), 0.0, evaluating=False)
    assert "Unknown option: -P" in str(crew.failure)


def test_nothing_is_started_while_stopping(crew):
    """What would be started would be killed."""
    tend(crew, 0.0, filling=False)
    assert list(crew.workers.all()) == []


def test_pauses_double_and_end_with_a_worker_that_joins(crew):
    """Being ready proves nothing, having joined does."""
    pauses = []
    for _ in range(4):
        worker = ready(crew, 1000.0)
        crew.observe(worker.worker, Exited(1, ""), 1000.0, evaluating=False)
        pauses.append(crew._fill_at - 1000.0)
        crew._fill_at = 0.0
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    join(crew, ready(crew, 1000.0), 1000.0)
    worker = ready(crew, 1000.0)
    crew.observe(worker.worker, Exited(1, ""), 1000.0, evaluating=False)
    assert crew._fill_at == 1001.0


def test_a_standby_that_ends_after_a_long_time_is_replaced_soon(crew):
    """Once a month is no habit."""
    crew._failures = 7
    worker = ready(crew, 0.0)
    crew.observe(worker.worker, Exited(-9, ""), 301.0, evaluating=False)
    assert crew._fill_at == 302.0


def test_a_standby_that_failed_counts_once(crew):
    """Its report and its end are one failure; one that was dismissed is none."""
    worker = ready(crew, 0.0)
    crew.observe(worker.worker, failed("join", "no module"), 10.0, evaluating=False)
    crew.observe(worker.worker, Exited(-9, ""), 11.0, evaluating=False)
    assert (crew._failures, crew._fill_at) == (1, 11.0)
    crew._fill_at = 0.0
    worker = ready(crew, 20.0)
    crew.dismiss([worker.worker, "unknown"])
    crew.observe(worker.worker, Exited(-9, ""), 21.0, evaluating=False)
    assert (crew._failures, crew._fill_at) == (1, 0.0)


def test_a_standby_that_hangs_at_import_is_replaced_later(crew):
    """It is killed for its overrun, and that counts as well."""
    tend(crew, 0.0)
    (overrun,) = tend(crew, 121.0)
    assert overrun.kind == "join"
    assert crew._fill_at == 122.0
    assert tend(crew, 122.0) == []


def test_a_worker_that_cannot_be_started_is_tried_again_later(crew, node):
    """The disk of the logs may be full: the daemon lives, and says so."""

    def refuse(*_, **__):
        raise StorageError("the worker's log cannot be written: No space left on device")

    crew.workers.start, start = refuse, crew.workers.start
    tend(crew, 0.0)
    tend(crew, 0.5)
    assert node.log.names() == ["worker_not_started"]
    crew.workers.start = start
    tend(crew, 1.0)
    assert node.log.names()[-1] == "worker_started"


def test_a_late_result_leaves_a_worker_with_its_next_plan(crew):
    """It was told of plan 2 before it said done to plan 1."""
    worker = ready(crew)
    join(crew, worker)
    for plan in (1, 2):
        command = Evaluate(plan, CHECKPOINT, "p", "s", save_weights="all", progress_seconds=1.0)
        crew.workers.evaluate(command, worker.worker, 5.0)
    late = done(1, worker.process.told(Join)[0])
    crew.observe(worker.worker, late, 6.0, evaluating=True)
    assert (worker.phase, worker.plan) == ("restore", 2)
    crew.observe(worker.worker, done(2, worker.process.told(Join)[0]), 7.0, evaluating=True)
    assert (worker.phase, worker.plan) == ("idle", None)


@pytest.mark.parametrize("evaluating", [False, True])
@pytest.mark.parametrize("report", [Exited(1, ""), failed("worker_died")])
def test_what_is_left_of_a_group_is_killed_unless_its_plan_is_open(tmp_path, report, evaluating):
    """In a plan the other ranks may still say what happened; its outcome kills them."""
    crew = Node(tmp_path, FakeClock(), replicas=2).daemon.crew
    crew.task = "t1"
    tend(crew, 0.0)
    first, second = crew.workers.all()
    for worker in (first, second):
        crew.observe(worker.worker, Ready("tensorflow", "2"), 0.0, evaluating=False)
        join(crew, worker)
    crew.observe(first.worker, report, 1.0, evaluating=evaluating)
    assert second.killed == (not evaluating)


def test_idle_workers_leave_their_gpu(crew):
    """After release_idle_seconds, and not in the middle of a plan."""
    crew.release_idle = 600.0
    worker = ready(crew)
    join(crew, worker, 0.0)
    tend(crew, 600.0, evaluating=True)
    assert not worker.killed
    tend(crew, 600.0)
    assert worker.killed


def test_a_probe_that_somebody_stops_says_nothing_of_the_task(crew):
    """Another one is tried, later; a task that hangs by itself ends the daemon."""
    crew.task = None
    tend(crew, 0.0)
    (probe,) = crew.workers.all()
    crew.observe(probe.worker, Ready("tensorflow", "2"), 0.0, evaluating=False)
    crew.observe(probe.worker, Phase("import"), 0.0, evaluating=False)
    crew.observe(probe.worker, Halted(halted=True), 1.0, evaluating=False)
    (overrun,) = tend(crew, 12.0)
    assert overrun.kind == "stalled"
    assert probe.killed
    assert crew.failure is None
    crew.observe(probe.worker, Exited(-9, ""), 12.0, evaluating=False)
    tend(crew, 20.0)
    (again,) = crew.workers.all()
    crew.observe(again.worker, Ready("tensorflow", "2"), 20.0, evaluating=False)
    crew.observe(again.worker, Phase("import"), 20.0, evaluating=False)
    tend(crew, 200.0)
    assert "cannot be checked" in str(crew.failure)


def test_silence_while_this_process_was_stopped_is_forgiven(crew):
    """A suspended machine suspends its workers too."""
    worker = ready(crew)
    join(crew, worker)
    crew.observe(worker.worker, Phase("restore", 1), 0.0, evaluating=True)
    crew.forgive(5000.0)
    assert tend(crew, 6000.0, filling=False) == []
    assert len(tend(crew, 6801.0, filling=False)) == 1
