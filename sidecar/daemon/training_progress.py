"""Keeps track of how far the current training has come, as one daemon sees it: `stop_after_step` asks for it.

The journal alone does not say: a directory that is used again has the journal of an earlier training. So a step counts
if its checkpoint is there, or was settled while this daemon lived. With start=new, no checkpoint counts that was there
before the start. No I/O and no clock.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.coordination.journal_state import Closed, Entry
from sidecar.records import Key
from sidecar.states import OutcomeStatus, Verdict


@dataclass(slots=True)
class TrainingProgress:
    """The steps that one daemon has seen."""

    counts: Callable[[Key], bool] = lambda _: True  # whether a checkpoint may be of this training
    _settled: int = -1  # the highest step that was settled while this daemon lived
    _reached: int | None = None
    _newest: DiscoveredCheckpoint | None = None  # the one written last of those that are there

    @property
    def last_step(self) -> int:
        """Return the step that training has reached; -1 if that is not known.

        Only the checkpoint written last counts: those of an earlier training may be there, too, with higher steps.
        """
        newest = None if self._newest is None else self._newest.checkpoint
        if newest is None or newest.step is None or not self.counts(newest.key):  # as the journal may say since
            return self._settled
        return max(self._settled, newest.step)

    def apply(self, entries: Iterable[Entry], reached: int | None, *, live: bool) -> None:
        """Note entries of the journal and the step that it has reached. `live`: they were written just now.

        A checkpoint that is corrupt or gone was perhaps not one of this training.
        """
        if reached is not None and self._reached is not None and reached < self._reached:
            self._settled = -1  # another training began
        self._reached = reached
        for entry in entries if live else ():
            step = self._step_of(entry)
            self._settled = max(self._settled, -1 if step is None else step)

    def record_scan(self, new: Collection[DiscoveredCheckpoint], found: Mapping[Key, DiscoveredCheckpoint]) -> None:
        """Note the checkpoints that are there. `new`: those that were not there before."""
        newest = self._newest
        stands = newest is not None and newest.checkpoint.key in found and self.counts(newest.checkpoint.key)
        among = [newest, *new] if stands and newest is not None else found.values()
        counted = (item for item in among if item.checkpoint.step is not None and self.counts(item.checkpoint.key))
        self._newest = max(counted, key=lambda item: (item.written_at, item.checkpoint.step or 0), default=None)

    def _step_of(self, entry: Entry) -> int | None:
        """Return the step of a checkpoint that an entry settled; None if it did not, or the step is unknown."""
        about = entry.plan.checkpoint if isinstance(entry, Closed) else entry.settlement
        if about is None or not self.counts(about.key):
            return None
        if isinstance(entry, Closed):
            by_number = entry.plan.checkpoint is not None and entry.plan.checkpoint.step_source == "order"
            return None if by_number or entry.outcome.status != OutcomeStatus.SUCCEEDED else about.step
        return about.step if entry.settlement.verdict in (Verdict.SKIPPED, Verdict.FAILED) else None
