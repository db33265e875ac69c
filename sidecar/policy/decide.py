"""Decide the next action. Pure: from a view and the time to one action; no I/O, no clock, no state.

Any worker-role daemon may close a plan that cannot succeed. One of them, the proposer, opens plans. Two proposers are
harmless, because creating the plan's number in shared storage decides, so no node needs certain knowledge of others.
Three questions are answered here: whether the open plan can still succeed, whether the run is over for this node, and
when a checkpoint may be tried again. The others have files of their own: `settlements`, `group_formation`, `proposers`.

A daemon's own workers report for themselves, so `judge_open_plan` judges the workers of other nodes.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Final

from sidecar.coordination.journal_state import Closed, JournalState
from sidecar.policy.actions import Action, Fail, Propose, Stop, Wait
from sidecar.policy.eligibility import compatible_nodes
from sidecar.policy.group_formation import form_group
from sidecar.policy.proposers import propose_in_turn
from sidecar.policy.rules import EndRules, PlanRules, RetryRules, Rules
from sidecar.policy.settlements import is_disputed, settle_and_queue, settled_by_one_plan
from sidecar.policy.view import View
from sidecar.protocol.records import Checkpoint, Member, Plan, Settlement
from sidecar.protocol.states import FailureKind, OutcomeStatus, Verdict


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


_INTERRUPTIONS: Final = frozenset({FailureKind.RESTARTED, FailureKind.DRAINED, FailureKind.CHIEF_LISTED})
"""Kinds of failures that say nothing about the checkpoint, which retains its place in the queue."""

_MAX_DOUBLINGS: Final = 64


def ready_at(checkpoint: Checkpoint, view: View, rules: RetryRules) -> float:
    """Return when a checkpoint may be tried: at once at first, then after a pause that doubles with each failure."""
    if checkpoint.key not in view.history.verdicts.failures:
        return 0.0
    failures = failed_attempts(checkpoint, view)  # 0: failed under another task, whose nodes must not race this one
    pause = min(
        rules.backoff_last_seconds, rules.backoff_first_seconds * 2.0 ** min(max(failures - 1, 0), _MAX_DOUBLINGS)
    )
    return view.timers.failed_at.get(checkpoint.key, 0.0) + pause


def failed_attempts(checkpoint: Checkpoint, view: View) -> int:
    """Return how often a checkpoint failed under this node's task."""
    return len(view.history.verdicts.failed_under(checkpoint.key, view.task))


def has_failed(checkpoint: Checkpoint, history: JournalState) -> bool:
    """Return whether an attempt at a checkpoint failed by itself, not because it was interrupted."""
    outcomes_by_task = history.verdicts.failures.get(checkpoint.key, {})
    return any(outcome.kind not in _INTERRUPTIONS for outcomes in outcomes_by_task.values() for outcome in outcomes)


def last_attempt_failed(history: JournalState) -> bool:
    """Return whether the newest attempt at any checkpoint failed by itself.

    If so, checkpoints that never failed go first, because one that fails again and again must not delay the others.
    """
    newest = next((entry.outcome for entry in reversed(history.entries) if isinstance(entry, Closed)), None)
    return newest is not None and newest.status == OutcomeStatus.FAILED and newest.kind not in _INTERRUPTIONS


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
        return Fail(kind=FailureKind.STALLED, message=message, node=last.place, rank=last.rank)
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


def why_over(view: View, rules: EndRules, now: float) -> str | Wait:
    """Return why the run is over, or how long to wait. Checkpoints that are being written keep the run open."""
    checkpoints, last = view.checkpoints, rules.stop_after_step
    idle_until = None if rules.stop_idle_seconds is None else view.timers.last_activity_at + rules.stop_idle_seconds
    if not rules.wait:
        why = "all existing checkpoints are evaluated (--once)"
    elif checkpoints.training_done:
        why = "the trainer's marker exists, and all checkpoints are evaluated (done_marker)"
    elif last is not None and checkpoints.last_step >= last:
        why = f"step {last} is evaluated (stop_after_step)"
    elif idle_until is not None and now >= idle_until:
        why = f"nothing happened for {rules.stop_idle_seconds:g} s (stop_idle_seconds)"
    else:
        return Wait(idle_until, "nothing to do")
    if checkpoints.incomplete_since is None:
        return why
    # Long enough for entries that are named and broken to be given up first, by a scan that began after that time.
    given_up_at = checkpoints.incomplete_since + rules.corrupt_after_seconds
    end = given_up_at + rules.quiet_seconds
    if now >= end and checkpoints.scanned_at >= given_up_at:
        return why
    return Wait(end if now < end else None, "a checkpoint is not complete yet")


def stop(view: View, why: str) -> Stop | Wait:
    """End the run, unless another node can evaluate a checkpoint that this node gave up or does not find or read."""
    compatible, checkpoints = compatible_nodes(view.nodes.ready, view.node), view.checkpoints
    others = [heartbeat for heartbeat in compatible if heartbeat.node != view.node]
    seen_by_others = {name for heartbeat in others for name in heartbeat.checkpoints.sees}
    if readable := sorted(checkpoints.unreadable & seen_by_others):
        return Wait(why=f"{readable[0]} cannot be read here, and another node finds it whole")
    unknown = view.nodes.liveness_unknown
    for lost in checkpoints.given_up:
        settled = view.history.verdicts.is_settled(lost.key, view.task)
        if not settled and is_disputed(lost, view.node, compatible, liveness_unknown=unknown):
            return Wait(why=f"{lost.name} was given up here, and another node finds it whole")
    not_found = seen_by_others.difference(checkpoint.folder for checkpoint in checkpoints.complete)
    if left := sorted(view.history.verdicts.never_settled(not_found)):
        return Wait(why=f"{left[0]} is not found here, and another node finds it whole")
    unread = f"; {len(checkpoints.unreadable)} checkpoint(s) could not be read" if checkpoints.unreadable else ""
    return Stop(why + unread, _failed_for_good(view))


def _failed_for_good(view: View) -> int:
    """Count the checkpoints that failed for good and have not succeeded since, for example under a corrected task.

    A vanished or skipped checkpoint did not fail: training deleted it early, or the settings do not select it.
    """
    verdicts = view.history.verdicts
    return sum(
        verdicts.settled[key] == Verdict.CORRUPT or bool({None, view.task} & verdicts.failed_tasks.get(key, set()))
        for key in verdicts.without_result
    )
