"""Measure how fast batches are evaluated now."""

import pytest

from sidecar.commands.progress_rate import ProgressRate, duration


def noted(*reports):
    rate = ProgressRate()
    for now, batches in reports:
        rate.note(batches, now)
    return rate


def test_nothing_is_promised_before_two_batches_were_seen():
    """The first batch is slow, and the time before it says nothing of the others."""
    assert noted((0.0, 0)).per_second(5.0) is None
    assert noted((0.0, 0), (30.0, 1)).seconds_left(10, 31.0) is None
    assert noted((0.0, 0), (30.0, 1), (31.0, 1)).per_second(31.0) is None
    first_left_out = noted((0.0, 0), (30.0, 1), (32.0, 5))
    assert first_left_out.per_second(32.0) == pytest.approx(2.0)
    assert first_left_out.seconds_left(15, 32.0) == pytest.approx(5.0)
    assert first_left_out.seconds_left(None, 32.0) is None


def test_the_estimate_counts_down_between_reports():
    """By no more than one batch, which is all that may have been done meanwhile."""
    rate = noted((0.0, 1), (2.0, 3))
    assert rate.seconds_left(13, 2.0) == pytest.approx(10.0)
    assert rate.seconds_left(13, 2.5) == pytest.approx(9.5)
    assert rate.seconds_left(13, 3.0) == pytest.approx(9.0)
    assert rate.seconds_left(3, 60.0) == 0.0


def test_a_stalled_worker_gets_slower():
    """An estimate that stays the same while nothing happens would be a lie."""
    rate = noted((0.0, 1), (2.0, 3))
    assert rate.seconds_left(13, 100.0) > 400.0
    assert rate.seconds_left(13, 1000.0) > rate.seconds_left(13, 100.0)


def test_the_rate_follows_a_change_of_speed():
    """The rate counts only the last half minute, unless batches take longer than that."""
    rate = noted(
        *((float(second), second + 1) for second in range(100)), *((100.0 + 4 * n, 100 + n) for n in range(12))
    )
    assert rate.per_second(144.0) == pytest.approx(0.25, rel=0.05)
    assert noted((0.0, 1), (100.0, 2), (200.0, 3)).per_second(200.0) == pytest.approx(0.01)


def test_fewer_batches_begin_a_new_phase():
    """Rates of reading say nothing of evaluating."""
    rate = noted((0.0, 1), (1.0, 100), (2.0, 0), (9.0, 1))
    assert rate.per_second(9.0) is None


def test_numbers_from_files_may_be_absurd():
    """A heartbeat is a file that anybody in the group may have written."""
    rate = noted((0.0, 1), (0.0, 2), (1.0, 10**400))
    assert rate.seconds_left(10**500, 1.0) is None or rate.seconds_left(10**500, 1.0) >= 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (80, "1 min 20 s"),
        (7500, "2 h 5 min"),
        (100 * 3600, "4 d 4 h"),
        (1e15, "11574074074 d 1 h"),
    ],
)
def test_durations_have_two_units(seconds, text):
    """More would not be known."""
    assert duration(seconds) == text
