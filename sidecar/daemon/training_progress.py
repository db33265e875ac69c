"""How far the training that goes on now has come, as one daemon sees it: `stop_after_step` is about nothing else.

The journal alone does not say: a directory that is used again has the journal of the training before. So a step counts
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
    """What one daemon has seen of it."""

    counts: Callable[[Key], bool] = lambda _: True  # whether a checkpoint may be of it
    _settled: int = -1  # the highest step that was settled while this daemon lived
    _reached: int | None = None
    _newest: DiscoveredCheckpoint | None = None  # of those that are there the one that was written last

    @property
    def last_step(self) -> int:
        """Return the step that training has come to; -1 if that is not known.

        Of the checkpoints that are there it is that of the one written last: those of a training before may lie there,
        too, with higher steps.
        """
        newest = None if self._newest is None else self._newest.checkpoint
        if newest is None or newest.step is None or not self.counts(newest.key):  # as the journal may say since
            return self._settled
        return max(self._settled, newest.step)

    def follow(self, entries: Iterable[Entry], reached: int | None, *, live: bool) -> None:
        """Note entries of the journal, and the step that it then stands at; `live`: they were written just now.

        What is corrupt or gone was perhaps no checkpoint of this training.
        """
        if reached is not None and self._reached is not None and reached < self._reached:
            self._settled = -1  # another training began
        self._reached = reached
        for entry in entries if live else ():
            step = self._step_of(entry)
            self._settled = max(self._settled, -1 if step is None else step)

    def see(self, new: Collection[DiscoveredCheckpoint], found: Mapping[Key, DiscoveredCheckpoint]) -> None:
        """Note the checkpoints that are there; `new` are those that were not there before."""
        newest = self._newest
        stands = newest is not None and newest.checkpoint.key in found and self.counts(newest.checkpoint.key)
        among = [newest, *new] if stands and newest is not None else found.values()
        known = (each for each in among if each.checkpoint.step is not None and self.counts(each.checkpoint.key))
        self._newest = max(known, key=lambda each: (each.written_at, each.checkpoint.step or 0), default=None)

    def _step_of(self, entry: Entry) -> int | None:
        """Return the step of a checkpoint that came to its end; None if it did not, or its step is unknown."""
        about = entry.plan.checkpoint if isinstance(entry, Closed) else entry.settlement
        if about is None or not self.counts(about.key):
            return None
        if isinstance(entry, Closed):
            by_number = entry.plan.checkpoint is not None and entry.plan.checkpoint.step_source == "order"
            return None if by_number or entry.outcome.status != OutcomeStatus.SUCCEEDED else about.step
        return about.step if entry.settlement.verdict in (Verdict.SKIPPED, Verdict.FAILED) else None
