"""Know which nodes are alive, ready, or keep a plan from succeeding."""

from dataclasses import replace

import pytest
from heartbeats import make_heartbeat
from records import make_plan

from sidecar.coordination.liveness import HeartbeatReadings
from sidecar.daemon.known_nodes import KnownNodes
from sidecar.protocol.heartbeat import WorkerProgress
from sidecar.protocol.records import Checkpoint, Member

CHECKPOINT = Checkpoint(name="ckpt-1", digest="d" * 64, step=1, format="tf_object", pin="pins/x")
MEMBERS = (Member(0, "n1", "n1.i.1", "h:1"), Member(1, "n2", "n2.i.1", "h:2"))
PLAN = make_plan(7, CHECKPOINT, nonce="p", members=MEMBERS, task="t")


def heartbeat(node, beat, phase=None, *, waits=None, **changes):
    doing = None if phase is None else (WorkerProgress(f"{node}.i.1", phase, 0, None, waits),)
    return make_heartbeat(**{"node": node, "beat": beat, "plan": 7, "outcome": 6, "doing": doing} | changes)


def beating(*others, own=None):
    """Return what is known after three seconds in which all beat each second."""
    nodes = KnownNodes(node="n1", lease_seconds=10.0)
    for now in (1, 2, 3):
        reading = HeartbeatReadings(heartbeats=tuple(replace(other, beat=now) for other in others))
        nodes.record_heartbeats(replace(own or heartbeat("n1", now), beat=now), reading, float(now))
    return nodes


def test_chiefs_are_alive_but_not_ready():
    """So is a node that drains; the task of each node counts."""
    nodes = beating(
        heartbeat("n2", 1, task="u"), heartbeat("n3", 1, state="draining"), heartbeat("c", 1, role="chief", task=None)
    )
    assert [each.node for each in nodes.alive(3.0)] == ["c", "n1", "n2", "n3"]
    assert [each.node for each in nodes.ready(3.0)] == ["n1", "n2"]
    assert nodes.tasks(3.0) == {"t", "u"}
    assert not nodes.has_unheard_workers(3.0)


@pytest.mark.parametrize(
    ("other", "now", "word"),
    [
        (heartbeat("n2", 1), 3.0, None),
        (heartbeat("n2", 1, incarnation="j"), 3.0, "restarted"),
        (heartbeat("n2", 1, state="left"), 3.0, "left"),
        (heartbeat("n3", 1), 9.9, None),
        (heartbeat("n3", 1), 10.0, "no heartbeat"),
    ],
    ids=["it beats", "restarted", "left", "no heartbeat yet", "no heartbeat for a lease"],
)
def test_members_that_will_not_finish_a_plan(other, now, word):
    """This node itself is never among them: it judges its own workers otherwise."""
    lost = beating(other).lost_members(MEMBERS, 0.0, now)
    assert set(lost) == (set() if word is None else {"n2"})
    assert word is None or word in lost["n2"]


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (heartbeat("n1", 1, "hello"), heartbeat("n2", 1, "reduce"), ("7", "hello", "reduce")),
        (heartbeat("n1", 1, "hello"), heartbeat("n2", 1, "evaluate"), ()),
        (heartbeat("n1", 1, "hello"), heartbeat("n2", 1, "reduce", waits=True), ()),
        (heartbeat("n1", 1, "hello"), heartbeat("n2", 1), ()),
        (heartbeat("n1", 1, "hello"), heartbeat("n2", 1, "hello", plan=6), ()),
        (heartbeat("n1", 1, "hello"), heartbeat("n2", 1, "hello", outcome=7), ()),
        (heartbeat("n1", 1, "hello"), heartbeat("n3", 1, "hello"), ()),
    ],
    ids=[
        "all wait",
        "one works",
        "one gets no processor",
        "one says nothing",
        "an older plan",
        "the plan has ended",
        "one has no heartbeat",
    ],
)
def test_ranks_that_wait_for_each_other(own, other, expected):
    """All of them must say so, in this plan."""
    assert beating(other, own=own).collective_phases(PLAN) == expected


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (heartbeat("n2", 1, "standby"), True),
        (heartbeat("n2", 1, "join"), False),
        (heartbeat("n2", 1), False),
        (heartbeat("n2", 1, "standby", plan=6), False),
        (heartbeat("n3", 1, "standby"), False),
    ],
    ids=["it waits for its pin", "it joins", "it says nothing", "an older plan", "it has no heartbeat"],
)
def test_a_member_that_has_no_pin_yet(other, expected):
    """Only another node's heartbeat in this plan says so; this node knows of itself."""
    assert beating(other, own=heartbeat("n1", 1, "standby")).lacks_pin(PLAN) == expected
