"""Choose among the checkpoints of the newest scan, once for each scan and each record of the journal. No I/O.

The choice takes time that grows with the number of checkpoints, and a daemon needs it in every turn.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from sidecar.checkpoints.scan import ScanResult
from sidecar.coordination.journal_state import JournalState
from sidecar.policy.selection import Choice, Selection, pending
from sidecar.protocol.records import Checkpoint, Key


@dataclass(frozen=True, slots=True)
class Selected:
    """Hold the checkpoints of one scan that matter at one moment of the journal.

    Args:
        moment: The moment of the journal, this node's task, and whether training is done.
        relevant: The checkpoints that need an evaluation or are pinned, in order of discovery.
        choice: The decision for each of them that needs an evaluation.
    """

    moment: tuple[object, ...]
    relevant: list[Checkpoint]
    choice: Choice


@dataclass(slots=True)
class ScanSelection:
    """Hold the choice among the checkpoints of the newest scan until a scan or a record of the journal changes it.

    The policy and the pin policy choose again, because they choose among other checkpoints, as their docstrings say.

    Args:
        selection: The settings that select the checkpoints to evaluate.
    """

    selection: Selection
    _selected: Selected | None = None

    def forget(self) -> None:
        """Choose again at the next call of `select`, because a scan found other checkpoints."""
        self._selected = None

    def select(
        self, scan: ScanResult, history: JournalState, task: str | None, before_start: Container[Key], *, over: bool
    ) -> Selected:
        """Return the choice for the newest scan.

        `before_start`: checkpoints that do not count, because they existed before the start. `over`: training reported
        that it has saved its last checkpoint.
        """
        moment = history.through, history.open is None, task, over
        if self._selected is None or self._selected.moment != moment:
            relevant = {*history.verdicts.unsettled(scan.by_key, task), *scan.pinned()}
            checkpoints = [discovered.checkpoint for key, discovered in scan.by_key.items() if key in relevant]
            choice = self.choose(checkpoints, history, task, before_start, over=over)
            self._selected = Selected(moment, checkpoints, choice)
        return self._selected

    def choose(
        self,
        checkpoints: Sequence[Checkpoint],
        history: JournalState,
        task: str | None,
        before_start: Container[Key],
        *,
        over: bool = False,
    ) -> Choice:
        """Return the choice among the checkpoints, in order of discovery, that need an evaluation and count."""
        waiting = pending(history, checkpoints, task)
        counting = [checkpoint for checkpoint in waiting if checkpoint.key not in before_start]
        return self.selection.choose(counting, history, over=over)
