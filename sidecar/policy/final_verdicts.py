"""Decide whether a checkpoint has failed for good. Pure: it follows from the class of each failure in the journal."""

from collections.abc import Sequence

from sidecar.coordination.blame import blame, blamed, losers
from sidecar.coordination.checkpoint_verdicts import BEFORE_START
from sidecar.policy.eligibility import compatible_nodes
from sidecar.policy.rules import RetryRules
from sidecar.policy.view import View
from sidecar.protocol.records import Key, Outcome
from sidecar.protocol.states import FailureClass, Verdict


def final_verdict(checkpoint: Key, view: View, rules: RetryRules) -> tuple[Verdict, str] | None:
    """Return the verdict and reason with which a checkpoint ends; None if it may still be evaluated."""
    failures = view.history.verdicts.failed_under(checkpoint, view.task)
    if failures and (verdict := verdict_of_failures(failures, view, rules)) is not None:
        return verdict
    if (reason := _unusable_task(view)) is not None:
        return Verdict.FAILED, reason
    if checkpoint in view.checkpoints.before_start:
        return Verdict.SKIPPED, BEFORE_START
    return None


def verdict_of_failures(failures: Sequence[Outcome], view: View, rules: RetryRules) -> tuple[Verdict, str] | None:
    """Return the verdict that follows from a checkpoint's failures; None if another attempt may succeed.

    A node that does not see a checkpoint may have a bad disk or a stale mount, so the next attempt goes without it.
    Failed attempts never prove that a complete checkpoint has vanished.
    """
    last = failures[-1]
    reason = f"{last.kind}: {last.message}"
    is_alone = not view.nodes.liveness_unknown and len(compatible_nodes(view.nodes.ready, view.node)) <= 1
    corrupt_reports = blamed(failures, FailureClass.CORRUPT)
    witnesses = {outcome.node for outcome in failures if blame(outcome) == FailureClass.CORRUPT}
    if len(witnesses) > 1 or (is_alone and corrupt_reports >= rules.max_attempts):
        return Verdict.CORRUPT, reason
    lasting = [outcome for outcome in failures if outcome.lasting is not None]
    losses = blamed(failures, FailureClass.GROUP) + blamed(failures, FailureClass.VANISHED) + corrupt_reports
    exhausted = blamed(failures, FailureClass.CHECKPOINT) >= rules.max_attempts or losses >= rules.max_losses
    if exhausted or _is_proven(lasting, view):
        nodes = ", ".join(dict.fromkeys(node for outcome in failures for node in losers(outcome)))
        return Verdict.FAILED, f"{reason} ({len(failures)} attempts{', failed on ' if nodes else ''}{nodes})"
    return None


def _unusable_task(view: View) -> str | None:
    """Return why every checkpoint would fail under this node's task, if daemons that are still alive proved it.

    A daemon that was restarted tries again: data or packages may have been corrected meanwhile.
    """
    present = {(view.task, heartbeat.node, heartbeat.incarnation) for heartbeat in view.nodes.ready}
    proofs = [found.outcome for witness, found in view.history.exclusions.unusable.items() if witness in present]
    if not _is_proven(proofs, view):
        return None
    newest = proofs[-1]
    first_line = (newest.message or "").partition("\n")[0]
    return (
        f"{newest.kind}: the task fails with every checkpoint, as in plan {newest.plan}: correct it and restart "
        f"the daemons ({first_line})"
    )


def _is_proven(lasting: Sequence[Outcome], view: View) -> bool:
    """Return whether lasting failures are the fault of the task instead of one node.

    Two nodes must have had them, or this node must be the only one. A node that has other versions, or is about to
    begin, might succeed, so it counts as present.
    """
    nodes = view.nodes
    is_alone = not nodes.liveness_unknown and all(heartbeat.node == view.node for heartbeat in nodes.ready)
    return len({outcome.node for outcome in lasting}) > (0 if is_alone else 1)
