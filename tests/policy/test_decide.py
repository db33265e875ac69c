from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.codec import dumps
from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.storage import MAX_RECORD_BYTES
from sidecar.policy.actions import Fail, Propose, Stop, Wait
from sidecar.policy.decide import decide
from sidecar.policy.proposers import publisher
from sidecar.policy.rules import Rules
from sidecar.policy.selection import pending
from sidecar.policy.view import CheckpointsView, NodesView, TimersView, View
from sidecar.records import Checkpoint, Heartbeat, Member, Outcome, Plan, Result, Settlement, Slot
from sidecar.states import FAILURE_CLASSES

NOW = 1000.0
RULES = Rules()


def checkpoint(step, *, pinned=True):
    name = f"ckpt-{step}"
    return Checkpoint(
        name=name, digest=f"{step:064d}", step=step, format="tf_object", pin=f"pins/{name}" if pinned else None
    )


A, B, C = checkpoint(1), checkpoint(2), checkpoint(3)


def slot(standby=None, worker=None, group=None):
    return Slot(
        worker=worker,
        group=group,
        address=worker and f"{worker}:1",
        standby=standby,
        standby_address=standby and f"{standby}:1",
    )


def node(name, *slots, **changes):
    slots = slots or (slot(f"{name}.i.1"),)
    given = {"role": "worker", "state": "ready", "version": "1", "task": "t"} | changes
    return Heartbeat(
        run="r", node=name, incarnation="i", beat=1, role_source="setting", plan=0, outcome=0, slots=slots, **given
    )


def members(*workers):
    return tuple(Member(rank, worker.split(".")[0], worker, f"{worker}:1") for rank, worker in enumerate(workers))


def plan(number, what=A, workers=("n1.i.1",), *, task="t", settles=(), line_open=False):
    listed = members(*workers) if what is not None else None
    return Plan(
        plan=number,
        run="r",
        nonce=f"p{number}",
        checkpoint=what,
        attempt=1,
        members=listed,
        settles=settles,
        task=task,
        proposer="n1",
        proposed_at="now",
        line_open=line_open,
    )


def outcome(number, kind=None, where="n1"):
    if kind is not None:
        return Outcome(
            plan=number,
            run="r",
            nonce=f"o{number}",
            status="failed",
            closed_by="n1",
            completed_at="now",
            kind=kind,
            node=where,
            message="because",
        )
    result = Result(
        group="g", workers=1, examples={}, metrics={}, phases={}, variables="v", task="t", profile={}, saves=()
    )
    return Outcome(
        plan=number, run="r", nonce=f"o{number}", status="succeeded", closed_by="n1", completed_at="now", result=result
    )


def failures(*kinds, what=A, task="t", nodes=("n1",)):
    """A history in which one checkpoint failed so often, each time with another worker."""
    history = JournalState()
    for number, kind in enumerate(kinds, 1):
        history.apply(plan(number, what, (f"n1.i.9{number}",), task=task))
        history.apply(outcome(number, kind, nodes[(number - 1) % len(nodes)]))
    return history


def fold(*records):
    history = JournalState()
    for record in records:
        history.apply(record)
    return history


def settled(what, verdict, task=None):
    return Settlement(name=what.name, digest=what.digest, step=what.step, verdict=verdict, reason="because", task=task)


def view(**changes):
    """A node that is alone, has looked, and found one checkpoint that nobody tried."""
    given = {
        "node": "n1",
        "incarnation": "i",
        "task": "t",
        "history": JournalState(),
        "ready": [node("n1")],
        "complete": [A],
        "may_propose": True,
        "caught_up": True,
    }
    given |= changes
    parts = {"nodes": NodesView, "checkpoints": CheckpointsView, "timers": TimersView}
    grouped = {part: {each.name for each in fields(kind)} & given.keys() for part, kind in parts.items()}
    made = {part: kind(**{name: given.pop(name) for name in grouped[part]}) for part, kind in parts.items()}
    return View(**given, **made)


def decided(rules=RULES, now=NOW, **changes):
    return decide(view(**changes), rules, now)


def listed(action):
    assert isinstance(action, Propose), action
    return [member.worker for member in action.members]


