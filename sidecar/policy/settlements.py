"""Decide which checkpoints are settled without an evaluation, and which must be evaluated. Pure.

A checkpoint has failed for good by the class of each of its failures in the journal: see `final_verdict`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import Final

from sidecar.coordination.blame import blame, blamed, losers
from sidecar.coordination.checkpoint_verdicts import BEFORE_START
from sidecar.policy.eligibility import compatible_nodes, places_of
from sidecar.policy.rules import RetryRules, Rules
from sidecar.policy.selection import pending
from sidecar.policy.view import View
from sidecar.protocol.heartbeat import Heartbeat
from sidecar.protocol.record_limits import PLAN
from sidecar.protocol.records import Checkpoint, Key, Outcome, Settlement, folder_name, node_of
from sidecar.protocol.states import FailureClass, Verdict

REOPENED: Final = "it vanished, and is there again"
"""The reason of a settlement that makes a vanished checkpoint wait for its evaluation again."""

_PLAN_BYTES: Final = PLAN.size * 3 // 4
"""The most bytes that the settlements of one plan may take; the rest is for its members."""

_FIELD_BYTES: Final = 300
"""More than the names of a settlement's fields and its digests take."""


def settled_by_one_plan(settles: Sequence[Settlement], most: int) -> tuple[Settlement, ...]:
    """Return the first settlements, as many as one plan may hold: at most `most`, and fewer with very long names."""
    first = settles[:most]
    sizes = accumulate(_FIELD_BYTES + _most_bytes(each.name) + _most_bytes(each.reason) for each in first)
    return tuple(first[: sum(size <= _PLAN_BYTES for size in sizes)])


def _most_bytes(text: str) -> int:
    """Return the most bytes that a text takes in JSON."""
    return len(text) if text.isascii() and text.isprintable() else 6 * len(text)


def settle_and_queue(view: View, rules: Rules, *, over: bool) -> tuple[tuple[Settlement, ...], list[Checkpoint]]:
    """Return the settlements without an evaluation, one for each checkpoint, and the checkpoints to evaluate, in order.

    `over`: the run has ended, so the last checkpoint counts whatever its step.

    The selection is made here once more, among fewer checkpoints than after the scan. Checkpoints that were given up,
    cannot be read or have failed for good must neither count for `every_steps` nor supersede others. `over` may differ,
    too, because a run also ends by time or step.
    """
    checkpoints, history = view.checkpoints, view.history
    given_up = [lost for lost in checkpoints.given_up if not history.verdicts.is_settled(lost.key, view.task)]
    given_up_keys = {lost.key for lost in given_up}
    verdicts = [_settle_given_up(lost, view, rules) for lost in given_up]
    settles = [settlement for settlement in verdicts if settlement is not None]
    settles += _reopened(view, rules)
    waiting = []
    for checkpoint in pending(history, checkpoints.complete, view.task):
        if checkpoint.key in given_up_keys or checkpoint.folder in checkpoints.unreadable:
            continue
        if (end := final_verdict(checkpoint.key, view, rules.retries)) is None:
            waiting.append(checkpoint)
        else:
            verdict, reason = end
            task = view.task if verdict == Verdict.FAILED else None
            settles.append(_settle(checkpoint, verdict, reason, task))
    choice = rules.selection.choose(waiting, history, over=over)
    skipped = [(checkpoint, choice.passed[checkpoint.key]) for checkpoint in choice.settled]
    skipped += _give_up_for_room(view, choice.evaluate)
    settles += [_settle(checkpoint, Verdict.SKIPPED, reason) for checkpoint, reason in skipped]
    settled_keys = {settlement.key for settlement in settles}
    return tuple(settles), [checkpoint for checkpoint in choice.evaluate if checkpoint.key not in settled_keys]


def _settle_given_up(given_up: Settlement, view: View, rules: Rules) -> Settlement | None:
    """Return the settlement of a checkpoint that this node gave up, unless another node disputes it.

    A disputed checkpoint ends by the failed attempts of all nodes; return None as long as they prove nothing.
    """
    nodes = view.nodes
    disputed = is_disputed(given_up, view.node, nodes.ready, liveness_unknown=nodes.liveness_unknown)
    if not disputed or _was_damaged_elsewhere(given_up, view):
        return given_up
    end = final_verdict(given_up.key, view, rules.retries)
    if end is None:
        return None
    verdict, reason = end
    return replace(given_up, verdict=verdict, reason=reason, task=view.task if verdict == Verdict.FAILED else None)


def _was_damaged_elsewhere(given_up: Settlement, view: View) -> bool:
    """Return whether an attempt of another node found damaged files where this node did.

    Damage does not depend on the task. A node whose task most others do not run would dispute it, and never propose.
    """
    if given_up.verdict != Verdict.CORRUPT:
        return False
    attempts = chain.from_iterable(view.history.verdicts.failures.get(given_up.key, {}).values())
    damaged_on = (outcome.node for outcome in attempts if blame(outcome) == FailureClass.CORRUPT)
    return any(place and node_of(place) != view.node for place in damaged_on)


def _reopened(view: View, rules: Rules) -> Iterator[Settlement]:
    """Yield settlements that reopen checkpoints which had vanished and exist again, if they would be evaluated.

    The selection is made among these alone, because the journal has settled them and no other choice contains them.
    """
    checkpoints, settled = view.checkpoints, view.history.verdicts.settled
    present = [
        checkpoint
        for checkpoint in checkpoints.returned
        if settled.get(checkpoint.key) == Verdict.VANISHED and checkpoint.folder not in checkpoints.unreadable
    ]
    for checkpoint in rules.selection.choose(present, view.history).evaluate:
        yield _settle(checkpoint, Verdict.REQUEUED, REOPENED)


