"""Decide whether the run is over for this node. Pure."""

from sidecar.policy.actions import Stop, Wait
from sidecar.policy.disputes import is_disputed
from sidecar.policy.eligibility import compatible_nodes
from sidecar.policy.rules import EndRules
from sidecar.policy.view import View
from sidecar.protocol.states import Verdict


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
    """End the run, unless another node can evaluate a checkpoint that this node gave up or cannot read."""
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