# -- which eval sets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "evaluated"),
    [
        (JournalState(), 0),
        (fold(plan(1, B), outcome(1)), 1),
        (fold(plan(1, B), outcome(1), plan(2, C), outcome(2)), 2),
        (fold(plan(1, B, task="other"), outcome(1), plan(2, C), outcome(2)), 1),
        (fold(plan(1, B), outcome(1), plan(2, C, task="other"), outcome(2)), 0),
        (fold(plan(1, B), outcome(1), plan(2, None, settles=(settled(C, "skipped"),))), 1),
        (fold(plan(1, B), outcome(1), plan(2, A, ("n1.i.9",)), outcome(2, "stalled")), 1),
        (fold(plan(1, A, ("n1.i.9",)), outcome(1, "stalled"), plan(2, B), outcome(2)), 1),
    ],
    ids=[
        *("the first", "the second", "the third", "another task began anew", "back to a task begins anew, too"),
        *(
            "what is skipped counts nothing",
            "a retry is what the attempt was",
            "unless another one succeeded meanwhile",
        ),
    ],
)
def test_a_plan_counts_the_evaluations_before_it(history, evaluated):
    """Those that succeeded since the task changed: it decides which eval sets take part."""
    action = decided(history=history, ready=[node("n1", slot("n1.i.5"))])
    assert isinstance(action, Propose), action
    assert (action.checkpoint, action.evaluated) == (A, evaluated)


# -- when, and who ---------------------------------------------------------------------------------------------------


def test_an_evaluated_checkpoint_is_proposed_once_more_if_a_person_asks():
    """As a first attempt, and its evaluation before counts for which eval sets take part."""
    again = plan(2, None, settles=(settled(A, "requeued"),))
    action = decided(history=fold(plan(1), outcome(1), again), ready=[node("n1", slot("n1.i.5"))])
    assert (action.checkpoint, action.attempt, action.evaluated) == (A, 1, 1)
    assert isinstance(decided(history=fold(plan(1), outcome(1), again, plan(3), outcome(3))), Wait)


def test_what_is_found_is_proposed():
    """The usual case: one checkpoint, one worker that stands by, nothing else to wait for."""
    assert decided() == Propose(checkpoint=A, attempt=1, members=members("n1.i.1"))


@pytest.mark.parametrize(
    "changes",
    [
        {"caught_up": False},
        {"may_propose": False},
        {"draining": True},
        {"complete": []},
        {"ready": []},
        {"ready": [node("n1", state="draining")]},
        {"ready": [node("n1", task=None)]},
        {"ready": [node("n1", slot())]},
        {"complete": [checkpoint(1, pinned=False)]},
        {"history": fold(plan(1), outcome(1))},
        {"history": fold(plan(1, workers=("n1.i.1",)))},
    ],
    ids=[
        *("nothing looked at yet", "others not known", "draining", "nothing found", "nobody there", "nobody ready"),
        *("task not tried", "nobody stands by", "not pinned", "settled", "a plan is open"),
    ],
)
def test_nothing_is_proposed_without_a_reason(changes):
    """Each of these alone is enough to wait."""
    assert isinstance(decided(**changes), Wait)


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


# -- which checkpoint ------------------------------------------------------------------------------------------------


def test_a_plan_that_lists_nobody_is_closed():
    """Only somebody else's program could write one; nobody in it could ever end it."""
    nobody = plan(1, A, ())
    assert decided(history=fold(nobody), all_ranks_waiting_since=0.0) == Fail("join", "the plan lists no worker at all")


def test_checkpoints_are_evaluated_in_the_order_they_were_found():
    """One after the other, not the newest first."""
    assert decided(complete=[B, A, C]).checkpoint == B
    assert decided(complete=[B, A], history=fold(plan(1, B, ("n9.i.1",)), outcome(1))).checkpoint == A


def test_with_queue_latest_only_the_newest_is_evaluated():
    """The others are settled as skipped in the same plan, with the reason."""
    action = decided(Rules(queue="latest"), complete=[A, B, C])
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
    first = decided(Rules(most_settled=2), **seen, backlog_cutoff_pending=True)
    assert [each.name for each in first.settles] == ["ckpt-1", "ckpt-2"]
    assert (first.checkpoint, first.line_open) == (None, True)
    begun = plan(1, None, settles=first.settles, line_open=True)
    second = decided(Rules(most_settled=3), **seen, backlog_cutoff_pending=True, history=fold(begun))
    assert (second.checkpoint, len(second.settles), second.line_open) == (checkpoint(9), 3, False)
    assert fold(begun).line_open
    assert not fold(begun, plan(2, None, settles=second.settles)).line_open
    assert not decided(Rules(most_settled=2), **seen).line_open


