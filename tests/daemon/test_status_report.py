"""Report what a node knows: the newest checkpoint and the progress of each rank."""

from dataclasses import replace

from daemon.worlds import found, look, new_world, plan, scan_of, waiting

from sidecar.daemon.status_report import report_status
from sidecar.publishing.status import WorkerStatus


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


def test_the_progress_of_every_rank_is_reported():
    """Report this node's workers as they are now, others as their heartbeats say, and silent ones not at all."""
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
