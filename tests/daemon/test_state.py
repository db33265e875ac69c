from dataclasses import replace
from pathlib import Path

import pytest
from heartbeats import make_heartbeat

from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.coordination.liveness import HeartbeatReadings
from sidecar.daemon.checkpoint_tracker import CheckpointTracker
from sidecar.daemon.known_nodes import KnownNodes
from sidecar.daemon.shutdown import Shutdown
from sidecar.daemon.state import DaemonState
from sidecar.daemon.status_report import report_status
from sidecar.policy.node_identity import Identity
from sidecar.policy.roles import RoleDecision
from sidecar.policy.selection import Selection
from sidecar.protocol.heartbeat import Slot, WorkerProgress
from sidecar.protocol.records import Checkpoint, Member, Outcome, Plan, Settlement
from sidecar.publishing.status import WorkerStatus


def new_world(*, start_new=False, role="worker"):
    state = DaemonState(
        identity=Identity(run="run", node="n1", incarnation="i1", version="1", role=RoleDecision(role, "setting")),
        shutdown=Shutdown(drain_seconds=25.0, beat_seconds=2.0, storage_seconds=10.0),
        started=False,
        nodes=KnownNodes(node="n1", lease_seconds=10.0),
        tracker=CheckpointTracker(start_new=start_new),
    )
    state.run, state.task, state.caught_up = "r", "t1", True
    return state


def found(step, *, pinned=True):
    name = f"ckpt-{step}"
    checkpoint = Checkpoint(
        name=name, digest=f"{step:064d}", step=step, format="tf_object", pin=f"pins/{name}" if pinned else None
    )
    return DiscoveredCheckpoint(checkpoint=checkpoint, folder=Path("/pins"), written_at=100.0, seen_at=0.0)


def look(*steps, waiting=(), missing=False):
    return scan_of(*map(found, steps), waiting=tuple((name, "not yet") for name in waiting), missing=missing)


def scan_of(*checkpoints, **rest):
    return ScanResult(by_key={each.checkpoint.key: each for each in checkpoints}, **rest)


def given_up(step, verdict):
    checkpoint = found(step).checkpoint
    return Settlement(name=checkpoint.name, digest=checkpoint.digest, step=step, verdict=verdict, reason="because")


def heartbeat(node, beat=1, **changes):
    slots = (Slot(worker=None, group=None, address=None, standby=f"{node}.i1.1", standby_address="h:1"),)
    return make_heartbeat(**{"node": node, "beat": beat, "incarnation": "i1", "task": "t1", "slots": slots} | changes)


def meet(state, now, *others):
    state.record_heartbeats(heartbeat("n1", int(now)), HeartbeatReadings(heartbeats=tuple(others)), now)


def plan(number, step=1, *, members=("n1.i1.1",), settles=(), task="t1"):
    listed = tuple(Member(rank, worker.rsplit(".", 2)[0], worker, "h:1") for rank, worker in enumerate(members))
    checkpoint = found(step).checkpoint if members else None
    return Plan(
        plan=number,
        run="r",
        nonce="p",
        checkpoint=checkpoint,
        attempt=1,
        members=listed or None,
        settles=settles,
        task=task,
        proposer="n1",
        proposed_at="now",
    )


def failure(number):
    return Outcome(plan=number, run="r", nonce="o", status="failed", closed_by="n1", completed_at="now", kind="stalled")


def holds(state, now, *steps):
    """The steps of those that are to be pinned, of these that a look found."""
    decision = state.pin_policy(now).decide({each.checkpoint.key: each for each in map(found, steps)})
    return [step for step in steps if found(step).checkpoint.key in decision.pin]


def success(number):
    return replace(failure(number), status="succeeded", kind=None)


def view(state, now):
    return state.view(now, draining=False)


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


def test_what_vanished_is_given_up_when_no_look_finds_it_for_a_minute():
    """Another node may have pinned it in time."""
    state = new_world()
    state.record_scan(look(), (given_up(1, "vanished"), given_up(2, "vanished")), 0.0, 0.0)
    assert view(state, 0.0).checkpoints.given_up == []
    assert view(state, 0.0).checkpoints.incomplete_since == 0.0
    state.record_scan(look(2), (), 2.0, 0.0)
    state.record_scan(look(2), (), 59.9, 0.0)
    assert view(state, 59.9).checkpoints.given_up == []
    state.record_scan(look(2), (), 60.0, 0.0)
    assert [each.name for each in view(state, 60.0).checkpoints.given_up] == ["ckpt-1"]
    assert view(state, 60.0).checkpoints.incomplete_since is not None, "the end waits for what this node alone gave up"
    state.apply(plan(1, members=(), settles=(given_up(1, "vanished"),)), 61.0)
    state.record_scan(look(2), (), 62.0, 0.0)
    assert view(state, 62.0).checkpoints.incomplete_since is None


