"""End a daemon within its time, after its evaluation and its sinks."""

import pytest

from sidecar.daemon.shutdown import Shutdown
from sidecar.publishing.status import Ended


@pytest.fixture
def shutdown():
    return Shutdown(drain_seconds=25.0, beat_seconds=2.0, storage_seconds=10.0)


def test_a_daemon_that_nobody_stops_goes_on(shutdown):
    """However late it is."""
    assert not shutdown.begun
    assert not shutdown.drained(1e9)
    assert not shutdown.is_over(1e9)


def test_an_evaluation_may_end_within_the_time_to_drain(shutdown):
    """Two beats more are left to say how it ended."""
    shutdown.drain(100.0)
    assert shutdown.begun
    assert (shutdown.drained(124.9), shutdown.drained(125.0)) == (False, True)
    assert (shutdown.is_over(128.9), shutdown.is_over(129.0)) == (False, True)


def test_a_daemon_that_has_nothing_left_to_do_waits_for_its_last_heartbeat(shutdown):
    """Only as long as storage may take, and the first exit code stands."""
    shutdown.leave(1, 100.0)
    shutdown.leave(0, 105.0)
    assert shutdown.code == 1
    assert (shutdown.is_over(109.9), shutdown.is_over(110.0)) == (False, True)


def test_the_sooner_of_both_times_ends_a_daemon_that_drained(shutdown):
    """Draining again does not make it longer."""
    shutdown.drain(100.0)
    shutdown.leave(0, 126.0)
    assert (shutdown.is_over(128.9), shutdown.is_over(129.0)) == (False, True)


ENDED = Ended("all is done", 0)


def test_without_sinks_a_daemon_leaves_at_once(shutdown):
    """Nobody needs to learn that the run is over."""
    assert shutdown.may_leave(ENDED, 100.0, delivered=True)


def test_a_daemon_leaves_once_its_sinks_have_the_end():
    """Not in the turn that finds the end, since they do not know of it before."""
    shutdown = Shutdown(drain_seconds=25.0, beat_seconds=2.0, storage_seconds=10.0, sinks_seconds=5.0)
    assert not shutdown.may_leave(ENDED, 100.0, delivered=True)
    assert shutdown.ended == ENDED
    assert not shutdown.may_leave(ENDED, 104.9, delivered=False)
    assert shutdown.may_leave(ENDED, 100.1, delivered=True)


def test_a_sink_that_hangs_holds_a_daemon_up_for_a_time_only():
    """And a run that goes on meanwhile ends anew."""
    shutdown = Shutdown(drain_seconds=25.0, beat_seconds=2.0, storage_seconds=10.0, sinks_seconds=5.0)
    assert not shutdown.may_leave(ENDED, 100.0, delivered=False)
    assert shutdown.may_leave(ENDED, 105.0, delivered=False)
    shutdown.go_on()
    assert shutdown.ended is None
    assert not shutdown.may_leave(ENDED, 106.0, delivered=True)
