"""Report which nodes would form a group, and which differ."""

from dataclasses import replace

import pytest
from heartbeats import make_heartbeat

from sidecar.commands.check.peers import exports, group, visibility, watch
from sidecar.protocol.export_rule import ExportRule
from sidecar.protocol.heartbeat import Slot

BEAT = 2.0
TWO_SLOTS = (
    Slot(worker="a", group="g", address="h:1", standby=None, standby_address=None),
    Slot(worker="b", group="g", address="h:1", standby=None, standby_address=None),
)
HERE = make_heartbeat(node="node-9", version="1.0", task="t1", slots=TWO_SLOTS[:1])


@pytest.fixture
def watched(storage, clock, writers):
    """Return what is seen of nodes that beat every 2 s from a moment of their own, `delays` seconds later each time."""

    def look(**nodes):
        begin = clock.seconds
        due = {
            name.replace("_", "-"): [  # when each beat is seen
                (begin + given.get("start", 0.5) + BEAT * index + delay, index + 2)
                for index, delay in enumerate(given.get("delays", (0,) * 10))
            ]
            for name, given in nodes.items()
        }
        for name, given in nodes.items():
            writers.beat(name.replace("_", "-"), 1, **given.get("beat", {}))

        def pause(seconds):
            clock.seconds += seconds
            for node, beats in due.items():
                while beats and beats[0][0] <= clock.seconds:
                    writers.beat(node, beats.pop(0)[1], **nodes[node.replace("-", "_")].get("beat", {}))

        return watch(storage, clock, BEAT, pause)

    return look


def told(findings):
    return [(each.ok, each.text) for each in findings]


def seen(observed_nodes, lease=10.0):
    return told(visibility(observed_nodes, HERE.node, beat_seconds=BEAT, lease_seconds=lease))


def formed(observed_nodes, here=HERE, min_workers=1):
    return told(group(observed_nodes, here, lease_seconds=10.0, min_workers=min_workers))


def test_nobody_else_is_there(storage, clock, watched):
    """Where no daemon was, and where none is left, it does not wait."""
    assert seen(watch(storage, clock, BEAT, pytest.fail)) == [(True, "no other node is alive here")]
    assert seen(watched(node_0={"beat": {"state": "left"}})) == [(True, "no other node is alive here")]
    assert clock.seconds == 1000.0


def test_beats_in_time(watched, clock):
    """Seen as often as they are written; it takes four beats to say so."""
    ((ok, text),) = seen(watched(node_0={}))
    assert ok
    assert text == "heartbeats of node-0 are seen every 2.0 s, at most 0.0 s late; the lease of 10 s is enough"
    assert 1008 < clock.seconds < 1009


def test_a_late_beat_is_measured_without_comparing_clocks(watched):
    """The third beat is seen 0.9 s late: the gap before it is longer by that."""
    ((ok, text),) = seen(watched(node_0={}, node_1={"delays": (0, 0, 0.9, 0)}))
    assert ok
    assert "heartbeats of node-0, node-1 are seen every 2.0 s, at most 0.9 s late (node-1)" in text


def test_a_lease_under_twice_the_delay_is_refused(watched):
    """Live nodes would be given up; the remedy names a number."""
    observed_nodes = watched(node_0={"delays": (0, 1.9, 1.9, 1.9)})
    ((ok, text),) = seen(observed_nodes, lease=3.0)
    assert not ok
    assert "heartbeats of node-0 are seen up to 1.9 s late, and a lease of 3 s is less than twice that" in text
    assert "Set lease_seconds to 6 or more" in text
    assert seen(observed_nodes, lease=4.0)[0][0]


def test_who_does_not_beat_is_told_early(watched, clock):
    """Nobody changes in two beats: nobody is there."""
    found = seen(watched(node_0={"start": 1000.0}))
    assert found[0][0]
    assert found[0][1].startswith("no heartbeat of node-0 was seen in 4.5 s: down, or not visible here")
    assert found[1] == (True, "no other node is alive here")
    assert clock.seconds < 1005


def test_a_daemon_under_this_name_is_told(watched):
    """Starting a second one would end it."""
    found = seen(watched(node_9={}))
    assert found[0][1].startswith("a daemon named node-9 is alive: that of this node")
    assert found[1] == (True, "no other node is alive here")


def test_the_group_that_would_form(watched):
    """Workers of the others and of this node, if code and task are equal."""
    observed_nodes = watched(node_0={}, node_1={"beat": {"slots": TWO_SLOTS}}, chief_0={"beat": {"role": "chief"}})
    assert formed(observed_nodes) == [
        (True, "node-0, node-1 have the same code and task; with this node a group of 4 worker processes")
    ]


