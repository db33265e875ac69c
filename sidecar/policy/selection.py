"""Which waiting checkpoints are evaluated, which are passed over, and which are held until that is clear. PURE.

What is chosen follows from the journal and from what is found alone, so that all nodes choose alike and a restart
changes nothing. `policy` settles by it what is passed over, the daemon pins by it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sidecar.coordination.journal_state import JournalState
from sidecar.records import Checkpoint, Key


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of those that wait; whoever is in none of them is not decided yet, as one before it is not held."""

    evaluate: tuple[Checkpoint, ...]  # in order of discovery
    passed: dict[Key, str]  # not to be evaluated as far as is known now, and why
    settled: tuple[Checkpoint, ...]  # those of them for which nothing can change that any more
    hold: frozenset[Key]  # to be pinned; whatever else waits may be let go


@dataclass(frozen=True, slots=True)
class Selection:
    """The settings that ask for less than every checkpoint."""

    queue: Literal["every", "latest"] = "every"
    every_steps: int | None = None

    def choose(self, waiting: Sequence[Checkpoint], history: JournalState, *, over: bool = False) -> Choice:
        """Choose among complete checkpoints that are not settled, in order of discovery.

        `over`: the run has ended, so the last of them is its result and is evaluated whatever its step.
        """
        passed: dict[Key, str] = {}
        settled: list[Checkpoint] = []
        evaluate = self._by_steps(waiting, history, passed, settled, over=over)
        hold = {each.key for each in evaluate}
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
        """Those that reach another multiple of `every_steps` than the one before them that counted.

        A step that is not higher than before means that training was set back: it counts anew from there. A step that
        nobody knows is evaluated, and so is what a person asked for again; neither says where the others stand.
        """
        every = self.every_steps
        if every is None:
            return list(waiting)
        evaluate, reached, certain = [], history.reached, True
        for each in waiting:
            if each.step is None or _counts_anyway(each.key, history) or each.key in history.failures:
                evaluate.append(each)
            elif reached is None or each.step // every > reached // every or each.step <= reached:
                evaluate.append(each)
                reached, certain = each.step, each.pin is not None
            elif over and each is waiting[-1]:
                evaluate.append(each)
            else:
                passed[each.key] = f"its step {each.step} reaches no new multiple of {every} (every_steps)"
                # The one that stands for this multiple may vanish before it is held; the last one may be the result.
                if certain and each is not waiting[-1]:
                    settled.append(each)
        return evaluate


def _counts_anyway(key: Key, history: JournalState) -> bool:
    """Whether a plan is open for it, or a person asked for it again."""
    plan = history.open
    return key in history.requeued or (plan is not None and plan.checkpoint is not None and plan.checkpoint.key == key)


def _latest(
    waiting: list[Checkpoint],
    history: JournalState,
    passed: dict[Key, str],
    settled: list[Checkpoint],
    hold: set[Key],
) -> list[Checkpoint]:
    """The newest that is held and what is newer still: that one may vanish before it is held.

    What is being evaluated, and what a person asked for again, is not passed over.
    """
    rest = [each for each in waiting if not _counts_anyway(each.key, history)]
    held = max((place for place, each in enumerate(rest) if each.pin is not None), default=0)
    for place, each in enumerate(rest[:-1]):
        passed[each.key] = f"superseded by {rest[-1].name} (queue=latest)"
        if place != held:
            hold.discard(each.key)
        if place < held:
            settled.append(each)
    gone = {each.key for each in rest[:held]}
    return [each for each in waiting if each.key not in gone]