def test_what_one_plan_settles_fits_into_a_record():
    """Whatever the names: those that are no text take six bytes for each of theirs."""
    name, rules = "\udcff" * 255, Rules(queue="latest")
    there = [replace(checkpoint(step), name=f"{step}{name}"[:255]) for step in range(3 * rules.most_settled)]
    action = decided(rules, complete=there)
    assert len(dumps(plan(1, None, settles=action.settles))) < MAX_RECORD_BYTES / 2


def test_with_start_new_the_journal_says_first_what_was_there():
    """Even if it was nothing: else whoever starts later would take for old what came meanwhile."""
    assert decided(complete=[], backlog_cutoff_pending=True) == Propose()
    assert isinstance(decided(complete=[], backlog_cutoff_pending=True, draining=True), Wait)
    assert decided(complete=[A], backlog_cutoff_pending=True, ready=[node("n1", slot())]) == Propose()
    assert decided(complete=[A], backlog_cutoff_pending=True).checkpoint == A


def test_with_every_steps_what_lies_between_is_skipped():
    """With the reason, in the same plan; the last one waits for a newer one, and is no work meanwhile."""
    rules, there = Rules(every_steps=100), [checkpoint(step) for step in (90, 95, 99)]
    action = decided(rules, complete=there)
    assert (action.checkpoint, [each.name for each in action.settles]) == (there[0], ["ckpt-95"])
    assert "every_steps" in action.settles[0].reason
    assert action.settles[0].verdict == "skipped"
    history = fold(plan(1, there[0]), outcome(1), plan(2, None, settles=action.settles))
    assert decided(rules, complete=there[2:], history=history) == Wait(None, "nothing to do")


@pytest.mark.parametrize("history", [fold(), fold(plan(1, checkpoint(150), ("n1.i.9",)), outcome(1))])
def test_with_every_steps_none_overtakes_one_that_is_about_to_be_held(history):
    """The one evaluated last says which multiple was reached: after 300 and then 80 or 200, 350 would count again."""
    rules, seen = Rules(every_steps=100, pin_wait_seconds=60.0), {"history": history, "work_waiting_since": NOW - 59}
    step = 80 if history.reached is None else 200
    there = [checkpoint(step, pinned=False), checkpoint(300), checkpoint(350)]
    assert decided(rules, complete=there, **seen) == Wait(NOW + 1, "the first that was found is not pinned yet")
    assert decided(rules, complete=[checkpoint(step), *there[1:]], **seen).checkpoint == checkpoint(step)
    assert decided(rules, complete=there[1:], **seen).checkpoint == there[1]


@pytest.mark.parametrize(
    ("rules", "changes"),
    [
        ({}, {"work_waiting_since": NOW - 60}),
        ({}, {"without_room": frozenset({checkpoint(80).key})}),
        ({}, {"unpinnable": frozenset({checkpoint(80).folder})}),
        ({"every_steps": None}, {}),
        ({"queue": "latest"}, {}),
    ],
)
def test_what_is_not_held_in_time_holds_up_no_other(rules, changes):
    """Nor what cannot be held now, and without `every_steps` the order says nothing."""
    there = [checkpoint(80, pinned=False), checkpoint(300), checkpoint(350)]
    rules, changes = {"every_steps": 100, "pin_wait_seconds": 60.0} | rules, {"work_waiting_since": NOW - 59} | changes
    assert decided(Rules(**rules), complete=there, **changes).checkpoint == there[1]


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
    """Whatever its step: it is the result. What is still being written may be it, and is waited for."""
    last = checkpoint(95)
    seen = {"complete": [last], "history": fold(plan(1, checkpoint(90), ("n1.i.9",)), outcome(1))} | changes
    rules = Rules(every_steps=100, **rules)
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


