"""Wait longer before each further attempt."""

import pytest
from policy.views import NOW, A, B, C, decided, failures, outcome, plan
from rules import make_rules

from sidecar.policy.actions import Wait


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
