"""Decide the next action. Pure: from a view and the time to one action; no I/O, no clock, no state.

Any worker-role daemon may close a plan that cannot succeed. One of them, the proposer, opens plans. Two proposers are
harmless, because creating the plan's number in shared storage decides, so no node needs certain knowledge of others.
Each question has its own file: `open_plan`, `end_of_run`, `settlements`, `retries`, `group_formation`, `proposers`.
"""

from dataclasses import replace
from itertools import takewhile

from sidecar.policy.actions import Action, Propose, Wait
from sidecar.policy.end_of_run import stop, why_over
from sidecar.policy.group_formation import form_group
from sidecar.policy.open_plan import judge_open_plan
from sidecar.policy.proposers import propose_in_turn
from sidecar.policy.retries import failed_attempts, has_failed, last_attempt_failed, ready_at
from sidecar.policy.rules import Rules
from sidecar.policy.settlements import settle_and_queue, settled_by_one_plan
from sidecar.policy.view import View
from sidecar.protocol.records import Checkpoint, Settlement


def decide(view: View, rules: Rules, now: float) -> Action:
    """Return the one action that this daemon should take now."""
    if not view.caught_up:
        return Wait(why="the journal is not read yet")
    if view.history.open is not None:
        return judge_open_plan(view.history.open, view, rules.plans, now)
    ending = why_over(view, rules.ending, now)
    settles, queue = settle_and_queue(view, rules, over=isinstance(ending, str))
    if not queue and not settles and not view.checkpoints.backlog_cutoff_pending:
        return stop(view, ending) if isinstance(ending, str) else ending
    action = _next_plan(view, rules, now, queue, settles)
    return propose_in_turn(action, view, rules, now) if isinstance(action, Propose) else action


def _next_plan(
    view: View, rules: Rules, now: float, queue: list[Checkpoint], settles: tuple[Settlement, ...]
) -> Propose | Wait:
    """Return the next plan, or why to wait."""
    if view.draining:
        return Wait(why="draining")
    cutoff_pending = view.checkpoints.backlog_cutoff_pending
    if len(part := settled_by_one_plan(settles, rules.plans.most_settled)) < len(settles):
        return Propose(settles=part, line_open=cutoff_pending)
    action = _evaluate_pinned(view, rules, now, queue)
    if isinstance(action, Propose):
        return replace(action, settles=settles)
    return Propose(settles=settles) if settles or cutoff_pending else action


def _evaluate_pinned(view: View, rules: Rules, now: float, queue: list[Checkpoint]) -> Propose | Wait:
    """Evaluate a pinned checkpoint. With `every_steps`, first wait for earlier checkpoints that may be pinned soon.

    The checkpoint that was evaluated last shows which multiple of `every_steps` was reached. An older one after it
    would mean that training was set back, and then checkpoints of the same multiple count again.
    """
    until = view.timers.turns_begin_at + rules.plans.pin_wait_seconds
    if rules.selection.every_steps is not None and now < until:
        queue = list(takewhile(lambda checkpoint: not _may_be_pinned_soon(checkpoint, view), queue))
        if not queue:
            return Wait(until, "the oldest checkpoint is not pinned yet")
    return _evaluate(view, rules, now, [checkpoint for checkpoint in queue if checkpoint.pin is not None])


def _may_be_pinned_soon(checkpoint: Checkpoint, view: View) -> bool:
    """Return whether a checkpoint's pin may yet come, and whether its evaluation then counts for `every_steps`."""
    key, verdicts, checkpoints = checkpoint.key, view.history.verdicts, view.checkpoints
    counts = checkpoint.step is not None and key not in verdicts.requeued and key not in verdicts.failures
    may_be_pinned = key not in checkpoints.without_room and checkpoint.folder not in checkpoints.unpinnable
    return counts and checkpoint.pin is None and may_be_pinned


def _evaluate(view: View, rules: Rules, now: float, queue: list[Checkpoint]) -> Propose | Wait:
    """Evaluate the first checkpoint of the queue that may be tried now. After a failure, prefer those without one."""
    if not queue:
        return Wait(why="no checkpoint is pinned yet")
    ready = {checkpoint.key: ready_at(checkpoint, view, rules.retries) for checkpoint in queue}
    if last_attempt_failed(view.history):  # after a success it is the oldest one's turn again
        queue = sorted(queue, key=lambda checkpoint: has_failed(checkpoint, view.history))
    checkpoint = next((waiting for waiting in queue if ready[waiting.key] <= now), None)
    if checkpoint is None:
        return Wait(min(ready.values()), "waiting before the next attempt")
    members = form_group(checkpoint, view, rules.groups, now)
    if isinstance(members, Wait):
        return members
    return Propose(
        checkpoint=checkpoint,
        attempt=failed_attempts(checkpoint, view) + 1,
        members=members,
        evaluated=view.history.newest_task.successes_of(view.task),
    )
