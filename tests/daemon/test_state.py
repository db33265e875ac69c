"""Derive from journal, scans and heartbeats what a daemon decides by."""

import pytest
from daemon.worlds import given_up, heartbeat, holds, look, meet, new_world, plan, view, waiting
from records import failure, success

from sidecar.coordination.liveness import HeartbeatReadings
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
