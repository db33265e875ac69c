"""Say that evaluations fail, and what a person can do about each kind of failure. Pure.

The page `docs/how-to/troubleshooting.md` has the same remedies with more words.
"""

from collections.abc import Mapping
from itertools import takewhile
from typing import Any, Final, NamedTuple

from sidecar.coordination.journal_state import Closed, JournalState
from sidecar.protocol.codec import cut_text
from sidecar.protocol.states import FailureKind, OutcomeStatus

MOST_SHOWN: Final = 4096
"""The most characters of a message in the status. `sidecar history --json` prints whole messages."""


class Advice(NamedTuple):
    """Explain a kind of failure: its cause, and the remedy."""

    cause: str
    remedy: str


_TRIED_AGAIN: Final = "Nothing has to be done: it is tried again."
_ENDED: Final = Advice(
    "A worker process or its node ended.", "It is tried again. After SIGKILL, check the memory of that node."
)
_FILES: Final = "Check the storage, a full disk, or a writer that was killed."
_SLOW: Final = Advice("There was no progress for too long.", "Check whether the storage or the task hangs.")
_GROUP: Final = Advice(
    "The worker processes could not form a group.", "Run `sidecar check`, and check the worker ports and `host`."
)

ADVICE: Final[Mapping[str, Advice]] = {
    FailureKind.MISMATCH: Advice(
        "The checkpoint does not match the model, or the workers differ.",
        "The message below names the variables, layers or nodes. Correct the task, then evaluate again.",
    ),
    FailureKind.TASK_ERROR: Advice(
        "The code of the task raised an error.",
        "The message below has the line. `sidecar eval` shows it at once. Correct the task, then evaluate again.",
    ),
    FailureKind.STREAM_DIFFERS: Advice(
        "Workers read different data, or data in another order.",
        "Use the same files on each node, and a seed for random data.",
    ),
    FailureKind.NONFINITE_INPUT: Advice(
        "The data has NaN or infinite numbers, which the eval set refuses.", "The message below names the first one."
    ),
    FailureKind.COUNT: Advice(
        "Not all examples were evaluated, or more than there are.",
        "Set `EvalSet(examples=…)`, or find out why the data changed.",
    ),
    FailureKind.MEMBER_LOST: _ENDED,
    FailureKind.WORKER_DIED: _ENDED,
    FailureKind.STALLED: _SLOW,
    FailureKind.DEADLINE: _SLOW,
    FailureKind.JOIN: _GROUP,
    FailureKind.ADDRESS_IN_USE: _GROUP,
    FailureKind.OUT_OF_MEMORY: Advice(
        "The machine or the GPU has no memory left.",
        "Use a smaller `batch_size`, fewer `replicas`, or `gpu_memory_mb`.",
    ),
    FailureKind.STORAGE: Advice(
        "The shared storage answered with an error.", "The message below names the file and the error."
    ),
    FailureKind.RESTARTED: Advice("A daemon was restarted.", _TRIED_AGAIN),
    FailureKind.DRAINED: Advice("A daemon was stopped.", _TRIED_AGAIN),
    FailureKind.CHIEF_LISTED: Advice("The chief of the training job moved to this node.", _TRIED_AGAIN),
    FailureKind.VOID: Advice(
        "Another program wrote the record of the result.",
        "Find out who may write to the state directory. It is tried again.",
    ),
    FailureKind.CORRUPT: Advice("The files of the checkpoint contradict each other.", _FILES),
    FailureKind.CRASHED: Advice("A process crashed while it read the checkpoint.", _FILES),
    FailureKind.VANISHED: Advice(
        "The checkpoint was deleted before it could be held.", "Let training keep one more checkpoint."
    ),
}
"""The advice for each kind. A record of a newer release may have a kind that is not in this table."""


def failing(history: JournalState) -> dict[str, Any] | None:
    """Return the newest failed attempt, and the number of failures since the last success; None without a failure.

    Only attempts that are in memory are counted.
    """
    failed = _failed_since_success(history)
    if not failed or (checkpoint := failed[0].plan.checkpoint) is None:
        return None
    outcome = failed[0].outcome
    return {
        "attempts": len(failed),
        "plan": outcome.plan,
        "checkpoint": checkpoint.name,
        "step": checkpoint.step,
        "step_source": checkpoint.step_source,
        "kind": outcome.kind,
        "message": None if outcome.message is None else cut_text(outcome.message, MOST_SHOWN),
        "node": outcome.node,
        "completed_at": outcome.completed_at,
    }


def newest_failure(history: JournalState) -> Closed | None:
    """Return the attempt that `failing` describes."""
    return next(iter(_failed_since_success(history)), None)


def _failed_since_success(history: JournalState) -> list[Closed]:
    """Return the failed attempts since the last success, the newest first."""
    closed = (entry for entry in reversed(history.entries) if isinstance(entry, Closed))
    return list(takewhile(lambda entry: entry.outcome.status != OutcomeStatus.SUCCEEDED, closed))
