"""Derive from journal, scans and heartbeats what a daemon decides by."""

import pytest
from daemon.worlds import given_up, heartbeat, holds, look, meet, new_world, plan, view, waiting
from heartbeats import make_heartbeat
from records import A, B, failure, fold, make_plan, settlement_of, success

from sidecar.coordination.liveness import HeartbeatReadings
from sidecar.daemon.state import Statistics, Timers
from sidecar.protocol.heartbeat import Slot
from sidecar.protocol.records import Settlement


def test_nothing_is_decided_before_journal_and_directory_were_read():
    """One of them alone is not enough."""
    state = new_world()
    assert not view(state, 0.0).caught_up
    state.record_scan(look(), (), 0.0, 0.0)
    assert view(state, 0.0).caught_up
    state.caught_up = False
    assert not view(state, 0.0).caught_up


def test_only_fresh_ready_workers_can_be_listed():
    """No chief, nobody who drains, starts or left, nobody whose beat has not changed within the lease."""
    state = new_world()
    states = {"n2": "ready", "n3": "draining", "n4": "starting", "n5": "left"}
    for now in (100.0, 102.0):
        others = [heartbeat(node, int(now), state=state) for node, state in states.items()]
        meet(state, now, *others, heartbeat("c", int(now), role="chief"), heartbeat("n6", 1))
    assert [each.node for each in view(state, 103.0).nodes.ready] == ["n1", "n2"]
    assert view(state, 103.0).nodes.chiefs == {"c"}


def test_undone_work_is_timed_from_when_it_was_seen():
    """Given-up checkpoints are work too; an open plan, or nothing left, ends it."""
    state = new_world()
    state.record_scan(look(), (given_up(1, "corrupt"),), 100.0, 0.0)
    assert view(state, 101.0).timers.work_waiting_since == 101.0
    assert view(state, 105.0).timers.work_waiting_since == 101.0
    state.apply(plan(1, members=(), settles=(given_up(1, "corrupt"),)), 106.0)
    assert view(state, 107.0).timers.work_waiting_since is None
    state.record_scan(look(2), (), 108.0, 0.0)
    assert view(state, 109.0).timers.work_waiting_since == 109.0
    state.apply(plan(2, 2), 110.0)
    assert view(state, 111.0).timers.work_waiting_since is None


def test_what_is_settled_may_go():
    """A pin that was let go has not vanished."""
    state = new_world()
    state.record_scan(look(1), (), 0.0, 0.0)
    state.apply(plan(1, members=(), settles=(given_up(1, "skipped"),)), 1.0)
    for _ in range(3):
        state.record_scan(look(), (), 2.0, 0.0)
    assert view(state, 2.0).checkpoints.given_up == []


@pytest.mark.parametrize(("task", "wanted"), [("t1", False), ("t2", True)])
def test_a_pin_is_wanted_while_any_nodes_task_needs_it(task, wanted):
    """A final failure holds for one task only."""
    state = new_world()
    settled = Settlement(name="ckpt-1", digest=f"{1:064d}", step=1, verdict="failed", reason="because", task="t1")
    state.apply(plan(1, members=(), settles=(settled,)), 0.0)
    for now in (100.0, 102.0):
        meet(state, now, heartbeat("n2", int(now), task=task))
    assert holds(state, 103.0, 1) == ([1] if wanted else [])


def test_what_is_being_evaluated_is_wanted_whatever_is_settled():
    """Another node's plan may be for a task that this node does not have."""
    state = new_world()
    settled = Settlement(name="ckpt-1", digest=f"{1:064d}", step=1, verdict="failed", reason="because", task="t1")
    state.apply(plan(1, members=(), settles=(settled,)), 0.0)
    assert holds(state, 0.0, 1) == []
    state.apply(plan(2, 1, task="t2"), 0.0)
    assert holds(state, 0.0, 1) == [1]


def test_a_run_that_went_on_does_not_start_anew():
    """start=new counts from the first start of the run, not of this daemon."""
    state = new_world(start_new=True)
    state.apply(plan(1, 9), 0.0)
    state.apply(failure(1), 0.0)
    state.record_scan(look(1), (), 0.0, 0.0)
    assert view(state, 0.0).checkpoints.before_start == frozenset()


def test_a_member_without_any_heartbeat_is_lost_after_a_lease():
    """Nobody can be silent whom nobody has heard."""
    state = new_world()
    meet(state, 100.0)
    state.apply(plan(1, members=("n1.i1.1", "n2.i1.1")), 100.0)
    assert state.lost(109.0) == {}
    assert state.lost(110.0) == {"n2": "n2 has no heartbeat"}


@pytest.mark.parametrize(
    ("beat", "why"),
    [
        (heartbeat("n.2", 9), None),
        (heartbeat("n.2", 9, incarnation="i2"), "restarted"),
        (heartbeat("n.2", 9, state="left"), "left"),
    ],
)
def test_a_member_is_lost_with_the_life_that_the_plan_counts_on(beat, why):
    """Its worker's id says which; dots in a node's name do not confuse that."""
    state = new_world()
    state.apply(plan(1, members=("n1.i1.1", "n.2.i1.1")), 100.0)
    meet(state, 100.0, heartbeat("n.2", 1))
    meet(state, 101.0, beat)
    assert (why in state.lost(101.0)["n.2"]) if why else (state.lost(101.0) == {})