AWAY, UNREADABLE = look(missing=True), replace(look(), unknown={found(1).checkpoint.folder: "Input/output error"})


@pytest.mark.parametrize(
    ("after", "vanished"),
    [
        ({2: look(), 62: look()}, True),
        ({2: look(), 61: look()}, False),
        ({2: look(), 62: look(), 64: look(1)}, False),
        ({2: look(), 40: look(1), 42: look(), 62: look()}, False),
        ({2: AWAY, 62: AWAY, 122: AWAY}, False),
        ({2: look(), 4: AWAY, 62: AWAY, 64: look()}, False),
        ({2: look(), 4: UNREADABLE, 64: UNREADABLE, 66: look()}, False),
        ({2: look(), 62: look(), 64: UNREADABLE}, False),
    ],
    ids=[
        *("gone", "gone for less than a minute", "it came back", "it flickered", "the directory is gone"),
        *("the directory was gone meanwhile", "its pin could not be read", "its pin is there after all"),
    ],
)
def test_what_was_there_and_is_gone_has_vanished(after, vanished):
    """Unless it comes back, or the whole directory went: that may come back with all that was in it."""
    state = new_world()
    state.record_scan(look(1), (), 0.0, 0.0)
    for now, seen in after.items():
        state.record_scan(seen, (), float(now), 0.0)
    assert [each.verdict for each in view(state, 200.0).checkpoints.given_up] == ["vanished"] * vanished


def test_what_is_settled_may_go():
    """A pin that was let go has not vanished."""
    state = new_world()
    state.record_scan(look(1), (), 0.0, 0.0)
    state.apply(plan(1, members=(), settles=(given_up(1, "skipped"),)), 1.0)
    for _ in range(3):
        state.record_scan(look(), (), 2.0, 0.0)
    assert view(state, 2.0).checkpoints.given_up == []


def test_the_same_incomplete_things_are_timed_together():
    """A new one begins anew."""
    state = new_world()
    state.record_scan(look(waiting=("ckpt-1",)), (), 10.0, 0.0)
    state.record_scan(look(waiting=("ckpt-1",)), (), 20.0, 0.0)
    assert view(state, 20.0).checkpoints.incomplete_since == 10.0
    state.record_scan(look(waiting=("ckpt-1", "ckpt-2")), (), 30.0, 0.0)
    assert view(state, 30.0).checkpoints.incomplete_since == 30.0


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


def test_what_was_there_before_the_start_is_not_pinned_with_start_new():
    """Not even for the first look; asked for again it is."""
    state = new_world(start_new=True)
    assert holds(state, 0.0, 1) == []
    state.record_scan(look(1), (), 0.0, 0.0)
    assert holds(state, 0.0, 1, 2) == [2]
    state.apply(plan(1, members=(), settles=(given_up(1, "requeued"),)), 1.0)
    assert holds(state, 0.0, 1, 2) == [1, 2]
    assert view(state, 1.0).checkpoints.before_start == frozenset()


def test_what_is_still_corrupt_when_a_person_wants_it_again_is_given_up_again():
    """Its files are as they were, so no look tells of it a second time; without this nobody would."""
    state, corrupt = new_world(), given_up(1, "corrupt")
    state.record_scan(look(), (corrupt,), 0.0, 0.0)
    assert view(state, 0.0).checkpoints.given_up == [corrupt]
    state.apply(plan(1, members=(), settles=(corrupt,)), 1.0)
    state.record_scan(look(), (), 1.0, 0.0)
    assert view(state, 1.0).checkpoints.given_up == []
    state.apply(plan(2, members=(), settles=(given_up(1, "requeued"),)), 2.0)
    assert view(state, 2.0).checkpoints.given_up == [corrupt]
    state.record_scan(look(1), (), 3.0, 0.0)
    assert view(state, 3.0).checkpoints.given_up == []


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


def test_detection_is_timed_for_what_was_seen_to_appear():
    """What lay there at the first look was not watched."""
    state = new_world()
    state.record_scan(look(1), (), 0.0, 105.0)
    state.record_scan(look(1, 2), (), 1.0, 103.5)
    assert state.tracker.detected_after(found(1).checkpoint.key) is None
    assert state.tracker.detected_after(found(2).checkpoint.key) == 3.5