def test_alone_with_too_few(storage, clock):
    """The check warns that this node alone has fewer workers than min_workers, before an evaluation waits for them."""
    here = replace(HERE, slots=TWO_SLOTS)
    ((ok, text),) = formed(watch(storage, clock, BEAT, pytest.fail), here, min_workers=3)
    assert ok
    assert text.startswith(
        "this node alone would form a group of 2 worker processes; that is less than min_workers = 3"
    )


def test_who_differs_is_told(watched):
    """They would not stand in one group."""
    nodes = {
        "node_0": {"beat": {"task": "t2" * 30}},
        "node_1": {"beat": {"version": "0.9"}},
        "node_2": {"beat": {"task": None}},
    }
    found = formed(watched(**nodes))
    assert found[0] == (
        True,
        "node-0 runs other code of the task (t2t2t2t2, here t1): it would not be in the same group",
    )
    assert found[1] == (True, "node-1 runs version 0.9, this node 1.0: it would not be in the same group")
    assert found[2] == (True, "node-2 has not checked its task yet: it would not be in the same group")
    assert "this node alone would form a group of 1 worker process" in found[3][1]


def test_who_computes_otherwise_than_most_is_told(watched):
    """Nodes whose numeric profile differs from the majority's are named; the profile of this node is not compared."""
    usual, other = {"beat": {"profile": "p1"}}, {"beat": {"profile": "p2"}}
    first, last = formed(watched(node_0=usual, node_1=other, node_2=usual))
    assert first[1].startswith(
        "node-1 computes with other versions, devices or settings than most (numeric profile p2)"
    )
    assert last[1].startswith("node-0, node-2 have the same code")


def test_a_majority_with_other_code_leaves_this_node_out(watched):
    """That is a mistake, and the check fails."""
    other = {"beat": {"task": "t2"}}
    *_, (ok, text) = formed(watched(node_0=other, node_1=other))
    assert not ok
    assert "this node would not take part: 2 nodes agree on other code or another task, 1 on those of this node" in text


def test_nodes_with_other_code_that_compute_differently_do_not_outnumber_this_node(watched):
    """They would not stand in one group either: the rule is the policy's."""
    first, second = ({"beat": {"task": "t2", "profile": profile}} for profile in ("p1", "p2"))
    *_, (ok, text) = formed(watched(node_0=first, node_1=second))
    assert ok
    assert "this node alone would form a group of 1 worker process" in text


def test_beats_that_are_seen_together_were_late(watched):
    """As where a cache is renewed every other beat: the first of two was seen a beat late."""
    observed_nodes = watched(node_0={"delays": (0, 2.0, 0, 2.0, 0)})
    ((_, text),) = seen(observed_nodes)
    assert "seen every 4.0 s, at most 2.0 s late" in text


RULE = ExportRule(metric="test/accuracy", count=2)


def exporting(rule):
    """Return what `watched` takes of a node with these settings."""
    return {"beat": {"exports": rule}}


def of_exports(observed_nodes, rule):
    return told(exports(observed_nodes, HERE.node, rule, lease_seconds=10.0))


def test_equal_settings_of_exports_are_no_news(watched):
    """Neither is a node that exports nothing itself, nor an earlier daemon of this node with other settings."""
    own = exporting(ExportRule(metric="test/loss", count=9))
    observed_nodes = watched(node_0=exporting(RULE), node_1=exporting(None), node_9=own)
    assert of_exports(observed_nodes, RULE) == []
    assert of_exports(observed_nodes, None) == []


def test_nodes_with_different_settings_of_exports_are_told(watched):
    """Each rule with the nodes that have it, this node's among them; that is no failure."""
    other = ExportRule(metric="test/accuracy", count=3, by="significant")
    observed_nodes = watched(node_0=exporting(RULE), node_1=exporting(other), node_2=exporting(other))
    ((ok, text),) = of_exports(observed_nodes, RULE)
    assert ok
    assert "export_best = 2, best_metric = test/accuracy, best_by = value on this node, node-0;" in text
    assert "export_best = 3, best_metric = test/accuracy, best_by = significant on node-1, node-2." in text
    ((_, text),) = of_exports(observed_nodes, None)
    assert "this node" not in text


def test_the_settings_of_exports_of_a_node_that_is_down_do_not_count(watched):
    """Its daemon may be started with others."""
    observed_nodes = watched(node_0={**exporting(ExportRule(metric="test/loss", count=1)), "start": 1000.0})
    assert of_exports(observed_nodes, RULE) == []
