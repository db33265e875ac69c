"""Decide when a run is over, and whether it failed."""

import pytest
from policy.views import NOW, RULES, A, B, C, checkpoint, decided, fold, node, outcome, plan, settled
from rules import make_rules

from sidecar.policy.actions import Stop

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
