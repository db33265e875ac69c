"""Which of several runs on a node may have worker processes."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.policy.fair_shares import FairShares


def shares_of(*runs, at_once=1, turn_seconds=0.0, **priorities):
    shares = FairShares(at_once=at_once, turn_seconds=turn_seconds)
    for run in (*runs, *priorities):
        shares.join(run, priorities.get(run, 1.0))
    return shares


def serve(shares, seconds, until, *, now=0.0):
    """Let every run want workers without end, and return the order in which they were served.

    `seconds`: how long one evaluation of each run takes.
    """
    order = []
    for run in seconds:
        shares.note(run, now, wants=True, done=0)
    while now < until:
        run = next(run for run in seconds if shares.has_turn(run))
        order.append(run)
        now += seconds[run]
        shares.note(run, now, wants=True, done=len(order))
        if shares.must_end(run, now):
            shares.end_turn(run, now)
    return order


def test_the_first_run_that_wants_workers_has_its_turn_and_keeps_it_while_nobody_waits():
    """Warm workers are worth keeping."""
    shares = shares_of("a", "b")
    shares.note("a", 0.0, wants=True, done=0)
    assert shares.has_turn("a")
    shares.note("a", 9.0, wants=False, done=0)
    assert not shares.must_end("a", 99.0)
    shares.note("b", 100.0, wants=True, done=0)
    assert shares.must_end("a", 100.0)
    assert not shares.has_turn("b")
    shares.end_turn("a", 101.0)
    assert shares.has_turn("b")


def test_a_turn_lasts_its_time_though_others_wait():
    """Each change of turns costs the import of a framework."""
    shares = shares_of("a", "b", turn_seconds=30.0)
    for run in ("a", "b"):
        shares.note(run, 0.0, wants=True, done=0)
    shares.note("a", 1.0, wants=True, done=1)
    assert not shares.must_end("a", 29.0)
    assert shares.must_end("a", 30.0)


def test_a_turn_lasts_until_something_is_done_unless_that_takes_too_long():
    """Workers that are killed while they start would start for ever."""
    shares = FairShares(at_once=1, turn_seconds=1.0, patience_seconds=120.0)
    for run in ("a", "b"):
        shares.join(run, 1.0)
        shares.note(run, 0.0, wants=True, done=3)
    assert not shares.must_end("a", 119.0)
    shares.note("a", 119.0, wants=True, done=4)
    assert shares.must_end("a", 119.0)
    shares.end_turn("a", 119.0)
    assert shares.must_end("b", 239.0)


def test_the_longest_waiting_of_equal_runs_is_first():
    """Not the one with the first name."""
    shares = shares_of("a", "b", "c")
    shares.note("c", 0.0, wants=True, done=0)
    shares.note("b", 1.0, wants=True, done=0)
    assert shares.heir("c") == "b"
    assert shares.heir("b") is None, "nobody else waits"
    shares.note("a", 2.0, wants=True, done=0)
    assert shares.heir("c") == "b"
    shares.end_turn("c", 3.0)
    assert shares.has_turn("b")


def test_no_run_is_served_twice_while_another_waits_for_its_first_time():
    """As the evaluations take equally long."""
    runs = dict.fromkeys("abcde", 1.0)
    order = serve(shares_of(*runs), runs, until=50.0)
    for served in range(1, len(order)):
        counts = Counter(order[:served])
        assert max(counts.values()) - min(counts.get(run, 0) for run in runs) <= 1


@given(seconds=st.lists(st.floats(0.1, 10.0), min_size=2, max_size=8))
def test_runs_with_work_get_equal_times_whatever_their_evaluations_take(seconds):
    """The shares differ by one evaluation at most."""
    runs = {f"run-{number}": each for number, each in enumerate(seconds)}
    shares = shares_of(*runs)
    serve(shares, runs, until=500.0)
    used = [shares.seconds(run) for run in runs]
    assert max(used) - min(used) <= max(seconds) + 1e-6


def test_the_evaluations_of_other_nodes_count():
    """Else every node would begin with the same runs, and serve them twice before it serves others."""
    shares = shares_of("a", "b", "c")
    for run in "abc":
        shares.note(run, 0.0, wants=run != "b", done=0, evaluated=run == "b")
    shares.note("b", 10.0, wants=True, done=0)
    shares.note("a", 10.0, wants=True, done=1)
    shares.end_turn("a", 10.0)
    assert shares.has_turn("c")
    assert shares.seconds("b") == 0.0


def test_a_run_of_twice_the_priority_gets_twice_the_time():
    """A final training matters more than a trial."""
    runs = {"high": 1.0, "low": 1.0}
    order = Counter(serve(shares_of("low", high=2.0), runs, until=300.0))
    assert order["high"] / order["low"] == pytest.approx(2.0, rel=0.05)


def test_a_run_that_comes_back_has_no_claim_on_the_time_of_its_idleness():
    """The others would wait for hours."""
    shares = shares_of("busy", "new")
    shares.note("busy", 0.0, wants=True, done=0)
    shares.note("busy", 1000.0, wants=True, done=0)
    order = serve(shares, {"busy": 1.0, "new": 1.0}, until=1100.0, now=1000.0)
    assert abs(Counter(order)["busy"] - Counter(order)["new"]) <= 1


def test_a_run_that_leaves_gives_its_turn_to_the_next():
    """It ended, or it failed."""
    woken = []
    shares = FairShares(at_once=1, turn_seconds=0.0, wake=woken.append)
    for run in ("a", "b"):
        shares.join(run, 1.0)
        shares.note(run, 0.0, wants=True, done=0)
    shares.leave("a", 1.0)
    assert shares.has_turn("b")
    assert woken == ["a", "b"]


def test_several_runs_have_their_turns_at_once():
    """As many as the settings allow."""
    shares = shares_of("a", "b", "c", at_once=2)
    for run in "abc":
        shares.note(run, 0.0, wants=True, done=0)
    assert [run for run in "abc" if shares.has_turn(run)] == ["a", "b"]
