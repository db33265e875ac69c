"""Decide when a checkpoint or a task has failed for good."""

from dataclasses import replace

import pytest
from policy_views import NOW, A, B, C, decided, failures, fold, node, outcome, plan, settled, slot
from rules import make_rules

from sidecar.coordination.journal_state import JournalState
from sidecar.protocol.states import FAILURE_CLASSES


@pytest.mark.parametrize(
    ("kinds", "verdict"),
    [
        (["task_error"] * 2, None),
        (["task_error"] * 3, "failed"),
        (["mismatch", "count", "stream_differs"], "failed"),
        (["stalled"] * 9, None),
        (["stalled"] * 10, "failed"),
        (["task_error"] * 2 + ["stalled"] * 9, None),
        (["an unknown kind"] * 10, "failed"),
        (["vanished"] * 2, None),
        (["vanished"] * 9, None),
        (["stalled", *["vanished"] * 9], "failed"),
        (["corrupt"] * 2, None),
        (["corrupt"] * 3, "corrupt"),
        (["crashed"] * 2, None),
        (["crashed"] * 3, "corrupt"),
        (["worker_died", "crashed", "corrupt", "crashed"], "corrupt"),
    ],
)
def test_how_often_a_checkpoint_is_tried_depends_on_who_is_to_blame(kinds, verdict):
    """Three times if it is the checkpoint, its files or the task, ten if it is the machines."""
    action = decided(history=failures(*kinds), now=NOW + 1000)
    if verdict is None:
        assert action.checkpoint == A
    else:
        (settlement,) = action.settles
        assert (action.checkpoint, settlement.key, settlement.verdict) == (None, A.key, verdict)
        assert settlement.reason.startswith(f"{kinds[-1]}: because")
        assert settlement.task == ("t" if verdict == "failed" else None)


def lasting(what, *tries, task="t"):
    """A history of attempts at one checkpoint after another: (checkpoint, node that failed), alone or with n2."""
    history = JournalState()
    for number, (which, where) in enumerate(tries, 1):
        history.apply(plan(number, which, (f"{where}.i.9{number}",), task=task))
        history.apply(replace(outcome(number, "task_error", where), lasting=what))
    return history


def test_a_mismatch_that_lasts_is_final_at_once_where_no_other_node_is():
    """No other node could do better, and a new process of this one reads the same bytes with the same code."""
    (settlement,) = decided(history=lasting("checkpoint", (A, "n1")), complete=[A, B]).settles
    assert (settlement.key, settlement.verdict, settlement.task) == (A.key, "failed", "t")


@pytest.mark.parametrize("what", ["checkpoint", "task"])
@pytest.mark.parametrize("other", [node("n2"), node("n2", task="t2"), node("n2", state="starting", task=None)])
def test_a_failure_that_lasts_needs_a_second_node_where_there_is_one(what, other):
    """It might be the node's trouble, until another one has the same; one of another task or that starts may, too."""
    seen = {"ready": [node("n1"), other], "now": NOW + 1000}
    assert not settles_of(decided(history=lasting(what, (A, "n1"), (A, "n1")), **seen))
    (settlement,) = decided(history=lasting(what, (A, "n1"), (A, "n2")), **seen).settles
    assert (settlement.key, settlement.verdict) == (A.key, "failed")


def settles_of(action):
    return getattr(action, "settles", ())


def test_a_task_that_cannot_work_fails_every_checkpoint_without_new_processes():
    """Two nodes, or the only one, found that it fails whatever it evaluates: the others are not tried."""
    alone = lasting("task", (A, "n1"))
    both = lasting("task", (A, "n1"), (B, "n2"))
    for history, there in ((alone, [node("n1")]), (both, [node("n1"), node("n2")])):
        action = decided(history=history, complete=[A, B, C], ready=there, now=NOW + 1000)
        assert action.checkpoint is None
        assert {each.key for each in action.settles} == {A.key, B.key, C.key}
        for each in action.settles:
            assert (each.verdict, each.task) == ("failed", "t")
        assert any("correct it and restart the daemons" in each.reason for each in action.settles)


