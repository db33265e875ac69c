import pytest

from sidecar.daemon.storage_health import StorageHealth


@pytest.fixture
def reach():
    return StorageHealth(answered_at=100.0, timeout_seconds=10.0, beat_seconds=2.0)


def test_who_is_not_asked_is_not_silent(reach):
    """However long ago it answered."""
    assert reach.silent_since(500.0) == 500.0
    assert reach.unready(500.0) is None


@pytest.mark.parametrize(("asked_at", "silent_since"), [(101.0, 100.0), (500.0, 498.0)])
def test_silence_begins_with_the_last_answer_or_a_beat_before_the_request(reach, asked_at, silent_since):
    """It is asked once in a beat at least, so nothing was heard since then."""
    reach.ask("anything", asked_at)
    assert reach.silent_since(asked_at + 5) == silent_since
    assert reach.blind_at(asked_at + 5) == silent_since + 10
    assert reach.unready(silent_since + 10) is None
    assert reach.unready(silent_since + 10.6) == "shared storage has not answered for 11 s"
    assert reach.answer(silent_since + 20) == asked_at
    assert reach.unready(silent_since + 21) is None


def test_a_failure_is_new_once_and_stops_requests_for_a_beat(reach):
    """The same one again is no news; only what works mends it."""
    assert reach.fail("no space", 200.0, in_look=False)
    assert (reach.problem, reach.blocked_until) == ("no space", 202.0)
    assert not reach.fail("no space", 202.0, in_look=False)
    assert reach.succeed(looked=False)
    assert not reach.succeed(looked=False)
    assert reach.problem is None


def test_a_failure_at_checkpoints_is_mended_by_a_look_alone(reach):
    """Meanwhile daemons go on to agree."""
    assert reach.fail("cannot pin", 200.0, in_look=True)
    assert reach.blocked_until < 200.0
    assert not reach.succeed(looked=False)
    assert reach.unready(201.0) == "cannot pin"
    assert reach.succeed(looked=True)
