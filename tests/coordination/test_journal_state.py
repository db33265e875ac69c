"""Fold plans and outcomes into a state: what is settled, newest, best and open."""

from dataclasses import replace

import pytest
from records import A, B, failure, fold, make_plan, make_result, settlement_of, success

from sidecar.coordination.journal_state import Closed, JournalState, Settled
from sidecar.errors import RecordError
from sidecar.protocol.records import Checkpoint, EvalData, Value


def test_an_empty_journal_has_no_past():
    """Nothing is open, settled or newest before plan 1."""
    history = JournalState()
    assert (history.through, history.open, history.newest, history.verdicts.succeeded) == (0, None, None, set())
    assert not history.verdicts.is_settled(A.key, "t1")


def test_the_newest_is_what_succeeded_last():
    """In journal order, not by step; a later failure does not take its place."""
    history = fold(
        make_plan(1, B),
        success(1),
        make_plan(2, A),
        success(2),
        make_plan(3, Checkpoint(name="c", digest="c" * 64, step=3, format="tf")),
        failure(3),
    )
    assert history.newest == Closed(make_plan(2, A), success(2))
    assert history.verdicts.succeeded == {A.key, B.key}


def test_a_checkpoint_evaluated_again_is_the_newest():
    """Its numbers are those of the later evaluation, and stand last."""
    history = fold(make_plan(1, A), success(1), make_plan(2, B), success(2), make_plan(3, A), success(3))
    assert history.newest == Closed(make_plan(3, A), success(3))
    assert history.verdicts.succeeded == {A.key, B.key}
    assert len(history.entries) == 3


def accuracy(number, value):
    """An evaluation with a number of which more is better."""
    metrics = {"test": {"accuracy": Value(value=value, hex=value.hex(), goal="max")}}
    return replace(success(number), result=replace(success(number).result, examples={"test": 1}, metrics=metrics))


def test_a_requeued_evaluation_does_not_set_back_where_evaluation_stands():
    """Nor do further attempts at it."""
    history = fold(
        make_plan(1, A),
        success(1),
        make_plan(2, B),
        success(2),
        make_plan(3, None, settles=(settlement_of(A, "requeued"),)),
    )
    for entry in (make_plan(4, A), failure(4), make_plan(5, A), success(5)):
        history.apply(entry)
        assert history.last_planned_step == B.step


def test_a_best_value_is_dropped_when_its_evaluation_is_to_be_repeated():
    """Its checkpoint competes with its new number; the best values of others stay."""
    history = fold(make_plan(1, A), accuracy(1, 0.9), make_plan(2, B), accuracy(2, 0.5))
    assert history.totals.best["test", "accuracy"].number == 0.9
    history.apply(make_plan(3, None, settles=(settlement_of(B, "requeued"),)))
    assert history.totals.best["test", "accuracy"].number == 0.9
    history.apply(make_plan(4, None, settles=(settlement_of(A, "requeued"),)))
    assert history.totals.best == {}
    for entry in (make_plan(5, A), accuracy(5, 0.4), make_plan(6, B), accuracy(6, 0.3)):
        history.apply(entry)
    assert history.totals.best["test", "accuracy"].number == 0.4
    assert history.totals.best["test", "accuracy"].folder == make_plan(5, A).folder


def test_a_plan_that_only_settles_is_closed_at_once():
    """It needs no outcome, and each settlement is an entry, which does not hold the others too."""
    only = make_plan(1, None, settles=(settlement_of(A, "skipped"), settlement_of(B, "vanished")))
    history = JournalState()
    bare = replace(only, settles=())
    assert history.apply(only) == [
        Settled(bare, settlement_of(A, "skipped")),
        Settled(bare, settlement_of(B, "vanished")),
    ]
    assert (history.through, history.open) == (1, None)
    assert history.apply(make_plan(2, None)) == []
    assert history.through == 2


def test_a_plan_may_settle_some_and_evaluate_another():
    """The settlements count from the proposal on, whatever becomes of the evaluation."""
    history = fold(make_plan(1, A, settles=(settlement_of(B, "skipped"),)))
    assert history.verdicts.is_settled(B.key, "t1")
    assert history.open is not None
    history.apply(failure(1))
    assert [type(entry) for entry in history.entries] == [Settled, Closed]


@pytest.mark.parametrize(
    ("before", "entry"),
    [
        ([], make_plan(2)),
        ([], make_plan(0)),
        ([], success(1)),
        ([make_plan(1)], make_plan(2)),
        ([make_plan(1)], make_plan(1)),
        ([make_plan(1)], success(2)),
        ([make_plan(1), success(1)], success(1)),
        ([make_plan(1), success(1)], make_plan(1)),
        ([make_plan(1), success(1)], make_plan(3)),
        ([make_plan(1, None)], success(1)),
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
    return make_result(examples=examples, data=data)


def best_of(*evaluations):
    """Return the plans that are best and those that were best before, after evaluations of a task, data and number."""
    history = JournalState()
    for number, (task, data, accuracy) in enumerate(evaluations, 1):
        checkpoint = Checkpoint(name=f"ckpt-{number}", digest=f"{number:064x}", step=number, format="tf")
        history.apply(make_plan(number, checkpoint, task=task))
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


def test_checkpoints_without_a_step_are_numbered():
    """Each once, in order of the journal, settled or evaluated; a step that is known stays."""
    best, last = replace(A, step=None), replace(B, step=None)
    other = Checkpoint(name="other", digest="c" * 64, step=7, format="tf", step_source="optimizer")
    skipped = settlement_of(Checkpoint(name="old", digest="d" * 64, step=None, format="tf"), "skipped")
    history = fold(
        make_plan(1, best),
        failure(1),
        make_plan(2, other),
        success(2),
        make_plan(3, last, settles=(skipped,)),
        success(3),
        make_plan(4, best),
    )
    about = [(entry.plan.checkpoint.step, entry.plan.checkpoint.step_source) for entry in history.entries]
    assert about == [(1, "order"), (7, "optimizer"), (3, "order"), (3, "order")]
    assert history.open.checkpoint == replace(best, step=1, step_source="order")
    assert list(history.ordinals.values()) == [1, 2, 3]
    assert history.last_planned_step == 7
