from dataclasses import replace

import pytest

from sidecar.coordination.blame import blamed
from sidecar.coordination.comparability import SeenData
from sidecar.coordination.exclusions import LOSERS_KEPT, Losses
from sidecar.coordination.journal_state import Closed, JournalState, Settled
from sidecar.errors import RecordError
from sidecar.protocol.records import Checkpoint, EvalData, Member, Outcome, Plan, Result, Settlement, Value

A = Checkpoint(name="ckpt-a", digest="a" * 64, step=1, format="tf")
B = Checkpoint(name="ckpt-b", digest="b" * 64, step=2, format="tf")


def plan(number, checkpoint=A, *, task="t1", settles=(), workers=("w1",)):
    members = tuple(Member(rank, f"n{rank}", worker, "h:1") for rank, worker in enumerate(workers))
    return Plan(
        plan=number,
        run="r",
        nonce=f"p{number}",
        checkpoint=checkpoint,
        attempt=1,
        members=members if checkpoint else None,
        settles=settles,
        task=task,
        proposer="n0",
        proposed_at="now",
    )


def success(number):
    result = Result(
        group="g", workers=1, examples={}, metrics={}, phases={}, variables="v", task="t", profile={}, saves=()
    )
    return Outcome(
        plan=number, run="r", nonce=f"o{number}", status="succeeded", closed_by="n0", completed_at="now", result=result
    )


def failure(number, kind="stalled", *, node=None, odd=()):
    return Outcome(
        plan=number,
        run="r",
        nonce=f"o{number}",
        status="failed",
        closed_by="n0",
        completed_at="now",
        kind=kind,
        node=node,
        odd=odd,
    )


def settle(checkpoint, verdict, task=None):
    return Settlement(
        name=checkpoint.name,
        digest=checkpoint.digest,
        step=checkpoint.step,
        verdict=verdict,
        reason="because",
        task=task,
    )


def fold(*entries):
    history = JournalState()
    for entry in entries:
        history.apply(entry)
    return history


def test_an_empty_journal_has_no_past():
    """Nothing is open, settled or newest before plan 1."""
    history = JournalState()
    assert (history.through, history.open, history.newest, history.verdicts.succeeded) == (0, None, None, set())
    assert not history.verdicts.is_settled(A.key, "t1")


def test_a_success_settles_its_checkpoint_for_every_task():
    """Plan, outcome: the plan is open in between, and afterwards nobody evaluates that checkpoint again."""
    history = JournalState()
    assert history.apply(plan(1)) == []
    assert (history.open, history.through) == (plan(1), 1)
    assert not history.verdicts.is_settled(A.key, "t1")
    closed = Closed(plan(1), success(1))
    assert history.apply(success(1)) == [closed]
    assert (history.open, history.through) == (None, 1)
    assert history.verdicts.is_settled(A.key, "t1")
    assert history.verdicts.is_settled(A.key, "t2")
    assert not history.verdicts.is_settled(B.key, "t1")
    assert history.entries == [closed]


def test_changed_content_under_a_known_name_is_another_checkpoint():
    """Name and digest together are the identity."""
    history = fold(plan(1), success(1))
    assert not history.verdicts.is_settled((A.name, "f" * 64), "t1")


def test_the_newest_is_what_succeeded_last():
    """In journal order, not by step; a later failure does not take its place."""
    history = fold(
        plan(1, B),
        success(1),
        plan(2, A),
        success(2),
        plan(3, Checkpoint(name="c", digest="c" * 64, step=3, format="tf")),
        failure(3),
    )
    assert history.newest == Closed(plan(2, A), success(2))
    assert history.verdicts.succeeded == {A.key, B.key}


def test_a_checkpoint_evaluated_again_is_the_newest():
    """Its numbers are those of the later evaluation, and stand last."""
    history = fold(plan(1, A), success(1), plan(2, B), success(2), plan(3, A), success(3))
    assert history.newest == Closed(plan(3, A), success(3))
    assert history.verdicts.succeeded == {A.key, B.key}
    assert len(history.entries) == 3


def accuracy(number, value):
    """An evaluation with a number of which more is better."""
    metrics = {"test": {"accuracy": Value(value=value, hex=value.hex(), goal="max")}}
    return replace(success(number), result=replace(success(number).result, examples={"test": 1}, metrics=metrics))


