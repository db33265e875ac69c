"""Decide what a daemon does next, whatever it knows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy.views import (
    NOW,
    RULES,
    A,
    B,
    C,
    checkpoint,
    decided,
    failures,
    fold,
    listed,
    members,
    node,
    outcome,
    plan,
    settled,
    slot,
    view,
)
from rules import make_rules

from sidecar.coordination.journal_state import JournalState
from sidecar.policy.actions import Fail, Propose, Stop, Wait
from sidecar.policy.decide import decide
from sidecar.policy.selection import pending
from sidecar.protocol.states import FAILURE_CLASSES


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


def test_checkpoints_are_evaluated_in_the_order_they_were_found():
    """One after the other, not the newest first."""
    assert decided(complete=[B, A, C]).checkpoint == B
    assert decided(complete=[B, A], history=fold(plan(1, B, ("n9.i.1",)), outcome(1))).checkpoint == A


@pytest.mark.parametrize("history", [fold(), fold(plan(1, checkpoint(150), ("n1.i.9",)), outcome(1))])
def test_with_every_steps_none_overtakes_one_that_is_about_to_be_held(history):
    """The one evaluated last says which multiple was reached: after 300 and then 80 or 200, 350 would count again."""
    rules = make_rules(every_steps=100, pin_wait_seconds=60.0)
    seen = {"history": history, "work_waiting_since": NOW - 59}
    step = 80 if history.last_planned_step is None else 200
    there = [checkpoint(step, pinned=False), checkpoint(300), checkpoint(350)]
    assert decided(rules, complete=there, **seen) == Wait(NOW + 1, "the oldest checkpoint is not pinned yet")
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
    assert decided(make_rules(**rules), complete=there, **changes).checkpoint == there[1]


def test_who_cannot_read_a_checkpoint_neither_goes_first_nor_evaluates_it():
    """It takes its part in everything else."""
    blind = [node("n1", unreadable=(A.folder,)), node("n2"), node("n3")]
    assert listed(decided(node="n2", ready=blind)) == ["n2.i.1", "n3.i.1"]
    assert listed(decided(node="n2", ready=blind, complete=[B])) == ["n1.i.1", "n2.i.1", "n3.i.1"]
    late = decided(node="n1", ready=blind, complete=[B], work_waiting_since=NOW)
    assert (late.until, late.why) == (NOW + 20.0, "n2 proposes first")
    needed = decided(make_rules(min_workers=3), node="n2", ready=blind)
    assert listed(needed) == ["n1.i.1", "n2.i.1", "n3.i.1"]


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
    make_rules,
    queue=st.sampled_from(["every", "latest"]),
    every_steps=st.none() | st.integers(1, 3),
    min_workers=st.integers(1, 3),
    max_attempts=st.integers(1, 3),
    wait=st.booleans(),
)


@settings(max_examples=4 * settings().max_examples)
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
    assert not any(seen.history.verdicts.is_settled(key, seen.task) for key in keys if key not in for_others)
    assert action.settles or action.members or seen.checkpoints.backlog_cutoff_pending
    if action.checkpoint is None:
        assert action.members is None
        return
    assert action.checkpoint.pin is not None
    assert action.checkpoint.key not in keys
    assert action.checkpoint.folder not in seen.checkpoints.unreadable
    assert not seen.history.verdicts.is_settled(action.checkpoint.key, seen.task)
    assert len(action.members) >= rules.groups.min_workers
    assert [member.rank for member in action.members] == list(range(len(action.members)))
    assert len({member.worker for member in action.members}) == len(action.members)
    assert not {member.worker for member in action.members} & seen.history.exclusions.retired_workers.keys()
    ready = {each.node: each for each in seen.nodes.ready if each.state == "ready"}
    listed_nodes = {member.node for member in action.members}
    assert listed_nodes <= ready.keys()
    assert {ready[name].task for name in listed_nodes} == {seen.task}


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
    rules = make_rules(max_losses=10**6)
    changes = {"history": failures(*["stalled"] * 100), "failed_at": {A.key: NOW}}
    assert decided(rules, **changes).until == NOW + 300.0


def test_a_failure_under_another_task_delays_a_little_and_counts_for_nothing():
    """Two nodes with different tasks must not race each other in a hot loop; a corrected task starts anew."""
    changes = {"history": failures(*["task_error"] * 2, task="old"), "failed_at": {A.key: NOW}}
    assert decided(**changes).until == NOW + 1.0
    assert decided(now=NOW + 1.0, **changes).attempt == 1


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


def test_a_plan_that_lists_nobody_is_closed():
    """Only somebody else's program could write one; nobody in it could ever end it."""
    nobody = plan(1, A, ())
    assert decided(history=fold(nobody), all_ranks_waiting_since=0.0) == Fail(
        kind="join", message="the plan lists no worker at all"
    )


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
    """A node waits for an open plan until the cap on its duration."""
    assert decided(history=OPEN, plan_opened_at=NOW) == Wait(NOW + 86400, "a plan is open")
    assert isinstance(decided(history=OPEN, plan_opened_at=NOW, all_ranks_waiting_since=NOW - 5.9), Wait)


NO_WAIT = make_rules(wait=False)


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
        (make_rules(stop_after_step=2), {}, False),
        (make_rules(stop_after_step=2), {"last_step": 1}, False),
        (make_rules(stop_after_step=2), {"last_step": 2}, True),
        (make_rules(stop_after_step=2), {"last_step": 3}, True),
        (make_rules(stop_after_step=2), {"history": fold(plan(1, B), outcome(1))}, False),
        (make_rules(stop_after_step=2), {"last_step": 2, "complete": [A]}, False),
        (make_rules(stop_idle_seconds=60), {"last_activity_at": NOW - 59}, False),
        (make_rules(stop_idle_seconds=60), {"last_activity_at": NOW - 60}, True),
        (make_rules(stop_idle_seconds=60), {"last_activity_at": NOW - 60, "incomplete_since": NOW - 62}, False),
        (make_rules(stop_after_step=2), {"last_step": 2, "incomplete_since": NOW - 62}, False),
        (make_rules(stop_after_step=2), {"last_step": 2, "incomplete_since": NOW - 63}, True),
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
