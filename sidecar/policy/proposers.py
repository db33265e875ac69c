"""Decide which node proposes the next plan, and which publishes. Pure.

Two proposers are harmless, since creating the plan's number in shared storage decides. Taking turns only avoids races.
"""

from collections.abc import Sequence

from sidecar.policy.actions import Propose, Wait
from sidecar.policy.eligibility import candidates_for
from sidecar.policy.rules import Rules
from sidecar.policy.view import View
from sidecar.records import Heartbeat


def publisher(ready: Sequence[Heartbeat]) -> str | None:
    """Return the node that publishes results, and usually proposes plans: the first of the ready workers."""
    return ready[0].node if ready else None


def propose_in_turn(action: Propose, view: View, rules: Rules, now: float) -> Propose | Wait:
    """Propose if it is this node's turn: each node leaves some time to those before it, as they see the same.

    Only nodes that could be listed together take turns, because a plan carries the task of the node that proposes it.
    """
    if not view.nodes.may_propose:
        return Wait(why="getting to know the other nodes")
    candidates = candidates_for(action.checkpoint, view.nodes.ready, view.node, rules.groups.min_workers)
    order = proposal_order(candidates, view.history.through)
    nodes = [heartbeat.node for heartbeat in order]
    if view.node not in nodes or order[0].task != view.task:  # its own heartbeat may still name another task
        return Wait(why=f"{view.node} is not counted, or has another version, task or profile than most nodes")
    own_turn = view.timers.turns_begin_at + nodes.index(view.node) * rules.plans.proposal_turn_seconds
    return action if now >= own_turn else Wait(own_turn, f"{nodes[0]} proposes first", listen=True)


def proposal_order(candidates: Sequence[Heartbeat], plans: int) -> list[Heartbeat]:
    """Return the nodes in the order in which they propose the plan after `plans`: those that read everything first.

    The others take turns in being the first of them: each may be the only one that can read some checkpoint.
    """
    unimpaired = [heartbeat for heartbeat in candidates if not heartbeat.checkpoints.unreadable]
    impaired = [heartbeat for heartbeat in candidates if heartbeat.checkpoints.unreadable]
    first = plans % len(impaired) if impaired else 0
    return [*unimpaired, *impaired[first:], *impaired[:first]]