def _give_up_for_room(view: View, queue: Sequence[Checkpoint]) -> Iterator[tuple[Checkpoint, str]]:
    """Yield the oldest pinned checkpoint, and why it is skipped, if another one lacks the room to be pinned.

    The last checkpoint of the queue is never skipped.
    """
    pinned = [checkpoint for checkpoint in view.checkpoints.complete if checkpoint.pin is not None]
    lacks_room = any(checkpoint.key in view.checkpoints.without_room for checkpoint in queue)
    if not lacks_room or any(_is_settled_for_all_tasks(checkpoint, view) for checkpoint in pinned):
        return  # pins that no node needs any more are removed in the next scan, which makes room
    newer = "pin_budget: otherwise newer ones could not be pinned (pin_max_bytes, keep_free_bytes)"
    # These pins are wanted only by nodes that run a different task. They are in the minority (otherwise they would be
    # proposing) and may never get to evaluate.
    for checkpoint in pinned:
        if view.history.verdicts.is_settled(checkpoint.key, view.task):
            yield checkpoint, f"{newer}; only nodes with another task still wanted it"
            return
    pinned_queue = [checkpoint for checkpoint in queue if checkpoint.pin is not None]
    if len(pinned_queue) > 1:
        yield pinned_queue[0], newer


def _is_settled_for_all_tasks(checkpoint: Checkpoint, view: View) -> bool:
    """Return whether no live node's task needs a checkpoint any more."""
    return all(view.history.verdicts.is_settled(checkpoint.key, task) for task in {*view.nodes.tasks, view.task})


def _settle(checkpoint: Checkpoint, verdict: Verdict, reason: str, task: str | None = None) -> Settlement:
    """Return the settlement of a checkpoint. `task`: the only task for which a failure counts."""
    return Settlement(
        name=checkpoint.name, digest=checkpoint.digest, step=checkpoint.step, verdict=verdict, reason=reason, task=task
    )


def final_verdict(checkpoint: Key, view: View, rules: RetryRules) -> tuple[Verdict, str] | None:
    """Return the verdict and reason with which a checkpoint ends; None if it may still be evaluated."""
    failures = view.history.verdicts.failed_under(checkpoint, view.task)
    if failures and (verdict := verdict_of_failures(checkpoint, failures, view, rules)) is not None:
        return verdict
    if (reason := _unusable_task(view)) is not None:
        return Verdict.FAILED, reason
    if checkpoint in view.checkpoints.before_start:
        return Verdict.SKIPPED, BEFORE_START
    return None


def verdict_of_failures(
    checkpoint: Key, failures: Sequence[Outcome], view: View, rules: RetryRules
) -> tuple[Verdict, str] | None:
    """Return the verdict that follows from a checkpoint's failures; None if another attempt may succeed.

    A node that does not see a checkpoint may have a bad disk or a stale mount, so the next attempt goes without it.
    Failed attempts never prove that a complete checkpoint has vanished.
    """
    last = failures[-1]
    reason = f"{last.kind}: {last.message}"
    is_alone = not view.nodes.liveness_unknown and len(places_of(compatible_nodes(view.nodes.ready, view.node))) <= 1
    corrupt_reports = blamed(failures, FailureClass.CORRUPT)
    witnesses = {outcome.node for outcome in failures if blame(outcome) == FailureClass.CORRUPT}
    if witnesses:  # a scan that found the files damaged for long counts as well, next to one attempt
        damaged_on = {each.node for each in view.nodes.ready if folder_name(checkpoint) in each.checkpoints.damaged}
        witnesses |= damaged_on - {node_of(place) for place in witnesses if place is not None}
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
    proofs = [
        found.outcome
        for (task, place, incarnation), found in view.history.exclusions.unusable.items()
        if (task, node_of(place), incarnation) in present
    ]
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
    is_alone = not nodes.liveness_unknown and places_of(nodes.ready) <= {view.node}
    return len({outcome.node for outcome in lasting}) > (0 if is_alone else 1)


def is_disputed(
    settlement: Settlement, node: str, workers: Sequence[Heartbeat], *, liveness_unknown: bool = False
) -> bool:
    """Return whether another node finds a checkpoint whole that `node` gave up, or may find it whole.

    A node that cannot name all checkpoints that it finds may find this one. So may a node whose liveness is unknown.
    Neither is waited for if the checkpoint would be skipped anyway, unless it turns out to be the last one.
    """
    if is_seen_by_others(settlement, node, workers):
        return True
    is_unknown = liveness_unknown or any(each.checkpoints.sees_more for each in workers if each.node != node)
    return is_unknown and settlement.verdict != Verdict.SKIPPED


def is_seen_by_others(settlement: Settlement, node: str, workers: Sequence[Heartbeat]) -> bool:
    """Return whether another node reports that it finds a checkpoint whole that `node` gave up."""
    return any(_is_seen_by(heartbeat, settlement) for heartbeat in workers if heartbeat.node != node)


def _is_seen_by(heartbeat: Heartbeat, settlement: Settlement) -> bool:
    """Return whether a heartbeat lists the checkpoint. A corrupt one has no comparable digest, so its name counts."""
    folder = folder_name(settlement.key)
    if settlement.verdict == Verdict.CORRUPT:
        name = folder.rpartition("@")[0]
        return any(visible.rpartition("@")[0] == name for visible in heartbeat.checkpoints.sees)
    return folder in heartbeat.checkpoints.sees
