"""Decide which checkpoints are settled without an evaluation, and which must be evaluated. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from sidecar.policy.disputes import is_disputed
from sidecar.policy.final_verdicts import final_verdict
from sidecar.policy.rules import Rules
from sidecar.policy.selection import pending
from sidecar.policy.view import View
from sidecar.protocol.record_limits import PLAN
from sidecar.protocol.records import Checkpoint, Settlement
from sidecar.protocol.states import Verdict

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
    if not is_disputed(given_up, view.node, nodes.ready, liveness_unknown=nodes.liveness_unknown):
        return given_up
    end = final_verdict(given_up.key, view, rules.retries)
    if end is None:
        return None
    verdict, reason = end
    return replace(given_up, verdict=verdict, reason=reason, task=view.task if verdict == Verdict.FAILED else None)


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
