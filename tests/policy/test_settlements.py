"""Settle checkpoints that are not evaluated."""

from dataclasses import replace

import pytest
from policy.views import (
    NOW,
    A,
    B,
    C,
    checkpoint,
    decided,
    failures,
    fold,
    node,
    outcome,
    plan,
    settled,
    slot,
)
from rules import make_rules

from sidecar.coordination.journal_state import JournalState
from sidecar.policy.actions import Propose, Stop, Wait
from sidecar.policy.selection import pending
from sidecar.protocol.codec import dumps, loads
from sidecar.protocol.records import Plan
from sidecar.protocol.states import FAILURE_CLASSES


def test_with_queue_latest_only_the_newest_is_evaluated():
    """The others are settled as skipped in the same plan, with the reason."""
    action = decided(make_rules(queue="latest"), complete=[A, B, C])
    assert action.checkpoint == C
    assert [(each.name, each.verdict) for each in action.settles] == [("ckpt-1", "skipped"), ("ckpt-2", "skipped")]
    assert "superseded by ckpt-3" in action.settles[0].reason


def test_what_was_there_before_the_start_is_skipped_with_start_new():
    """Once; what came later is evaluated."""
    action = decided(complete=[A, B], before_start=frozenset({A.key}))
    assert action.checkpoint == B
    assert [(each.name, each.verdict, each.task) for each in action.settles] == [("ckpt-1", "skipped", None)]


def test_what_one_record_cannot_hold_is_settled_in_pieces_before_anything_else():
    """With start=new all of it is behind the line that the first plan begins to draw."""
    old = [checkpoint(step) for step in range(1, 6)]
    seen = {"complete": [*old, checkpoint(9)], "before_start": frozenset(each.key for each in old)}
    first = decided(make_rules(most_settled=2), **seen, backlog_cutoff_pending=True)
    assert [each.name for each in first.settles] == ["ckpt-1", "ckpt-2"]
    assert (first.checkpoint, first.line_open) == (None, True)
    begun = plan(1, None, settles=first.settles, line_open=True)
    second = decided(make_rules(most_settled=3), **seen, backlog_cutoff_pending=True, history=fold(begun))
    assert (second.checkpoint, len(second.settles), second.line_open) == (checkpoint(9), 3, False)
    assert fold(begun).backlog_cutoff_pending
    assert not fold(begun, plan(2, None, settles=second.settles)).backlog_cutoff_pending
    assert not decided(make_rules(most_settled=2), **seen).line_open


@pytest.mark.parametrize(("character", "all_fit"), [("a", True), ("\udcff", False)])
def test_what_one_plan_settles_fits_into_a_record(character, all_fit):
    """Names that are no text take six bytes for each of theirs. The next plan goes on."""
    name, rules = character * 200, make_rules(queue="latest")
    there = [replace(checkpoint(step), name=f"{step}{name}"[:200]) for step in range(rules.plans.most_settled + 2)]
    action = decided(rules, complete=there)
    assert (len(action.settles) == rules.plans.most_settled) is all_fit
    assert len(action.settles) > 400
    settling = plan(1, None, settles=action.settles)
    assert loads(Plan, dumps(settling)) == settling


def test_with_start_new_the_journal_says_first_what_was_there():
    """Even if it was nothing: else whoever starts later would take for old what came meanwhile."""
    assert decided(complete=[], backlog_cutoff_pending=True) == Propose()
    assert isinstance(decided(complete=[], backlog_cutoff_pending=True, draining=True), Wait)
    assert decided(complete=[A], backlog_cutoff_pending=True, ready=[node("n1", slot())]) == Propose()
    assert decided(complete=[A], backlog_cutoff_pending=True).checkpoint == A


def test_with_every_steps_what_lies_between_is_skipped():
    """With the reason, in the same plan; the last one waits for a newer one, and is no work meanwhile."""
    rules, there = make_rules(every_steps=100), [checkpoint(step) for step in (90, 95, 99)]
    action = decided(rules, complete=there)
    assert (action.checkpoint, [each.name for each in action.settles]) == (there[0], ["ckpt-95"])
    assert "every_steps" in action.settles[0].reason
    assert action.settles[0].verdict == "skipped"
    history = fold(plan(1, there[0]), outcome(1), plan(2, None, settles=action.settles))
    assert decided(rules, complete=there[2:], history=history) == Wait(None, "nothing to do")


