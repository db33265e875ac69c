"""Which request storage gets next, as the schedule and the policy say."""

from types import SimpleNamespace

import pytest
from fakes import pass_time, save
from records import make_plan

from sidecar.daemon.request_builder import RecordBuilder
from sidecar.daemon.storage_thread import CreatePlan, JoinRun, Sync
from sidecar.protocol.records import Checkpoint
from sidecar.protocol.states import NodeState


def test_a_node_joins_before_it_asks_for_anything_else(node):
    """Nothing may be scanned before the journal was read: all checkpoints would be pinned."""
    node.checkpoint_dir.mkdir()
    assert not node.daemon.requests.may_scan()
    node.settle()
    assert [type(request) for request in node.carried[:2]] == [JoinRun, Sync]
    assert (node.carried[1].scan, node.daemon.requests.may_scan()) == (False, True)


def test_a_chief_neither_scans_nor_proposes(new_node):
    """A chief only says that it is there."""
    chief = new_node(role="chief")
    save(chief.checkpoint_dir, 5)
    pass_time(20, chief)
    assert not chief.daemon.requests.may_scan()
    assert chief.of(CreatePlan) == []
    assert not any(sync.scan or sync.snapshot for sync in chief.of(Sync))


def test_the_policy_ends_the_run_and_the_node_leaves(new_node):
    """The last heartbeat is asked for after that, and the state in it says so."""
    node = new_node(wait=False)
    node.checkpoint_dir.mkdir()
    pass_time(5, node)
    assert node.exited == 0
    assert node.of(Sync)[-1].heartbeat.state == NodeState.LEFT
    assert not node.daemon.requests.may_scan()


GAN = ["netD_epoch_3.pth", "netG_epoch_3.pth", "netD_epoch_4.pth", "netG_epoch_4.pth"]


@pytest.mark.parametrize(("kind", "lasting"), [("mismatch", "checkpoint"), ("mismatch", None), ("task_error", "task")])
def test_a_daemon_says_it_of_what_does_not_match_the_model(kind, lasting):
    """Not of workers that differ."""
    made = [Checkpoint(name=name, digest=name, step=3, format="torch_zip") for name in GAN]
    state = SimpleNamespace(
        complete={each.key: SimpleNamespace(checkpoint=each) for each in made},
        identity=SimpleNamespace(node="n1"),
    )
    builder = RecordBuilder(state=state, clock=SimpleNamespace(wall=lambda: 0.0), new_nonce=lambda: "n")
    plan = make_plan(1, made[0])
    fail = SimpleNamespace(kind=kind, message="it lacks 'main.0.weight'", node=None, rank=None, odd=(), lasting=lasting)
    message = builder.failure(plan, fail).message
    assert message.startswith("it lacks 'main.0.weight'")
    assert ("netG_epoch_*.pth" in message) == (lasting == "checkpoint")


def test_a_chief_ends_with_the_marker_once_no_other_node_evaluates(new_node):
    """A chief does not scan, so it waits for the nodes that do; without a marker it goes on."""
    chief, worker = new_node("chief-0", role="chief"), new_node("worker-1")
    save(chief.checkpoint_dir, 5)
    pass_time(20, chief, worker)
    (chief.checkpoint_dir / "DONE").touch()
    pass_time(1, chief)
    assert chief.exited is None
    pass_time(20, chief, worker)
    assert (chief.exited, worker.exited) == (0, 0)
    assert worker.state.history.verdicts.succeeded
    assert chief.of(CreatePlan) == []
    assert chief.of(Sync)[-1].heartbeat.state == NodeState.LEFT


def test_a_chief_ends_with_the_marker_after_workers_that_died(new_node):
    """A lease after their last heartbeat, nobody is left who could evaluate the rest."""
    chief, worker = new_node("chief-0", role="chief"), new_node("worker-1")
    save(chief.checkpoint_dir, 5)
    pass_time(10, chief, worker)
    (chief.checkpoint_dir / "DONE").touch()
    pass_time(60, chief)
    assert chief.exited == 0


@pytest.mark.parametrize(("rules", "ends"), [({}, False), ({"wait": False}, True), ({"stop_idle_seconds": 30.0}, True)])
def test_a_chief_ends_by_the_settings_that_end_a_run(new_node, rules, ends):
    """The time without any work begins when the chief has read the journal."""
    chief = new_node("chief-0", role="chief", **rules)
    chief.checkpoint_dir.mkdir()
    pass_time(20, chief)
    assert (chief.exited == 0) == (rules.get("wait") is False)
    pass_time(30, chief)
    assert chief.exited == (0 if ends else None)