def test_an_evaluated_checkpoint_that_is_requeued_needs_one_evaluation():
    """However often it is asked for before that; counters and the newest numbers stay meanwhile."""
    again = settle(A, "requeued")
    history = fold(plan(1), success(1), plan(2, None, settles=(again,)), plan(3, None, settles=(again,)))
    assert history.verdicts.unsettled([A.key, B.key], "t1") == [A.key, B.key]
    assert not history.verdicts.is_settled(A.key, "t1")
    assert (history.verdicts.succeeded, history.verdicts.requeued) == (set(), {A.key})
    assert history.totals.checkpoints["evaluated"] == {A.key}
    assert history.newest == Closed(plan(1), success(1))
    history.apply(plan(4))
    history.apply(success(4))
    assert history.verdicts.is_settled(A.key, "t2")
    assert (history.verdicts.succeeded, history.verdicts.requeued) == ({A.key}, set())
    assert history.totals.checkpoints["evaluated"] == {A.key}
    assert history.newest == Closed(plan(4), success(4))
    assert history.folders == [plan(1).folder, plan(4).folder]


@pytest.mark.parametrize("verdict", ["vanished", "failed", "skipped"])
def test_an_evaluated_checkpoint_may_come_to_another_end_after_a_requeue(verdict):
    """The end is its last one; the number that it had stays among the entries."""
    history = fold(
        plan(1),
        success(1),
        plan(2, None, settles=(settle(A, "requeued"),)),
        plan(3, None, settles=(settle(A, verdict),)),
    )
    assert history.verdicts.is_settled(A.key, "t1")
    assert history.verdicts.without_result == {A.key}
    assert history.verdicts.settled == {A.key: verdict}
    assert history.entries[0] == Closed(plan(1), success(1))


def test_a_requeued_evaluation_does_not_set_back_where_evaluation_stands():
    """Nor do further attempts at it."""
    history = fold(plan(1, A), success(1), plan(2, B), success(2), plan(3, None, settles=(settle(A, "requeued"),)))
    for entry in (plan(4, A), failure(4), plan(5, A), success(5)):
        history.apply(entry)
        assert history.last_planned_step == B.step


def test_a_best_value_is_dropped_when_its_evaluation_is_to_be_repeated():
    """Its checkpoint competes with its new number; the best values of others stay."""
    history = fold(plan(1, A), accuracy(1, 0.9), plan(2, B), accuracy(2, 0.5))
    assert history.totals.best["test", "accuracy"].number == 0.9
    history.apply(plan(3, None, settles=(settle(B, "requeued"),)))
    assert history.totals.best["test", "accuracy"].number == 0.9
    history.apply(plan(4, None, settles=(settle(A, "requeued"),)))
    assert history.totals.best == {}
    for entry in (plan(5, A), accuracy(5, 0.4), plan(6, B), accuracy(6, 0.3)):
        history.apply(entry)
    assert history.totals.best["test", "accuracy"].number == 0.4
    assert history.totals.best["test", "accuracy"].folder == plan(5, A).folder


@pytest.mark.parametrize(
    ("entries", "group", "checkpoint"),
    [
        ([plan(1), failure(1)], 1, 0),
        ([plan(1), failure(1), plan(2), failure(2, "member_lost"), plan(3), failure(3, "mismatch")], 2, 1),
        ([plan(1), failure(1), plan(2, task="t2"), failure(2, "task_error")], 1, 0),
        ([plan(1), failure(1), plan(2), failure(2, "a kind of a newer version")], 2, 0),
        ([plan(1), failure(1), plan(2), failure(2, None)], 2, 0),
        ([plan(1), failure(1), plan(2, B), failure(2)], 1, 0),
    ],
    ids=["one", "two classes", "another task has its own", "unknown kind", "no kind", "another checkpoint"],
)
def test_failures_are_counted_by_who_is_to_blame(entries, group, checkpoint):
    """Per checkpoint and task digest that tried it; an unknown kind is the machines' fault."""
    failures = fold(*entries).verdicts.failed_under(A.key, "t1")
    assert (blamed(failures, "group"), blamed(failures, "checkpoint")) == (group, checkpoint)
    assert blamed(failures, "corrupt") == blamed(failures, "vanished") == 0


def test_a_failure_alone_settles_nothing():
    """It is final only when the journal says so."""
    assert not fold(plan(1), failure(1, "corrupt")).verdicts.is_settled(A.key, "t1")


def test_a_success_forgets_the_failures_before_it():
    """The attempts were for nothing else."""
    assert fold(plan(1), failure(1), plan(2), success(2)).verdicts.failures == {}


@pytest.mark.parametrize("verdict", ["skipped", "vanished", "corrupt"])
def test_what_was_not_evaluated_is_settled_for_all_tasks(verdict):
    """Skipped, vanished and corrupt hold for ever, even if somebody later calls it failed for one task."""
    history = fold(plan(1, None, settles=(settle(A, verdict),)))
    assert history.verdicts.is_settled(A.key, "t1")
    assert history.verdicts.is_settled(A.key, None)
    assert not history.verdicts.is_settled(B.key, "t1")