@pytest.mark.parametrize(
    ("rules", "changes"),
    [
        ({"wait": False}, {}),
        ({}, {"training_done": True}),
        ({"stop_after_step": 95}, {"last_step": 95}),
        ({"stop_idle_seconds": 60}, {"last_activity_at": NOW - 60}),
    ],
)
def test_with_every_steps_the_last_one_of_a_run_is_evaluated(rules, changes):
    """The last one is the result, whatever its step. A checkpoint that is still being written is waited for."""
    last = checkpoint(95)
    seen = {"complete": [last], "history": fold(plan(1, checkpoint(90), ("n1.i.9",)), outcome(1))} | changes
    rules = make_rules(every_steps=100, **rules)
    assert decided(rules, **seen).checkpoint == last
    assert isinstance(decided(rules, **seen, incomplete_since=NOW - 62), Wait)
    assert decided(rules, **seen, incomplete_since=NOW - 63).checkpoint == last


@pytest.mark.parametrize("verdict", ["corrupt", "vanished"])
def test_what_was_given_up_is_settled_even_if_nobody_can_evaluate(verdict):
    """A plan that only settles needs no members."""
    given_up = (settled(A, verdict),)
    assert decided(complete=[], given_up=given_up, ready=[node("n1", slot())]) == Propose(settles=given_up)
    assert isinstance(decided(complete=[], given_up=given_up, history=fold(plan(1, None, settles=given_up))), Wait)


def test_the_oldest_gives_way_when_newer_ones_find_no_room():
    """One at a time, never the last one that is held, and not while a settled pin is about to make room."""
    waiting = [A, B, checkpoint(3, pinned=False)]
    crowded = {"without_room": frozenset({waiting[2].key})}
    action = decided(complete=waiting, **crowded)
    assert (action.checkpoint, [each.name for each in action.settles]) == (B, ["ckpt-1"])
    assert "pin_max_bytes" in action.settles[0].reason
    assert decided(complete=waiting[1:], **crowded).settles == ()
    done = checkpoint(9)
    history = fold(plan(1, done, ("n9.i.1",)), outcome(1))
    assert decided(complete=[done, *waiting], history=history, **crowded).settles == ()
    settled_since = fold(plan(1, None, settles=(settled(waiting[2], "skipped"),)))
    assert decided(complete=waiting, history=settled_since, **crowded).settles == ()


def test_what_is_still_being_copied_drives_nobody_out():
    """It is not pinned yet, but there is room for it."""
    assert decided(complete=[A, B, checkpoint(3, pinned=False)]).settles == ()


def test_what_only_nodes_with_another_task_still_want_gives_way_first():
    """They may never have their turn, and without this nothing would ever be skipped or pinned again."""
    newer = checkpoint(3, pinned=False)
    history = fold(plan(1, None, settles=(settled(A, "failed", "t"),)))
    seen = {"history": history, "complete": [A, B, newer], "tasks": frozenset({"t", "other"})}
    assert decided(**seen).settles == ()
    action = decided(**seen, without_room=frozenset({newer.key}))
    assert (action.checkpoint, [(each.name, each.verdict) for each in action.settles]) == (B, [("ckpt-1", "skipped")])
    assert "another task" in action.settles[0].reason
    alone = seen | {"complete": [A, newer]}
    assert [each.name for each in decided(**alone, without_room=frozenset({newer.key})).settles] == ["ckpt-1"]
    leaving = seen | {"tasks": frozenset({"t"})}  # that node is gone: the pin goes by itself
    assert decided(**leaving, without_room=frozenset({newer.key})).settles == ()


def test_what_this_node_cannot_read_is_left_to_others():
    """It proposes neither it, nor anything because of it; at the end of a run that is told."""
    seen = {"complete": [A, B], "unreadable": frozenset({B.folder})}
    assert decided(**seen).checkpoint == A
    assert decided(make_rules(queue="latest"), **seen) == replace(decided(), evaluated=0)
    lost = failures(*["task_error"] * 3, what=B)
    assert decided(**seen, history=lost).settles == ()
    end = decided(complete=[B], unreadable=seen["unreadable"], training_done=True)
    assert isinstance(end, Stop)
    assert "1 checkpoint(s) could not be read" in end.why


