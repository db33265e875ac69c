"""Decide when a checkpoint may be tried again. Pure."""

from typing import Final

from sidecar.coordination.journal_state import Closed, JournalState
from sidecar.policy.rules import RetryRules
from sidecar.policy.view import View
from sidecar.protocol.records import Checkpoint
from sidecar.protocol.states import FailureKind, OutcomeStatus

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
