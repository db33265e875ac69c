"""Settle checkpoints for one task or for all, and take settlements back."""

import pytest
from records import A, B, failure, fold, make_plan, settlement_of, success

from sidecar.coordination.journal_state import Closed, JournalState


def test_a_success_settles_its_checkpoint_for_every_task():
    """Plan, outcome: the plan is open in between, and afterwards nobody evaluates that checkpoint again."""
    history = JournalState()
    assert history.apply(make_plan(1)) == []
    assert (history.open, history.through) == (make_plan(1), 1)
    assert not history.verdicts.is_settled(A.key, "t1")
    closed = Closed(make_plan(1), success(1))
    assert history.apply(success(1)) == [closed]
    assert (history.open, history.through) == (None, 1)
    assert history.verdicts.is_settled(A.key, "t1")
    assert history.verdicts.is_settled(A.key, "t2")
    assert not history.verdicts.is_settled(B.key, "t1")
    assert history.entries == [closed]


def test_changed_content_under_a_known_name_is_another_checkpoint():
    """Name and digest together are the identity."""
    history = fold(make_plan(1), success(1))
    assert not history.verdicts.is_settled((A.name, "f" * 64), "t1")


def test_an_evaluated_checkpoint_that_is_requeued_needs_one_evaluation():
    """However often it is asked for before that; counters and the newest numbers stay meanwhile."""
    again = settlement_of(A, "requeued")
    history = fold(make_plan(1), success(1), make_plan(2, None, settles=(again,)), make_plan(3, None, settles=(again,)))
    assert history.verdicts.unsettled([A.key, B.key], "t1") == [A.key, B.key]
    assert not history.verdicts.is_settled(A.key, "t1")
    assert (history.verdicts.succeeded, history.verdicts.requeued) == (set(), {A.key})
    assert history.totals.checkpoints["evaluated"] == {A.key}
    assert history.newest == Closed(make_plan(1), success(1))
    history.apply(make_plan(4))
    history.apply(success(4))
    assert history.verdicts.is_settled(A.key, "t2")
    assert (history.verdicts.succeeded, history.verdicts.requeued) == ({A.key}, set())
    assert history.totals.checkpoints["evaluated"] == {A.key}
    assert history.newest == Closed(make_plan(4), success(4))
    assert history.folders == [make_plan(1).folder, make_plan(4).folder]


@pytest.mark.parametrize("verdict", ["vanished", "failed", "skipped"])
def test_an_evaluated_checkpoint_may_come_to_another_end_after_a_requeue(verdict):
    """The end is its last one; the number that it had stays among the entries."""
    history = fold(
        make_plan(1),
        success(1),
        make_plan(2, None, settles=(settlement_of(A, "requeued"),)),
        make_plan(3, None, settles=(settlement_of(A, verdict),)),
    )
    assert history.verdicts.is_settled(A.key, "t1")
    assert history.verdicts.without_result == {A.key}
    assert history.verdicts.settled == {A.key: verdict}
    assert history.entries[0] == Closed(make_plan(1), success(1))


def test_a_failure_alone_settles_nothing():
    """It is final only when the journal says so."""
    assert not fold(make_plan(1), failure(1, "corrupt")).verdicts.is_settled(A.key, "t1")


def test_a_success_forgets_the_failures_before_it():
    """The attempts were for nothing else."""
    assert fold(make_plan(1), failure(1), make_plan(2), success(2)).verdicts.failures == {}


@pytest.mark.parametrize("verdict", ["skipped", "vanished", "corrupt"])
def test_what_was_not_evaluated_is_settled_for_all_tasks(verdict):
    """Skipped, vanished and corrupt hold for ever, even if somebody later calls it failed for one task."""
    history = fold(make_plan(1, None, settles=(settlement_of(A, verdict),)))
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
    history = fold(
        *(make_plan(n, None, settles=(settlement_of(A, "failed", task),)) for n, task in enumerate(tasks, 1))
    )
    assert all(history.verdicts.is_settled(A.key, task) for task in settled_for)
    assert not any(history.verdicts.is_settled(A.key, task) for task in open_for)
