"""Tell storage that is silent from storage that fails."""

import pytest

from sidecar.daemon.storage_health import StorageHealth


@pytest.fixture
def health():
    return StorageHealth(answered_at=100.0, timeout_seconds=10.0, beat_seconds=2.0)


def test_storage_that_is_not_asked_is_not_silent(health):
    """However long ago it answered."""
    assert health.silent_since(500.0) == 500.0
    assert health.unready(500.0) is None
    assert health.busy_until(500.0) is None


@pytest.mark.parametrize(("asked_at", "silent_since"), [(101.0, 100.0), (500.0, 498.0)])
def test_silence_begins_with_the_last_answer_or_a_beat_before_the_request(health, asked_at, silent_since):
    """Storage is asked at least once in a beat, so nothing was heard since then."""
    health.ask("anything", asked_at)
    assert health.silent_since(asked_at + 5) == silent_since
    assert health.blind_at(asked_at + 5) == silent_since + 10
    assert health.busy_until(silent_since + 5) == pytest.approx(silent_since + 10, abs=0.1)
    assert health.busy_until(silent_since + 11) == float("inf")
    assert health.unready(silent_since + 10) is None
    assert health.unready(silent_since + 10.6) == "shared storage has not answered for 11 s"
    assert health.answer(silent_since + 20) == asked_at
    assert health.unready(silent_since + 21) is None


def test_a_failure_is_new_once_and_stops_requests_for_a_beat(health):
    """The same failure again is not new, and an answer without an error ends it."""
    assert health.fail("no space", 200.0, at_checkpoints=False)
    assert (health.problem, health.blocked_until) == ("no space", 202.0)
    assert (health.busy_until(201.0), health.busy_until(202.0)) == (202.0, None)
    assert not health.fail("no space", 202.0, at_checkpoints=False)
    assert health.succeed(scanned=False)
    assert not health.succeed(scanned=False)
    assert health.problem is None


def test_the_files_of_a_storage_that_fails_take_few_lines(health):
    """Each beat may meet another file, or the same two in turn, for hours; the newest message is on /readyz."""
    told = [health.fail(f"cannot read plan {n % 20}", 200.0 + n, at_checkpoints=False) for n in range(1000)]
    assert sum(told) == 6
    assert health.problem == "cannot read plan 19"
    assert health.succeed(scanned=False)
    assert health.fail("cannot read plan 1", 2000.0, at_checkpoints=False)


def test_a_failure_at_checkpoints_ends_with_a_scan_alone(health):
    """Meanwhile the nodes go on to agree."""
    assert health.fail("cannot pin", 200.0, at_checkpoints=True)
    assert health.blocked_until < 200.0
    assert not health.succeed(scanned=False)
    assert health.unready(201.0) == "cannot pin"
    assert health.succeed(scanned=True)


def test_a_journal_of_a_newer_release_is_named_as_the_cause(health):
    """The remedy is in the sentence."""
    health.needs_newer_release = True
    assert health.fail("plan 3 has schema 9", 200.0, at_checkpoints=False)
    assert health.problem.startswith("the journal needs a newer release")
    assert health.problem.endswith("plan 3 has schema 9")
    assert not health.fail("plan 3 has schema 9", 202.0, at_checkpoints=False)