@pytest.mark.parametrize(
    ("tasks", "settled_for", "open_for"),
    [
        (["t1"], ["t1"], ["t2", None]),
        (["t1", "t2"], ["t1", "t2"], ["t3"]),
        ([None], ["t1", "t2", None], []),
        ([None, "t1"], ["t1", "t2", None], []),
    ],
    ids=["one task", "two tasks", "all tasks", "all tasks, then one"],
)
def test_a_final_failure_holds_for_the_task_that_failed(tasks, settled_for, open_for):
    """A corrected task gets its try, and going back to one that failed does not."""
    history = fold(*(plan(n, None, settles=(settle(A, "failed", task),)) for n, task in enumerate(tasks, 1)))
    assert all(history.verdicts.is_settled(A.key, task) for task in settled_for)
    assert not any(history.verdicts.is_settled(A.key, task) for task in open_for)


def test_a_plan_that_only_settles_is_closed_at_once():
    """It needs no outcome, and each settlement is an entry, which does not hold the others too."""
    only = plan(1, None, settles=(settle(A, "skipped"), settle(B, "vanished")))
    history = JournalState()
    bare = replace(only, settles=())
    assert history.apply(only) == [Settled(bare, settle(A, "skipped")), Settled(bare, settle(B, "vanished"))]
    assert (history.through, history.open) == (1, None)
    assert history.apply(plan(2, None)) == []
    assert history.through == 2


def test_a_plan_may_settle_some_and_evaluate_another():
    """The settlements count from the proposal on, whatever becomes of the evaluation."""
    history = fold(plan(1, A, settles=(settle(B, "skipped"),)))
    assert history.verdicts.is_settled(B.key, "t1")
    assert history.open is not None
    history.apply(failure(1))
    assert [type(entry) for entry in history.entries] == [Settled, Closed]


def test_workers_of_a_failed_plan_are_spent():
    """They are never listed again; those of a success stay warm."""
    history = fold(plan(1, workers=("w1", "w2")), failure(1), plan(2, workers=("w3",)), success(2))
    assert list(history.exclusions.retired_workers) == ["w1", "w2"]


@pytest.mark.parametrize(
    ("before", "entry"),
    [
        ([], plan(2)),
        ([], plan(0)),
        ([], success(1)),
        ([plan(1)], plan(2)),
        ([plan(1)], plan(1)),
        ([plan(1)], success(2)),
        ([plan(1), success(1)], success(1)),
        ([plan(1), success(1)], plan(1)),
        ([plan(1), success(1)], plan(3)),
        ([plan(1, None)], success(1)),
    ],
    ids=[
        "a gap at the start",
        "plan 0",
        "an outcome of nothing",
        "a plan while one is open",
        "the open plan again",
        "the outcome of another plan",
        "an outcome twice",
        "a closed plan again",
        "a gap",
        "an outcome of a plan that only settles",
    ],
)
def test_what_is_out_of_order_is_refused_and_changes_nothing(before, entry):
    """The fold believes no journal that no journal could be."""
    history = fold(*before)
    with pytest.raises(RecordError):
        history.apply(entry)
    assert history == fold(*before)


def result(examples, **fingerprints):
    data = {name: EvalData(found, found and 3, "batches" if found else "own") for name, found in fingerprints.items()}
    return Result(
        group="g",
        workers=1,
        examples=examples,
        metrics={},
        phases={},
        variables="v",
        task="t",
        profile={},
        saves=(),
        data=data,
    )


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        (result({"test": 10}, test="aa"), ()),
        (result({"test": 10}, test="bb"), ("test",)),
        (result({"test": 11}, test="aa"), ("test",)),
        (result({"test": 10, "new": 5}, test="aa", new="cc"), ()),  # seen for the first time
        (result({"test": 10}, test=None), ()),  # it divides itself now: only the count is known
        (result({"test": 10}), ()),  # of a version that did not tell
        (result({"test": 9}), ("test",)),
    ],
)
def test_data_that_changed_since_the_last_evaluation(now, changed):
    """Another fingerprint or another number of examples: curves on both sides do not compare."""
    history = fold(plan(1))
    history.apply(
        Outcome(
            plan=1,
            run="r",
            nonce="o1",
            status="succeeded",
            closed_by="n0",
            completed_at="now",
            result=result({"test": 10}, test="aa"),
        )
    )
    assert history.changed(now) == changed


