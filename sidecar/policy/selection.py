"""Decide which waiting checkpoints are evaluated, skipped, or pinned until that is clear. Pure.

The choice follows from the journal and the scan alone, so all nodes choose the same and a restart changes nothing. Each
caller chooses among other checkpoints. `retention.pins.policy` chooses those to pin during a scan, for the tasks of all
nodes. `daemon.checkpoint_tracker` chooses once for each reported scan, to show the queue and whether there is work.
`policy.settlements` chooses without checkpoints that end otherwise, and settles the skipped ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sidecar.coordination.journal_state import JournalState
from sidecar.protocol.records import Checkpoint, Key


@dataclass(frozen=True, slots=True)
class Choice:
    """Hold the decision for each waiting checkpoint.

    A checkpoint in none of the fields is undecided until an earlier checkpoint has been pinned.
    """

    evaluate: tuple[Checkpoint, ...]  # in order of discovery
    passed: dict[Key, str]  # not to be evaluated as far as is known now, and why
    settled: tuple[Checkpoint, ...]  # those of `passed` for which nothing can change that any more
    hold: frozenset[Key]  # to be pinned; every other waiting checkpoint may be unpinned


@dataclass(frozen=True, slots=True)
class Selection:
    """Choose checkpoints by the settings that select fewer than all."""

    queue: Literal["every", "latest"] = "every"
    every_steps: int | None = None

    def choose(self, waiting: Sequence[Checkpoint], history: JournalState, *, over: bool = False) -> Choice:
        """Return the choice among complete checkpoints that are not settled, in order of discovery.

        `over`: the run has ended, so its last checkpoint is its result and is evaluated whatever its step.
        """
        passed: dict[Key, str] = {}
        settled: list[Checkpoint] = []
        evaluate = self._by_steps(waiting, history, passed, settled, over=over)
        hold = {checkpoint.key for checkpoint in evaluate}
        if waiting and self.every_steps is not None:
            hold.add(waiting[-1].key)  # it may turn out to be the last one
        if self.queue == "latest":
            evaluate = _latest(evaluate, history, passed, settled, hold)
        return Choice(tuple(evaluate), passed, tuple(settled), frozenset(hold))

    def _by_steps(
        self,
        waiting: Sequence[Checkpoint],
        history: JournalState,
        passed: dict[Key, str],
        settled: list[Checkpoint],
        *,
        over: bool,
    ) -> list[Checkpoint]:
        """Return the checkpoints that reach another multiple of `every_steps` than the last one that counted.

        A step that is not higher than before means that training was set back, so counting starts again from there. A
        checkpoint without a known step is evaluated, and so is one that a person requeued. Neither changes the count.
        """
        every = self.every_steps
        if every is None:
            return list(waiting)
        evaluate, reached, certain = [], history.last_planned_step, True
        for checkpoint in waiting:
            key, step = checkpoint.key, checkpoint.step
            if step is None or _counts_anyway(key, history) or key in history.verdicts.failures:
                evaluate.append(checkpoint)
            elif reached is None or step // every > reached // every or step <= reached:
                evaluate.append(checkpoint)
                reached, certain = step, checkpoint.pin is not None
            elif over and checkpoint is waiting[-1]:
                evaluate.append(checkpoint)
            else:
                passed[key] = f"its step {step} reaches no new multiple of {every} (every_steps)"
                # The checkpoint of this multiple may vanish before it is pinned. The last one may be the result.
                if certain and checkpoint is not waiting[-1]:
                    settled.append(checkpoint)
        return evaluate


def pending(history: JournalState, complete: Sequence[Checkpoint], task: str | None) -> list[Checkpoint]:
    """Return the complete checkpoints that still need an evaluation under a task."""
    return [checkpoint for checkpoint in complete if not history.verdicts.is_settled(checkpoint.key, task)]


def _counts_anyway(key: Key, history: JournalState) -> bool:
    """Return whether a plan is open for a checkpoint, or a person requeued it."""
    plan = history.open
    is_planned = plan is not None and plan.checkpoint is not None and plan.checkpoint.key == key
    return is_planned or key in history.verdicts.requeued


def _latest(
    waiting: list[Checkpoint],
    history: JournalState,
    passed: dict[Key, str],
    settled: list[Checkpoint],
    hold: set[Key],
) -> list[Checkpoint]:
    """Return the newest pinned checkpoint and all newer ones, because a newer one may vanish before it is pinned.

    A checkpoint that is being evaluated, or that a person requeued, is not skipped.
    """
    skippable = [checkpoint for checkpoint in waiting if not _counts_anyway(checkpoint.key, history)]
    newest_pinned = max((place for place, checkpoint in enumerate(skippable) if checkpoint.pin is not None), default=0)
    for place, checkpoint in enumerate(skippable[:-1]):
        passed[checkpoint.key] = f"superseded by {skippable[-1].name} (queue=latest)"
        if place != newest_pinned:
            hold.discard(checkpoint.key)
        if place < newest_pinned:
            settled.append(checkpoint)
    skipped = {checkpoint.key for checkpoint in skippable[:newest_pinned]}
    return [checkpoint for checkpoint in waiting if checkpoint.key not in skipped]
