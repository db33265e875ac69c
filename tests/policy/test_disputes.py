"""Believe one node that gives a checkpoint up only if no other finds it whole."""

from dataclasses import replace

import pytest
from policy.views import (
    A,
    B,
    decided,
    failures,
    node,
    settled,
    slot,
)

from sidecar.policy.actions import Propose, Stop, Wait


def test_a_run_does_not_end_while_another_node_finds_whole_what_this_one_gave_up():
    """One that takes part: it evaluates it. Others may never have their turn, so they are waited for a while only."""
    gone = {"complete": [], "given_up": [settled(A, "vanished")], "training_done": True}
    there = [node("n1"), node("n2", sees=(A.folder,))]
    assert isinstance(decided(**gone, ready=there), Wait)
    assert isinstance(decided(**gone, ready=[there[0], replace(there[1], task="other")]), Stop)


@pytest.mark.parametrize(
    ("verdict", "told", "settles"),
    [
        ("vanished", {}, True),
        ("vanished", {"sees": (A.folder,)}, False),
        ("vanished", {"sees": (B.folder,)}, True),
        ("vanished", {"sees": (B.folder,), "sees_more": True}, False),
        ("vanished", {"sees": (A.folder,), "state": "draining"}, True),
        ("vanished", {"sees": (A.folder,), "task": "other"}, False),
        ("corrupt", {}, True),
        ("corrupt", {"sees": (A.folder,)}, False),
        ("corrupt", {"sees": ("ckpt-1@of other bytes",)}, False),
        ("corrupt", {"sees": ("ckpt-11@of other bytes",)}, True),
        ("skipped", {"sees": (A.folder,)}, True),
    ],
)
def test_what_one_node_gave_up_is_settled_only_if_no_other_finds_it_whole(verdict, told, settles):
    """Its own disk or mount may be what is wrong."""
    there = [node("n1", sees=(A.folder,)), node("n2", **told)]
    there = [each for each in there if each.state == "ready"]  # as the world lists them
    action = decided(complete=[], given_up=[settled(A, verdict)], ready=there)
    assert isinstance(action, Propose) == settles


def test_what_attempts_on_two_nodes_proved_is_settled_though_another_finds_it_whole():
    """Else nobody would: the one that finds it whole may be of another profile than most, and proposes nothing."""
    there = [node("n1", slot()), node("n2", slot(), sees=(A.folder,))]
    given_up = [settled(A, "corrupt")]
    for nodes, verdicts in ((("n1",), []), (("n1", "n2"), ["corrupt"])):
        past = failures("corrupt", "corrupt", nodes=nodes)
        action = decided(complete=[], given_up=given_up, ready=there, history=past)
        assert [each.verdict for each in getattr(action, "settles", ())] == verdicts


@pytest.mark.parametrize("verdict", ["vanished", "corrupt"])
def test_nothing_is_given_up_while_a_node_that_may_see_it_cannot_be_heard(verdict):
    """Storage gives an error for its heartbeat, say: that is no word about what it sees."""
    gone = {"complete": [], "given_up": [settled(A, verdict)]}
    assert isinstance(decided(**gone), Propose)
    assert isinstance(decided(**gone, liveness_unknown=True), Wait)
    assert isinstance(decided(**gone, liveness_unknown=True, training_done=True), Wait)
    skipped = decided(complete=[], given_up=[settled(A, "skipped")], liveness_unknown=True)
    assert [each.verdict for each in skipped.settles] == ["skipped"]