def best_of(*evaluations):
    """Return the plans that are best and those that were best before, after evaluations of a task, data and number."""
    history = JournalState()
    for number, (task, data, accuracy) in enumerate(evaluations, 1):
        checkpoint = Checkpoint(name=f"ckpt-{number}", digest=f"{number:064x}", step=number, format="tf")
        history.apply(plan(number, checkpoint, task=task))
        measured = result({"test": 10}, test=data)
        values = {"test": {"accuracy": Value(value=accuracy, hex=accuracy.hex(), goal="max")}}
        history.apply(replace(success(number), result=replace(measured, metrics=values, task=task)))
    totals = history.totals
    return [each.plan for each in totals.ranked["test", "accuracy"]], [each.plan for each in totals.outdated.values()]


@pytest.mark.parametrize(
    ("evaluations", "best", "before"),
    [
        ([("t", "a", 0.9), ("t", "a", 0.8)], [1, 2], []),
        ([("t", "a", 0.8), ("t", "a", 0.9), ("t", "b", 0.5), ("t", "b", 0.6)], [4, 3], [2]),
        ([("t", "a", 0.9), ("t", "b", 0.5), ("t", "a", 0.4)], [3], [2]),
        ([("t", "a", 0.9), ("u", "a", 0.5)], [2], [1]),
        ([("t", None, 0.9), ("t", "a", 0.5), ("t", None, 0.6)], [1, 3, 2], []),  # the counts are equal
    ],
)
def test_the_best_is_found_anew_for_other_data_and_another_task(evaluations, best, before):
    """Their numbers cannot be compared. The best one of before is known, because it is still exported."""
    assert best_of(*evaluations) == (best, before)


@pytest.mark.parametrize(
    ("one", "other", "may_equal", "are_equal"),
    [
        (EvalData("a", 3, "batches"), EvalData("a", 3, "batches"), True, True),
        (EvalData("a", 3, "batches"), EvalData("b", 3, "batches"), False, False),
        (EvalData("a", None, "files"), EvalData("b", 3, "batches"), True, False),  # fewer files than workers
        (EvalData("a", 3, "batches", 8), EvalData("b", 3, "batches"), True, False),
        (EvalData("a", 3, "batches", 8), EvalData("a", 3, "batches", 8), True, True),
        (EvalData(None, None, "own"), EvalData(None, None, "own"), True, False),
        (None, EvalData("a", 3, "batches"), True, False),
    ],
)
def test_fingerprints_are_compared_if_they_were_made_in_the_same_way(one, other, may_equal, are_equal):
    """Otherwise the number of examples decides whether numbers can be compared, and nothing is paired."""
    for first, second in ((one, other), (other, one)):
        assert SeenData(first, 10).may_equal(SeenData(second, 10)) == may_equal
        assert SeenData(first, 10).is_known_to_equal(SeenData(second, 10)) == are_equal
        assert not SeenData(first, 10).may_equal(SeenData(second, 11))


def test_an_evaluation_that_leaves_out_a_set_keeps_its_numbers():
    """Each set has those of the checkpoint it was evaluated for last; another task begins without any."""
    both, one = result({"test": 5, "rare": 10}), result({"test": 5})
    history = JournalState()
    shown = [(B, "t1", both), (A, "t1", one), (B, "t1", None), (A, "t1", both), (B, "t2", one)]
    found = []
    for number, (checkpoint, task, measured) in enumerate(shown, 1):
        history.apply(plan(number, checkpoint, task=task))
        history.apply(failure(number) if measured is None else replace(success(number), result=measured))
        found.append(
            {name: (each.checkpoint, len(each.result.examples)) for name, each in history.newest_task.latest.items()}
        )
    assert found == [
        {"test": (B, 2), "rare": (B, 2)},
        {"test": (A, 1), "rare": (B, 2)},
        {"test": (A, 1), "rare": (B, 2)},
        {"test": (A, 2), "rare": (A, 2)},
        {"test": (B, 1)},
    ]


def test_a_set_that_was_left_out_is_compared_with_its_own_last_time():
    """Sets may be evaluated for every second checkpoint only."""
    history = fold(plan(1))
    history.apply(
        Outcome(
            plan=1,
            run="r",
            nonce="o1",
            status="succeeded",
            closed_by="n0",
            completed_at="now",
            result=result({"rare": 10}, rare="aa"),
        )
    )
    history.apply(plan(2, B))
    history.apply(
        Outcome(
            plan=2,
            run="r",
            nonce="o2",
            status="succeeded",
            closed_by="n0",
            completed_at="now",
            result=result({"test": 5}, test="bb"),
        )
    )
    assert history.changed(result({"rare": 10}, rare="cc")) == ("rare",)


