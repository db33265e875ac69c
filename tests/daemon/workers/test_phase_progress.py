"""How far a worker has come in its phase, and when it has taken too long."""

from sidecar.daemon.workers.phase_progress import PhaseProgress
from sidecar.daemon.workers.timeouts import PhaseTimeouts
from sidecar.protocol.messages import Progress
from sidecar.protocol.states import FailureKind, WorkerPhase

TIMEOUTS = PhaseTimeouts(
    join_timeout_seconds=120,
    restore_timeout_seconds=1800,
    first_batch_timeout_seconds=900,
    stall_seconds=60,
    stall_factor=5,
    suspended_timeout_seconds=10,
)


def evaluating():
    """Return a worker's progress in its evaluation, after one batch at 10 s."""
    progress = PhaseProgress(since=0.0, heard=0.0)
    progress.enter(WorkerPhase.EVALUATE, 0.0)
    progress.advance(Progress(7, 1, 9), 10.0)
    progress.heard = 10.0
    return progress


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