# -- trying again ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "pause"),
    [
        (["stalled"], 1.0),
        (["stalled"] * 2, 2.0),
        (["stalled"] * 5, 16.0),
        (["stalled"] * 9, 256.0),
        (["task_error", "stalled"], 2.0),
    ],
)
def test_each_attempt_waits_longer_than_the_one_before(kinds, pause):
    """From one second, doubled; other checkpoints do not wait for it."""
    failed = {"history": failures(*kinds), "failed_at": {A.key: NOW}}
    assert decided(**failed) == Wait(NOW + pause, "waiting before the next attempt")
    action = decided(now=NOW + pause, **failed)
    assert (action.checkpoint, action.attempt) == (A, len(kinds) + 1)
    assert decided(complete=[A, B], **failed).checkpoint == B


@pytest.mark.parametrize("kind", ["restarted", "drained", "chief_listed"])
def test_a_checkpoint_whose_evaluation_was_interrupted_keeps_its_place(kind):
    """The end of a daemon says nothing of it."""
    assert decided(history=failures(kind), complete=[A, B], now=NOW + 1000).checkpoint == A
    assert decided(history=failures(kind, "crashed"), complete=[A, B], now=NOW + 1000).checkpoint == B


def test_no_attempt_waits_longer_than_five_minutes():
    """However often it failed."""
    rules = Rules(max_losses=10**6)
    changes = {"history": failures(*["stalled"] * 100), "failed_at": {A.key: NOW}}
    assert decided(rules, **changes).until == NOW + 300.0


def test_a_failure_under_another_task_delays_a_little_and_counts_for_nothing():
    """Two nodes with different tasks must not race each other in a hot loop; a corrected task starts anew."""
    changes = {"history": failures(*["task_error"] * 2, task="old"), "failed_at": {A.key: NOW}}
    assert decided(**changes).until == NOW + 1.0
    assert decided(now=NOW + 1.0, **changes).attempt == 1


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
    there, rules = [node("n1"), node("n2")], Rules(min_workers=2)
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


@pytest.mark.parametrize("kind", ["crashed", "worker_died", "task_error"])
def test_a_checkpoint_that_failed_holds_up_no_other(kind):
    """Another one goes first after each failure; then it is its turn again, however many others come."""
    history, evaluated = failures(kind), []
    for number in (2, 3, 4):
        action = decided(history=history, complete=[A, B, C], now=NOW + 1000)
        evaluated.append(action.checkpoint)
        history.apply(plan(number, action.checkpoint, (f"n1.i.9{number}",)))
        history.apply(outcome(number))
    assert evaluated == [B, A, C]


def test_a_group_without_standbys_is_used_even_if_one_of_its_nodes_lost_the_checkpoint():
    """It has evaluated another since; nobody could take its place, so all would wait for ever."""
    history = failures("member_lost", nodes=("n2",))
    history.apply(plan(2, B, ("n1.i.1", "n2.i.1")))
    history.apply(outcome(2))
    group = [node(name, slot(worker=f"{name}.i.1", group="g")) for name in ("n1", "n2")]
    action = decided(history=history, ready=group, now=NOW + 1000)
    assert (action.checkpoint, [member.worker for member in action.members]) == (A, ["n1.i.1", "n2.i.1"])


@pytest.mark.parametrize("kind", ["corrupt", "crashed", "vanished"])
def test_one_node_that_cannot_read_a_checkpoint_is_left_out(kind):
    """The proposer holds it: whoever does not see it must not end it for all, nor fail the next plan as well."""
    action = decided(history=failures(kind, nodes=("n2",)), ready=[node("n1"), node("n2"), node("n3")], now=NOW + 1000)
    assert action.checkpoint == A
    assert [member.node for member in action.members] == ["n1", "n3"]


# -- what other nodes see --------------------------------------------------------------------------------------------


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


def test_a_node_is_not_alone_while_another_cannot_be_heard():
    """What it finds three times is no proof for both."""
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


def test_what_this_node_cannot_read_is_left_to_others():
    """It proposes neither it, nor anything because of it; at the end of a run that is told."""
    seen = {"complete": [A, B], "unreadable": frozenset({B.folder})}
    assert decided(**seen).checkpoint == A
    assert decided(Rules(queue="latest"), **seen) == replace(decided(), evaluated=0)
    lost = failures(*["task_error"] * 3, what=B)
    assert decided(**seen, history=lost).settles == ()
    end = decided(complete=[B], unreadable=seen["unreadable"], training_done=True)
    assert isinstance(end, Stop)
    assert "1 checkpoint(s) could not be read" in end.why