def test_only_what_is_new_and_unsettled_is_told():
    """A restart does not tell of everything again."""
    state = new_world()
    state.apply(plan(1, members=(), settles=(given_up(1, "skipped"),)), 0.0)
    assert [each.checkpoint.name for each in state.record_scan(look(1, 2), (), 0.0, 0.0)] == ["ckpt-2"]
    assert state.record_scan(look(1, 2), (), 1.0, 0.0) == []


def test_the_newest_checkpoint_is_the_one_discovered_last():
    """Deleting it, or finding fewer in a later look, makes no older one the newest; a rollback to a lower step does."""
    state = new_world()
    state.record_scan(look(100, 200), (), 0.0, 1.0)
    assert report_status(state, 0.0, None, ()).checkpoints.newest.step == 200
    state.record_scan(look(100), (), 1.0, 2.0)
    assert report_status(state, 1.0, None, ()).checkpoints.newest.step == 200
    state.record_scan(look(100, 50), (), 2.0, 3.0)
    assert report_status(state, 2.0, None, ()).checkpoints.newest.step == 50


def test_a_pin_of_an_older_checkpoint_is_not_the_newest():
    """Another node held it, which took time; training deleted it before this node looked."""
    state = new_world()
    state.record_scan(scan_of(replace(found(300, pinned=False), written_at=300.0)), (), 0.0, 1.0)
    state.record_scan(scan_of(replace(found(200), written_at=200.0)), (), 1.0, 2.0)
    assert report_status(state, 1.0, None, ()).checkpoints.newest.step == 300
    state.record_scan(scan_of(replace(found(250), written_at=400.0)), (), 2.0, 3.0)
    assert report_status(state, 2.0, None, ()).checkpoints.newest.step == 250


def waiting(state, now, number, *phases):
    """Both nodes say what their rank does in a plan."""
    own, other = (
        heartbeat(node, int(now), plan=number, outcome=number - 1, doing=(WorkerProgress(f"{node}.i1.1", phase),))
        for node, phase in zip(("n1", "n2"), phases, strict=True)
    )
    state.record_heartbeats(own, HeartbeatReadings(heartbeats=(other,)), now)


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


def test_the_newer_of_two_contents_under_one_name_is_not_superseded_by_the_older():
    """One look finds a pin of the older content and the newer one in the directory, which is then deleted."""
    state = new_world()
    state.tracker.choices.selection = Selection(queue="latest")
    older, newer = found(5), found(5, pinned=False)
    newer = replace(newer, checkpoint=replace(newer.checkpoint, digest="9" * 64), written_at=200.0)
    for now, seen in (
        (0.0, [older, newer]),
        (10.0, [older]),
        (11.0 + state.tracker.lost.vanished_after_seconds, [older]),
    ):
        state.record_scan(scan_of(*seen), (), now, now)
    (lost,) = state.tracker.given_up.values()
    assert (lost.digest[0], lost.verdict) == ("9", "vanished")


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


def test_the_progress_of_every_rank_is_reported():
    """Of this node's own workers as it is now, of others as their heartbeats say, and of silent ones nothing."""
    state = new_world()
    state.apply(plan(1, members=("n1.i1.1", "n2.i1.1", "n3.i1.1")), 0.0)
    waiting(state, 2.0, 1, "restore", "evaluate")
    status = report_status(
        state, 2.0, None, (WorkerStatus(worker="n1.i1.1", pid=7, state="evaluate", batches=3, total_batches=8),)
    )
    assert [(each.rank, each.node, each.phase, each.batches, each.total) for each in status.evaluation.progress] == [
        (0, "n1", "evaluate", 3, 8),
        (1, "n2", "evaluate", 0, None),
        (2, "n3", None, None, None),
    ]
    assert ("n1", "worker", "ready") in [(each.node, each.role, each.state) for each in status.nodes.alive]


def test_progress_in_an_earlier_plan_is_not_that_of_the_open_one():
    """A heartbeat that is older than the plan says nothing about it."""
    state = new_world()
    state.apply(plan(1, members=("n1.i1.1", "n2.i1.1")), 0.0)
    waiting(state, 2.0, 0, "evaluate", "evaluate")
    assert [each.phase for each in report_status(state, 2.0, None, ()).evaluation.progress] == [None, None]
    assert report_status(new_world(), 2.0, None, ()).evaluation.progress == ()
