"""Several nodes of which one sees, reads or computes what the others do not: no verdict follows. As histories."""

from collections import Counter
from dataclasses import replace

import pytest
from fakes import failed, outcomes, pass_time, save

from sidecar.checkpoints.presence import Answer, Presence
from sidecar.checkpoints.scan import BrokenPin
from sidecar.coordination.heartbeats import heartbeat_path
from sidecar.coordination.snapshot import restore, take
from sidecar.protocol.codec import loads
from sidecar.protocol.heartbeat import Heartbeat
from sidecar.protocol.messages import Check, Checked, Evaluate, Failed, Join


def ends(node):
    """How checkpoints ended, and how many attempts failed, by kind."""
    return Counter(outcomes(node.history))


def told(node):
    """Return what the node's heartbeat says."""
    return loads(Heartbeat, node.storage.storage.read(heartbeat_path(node.node)))


def blind(node, *names, known=True):
    """From now on the node cannot read pins of these names; without `known` it does not see them either."""
    catalog = node.storage_thread.reconciler.checkpoints.catalog
    look = type(catalog).scan

    def look_without(*arguments, **more):
        seen = look(catalog, *arguments, **more)
        at = {key: each for key, each in seen.pinned().items() if each.checkpoint.name in names}
        if not known:
            return seen.with_changes(dict.fromkeys(at))
        return replace(seen, unknown={each.checkpoint.folder: "Input/output error" for each in at.values()})

    catalog.scan = look_without
    if not known:
        catalog.ask = lambda _: Answer(Presence.GONE)


def damage(node, name):
    """From now on the node finds the pin of that name too short."""
    catalog = node.storage_thread.reconciler.checkpoints.catalog
    look = type(catalog).scan

    def look_with_damage(*arguments, **more):
        seen = look(catalog, *arguments, **more)
        at = {key: each for key, each in seen.pinned().items() if each.checkpoint.name == name}
        return replace(
            seen.with_changes(dict.fromkeys(at)),
            broken=tuple(BrokenPin(each, "too short", True) for each in at.values()),
        )

    catalog.scan = look_with_damage


def heal(node):
    """It reads as the others do."""
    catalog = node.storage_thread.reconciler.checkpoints.catalog
    del catalog.scan
    catalog.__dict__.pop("ask", None)


def two_with_pins(new_node, *steps, **settings):
    """Two nodes that evaluate ckpt-5 and hold these, all that is left of what training deleted."""
    nodes = [new_node(name, **settings) for name in ("worker-1", "worker-2")]
    save(nodes[0].checkpoint_dir, 5)
    for node in nodes:
        node.silent = {"Evaluate"}
    pass_time(30, *nodes)
    assert len(nodes[0].history.open.members) == 2
    for step in steps:
        save(nodes[0].checkpoint_dir, step)
        pass_time(4, *nodes)
    return nodes


def go_on(*nodes):
    for node in nodes:
        node.silent = set()


def members(node):
    """The nodes of each plan that succeeded, by the name of its checkpoint."""
    plans = [entry.plan for entry in node.history.entries if getattr(entry, "outcome", None)]
    return {plan.checkpoint.name: "".join(each.node[-1] for each in plan.members) for plan in plans}


# -- a node that cannot read, or does not see -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("which", "known"),
    [
        (0, True),
        (1, False),
        pytest.param(0, False, marks=pytest.mark.nightly),
        pytest.param(1, True, marks=pytest.mark.nightly),
    ],
)
def test_what_one_node_cannot_read_is_evaluated_by_the_other(new_node, which, known):
    """Only its pin is left. For minutes one node gets errors. Files that a listing misses are asked for by name."""
    nodes = two_with_pins(new_node, 6, 7)
    blind(nodes[which], "ckpt-6", known=known)
    pass_time(100, *nodes)
    if known:
        assert [name.split("@")[0] for name in told(nodes[which]).checkpoints.unreadable] == ["ckpt-6"]
        assert "ckpt-6@" in nodes[which].status.unreadable.sentences[0]
        assert nodes[which].status.unreadable.count == 1
    go_on(*nodes)
    pass_time(60, *nodes)
    assert ends(nodes[0]) == {("succeeded", f"ckpt-{step}"): 1 for step in (5, 6, 7)}
    assert members(nodes[0]) == {"ckpt-5": "12", "ckpt-6": str(2 - which), "ckpt-7": "12"}
    assert told(nodes[which]).checkpoints.unreadable == ()
    assert list((nodes[0].run_dir / "pins").iterdir()) == []


