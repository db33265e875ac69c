"""Give each phase of a worker its time, and slow batches more of it."""

from dataclasses import replace

import pytest
from daemon.workers.slots import grouped

from sidecar.daemon.workers.timeouts import PhaseProgress, PhaseTimeouts
from sidecar.protocol.messages import Failed, Phase, Progress, Ready
from sidecar.protocol.states import FailureKind, WorkerPhase

TIMEOUTS = PhaseTimeouts(
    yield_seconds=300,
    join_timeout_seconds=120,
    restore_timeout_seconds=1800,
    first_batch_timeout_seconds=900,
    stall_seconds=60,
    stall_factor=5,
    suspended_timeout_seconds=10,
)


@pytest.mark.parametrize(
    ("reports", "seconds", "kind"),
    [
        ([Phase(WorkerPhase.IMPORT)], 120, "join"),
        ([Phase(WorkerPhase.JOIN)], 120, "join"),
        ([Phase(WorkerPhase.BUILD)], 900, "deadline"),
        ([Phase(WorkerPhase.READ, 7)], 900, "deadline"),
        ([Phase(WorkerPhase.READ, 7), Progress(7, 1, None)], 60, "stalled"),
        ([Phase(WorkerPhase.RESTORE, 7)], 1800, "deadline"),
        ([Phase(WorkerPhase.EVALUATE, 7)], 900, "deadline"),
        ([Phase(WorkerPhase.EVALUATE, 7), Progress(7, 1, 9)], 60, "stalled"),
        ([Phase(WorkerPhase.EVALUATE, 7), Progress(7, 1, 9), Phase(WorkerPhase.SAVE, 7)], 1800, "deadline"),
        ([Phase(WorkerPhase.CONCLUDE, 7)], 900, "deadline"),
        ([Phase(WorkerPhase.HELLO, 7)], None, None),
        ([Phase(WorkerPhase.REDUCE, 7)], None, None),
        ([Phase(WorkerPhase.EVALUATE, 7), Failed(kind="task_error", message="x")], None, None),
        ([], None, None),
    ],
)
def test_bounds(node, reports, seconds, kind):
    """Each phase has its bound; hello and reduce have none, since a rank waits there for peers that others judge."""
    workers = node()
    worker = grouped(workers)
    for report in reports:
        workers.observe("n.1.1", report, 1000.0)
    if seconds is None:
        assert workers.overruns(1e9) == []
        return
    assert workers.overruns(1000.0 + seconds) == []
    (overrun,) = workers.overruns(1001.0 + seconds)
    assert (overrun.worker, overrun.kind) == ("n.1.1", kind)
    assert f"for {seconds + 1} s, more than the {seconds} s allowed" in overrun.message
    workers.kill(worker)
    assert workers.overruns(1e9) == [], "it is told once: who is told kills"


def test_bounds_of_a_worker_that_was_just_started(node):
    """Importing the framework is bounded, standing by is not."""
    workers = node()
    workers.fill(0.0)
    assert workers.overruns(120.0) == []
    assert "was importing for 121 s" in workers.overruns(121.0)[0].message
    workers.observe("n.1.1", Ready("tensorflow", "2"), 121.0)
    assert workers.overruns(1e9) == []


def test_a_sign_of_life_begins_anew(node):
    """Waiting time of a worker before a sign of life does not excuse its silence afterwards."""
    workers = node()
    worker = grouped(workers)
    workers.observe("n.1.1", Phase(WorkerPhase.EVALUATE, 7), 0.0)
    workers.observe("n.1.1", Progress(7, 1, 9), 0.0)
    for second in range(0, 51, 5):
        worker.process.waited = {7: float(second)}
        assert workers.overruns(float(second)) == []
    workers.observe("n.1.1", Progress(7, 2, 9), 50.0)
    assert workers.overruns(110.0) == []
    slowest = 5 * 50
    assert workers.overruns(50.0 + slowest) == []
    assert len(workers.overruns(51.0 + slowest)) == 1


def test_slow_batches_stretch_the_bound(node):
    """A stall is at least five times the slowest batch; the first batch, which traces, does not count as slow."""
    workers = node()
    grouped(workers)
    workers.observe("n.1.1", Phase(WorkerPhase.EVALUATE, 7), 0.0)
    workers.observe("n.1.1", Progress(7, 1, 9), 500.0)
    workers.observe("n.1.1", Progress(7, 2, 9), 530.0)
    assert workers.overruns(530.0 + 150) == []
    (overrun,) = workers.overruns(530.0 + 151)
    assert overrun.message == (
        "made no progress in evaluate for 151 s, more than the 150 s allowed; if that is normal here, "
        "set stall_seconds = 300"
    )


def test_every_batch_is_a_sign_of_life(node):
    """An evaluation may take long as long as batches go on."""
    workers = node()
    grouped(workers)
    workers.observe("n.1.1", Phase(WorkerPhase.EVALUATE, 7), 0.0)
    for second in range(0, 5000, 50):
        assert workers.overruns(float(second)) == []
        workers.observe("n.1.1", Progress(7, 1, None), float(second))


def evaluating():
    """Return a worker's progress in its evaluation, after one batch at 10 s."""
    progress = PhaseProgress(since=0.0, heard=0.0)
    progress.enter(WorkerPhase.EVALUATE, 0.0)
    progress.advance(Progress(7, 1, 9), 10.0)
    progress.heard = 10.0
    return progress


def test_a_command_waits_for_a_machine_of_a_cluster_with_a_bound():
    """A daemon waits for as long as it takes."""
    placed = PhaseProgress(since=0.0, heard=0.0, phase=WorkerPhase.PLACE)
    assert placed.overrun(TIMEOUTS, 1e9) is None
    within = replace(TIMEOUTS, place_seconds=60)
    assert placed.overrun(within, 60.0) is None
    kind, message = placed.overrun(within, 61.0)
    assert kind == FailureKind.JOIN
    assert "ray_labels" in message


def test_a_new_phase_begins_without_batches():
    """The time of the phase counts from its beginning; the number of all batches stays known."""
    progress = evaluating()
    progress.enter(WorkerPhase.SAVE, 20.0)
    assert (progress.phase, progress.since, progress.heard) == (WorkerPhase.SAVE, 20.0, 20.0)
    assert (progress.batches, progress.total_batches) == (0, 9)


def test_the_first_batch_is_not_the_slowest():
    """The first batch may have traced and compiled the model."""
    progress = evaluating()
    assert progress.slowest == 0.0
    progress.advance(Progress(7, 2, 9), 13.0)
    assert progress.slowest == 3.0


def test_silence_overruns_the_time_limit_of_the_phase():
    """The limit counts from the last sign of life."""
    progress = evaluating()
    assert progress.overrun(TIMEOUTS, 70.0) is None
    kind, message = progress.overrun(TIMEOUTS, 71.0)
    assert kind == FailureKind.STALLED
    assert "for 61 s" in message


def test_silence_that_the_daemon_could_not_hear_is_forgiven():
    """Neither limit counts while the daemon itself was stopped."""
    silent, halted = evaluating(), evaluating()
    halted.halted = 15.0
    for progress in (silent, halted):
        progress.forgive(100.0)
    assert (silent.overrun(TIMEOUTS, 170.0), halted.overrun(TIMEOUTS, 125.0)) == (None, None)
    assert "SIGSTOP" in halted.overrun(TIMEOUTS, 126.0)[1]