def test_who_cannot_read_a_checkpoint_neither_goes_first_nor_evaluates_it():
    """It takes its part in everything else."""
    blind = [node("n1", unreadable=(A.folder,)), node("n2"), node("n3")]
    assert listed(decided(node="n2", ready=blind)) == ["n2.i.1", "n3.i.1"]
    assert listed(decided(node="n2", ready=blind, complete=[B])) == ["n1.i.1", "n2.i.1", "n3.i.1"]
    late = decided(node="n1", ready=blind, complete=[B], work_waiting_since=NOW)
    assert (late.until, late.why) == (NOW + 20.0, "n2 proposes first")
    needed = decided(Rules(min_workers=3), node="n2", ready=blind)
    assert listed(needed) == ["n1.i.1", "n2.i.1", "n3.i.1"]


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
    latest = decided(Rules(queue="latest"), history=history, complete=[], returned=[A, B])
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


# -- with whom -------------------------------------------------------------------------------------------------------

WARM = [node("n1", slot("n1.i.2", "n1.i.1", "g")), node("n2", slot("n2.i.2", "n2.i.1", "g"))]
SUCCEEDED = fold(plan(1, B, ("n1.i.1", "n2.i.1")), outcome(1))


def test_the_warm_group_is_used_again():
    """Same members in the same order, though standbys are there."""
    assert listed(decided(history=SUCCEEDED, ready=WARM)) == ["n1.i.1", "n2.i.1"]


@pytest.mark.parametrize(
    ("there", "workers"),
    [
        ([*WARM, node("n3")], ["n1.i.2", "n2.i.2", "n3.i.1"]),
        (WARM[:1], ["n1.i.2"]),
        ([WARM[0], node("n2", slot("n2.i.2"))], ["n1.i.2", "n2.i.2"]),
        ([WARM[0], node("n2", slot("n2.i.4", "n2.i.3", "other"))], ["n1.i.2", "n2.i.4"]),
    ],
    ids=["one could be added", "one is gone", "one died", "one is in another group"],
)
def test_a_group_that_could_be_better_is_formed_anew(there, workers):
    """Of those that stand by: a warm group takes nobody in."""
    assert listed(decided(history=SUCCEEDED, ready=there)) == workers


def test_more_workers_are_not_waited_for_while_a_group_is_warm():
    """A node whose standby is still importing does not delay the warm group."""
    assert listed(decided(history=SUCCEEDED, ready=[*WARM, node("n3", slot())])) == ["n1.i.1", "n2.i.1"]


def test_workers_that_were_in_a_group_are_never_taken_for_standbys():
    """A heartbeat may be older than the journal: spent in a failed plan, or active since the newest success."""
    late = [node("n1", slot("n1.i.1")), node("n2", slot("n2.i.9"))]
    assert listed(decided(history=SUCCEEDED, ready=late)) == ["n2.i.9"]
    spent = fold(plan(1, B, ("n1.i.1",)), outcome(1, "stalled"))
    assert listed(decided(history=spent, ready=late)) == ["n2.i.9"]
    replaced = fold(plan(1, B, ("n1.i.1",)), outcome(1), plan(2, C, ("n3.i.1",)), outcome(2))
    assert listed(decided(history=replaced, ready=late)) == ["n2.i.9"]


def test_a_group_has_at_least_min_workers():
    """Fewer are waited for without an end."""
    there = [node("n1"), node("n2")]
    assert isinstance(decided(Rules(min_workers=3), ready=there), Wait)
    assert len(listed(decided(Rules(min_workers=2), ready=there))) == 2


def test_the_largest_set_with_equal_version_and_task_is_listed():
    """Ours among equals, since each proposes for its own."""
    there = [node("n1", version="2"), node("n2"), node("n3")]
    assert listed(decided(node="n2", ready=there)) == ["n2.i.1", "n3.i.1"]
    assert listed(decided(ready=there[:2])) == ["n1.i.1"]
    assert listed(decided(node="n2", ready=there[:2])) == ["n2.i.1"]