def test_an_idle_time_begins_with_the_first_look():
    """A clock's zero is nothing that happened."""
    state = new_world()
    state.record_scan(look(), (), 500.0, 0.0)
    assert view(state, 501.0).timers.last_activity_at == 500.0
    state.record_scan(look(), (), 600.0, 0.0)
    assert view(state, 601.0).timers.last_activity_at == 500.0
    state.record_scan(look(1), (), 700.0, 0.0)
    assert view(state, 701.0).timers.last_activity_at == 700.0


def test_ranks_are_stuck_as_long_as_each_waits_in_the_same_plan_and_phase():
    """One that works, another phase, another plan: each is a sign that they reach each other."""
    state = new_world()
    state.apply(plan(1, members=("n1.i1.1", "n2.i1.1")), 0.0)
    for now, phases, since in (
        (2.0, ("hello", "evaluate"), None),
        (4.0, ("hello", "hello"), 4.0),
        (6.0, ("hello", "hello"), 4.0),
        (8.0, ("reduce", "hello"), 8.0),
        (10.0, ("reduce", "conclude"), None),
        (11.0, ("sum", "sum"), None),  # of large states: it may take its time
        (12.0, ("reduce", "reduce"), 12.0),
    ):
        waiting(state, now, 1, *phases)
        assert view(state, now).timers.all_ranks_waiting_since == since
    state.apply(success(1), 13.0)
    state.apply(plan(2, 2, members=("n1.i1.1", "n2.i1.1")), 13.0)
    waiting(state, 14.0, 2, "reduce", "reduce")
    assert view(state, 14.0).timers.all_ranks_waiting_since == 14.0
    waiting(state, 16.0, 1, "reduce", "reduce")
    assert view(state, 16.0).timers.all_ranks_waiting_since is None, "heartbeats of before tell nothing of this plan"


def test_a_pin_is_wanted_for_the_task_of_a_node_that_cannot_be_heard():
    """Storage gives errors for its heartbeat: it may live, and evaluate what the other tasks need no more."""
    state = new_world()
    settled = Settlement(name="ckpt-1", digest=f"{1:064d}", step=1, verdict="failed", reason="because", task="t1")
    state.apply(plan(1, members=(), settles=(settled,)), 0.0)
    for now in (1.0, 2.0):
        meet(state, now, heartbeat("n2", int(now), task="t2"))
    for now in (4.0, 16.0, 30.0):
        unread = HeartbeatReadings(unread={"n2": "Input/output error"}, unanswered=frozenset({"n2"}))
        state.record_heartbeats(heartbeat("n1", int(now)), unread, now)
    assert holds(state, 30.0, 1) == [1]


def test_a_group_is_counted_when_it_is_new():
    """Count none that the journal already had when the daemon started."""
    found = Statistics()
    found.note_group(make_plan(1, workers=("n1.i.1",)), live=False)
    assert (found.groups_formed, found.group) == (0, ("n1.i.1",))
    for number, workers in enumerate((("n1.i.1",), ("n1.i.1", "n2.i.1"), ("n1.i.1", "n2.i.1"), ("n1.i.2",)), 2):
        found.note_group(make_plan(number, workers=workers), live=True)
    assert (found.groups_formed, found.group) == (2, ("n1.i.2",))


def test_a_plan_without_workers_has_no_group():
    """Forget the group that was there before."""
    found = Statistics(group=("n1.i.1",))
    found.note_group(None, live=False)
    assert found.group == ()


def test_names_of_a_record_end_gaps():
    """Tell the gaps which names the journal settles, and which it only plans."""
    noted = []

    class Gaps:
        def journaled(self, name, _, *, settled):
            noted.append((name, settled))

    found = Statistics(gaps=Gaps())
    plan = make_plan(1, A, settles=(settlement_of(B, "skipped"),))
    history = fold()
    found.note_names(plan, history.apply(plan), lambda _: True)
    found.note_names(ended := failure(1), history.apply(ended), lambda _: True)
    again = make_plan(2, A)
    history.apply(again)
    found.note_names(ended := success(2), history.apply(ended), lambda _: True)
    assert noted == [("ckpt-a", False), ("ckpt-b", True), ("ckpt-a", False), ("ckpt-a", True)]


KEY = ("ckpt-1", "d" * 64)


def ready(*standbys):
    """Return the heartbeat of one node with these workers."""
    return make_heartbeat(
        slots=tuple(
            Slot(worker=None, group=None, address=None, standby=standby, standby_address=standby and "h:1")
            for standby in standbys
        ),
    )


def plan_with(*settles):
    """Return a plan that evaluates nothing."""
    return make_plan(1, None, nonce="p", attempt=0, members=None, settles=settles, task="t")


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
    timers.note_plan(plan_with(), 12.0)
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
    timers.note_plan(plan_with(requeued), 40.0)
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
