"""`evaluate_once` with fake workers: whose failure is told, and that no wait is endless."""

import queue
from pathlib import Path

import pytest
from fakes import FakeClock, FakePorts, FakeProcess

from sidecar.commands.one_shot import OneShot, evaluate_once, result_of
from sidecar.daemon.workers.command_specs import TaskSpec
from sidecar.daemon.workers.engine import LocalEngine, WorkerLaunch
from sidecar.daemon.workers.pool import WorkerPool
from sidecar.daemon.workers.process import Exited
from sidecar.daemon.workers.timeouts import PhaseTimeouts
from sidecar.errors import EvaluationFailedError
from sidecar.evaluation.framework_traits import FrameworkTraits
from sidecar.protocol.messages import Done, Evaluate, Failed, Join, Joined, Phase, Ready
from sidecar.protocol.records import Checkpoint, Result, Value
from sidecar.protocol.states import WorkerPhase


class AnsweringProcess(FakeProcess):
    """A process that answers commands as it is told to, and ends when it is killed."""

    def __init__(self, worker, inbox, answer):
        super().__init__(worker)
        self._inbox, self._answer = inbox, answer
        inbox.put((worker, Ready("x", "1")))

    def send(self, command):
        """Put the answers to a command into the inbox."""
        for report in self._answer(self.worker, command):
            self._inbox.put((self.worker, report))

    def kill(self):
        """Report the end of the process by SIGKILL."""
        self._inbox.put((self.worker, Exited(-9, "")))


def result(value=0.5):
    return Result(
        group="g",
        workers=2,
        examples={"test": 2},
        metrics={"test": {"a": Value(value=value, hex=value.hex())}},
        phases={},
        variables="v",
        task="t",
        profile={},
        saves=(),
    )


@pytest.fixture
def evaluate(monkeypatch):
    """Runs `evaluate_once` with two workers that answer commands so."""
    monkeypatch.setattr("sidecar.commands.one_shot._GLANCE_SECONDS", 0.001)

    def run(answer, save_to=Path("/saves")):
        inbox = queue.SimpleQueue()
        launch = WorkerLaunch(
            interpreter="python",
            traits=FrameworkTraits(name="x"),
            environment={},
            changes={},
            devices=("-1", "-1"),
            logs=Path("/logs"),
            directory="/",
        )
        start = lambda worker, **_: AnsweringProcess(worker, inbox, answer)  # noqa: E731
        workers = WorkerPool(
            engine=LocalEngine(launch=launch, host="h", ports=FakePorts(), start=start),
            bounds=PhaseTimeouts(
                yield_seconds=300,
                join_timeout_seconds=120,
                restore_timeout_seconds=120,
                first_batch_timeout_seconds=120,
                stall_seconds=120,
                stall_factor=5,
                suspended_timeout_seconds=10,
            ),
            name="n",
            post=print,
        )
        once = OneShot(
            task=TaskSpec(task="t", framework="x", search_path="/", threads=1),
            checkpoint=Checkpoint(name="c", digest="d", step=1, format="x"),
            path="/c",
            save_to=save_to,
            plan_cap_seconds=40,
            save_weights="first",
        )
        try:
            return evaluate_once(once, workers, inbox, clock=FakeClock(step=0.5))
        finally:
            assert list(workers.all()) == [], "nothing is left running"

    return run


def rank_of(worker):
    return int(worker.rpartition(".")[2]) - 1


def test_reports_in_rank_order(evaluate):
    """Every rank's report, whoever was first; each has a folder of its own."""
    folders = []

    def answer(worker, command):
        if isinstance(command, Join):
            assert command.rank == rank_of(worker)
            return [Joined(command.group, "t", {})]
        folders.append(command.save_to)
        assert (command.save_weights, command.evaluated) == ("first", 0)  # all eval sets, whatever their every_nth
        return (
            []
            if rank_of(worker) == 0
            else [Done(plan=1, rank=rank, result=result(), traces=1, builds=1) for rank in (1, 0)]
        )

    assert [each.rank for each in evaluate(answer)] == [0, 1]
    assert folders == ["/saves/worker-0-of-2", "/saves/worker-1-of-2"]


def test_the_cause_is_told_not_its_consequence(evaluate):
    """A rank that lost its peer waits for the peer's own account of it."""

    def answer(worker, command):
        if isinstance(command, Join):
            return [Joined(command.group, "t", {})]
        if rank_of(worker) == 0:
            return [Failed(kind="member_lost", message="a peer is gone", plan=1, rank=0, phase="reduce")]
        return [Failed(kind="task_error", message="bad image", plan=1, rank=1, phase="evaluate")]

    with pytest.raises(EvaluationFailedError, match=r"^task_error \(rank 1, .*bad image"):
        evaluate(answer)


def test_what_killed_ranks_left_unfinished_goes(evaluate, tmp_path):
    """Weights of a rank whose peer failed: nobody would ever look at them. Finished weights stay."""

    def answer(worker, command):
        if isinstance(command, Join):
            return [Joined(command.group, "t", {})]
        folder = Path(command.save_to)
        if rank_of(worker) == 0:
            (folder.with_name(f".{folder.name}.part") / "weights").mkdir(parents=True)
            return []
        folder.mkdir()
        return [Failed(kind="task_error", message="bad image", plan=1, rank=1, phase="evaluate")]

    with pytest.raises(EvaluationFailedError, match="bad image"):
        evaluate(answer, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["worker-1-of-2"]


def test_a_lost_member_alone(evaluate):
    """Where nobody knows more, that is what is told, after a moment."""

    def answer(worker, command):
        if isinstance(command, Join):
            return [Joined(command.group, "t", {})]
        return (
            [Failed(kind="member_lost", message="a peer is gone", plan=1, rank=0, phase="reduce")]
            if rank_of(worker) == 0
            else []
        )

    with pytest.raises(EvaluationFailedError, match=r"^member_lost \(rank 0, reduce\)"):
        evaluate(answer)


def test_worker_that_ends(evaluate):
    """With the end of its log."""
    with pytest.raises(EvaluationFailedError, match=r"^worker_died.*SIGSEGV.*boom"):
        evaluate(lambda _, command: [Exited(-11, "boom")] if isinstance(command, Evaluate) else [])


def test_worker_that_crashes_while_it_reads_the_checkpoint(evaluate):
    """It is named so."""

    def answer(_, command):
        return [Phase(WorkerPhase.RESTORE, 1), Exited(-6, "Type not set")] if isinstance(command, Evaluate) else []

    with pytest.raises(EvaluationFailedError, match=r"^crashed.*SIGABRT.*Type not set"):
        evaluate(answer)


def test_the_cap_ends_every_wait(evaluate):
    """Nobody answers: the plan's cap."""
    with pytest.raises(EvaluationFailedError, match=r"^deadline.*plan_cap_seconds"):
        evaluate(lambda _, command: [Phase(WorkerPhase.HELLO, 1)] if isinstance(command, Evaluate) else [])


def test_result_must_be_the_same_on_every_rank():
    """Else it is no result."""
    same = [Done(plan=1, rank=rank, result=result(), traces=1, builds=1) for rank in (0, 1)]
    assert result_of(same) == result()
    with pytest.raises(EvaluationFailedError, match="different results"):
        result_of([same[0], Done(plan=1, rank=1, result=result(0.25), traces=1, builds=1)])