def test_slots_that_are_about_to_stand_by_are_waited_for_but_not_for_ever():
    """For as long as a join may take, counted from the first that stood by."""
    there = [node("n1", slot("n1.i.1"), slot())]
    assert decided(ready=there, first_standby_at=NOW - 119).until == NOW + 1
    assert listed(decided(ready=there, first_standby_at=NOW - 120)) == ["n1.i.1"]


def test_others_may_still_come_for_a_moment():
    """Nodes that start together land in one group."""
    assert decided(newest_standby_at=NOW - 2).until == NOW + 1
    assert isinstance(decided(newest_standby_at=NOW - 3), Propose)


def test_nodes_that_lost_a_plan_are_left_out_while_enough_others_are_there():
    """For that checkpoint; and if they are all there is, they are used."""
    there = [node("n1"), node("n2"), node("n3")]
    lost = failures("stalled", nodes=("n2",))
    assert listed(decided(history=lost, ready=there)) == ["n1.i.1", "n3.i.1"]
    assert listed(decided(Rules(min_workers=3), history=lost, ready=there)) == ["n1.i.1", "n2.i.1", "n3.i.1"]
    assert len(listed(decided(history=lost, ready=there, complete=[B]))) == 3
    blamed = failures("task_error", nodes=("n2",))
    assert listed(decided(history=blamed, ready=there)) == ["n1.i.1", "n3.i.1"], "its data may be other data"
    corrected = failures("task_error", nodes=("n2",), task="old")
    assert len(listed(decided(history=corrected, ready=there))) == 3


# -- an open plan ----------------------------------------------------------------------------------------------------

OPEN = fold(plan(1, A, ("n1.i.1", "n2.i.1")))


@pytest.mark.parametrize(
    ("changes", "kind", "where", "rank"),
    [
        ({"chiefs": frozenset({"n2"})}, "chief_listed", "n2", 1),
        ({"incarnation": "later"}, "restarted", "n1", 0),
        ({"lost_members": {"n2": "n2 left"}}, "member_lost", "n2", 1),
        ({"plan_opened_at": NOW - 86400}, "deadline", None, None),
        ({"all_ranks_waiting_since": NOW - 6}, "stalled", "n2", 1),
        ({"lost_members": {"n2": "n2 left"}, "draining": True}, "member_lost", "n2", 1),
        ({"lost_members": {"n2": "n2 left"}, "may_propose": False, "ready": []}, "member_lost", "n2", 1),
        ({"node": "n3", "lost_members": {"n2": "n2 left"}}, "member_lost", "n2", 1),
    ],
)
def test_a_plan_that_cannot_succeed_is_closed(changes, kind, where, rank):
    """By any worker-role daemon that sees it, whether it may propose or not."""
    action = decided(history=OPEN, plan_opened_at=changes.pop("plan_opened_at", NOW), **changes)
    assert isinstance(action, Fail)
    assert (action.kind, action.node, action.rank) == (kind, where, rank)
    assert action.kind in FAILURE_CLASSES


def test_a_plan_that_may_succeed_is_left_alone():
    """Until its cap."""
    assert decided(history=OPEN, plan_opened_at=NOW) == Wait(NOW + 86400, "a plan is open")
    assert isinstance(decided(history=OPEN, plan_opened_at=NOW, all_ranks_waiting_since=NOW - 5.9), Wait)


# -- the end ---------------------------------------------------------------------------------------------------------

NO_WAIT = Rules(wait=False)