# -- losses in a row -------------------------------------------------------------------------------------------------


def tried(number, ended, *workers):
    """An attempt with one worker each of these daemons, given as `node.incarnation`."""
    members = tuple(
        Member(rank, worker.split(".")[0], f"{worker}.{number}", "h:1") for rank, worker in enumerate(workers)
    )
    return Plan(
        plan=number,
        run="r",
        nonce=f"p{number}",
        checkpoint=A,
        attempt=1,
        members=members,
        settles=(),
        task="t1",
        proposer="n0",
        proposed_at="now",
    ), replace(ended, plan=number)


def lose(*times, node="n2"):
    """A history in which n2 lost plans with these numbers, and no other plan tried anything."""
    history = JournalState()
    for number in range(1, max(times) + 1):
        ended = failure(number, node=node) if number in times else failure(number, "deadline")
        for record in tried(number, ended, "n1.i", "n2.i"):
            history.apply(record)
    return history


@pytest.mark.parametrize(("losses", "plans"), [(1, 1), (2, 2), (3, 3), (4, 5), (5, 9), (6, 17), (7, 17), (2000, 17)])
def test_a_node_that_loses_plans_in_a_row_is_left_out_of_ever_more(losses, plans):
    """The next plan goes without it; from the second loss on further plans do, up to sixteen."""
    history = lose(*range(1, losses + 1))
    for number in range(losses + 1, losses + 40):
        left_out = number <= losses + plans
        assert history.is_left_out("n2", "i") == left_out
        assert not history.is_left_out("n1", "i")
        assert not history.is_left_out("n2", "another incarnation")
        history.apply(plan(number, None))


def test_a_success_together_with_others_ends_the_losses_in_a_row():
    """Alone a node proves nothing: its links may be what is broken."""
    history = lose(1, 2)
    for record in tried(3, success(3), "n2.i"):
        history.apply(record)
    assert history.exclusions.losses == {("n2", "i"): Losses("n2", "i", 2, 4)}
    for record in tried(4, success(4), "n1.i", "n2.i"):
        history.apply(record)
    assert history.exclusions.losses == {}


def test_only_plans_of_several_nodes_are_lost_by_one():
    """And only by the nodes that are to blame, of those that were in the plan."""
    history = fold(*tried(1, failure(1, node="n2"), "n2.i"), *tried(2, failure(2), "n1.i", "n2.i"))
    assert history.exclusions.losses == {}
    for record in tried(3, failure(3, "mismatch", node="n1", odd=("n2", "n9")), "n1.i", "n2.i", "n3.i"):
        history.apply(record)
    assert history.exclusions.losses == {("n2", "i"): Losses("n2", "i", 1, 4)}


def test_a_failure_of_odd_nodes_is_not_the_checkpoints():
    """It counts as one of the machines', whatever its kind."""
    failures = [failure(1, "mismatch", odd=("n2",)), failure(2, "mismatch"), failure(3, "stream_differs", odd=("n1",))]
    assert (blamed(failures, "group"), blamed(failures, "checkpoint")) == (2, 1)


def test_no_more_losers_are_kept_than_are_there_at_once():
    """A node that crashes again and again has another incarnation each time."""
    history = JournalState()
    for number in range(1, LOSERS_KEPT + 10):
        for record in tried(number, failure(number, node="n2"), "n1.i", f"n2.{number}"):
            history.apply(record)
    assert len(history.exclusions.losses) == LOSERS_KEPT
    assert ("n2", str(LOSERS_KEPT + 9)) in history.exclusions.losses


def test_checkpoints_without_a_step_are_numbered():
    """Each once, in order of the journal, settled or evaluated; a step that is known stays."""
    best, last = replace(A, step=None), replace(B, step=None)
    other = Checkpoint(name="other", digest="c" * 64, step=7, format="tf", step_source="optimizer")
    skipped = settle(Checkpoint(name="old", digest="d" * 64, step=None, format="tf"), "skipped")
    history = fold(
        plan(1, best),
        failure(1),
        plan(2, other),
        success(2),
        plan(3, last, settles=(skipped,)),
        success(3),
        plan(4, best),
    )
    about = [(entry.plan.checkpoint.step, entry.plan.checkpoint.step_source) for entry in history.entries]
    assert about == [(1, "order"), (7, "optimizer"), (3, "order"), (3, "order")]
    assert history.open.checkpoint == replace(best, step=1, step_source="order")
    assert list(history.ordinals.values()) == [1, 2, 3]
    assert history.last_planned_step == 7
