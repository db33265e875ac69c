"""Time how long work waits and ranks are stuck."""

import pytest
from heartbeats import make_heartbeat

from sidecar.daemon.timers import Timers
from sidecar.protocol.heartbeat import Slot
from sidecar.protocol.records import Plan, Settlement

KEY = ("ckpt-1", "d" * 64)


def ready(*standbys):
    """Return the heartbeat of one node with these workers."""
    return make_heartbeat(
        slots=tuple(
            Slot(worker=None, group=None, address=None, standby=standby, standby_address=standby and "h:1")
            for standby in standbys
        ),
    )


def plan(*settles):
    """Return a plan that evaluates nothing."""
    return Plan(
        plan=1,
        run="r",
        nonce="p",
        checkpoint=None,
        attempt=0,
        members=None,
        settles=settles,
        task="t",
        proposer="n1",
        proposed_at="now",
    )


@pytest.mark.parametrize(
    ("history", "first", "newest"),
    [
        ([], 0.0, 0.0),
        ([(None,)], 0.0, 0.0),
        ([("a",)], 10.0, 10.0),
        ([("a",), ("a", "b")], 10.0, 11.0),
        ([("a", "b"), ("a",)], 10.0, 10.0),
        ([("a",), (), ("a",)], 12.0, 12.0),
        ([("a",), ("b",)], 10.0, 11.0),
    ],
    ids=["nobody", "no worker yet", "one", "one more", "one less", "all gone and one back", "another one"],
)
def test_workers_that_could_be_listed(history, first, newest):
    """The set grows: that is timed. One that goes brings no other, so it is not waited for."""
    timers = Timers()
    for now, standbys in enumerate(history, 10):
        timers.note_ready([ready(*standbys)], float(now))
    assert (timers.view().first_standby_at, timers.view().newest_standby_at) == (first, newest)


def test_work_is_timed_from_when_it_was_seen_until_a_plan_is_read():
    """Nodes take turns from then."""
    timers = Timers(last_activity_at=5.0)
    assert timers.view().turns_begin_at == 5.0
    timers.note_work(10.0, waiting=True)
    timers.note_work(11.0, waiting=True)
    assert timers.view().turns_begin_at == 10.0
    timers.note_plan(plan(), 12.0)
    assert (timers.view().work_waiting_since, timers.view().turns_begin_at) == (None, 12.0)
    timers.note_work(13.0, waiting=True)
    timers.note_work(14.0, waiting=False)
    assert timers.view().work_waiting_since is None


def test_a_failure_is_timed_until_a_success_or_a_person_ends_it():
    """The next attempt waits from there."""
    timers = Timers()
    timers.note_outcome(KEY, 10.0, failed=True)
    assert timers.view().failed_at == {KEY: 10.0}
    timers.note_outcome(KEY, 20.0, failed=False)
    assert timers.view().failed_at == {}
    timers.note_outcome(KEY, 30.0, failed=True)
    requeued = Settlement(name=KEY[0], digest=KEY[1], step=1, verdict="requeued", reason="once more")
    timers.note_plan(plan(requeued), 40.0)
    assert (timers.view().failed_at, timers.view().last_activity_at) == ({}, 40.0)


def test_ranks_that_wait_for_each_other_are_timed_by_phase():
    """A rank that comes to the next phase begins it anew."""
    timers = Timers()
    for now, phases, since in [
        (10.0, (), None),
        (11.0, ("1", "hello"), 11.0),
        (12.0, ("1", "hello"), 11.0),
        (13.0, ("1", "reduce"), 13.0),
        (14.0, (), None),
    ]:
        timers.note_collective_phases(phases, now)
        assert timers.view().all_ranks_waiting_since == since