def test_what_vanished_and_is_there_again_is_reopened():
    """In the plan that evaluates something else, or in one of its own; unless the settings pass it over."""
    history = fold(plan(1, None, settles=(settled(A, "vanished"), settled(B, "vanished"))))
    action = decided(history=history, complete=[C], returned=[A])
    assert action.checkpoint == C
    assert [(each.name, each.verdict) for each in action.settles] == [("ckpt-1", "requeued")]
    assert [each.name for each in decided(history=history, complete=[], returned=[A, B]).settles] == [
        "ckpt-1",
        "ckpt-2",
    ]
    latest = decided(make_rules(queue="latest"), history=history, complete=[], returned=[A, B])
    assert [each.name for each in latest.settles] == ["ckpt-2"]
    unread = decided(history=history, complete=[], returned=[A], unreadable=frozenset({A.folder}))
    assert isinstance(unread, Wait)
    history.apply(plan(2, None, settles=latest.settles))
    assert decided(history=history, complete=[B]).checkpoint == B


def test_a_final_failure_holds_for_that_task_only():
    """A corrected task gets its try."""
    history = fold(plan(1, None, settles=(settled(A, "failed", "old"),)))
    assert decided(history=history).checkpoint == A
    assert isinstance(decided(history=history, task="old"), Wait)
    assert (pending(history, [A], "t"), pending(history, [A], "old")) == ([A], [])


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


@pytest.mark.parametrize(
    ("kind", "damaged_on", "verdict"), [("corrupt", "n2", "corrupt"), ("corrupt", "n1", None), ("vanished", "n2", None)]
)
def test_a_node_that_gave_up_damaged_files_is_the_second_witness(kind, damaged_on, verdict):
    """It is never listed for them, so without its word the others would try to read them until max_losses."""
    there = [node(each, damaged=(A.folder,) if each == damaged_on else ()) for each in ("n1", "n2", "n3")]
    action = decided(history=failures(kind), ready=there, now=NOW + 1000)
    assert [each.verdict for each in action.settles] == ([] if verdict is None else [verdict])


@pytest.mark.parametrize(
    ("verdict", "failed_on", "settles"), [("corrupt", "n3", 1), ("corrupt", "n1", 0), ("vanished", "n3", 0)]
)
def test_damage_that_another_task_met_is_damage(verdict, failed_on, settles):
    """A node of another task tried it in vain and still names it; only the others propose, and they gave it up."""
    history = fold(
        replace(plan(1, A, (f"{failed_on}.i.1",)), task="other"), replace(outcome(1, "corrupt"), node=failed_on)
    )
    there = [node("n1"), node("n2"), node("n3", task="other", sees=(A.folder,))]
    seen = {"complete": [], "given_up": [settled(A, verdict)], "ready": there, "now": NOW + 1000}
    assert len(settles_of(decided(history=history, **seen))) == settles


def test_a_node_is_not_alone_while_another_cannot_be_heard():
    """A failure that one node meets three times proves nothing while it is unknown whether another node is alive."""
    seen = {"ready": [node("n1")], "now": NOW + 1000, "complete": [A]}
    past = lasting("checkpoint", (A, "n1"))
    assert settles_of(decided(history=past, **seen))
    assert not settles_of(decided(history=past, **seen, liveness_unknown=True))


def test_a_run_does_not_end_while_another_node_finds_whole_what_this_one_gave_up():
    """One that takes part: it evaluates it. Others may never have their turn, so they are waited for a while only."""
    gone = {"complete": [], "given_up": [settled(A, "vanished")], "training_done": True}
    there = [node("n1"), node("n2", sees=(A.folder,))]
    assert isinstance(decided(**gone, ready=there), Wait)
    assert isinstance(decided(**gone, ready=[there[0], replace(there[1], task="other")]), Stop)


def test_a_run_does_not_end_while_only_another_node_has_a_checkpoint():
    """Training deleted it before this node, which began later, had downloaded it. Its end would leave too few nodes."""
    there = [node("n1"), node("n2", sees=(A.folder,))]
    over = {"complete": [], "training_done": True, "ready": there}
    assert isinstance(decided(**over), Wait)
    assert isinstance(decided(**over, history=fold(plan(1, A), outcome(1))), Stop)
    assert isinstance(decided(**over | {"ready": there[:1]}), Stop)


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
        ("skipped", {"sees": (A.folder,)}, False),
        ("skipped", {"sees": (B.folder,), "sees_more": True}, True),
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
