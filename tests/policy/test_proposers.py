"""Give nodes turns to propose and to publish."""

import pytest
from policy.views import (
    NOW,
    decided,
    listed,
    node,
)

from sidecar.policy.actions import Propose, Wait
from sidecar.policy.proposers import publisher


@pytest.mark.parametrize(
    ("me", "undone_for", "proposes"),
    [
        ("n1", 0.0, True),
        ("n2", 0.0, False),
        ("n2", 9.9, False),
        ("n2", 10.0, True),
        ("n10", 19.9, False),
        ("n10", 20.0, True),
        ("n7", 1e6, False),
    ],
)
def test_each_node_in_line_gives_those_before_it_their_chance(me, undone_for, proposes):
    """The first at once, the next after its patience each; who is not counted, never."""
    there = [node("n1"), node("n2"), node("n10")]
    action = decided(node=me, ready=there, work_waiting_since=NOW - undone_for)
    assert isinstance(action, Propose) == proposes
    if me == "n2" and not proposes:
        assert action.until == NOW - undone_for + 10.0


def test_the_turn_goes_round_among_nodes_that_can_be_listed_together():
    """A plan carries its proposer's task, so a node with another one neither proposes nor makes the others wait."""
    there = [node("n1", task="old"), node("n2"), node("n3")]
    assert isinstance(decided(node="n1", ready=there, task="old"), Wait)
    assert listed(decided(node="n2", ready=there)) == ["n2.i.1", "n3.i.1"]


def test_the_first_fresh_worker_publishes():
    """The same node that proposes; nobody if nobody is there."""
    assert publisher([node("n1"), node("n2")]) == "n1"
    assert publisher([]) is None
