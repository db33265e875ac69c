"""Close an open plan that cannot succeed."""

import pytest
from policy.views import NOW, A, decided, fold, plan

from sidecar.policy.actions import Fail, Wait
from sidecar.protocol.states import FAILURE_CLASSES


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