@pytest.mark.parametrize(
    ("rules", "changes", "stops"),
    [
        (RULES, {}, False),
        (NO_WAIT, {}, True),
        (NO_WAIT, {"incomplete_since": NOW - 62}, False),
        (NO_WAIT, {"incomplete_since": NOW - 63}, True),
        (NO_WAIT, {"incomplete_since": NOW - 63, "scanned_at": NOW - 4}, False),
        (NO_WAIT, {"incomplete_since": NOW - 63, "scanned_at": NOW - 3}, True),
        (NO_WAIT, {"complete": [A]}, False),
        (NO_WAIT, {"complete": [checkpoint(1, pinned=False)]}, False),
        (Rules(stop_after_step=2), {}, False),
        (Rules(stop_after_step=2), {"last_step": 1}, False),
        (Rules(stop_after_step=2), {"last_step": 2}, True),
        (Rules(stop_after_step=2), {"last_step": 3}, True),
        (Rules(stop_after_step=2), {"history": fold(plan(1, B), outcome(1))}, False),
        (Rules(stop_after_step=2), {"last_step": 2, "complete": [A]}, False),
        (Rules(stop_idle_seconds=60), {"last_activity_at": NOW - 59}, False),
        (Rules(stop_idle_seconds=60), {"last_activity_at": NOW - 60}, True),
        (Rules(stop_idle_seconds=60), {"last_activity_at": NOW - 60, "incomplete_since": NOW - 62}, False),
        (Rules(stop_after_step=2), {"last_step": 2, "incomplete_since": NOW - 62}, False),
        (Rules(stop_after_step=2), {"last_step": 2, "incomplete_since": NOW - 63}, True),
        (RULES, {"training_done": True}, True),
        (RULES, {"training_done": True, "complete": [A]}, False),
        (RULES, {"training_done": True, "given_up": [settled(A, "corrupt")]}, False),
        (RULES, {"training_done": True, "incomplete_since": NOW - 62}, False),
        (RULES, {"training_done": True, "incomplete_since": NOW - 63}, True),
        (RULES, {"training_done": True, "node": "n2", "ready": [node("n1"), node("n2")]}, True),
    ],
)
def test_when_a_run_is_over(rules, changes, stops):
    """Only if nothing is left to do, and only if somebody asked for an end."""
    assert isinstance(decided(rules, **({"complete": []} | changes)), Stop) == stops


@pytest.mark.parametrize(
    ("records", "failed"),
    [
        ([plan(1, None, settles=(settled(A, "failed", "t"), settled(B, "corrupt"), settled(C, "vanished")))], 2),
        ([plan(1, None, settles=(settled(A, "failed", "old"),))], 0),
        ([plan(1, None, settles=(settled(A, "failed", "old"),)), plan(2, A), outcome(2)], 0),
        ([plan(1, None, settles=(settled(A, "failed", "t"),)), plan(2, None, settles=(settled(A, "requeued"),))], 0),
        ([plan(1, None, settles=(settled(A, "vanished"), settled(B, "skipped")))], 0),
        ([plan(1, None, settles=(settled(A, "failed", "t"),)), plan(2, None, settles=(settled(A, "skipped"),))], 1),
    ],
    ids=[
        *("failed and corrupt", "under another task", "succeeded after all", "asked for again"),
        *("vanished and skipped are none", "let go for want of room after it failed"),
    ],
)
def test_only_what_failed_for_good_makes_a_run_fail(records, failed):
    """Not what a corrected task evaluated in the end."""
    assert decided(NO_WAIT, complete=[], history=fold(*records)).failed == failed


# -- whatever the world looks like -----------------------------------------------------------------------------------

STEPS = st.integers(1, 5)
WORKERS = [f"n{number}.i.{worker}" for number in (1, 2, 3) for worker in (1, 2)]


@st.composite
def histories(draw):
    """A journal that could be: some succeeded, some failed, some settled, at most one plan open."""
    history, number = JournalState(), 0
    for _ in range(draw(st.integers(0, 6))):
        number += 1
        what = checkpoint(draw(STEPS))
        workers = draw(st.lists(st.sampled_from(WORKERS), min_size=1, max_size=3, unique=True))
        verdict = draw(st.sampled_from(["succeeded", "settled", *FAILURE_CLASSES]))
        if verdict == "settled":
            end = draw(st.sampled_from(["skipped", "vanished", "corrupt", "failed", "requeued"]))
            history.apply(plan(number, None, settles=(settled(what, end, "t" if end == "failed" else None),)))
            continue
        history.apply(plan(number, what, workers, task=draw(st.sampled_from(["t", "old"]))))
        history.apply(outcome(number, None if verdict == "succeeded" else verdict, draw(st.sampled_from(["n1", "n2"]))))
    if draw(st.booleans()):
        history.apply(plan(number + 1, checkpoint(draw(STEPS)), ["n1.i.1"]))
    return history


