"""Decide whether the open plan can still succeed. Pure.

A daemon's own workers report for themselves, so this module judges the workers of other nodes.
"""

from collections.abc import Sequence

from sidecar.policy.actions import Fail, Wait
from sidecar.policy.rules import PlanRules
from sidecar.policy.view import View
from sidecar.protocol.records import Member, Plan
from sidecar.protocol.states import FailureKind


def judge_open_plan(plan: Plan, view: View, rules: PlanRules, now: float) -> Fail | Wait:
    """Return the failure of the open plan if it cannot succeed any more, else when to judge it again."""
    members = plan.members or ()
    if (failure := _unfit_member(members, view)) is not None:
        return failure
    waiting_since = view.timers.all_ranks_waiting_since
    limit = rules.collective_timeout_seconds
    if waiting_since is not None and now >= waiting_since + limit:
        # No node knows whose link is broken. The next attempt goes without one of them, so some group will succeed.
        last = members[-1]
        waited = f"every rank waited for the others for {limit:g} s (collective_timeout_seconds)"
        message = f"{waited}: they do not reach each other"
        return Fail(kind=FailureKind.STALLED, message=message, node=last.node, rank=last.rank)
    limit = rules.plan_cap_seconds
    deadline = view.timers.plan_opened_at + limit
    if now >= deadline:
        message = f"the plan was open for {limit:.0f} s, the most allowed (plan_cap_seconds)"
        return Fail(kind=FailureKind.DEADLINE, message=message)
    return Wait(deadline, "a plan is open")


def _unfit_member(members: Sequence[Member], view: View) -> Fail | None:
    """Return why these members will not finish the plan together; None if they may."""
    for member in members:
        node, rank = member.node, member.rank
        if node in view.nodes.chiefs:
            return Fail(
                kind=FailureKind.CHIEF_LISTED, message=f"{node} is the chief: it never evaluates", node=node, rank=rank
            )
        if node == view.node and not member.worker.startswith(f"{view.node}.{view.incarnation}."):
            return Fail(
                kind=FailureKind.RESTARTED, message=f"{node} was restarted while it evaluated", node=node, rank=rank
            )
    for member in members:
        if why := view.nodes.lost_members.get(member.node):
            return Fail(kind=FailureKind.MEMBER_LOST, message=why, node=member.node, rank=member.rank)
    return None if members else Fail(kind=FailureKind.JOIN, message="the plan lists no worker at all")