def test_a_task_is_tried_again_by_a_daemon_that_was_started_again():
    """Data or packages may have been corrected meanwhile; what failed before stays failed until it is requeued."""
    again = replace(node("n1", slot("n1.j.1")), incarnation="j")
    settled_a = fold(plan(1, A, ("n1.i.91",)), replace(outcome(1, "task_error"), lasting="task"))
    settled_a.apply(plan(2, None, settles=(settled(A, "failed", "t"),)))
    seen = {"complete": [A, B], "now": NOW + 1000}
    assert decided(history=settled_a, **seen).checkpoint is None
    assert decided(history=settled_a, ready=[again], incarnation="j", **seen).checkpoint == B


@pytest.mark.parametrize("then", ["requeued", "other task", "succeeded before"])
def test_what_lasted_is_not_believed_for_ever(then):
    """A requeue, another task and an earlier success each say that it may work."""
    history = lasting("task", (A, "n1"))
    if then == "requeued":
        history.apply(plan(2, None, settles=(settled(A, "failed", "t"),)))
        history.apply(plan(3, None, settles=(settled(A, "requeued"),)))
        assert decided(history=history, now=NOW + 1000).checkpoint == A
    elif then == "other task":
        assert decided(history=history, task="t2", ready=[node("n1", task="t2")], now=NOW + 1000).checkpoint == A
    else:
        history = fold(plan(1, B), outcome(1), plan(2, A, ("n1.i.92",)))
        history.apply(replace(outcome(2, "task_error"), lasting="task"))
        assert decided(history=history, complete=[B, C], ready=[node("n1", slot("n1.i.5"))]).checkpoint == C


def test_one_node_that_finds_a_checkpoint_corrupt_is_not_believed_while_others_are_there():
    """However often, as with a min_workers that leaves nobody out; after max_losses it failed, on that node."""
    there, rules = [node("n1"), node("n2")], make_rules(min_workers=2)
    seen = {"ready": there, "now": NOW + 1000}
    assert decided(rules, history=failures(*["corrupt"] * 9, nodes=("n2",)), **seen).checkpoint == A
    (settlement,) = decided(rules, history=failures(*["corrupt"] * 10, nodes=("n2",)), **seen).settles
    assert (settlement.verdict, settlement.reason) == ("failed", "corrupt: because (10 attempts, failed on n2)")


def test_what_this_node_finds_whole_never_ends_as_vanished():
    """Nodes that do not see it are left out; when all have lost it too often it failed, and their names are told."""
    there = [node("n1"), node("n2"), node("n3")]
    two = failures("vanished", "vanished", nodes=("n2", "n3"))
    action = decided(history=two, ready=there, now=NOW + 1000)
    assert (action.checkpoint, [member.node for member in action.members], action.settles) == (A, ["n1"], ())
    many = failures(*["vanished"] * 10, nodes=("n2", "n3"))
    (settlement,) = decided(history=many, ready=there, now=NOW + 1000).settles
    assert (settlement.verdict, settlement.task) == ("failed", "t")
    assert settlement.reason.endswith("(10 attempts, failed on n2, n3)")


@pytest.mark.parametrize("kind", ["corrupt", "crashed"])
def test_two_nodes_that_cannot_read_a_checkpoint_are_believed(kind):
    """One may have a bad cable; the second makes it certain."""
    action = decided(history=failures(kind, kind, nodes=("n1", "n2")))
    assert action.settles[0].verdict == FAILURE_CLASSES[kind]


def test_a_node_is_not_alone_while_another_cannot_be_heard():
    """A failure that one node meets three times proves nothing while it is unknown whether another node is alive."""
    seen = {"ready": [node("n1")], "now": NOW + 1000, "complete": [A]}
    past = lasting("checkpoint", (A, "n1"))
    assert settles_of(decided(history=past, **seen))
    assert not settles_of(decided(history=past, **seen, liveness_unknown=True))
