import pytest

from sidecar.daemon.shutdown import Shutdown


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
    assert shutdown.leave(1, 100.0)
    assert not shutdown.leave(0, 105.0)
    assert shutdown.code == 1
    assert (shutdown.is_over(109.9), shutdown.is_over(110.0)) == (False, True)


def test_the_sooner_of_both_times_ends_a_daemon_that_drained(shutdown):
    """Draining again does not make it longer."""
    shutdown.drain(100.0)
    assert shutdown.leave(0, 126.0)
    assert (shutdown.is_over(128.9), shutdown.is_over(129.0)) == (False, True)
