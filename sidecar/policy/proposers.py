"""Decide which node proposes the next plan, and which node publishes. Pure.

Two proposers are harmless, because creating the plan's number in shared storage decides. Turns only avoid races.
"""

from collections.abc import Sequence

from sidecar.policy.actions import Propose, Wait
from sidecar.policy.eligibility import candidates_for
from sidecar.policy.rules import Rules
from sidecar.policy.view import View
from sidecar.protocol.heartbeat import Heartbeat


def publisher(ready: Sequence[Heartbeat]) -> str | None:
    """Return the node that publishes results, and usually proposes plans: the first of the ready workers."""
    return ready[0].node if ready else None


def propose_in_turn(action: Propose, view: View, rules: Rules, now: float) -> Propose | Wait:
    """Return the proposal if it is this node's turn, else when that is. Each node leaves time to those before it.

    Only nodes that could be listed together take turns, because a plan carries the task of the node that proposes it.
    """
    if not view.nodes.may_propose:
        return Wait(why="the liveness of other nodes is not known yet", for_workers=action.checkpoint is not None)
    candidates = candidates_for(action.checkpoint, view.nodes.ready, view.node, rules.groups.min_workers)
    order = proposal_order(candidates, view.history.through)
    nodes = [heartbeat.node for heartbeat in order]
    if view.node not in nodes or order[0].task != view.task:  # its own heartbeat may still name another task
        return Wait(why=f"{view.node} is not counted, or has another version, task or profile than most nodes")
    own_turn = view.timers.turns_begin_at + nodes.index(view.node) * rules.plans.proposal_turn_seconds
    if now >= own_turn:
        return action
    return Wait(own_turn, f"{nodes[0]} proposes first", listen=True, for_workers=action.checkpoint is not None)


def proposal_order(candidates: Sequence[Heartbeat], plans: int) -> list[Heartbeat]:
    """Return the nodes in the order in which they propose the plan after `plans`: first those that can read everything.

    The others take turns as the first of them, because each may be the only node that can read some checkpoint.
    """
    unimpaired = [heartbeat for heartbeat in candidates if not heartbeat.checkpoints.unreadable]
    impaired = [heartbeat for heartbeat in candidates if heartbeat.checkpoints.unreadable]
    first = plans % len(impaired) if impaired else 0
    return [*unimpaired, *impaired[first:], *impaired[:first]]