@st.composite
def heartbeats(draw):
    """Some of three nodes, each with what it may say of itself."""
    there = []
    for name in ("n1", "n2", "n3"):
        if draw(st.booleans()):
            own = [worker for worker in WORKERS if worker.startswith(name)]
            standby, worker = draw(st.sampled_from([*own, None])), draw(st.sampled_from([*own, None]))
            state = draw(st.sampled_from(["ready", "draining"]))
            there.append(node(name, slot(standby, worker, "g"), state=state, task=draw(st.sampled_from(["t", "old"]))))
    return there


VERDICTS = st.sampled_from(["vanished", "corrupt", "skipped"])


def KEY(each):  # noqa: N802 - as STEPS
    return each.key


VIEWS = st.builds(
    view,
    history=histories(),
    ready=heartbeats(),
    complete=st.lists(st.builds(checkpoint, STEPS, pinned=st.booleans()), max_size=4, unique_by=lambda each: each.key),
    given_up=st.lists(st.builds(settled, st.builds(checkpoint, STEPS), VERDICTS), max_size=2, unique_by=KEY),
    returned=st.lists(st.builds(checkpoint, STEPS), max_size=1),
    unreadable=st.frozensets(STEPS.map(lambda step: checkpoint(step).folder), max_size=2),
    before_start=st.frozensets(STEPS.map(lambda step: checkpoint(step).key), max_size=2),
    draining=st.booleans(),
    may_propose=st.booleans(),
    chiefs=st.frozensets(st.sampled_from(["n1", "n2", "c"]), max_size=1),
    incomplete_since=st.none() | st.floats(0, NOW),
    work_waiting_since=st.none() | st.floats(0, NOW),
    backlog_cutoff_pending=st.booleans(),
    without_room=st.frozensets(STEPS.map(lambda step: checkpoint(step).key), max_size=2),
    tasks=st.frozensets(st.sampled_from(["t", "old"])),
    training_done=st.booleans(),
)
ANY_RULES = st.builds(
    Rules,
    queue=st.sampled_from(["every", "latest"]),
    every_steps=st.none() | st.integers(1, 3),
    min_workers=st.integers(1, 3),
    max_attempts=st.integers(1, 3),
    wait=st.booleans(),
)


@settings(max_examples=400, deadline=None)
@given(VIEWS, ANY_RULES)
def test_decisions_are_sound_whatever_the_world_looks_like(seen, rules):
    """Nothing settled is planned or settled again, no two plans are open, nobody spent or not ready is listed."""
    action = decide(seen, rules, NOW)
    if isinstance(action, Fail):
        assert seen.history.open is not None
        assert action.kind in FAILURE_CLASSES
    if isinstance(action, Wait):
        assert action.until is None or action.until > NOW
    if isinstance(action, Stop):
        left = pending(seen.history, seen.checkpoints.complete, seen.task)
        assert {each.folder for each in left} <= seen.checkpoints.unreadable
    if not isinstance(action, Propose):
        return
    assert seen.history.open is None
    assert seen.nodes.may_propose
    assert not seen.draining
    keys = [settlement.key for settlement in action.settles]
    assert len(keys) == len(set(keys))
    for_others = {each.key for each in action.settles if each.reason.startswith("pin_budget")}
    for_others |= {each.key for each in action.settles if each.verdict == "requeued"}
    assert not any(seen.history.is_settled(key, seen.task) for key in keys if key not in for_others)
    assert action.settles or action.members or seen.checkpoints.backlog_cutoff_pending
    if action.checkpoint is None:
        assert action.members is None
        return
    assert action.checkpoint.pin is not None
    assert action.checkpoint.key not in keys
    assert action.checkpoint.folder not in seen.checkpoints.unreadable
    assert not seen.history.is_settled(action.checkpoint.key, seen.task)
    assert len(action.members) >= rules.min_workers
    assert [member.rank for member in action.members] == list(range(len(action.members)))
    assert len({member.worker for member in action.members}) == len(action.members)
    assert not {member.worker for member in action.members} & seen.history.spent_workers.keys()
    ready = {each.node: each for each in seen.nodes.ready if each.state == "ready"}
    listed_nodes = {member.node for member in action.members}
    assert listed_nodes <= ready.keys()
    assert {ready[name].task for name in listed_nodes} == {seen.task}