@pytest.mark.parametrize("which", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_checkpoint_that_only_one_node_sees_is_evaluated_though_new_ones_keep_coming(new_node, which):
    """The blind node would otherwise propose the newest again and again, as it is the first by name."""
    nodes = two_with_pins(new_node, 6)
    blind(nodes[which], "ckpt-6")
    pass_time(10, *nodes)
    go_on(*nodes)
    for step in range(7, 17):
        save(nodes[0].checkpoint_dir, step)
        pass_time(4, *nodes)
    assert ("succeeded", "ckpt-6") in ends(nodes[0])


def test_two_nodes_that_each_cannot_read_another_checkpoint(new_node):
    """They take turns, or the first by name would go on for ever with what comes."""
    nodes = two_with_pins(new_node, 6, 7)
    for node, name in zip(nodes, ("ckpt-6", "ckpt-7"), strict=True):
        blind(node, name)
    pass_time(10, *nodes)
    go_on(*nodes)
    for step in range(8, 20):
        save(nodes[0].checkpoint_dir, step)
        pass_time(4, *nodes)
    pass_time(60, *nodes)
    assert ends(nodes[0]) == {("succeeded", f"ckpt-{step}"): 1 for step in range(5, 20)}
    assert {name: members(nodes[0])[name] for name in ("ckpt-6", "ckpt-7")} == {"ckpt-6": "2", "ckpt-7": "1"}


@pytest.mark.seconds
def test_what_nobody_can_read_for_a_while_waits(new_node):
    """And everything else goes on; no verdict follows from it."""
    nodes = two_with_pins(new_node, 6, 7)
    for node in nodes:
        blind(node, "ckpt-6")
    pass_time(4, *nodes)
    go_on(*nodes)
    pass_time(600, *nodes)
    assert ends(nodes[0]) == {("succeeded", "ckpt-5"): 1, ("succeeded", "ckpt-7"): 1}
    for node in nodes:
        heal(node)
    pass_time(10, *nodes)
    assert ("succeeded", "ckpt-6") in ends(nodes[0])


@pytest.mark.parametrize("ending", [{"wait": False}, {"stop_idle_seconds": 30.0}])
def test_a_run_ends_after_the_other_node_evaluated_what_this_one_gave_up(new_node, ending):
    """The blind node does not leave it alone, and does not wait for ever."""
    nodes = two_with_pins(new_node, 6, **ending)
    blind(nodes[0], "ckpt-6", known=False)
    pass_time(10, *nodes)
    go_on(*nodes)
    pass_time(200, *nodes)
    assert ends(nodes[0]) == {("succeeded", "ckpt-5"): 1, ("succeeded", "ckpt-6"): 1}
    assert [node.exited for node in nodes] == [0, 0]


def test_a_run_ends_though_something_cannot_be_read(new_node):
    """After as long as anything incomplete is waited for; and says so."""
    node = new_node(wait=False)
    node.silent = {"Evaluate"}
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    save(node.checkpoint_dir, 6)
    pass_time(10, node)
    blind(node, "ckpt-6")
    pass_time(4, node)
    node.silent = set()
    pass_time(40, node)
    assert node.exited is None
    pass_time(40, node)
    assert (node.exited, ends(node)) == (0, {("succeeded", "ckpt-5"): 1})
    (told_,) = node.log.of("run_ended")
    assert "1 checkpoint(s) could not be read" in told_["reason"]


def test_a_plan_of_what_this_node_cannot_read_fails_by_its_storage(new_node):
    """With as many nodes as min_workers nobody can be left out; it is not said to have vanished."""
    nodes = two_with_pins(new_node, 6, min_workers=2)
    blind(nodes[1], "ckpt-6")
    pass_time(4, *nodes)
    go_on(nodes[1])  # the other rank waits for it
    pass_time(80, *nodes)
    assert ends(nodes[0]) == {("succeeded", "ckpt-5"): 1, ("failed", "storage"): 1}
    assert "Input/output error" in nodes[0].history.entries[-1].outcome.message
    heal(nodes[1])
    go_on(nodes[0])
    pass_time(60, *nodes)
    assert ("succeeded", "ckpt-6") in ends(nodes[0])


def test_a_plan_of_what_this_node_found_damaged_fails_as_corrupt(new_node):
    """The pin stands, and this node knows what is wrong with it: it is not said to have vanished."""
    nodes = two_with_pins(new_node, 6, min_workers=2, max_losses=2)
    damage(nodes[1], "ckpt-6")
    pass_time(4, *nodes)
    go_on(nodes[1])  # the other rank waits for it
    pass_time(100, *nodes)
    assert ends(nodes[0]) == {("succeeded", "ckpt-5"): 1, ("failed", "corrupt"): 2, ("failed", "ckpt-6"): 1}
    reason = nodes[0].history.entries[-1].settlement.reason
    assert "corrupt: its pin cannot be read: too short" in reason


def test_a_node_tells_what_it_gave_up_as_damaged(new_node):
    """Next to one attempt of another node that is enough: the others need not try it again and again."""
    nodes = two_with_pins(new_node, 6)
    damage(nodes[0], "ckpt-6")
    pass_time(4, *nodes)
    assert [name.split("@")[0] for name in told(nodes[0]).checkpoints.damaged] == ["ckpt-6"]
    reply = nodes[1].reply

    def cannot_read(process, command):
        if isinstance(command, Evaluate) and command.checkpoint.step == 6:
            return failed("corrupt", "bad checksum", command.plan, 0)
        return reply(process, command)

    nodes[1].reply = cannot_read
    go_on(*nodes)
    pass_time(100, *nodes)
    assert ends(nodes[0]) == {("succeeded", "ckpt-5"): 1, ("failed", "corrupt"): 1, ("corrupt", "ckpt-6"): 1}
    assert told(nodes[0]).checkpoints.damaged == ()


def test_what_vanished_and_is_there_again_is_evaluated(new_node):
    """A folder that was moved away for minutes, say; training deleted everything else."""
    node = new_node(pin_max_bytes=1)
    node.silent = {"Evaluate"}
    save(node.checkpoint_dir, 5)
    pass_time(10, node)
    save(node.checkpoint_dir, 6)
    pass_time(10, node)
    files = {path: path.read_bytes() for path in node.checkpoint_dir.glob("ckpt-6.*")}
    for path in files:
        path.unlink()
    pass_time(70, node)
    node.silent = set()
    pass_time(10, node)
    assert ends(node) == {("succeeded", "ckpt-5"): 1, ("vanished", "ckpt-6"): 1}
    for path, data in files.items():
        path.write_bytes(data)
    pass_time(20, node)
    assert outcomes(node.history)[2:] == [("requeued", "ckpt-6"), ("succeeded", "ckpt-6")]
    assert "there again" in node.history.entries[2].settlement.reason


# -- settings that differ ---------------------------------------------------------------------------------------------


def test_only_nodes_that_could_propose_let_go_of_pins(new_node):
    """One with an older task, and a queue that passes most over, is first by name but in the minority."""
    nodes = [new_node("worker-1", queue="latest"), new_node("worker-2"), new_node("worker-3")]
    nodes[0].task = "t0"
    save(nodes[0].checkpoint_dir, 5)
    for node in nodes:
        node.silent = {"Evaluate"}
    pass_time(30, *nodes)
    for step in (6, 7, 8, 9):
        save(nodes[0].checkpoint_dir, step)
        pass_time(4, *nodes)
    go_on(*nodes)
    pass_time(100, *nodes)
    assert ends(nodes[1]) == {("succeeded", f"ckpt-{step}"): 1 for step in range(5, 10)}
    assert nodes[1].status.nodes.left_out_reasons == {"task": 1}
    assert list(nodes[1].status.nodes.left_out) == ["worker-1"]


# -- a node that computes otherwise -----------------------------------------------------------------------------------


def differs(nodes, odd, kind="mismatch", *, profiles=False):
    """The ranks of one of these nodes say something else than those of the others."""

    def reply(node):
        usual = type(node).reply

        def of(process, command):
            if isinstance(command, Check) and profiles:
                return Checked(node.task, ("test",), {"isa": "avx2" if node is odd else "avx512"})
            if isinstance(command, Evaluate):
                ranks = process.told(Join)[0].members
                other = tuple(each.rank for each in ranks if each.node == odd.node)
                same = tuple(each.rank for each in ranks if each.node != odd.node)
                if other and same:
                    return Failed(kind=kind, message="because", plan=command.plan, sides=tuple(sorted((same, other))))
            return usual(node, process, command)

        return of

    for node in nodes:
        node.reply = reply(node)


@pytest.mark.seconds
@pytest.mark.parametrize("which", [0, *(pytest.param(which, marks=pytest.mark.nightly) for which in (1, 2, 3))])
def test_a_node_with_another_profile_costs_nothing(new_node, which):
    """It is known before the first plan, and stands in no group; it is told, and the others evaluate everything."""
    nodes = [new_node(f"worker-{number}") for number in range(4)]
    differs(nodes, nodes[which], profiles=True)
    for step in (5, 6, 7, 8):
        save(nodes[0].checkpoint_dir, step, keep=range(5, step))
        for node in nodes:
            node.silent = {"Evaluate"}
        pass_time(20, *nodes)  # ranks compare what they do once all have joined
        go_on(*nodes)
        pass_time(20, *nodes)
    assert ends(nodes[0]) == {("succeeded", f"ckpt-{step}"): 1 for step in (5, 6, 7, 8)}
    assert nodes[0].history.newest.outcome.result.workers == 3
    assert nodes[0].status.nodes.left_out_reasons == {"profile": 1}
    assert list(nodes[0].status.nodes.left_out) == [f"worker-{which}"]


@pytest.mark.seconds
def test_a_node_with_other_data_is_left_out_ever_longer(new_node):
    """Nothing but its losses tells of it: twelve checkpoints cost five attempts."""
    nodes = [new_node(f"worker-{number}") for number in range(3)]
    differs(nodes, nodes[0], "stream_differs")
    for step in range(5, 17):
        save(nodes[0].checkpoint_dir, step, keep=range(5, step))
        pass_time(30, *nodes)
    assert ends(nodes[0])[("failed", "stream_differs")] == 5
    assert sum(count for (status, _), count in ends(nodes[0]).items() if status == "succeeded") == 12


def test_one_node_whose_task_fails_does_not_fail_checkpoints(new_node):
    """Its test data are not there, say: others have them."""
    nodes = [new_node(f"worker-{number}") for number in range(3)]
    usual = nodes[1].reply
    nodes[1].reply = lambda process, command: (
        failed("task_error", "FileNotFoundError", command.plan)
        if isinstance(command, Evaluate)
        else usual(process, command)
    )
    for step in range(5, 11):
        save(nodes[0].checkpoint_dir, step, keep=range(5, step))
        nodes[0].silent = nodes[2].silent = {"Evaluate"}
        pass_time(10, *nodes)
        nodes[0].silent = nodes[2].silent = set()
        pass_time(20, *nodes)
    assert ends(nodes[0])[("failed", "task_error")] == 3
    assert sum(count for (status, _), count in ends(nodes[0]).items() if status == "succeeded") == 6


# -- nodes that do not reach each other -------------------------------------------------------------------------------


def unreachable(node):
    """No group of several forms on this node."""
    usual = node.reply
    node.reply = lambda process, command: (
        Failed(kind="join", message="the worker was forming the group for 120 s", phase="join")
        if isinstance(command, Join) and len(command.members) > 1
        else usual(process, command)
    )


@pytest.mark.seconds
def test_two_nodes_that_do_not_reach_each_other_soon_stop_trying(new_node):
    """Six checkpoints cost three attempts, forty seven; each node that reads the journal says the same."""
    nodes = [new_node("worker-1"), new_node("worker-2")]
    for node in nodes:
        unreachable(node)
    lost = {}
    for step in range(5, 45):
        save(nodes[0].checkpoint_dir, step, keep=range(5, step))
        pass_time(20, *nodes)
        if step in (10, 44):
            lost[step] = ends(nodes[0])[("failed", "join")]
    assert sum(count for (status, _), count in ends(nodes[0]).items() if status == "succeeded") == 40
    assert lost == {10: 3, 44: 7}
    assert nodes[0].state.history.exclusions.losses == nodes[1].state.history.exclusions.losses
    assert nodes[0].status.nodes.left_out_reasons == {"losses": 1}
    assert list(nodes[0].status.nodes.left_out) == ["worker-2"]
    snapshot = take(nodes[0].state.history, nodes[0].state.run)
    assert restore(snapshot).exclusions.losses == nodes[0].state.history.exclusions.losses


@pytest.mark.seconds
def test_nodes_that_reach_each_other_again_form_one_group(new_node):
    """A node is left out for a number of plans, not for good."""
    nodes = [new_node("worker-1"), new_node("worker-2")]
    for node in nodes:
        unreachable(node)
    for step in range(5, 25):
        if step == 9:
            for node in nodes:
                del node.reply
        save(nodes[0].checkpoint_dir, step, keep=range(5, step))
        pass_time(20, *nodes)
    assert nodes[0].history.newest.outcome.result.workers == 2
    assert nodes[0].state.history.exclusions.losses == {}
    assert nodes[0].status.nodes.left_out == {}
