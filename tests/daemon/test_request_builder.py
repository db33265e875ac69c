"""Which request storage gets next, as the schedule and the policy say."""

from fakes import pass_time, save

from sidecar.daemon.storage_thread import CreatePlan, JoinRun, Sync
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
