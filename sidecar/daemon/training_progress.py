"""Track the highest step of the current training, as one daemon sees it, for the setting `stop_after_step`.

The journal alone does not show it, because a directory that is used again has the journal of an earlier training. So a
step counts if its checkpoint exists, or was settled while this daemon lived. With start=new, checkpoints from before
the start do not count. No I/O and no clock.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.coordination.journal_state import Closed, Entry
from sidecar.protocol.records import Key
from sidecar.protocol.states import OutcomeStatus, Verdict


@dataclass(slots=True)
class TrainingProgress:
    """Hold the steps that one daemon has seen."""

    counts: Callable[[Key], bool] = lambda _: True  # returns whether a checkpoint may belong to this training
    _settled: int = -1  # the highest step that was settled while this daemon lived
    _reached: int | None = None
    _newest: DiscoveredCheckpoint | None = None  # the one written last of those that are there
    _none_counted: bool = False  # in the last scan, and the journal has said nothing since

    @property
    def last_step(self) -> int:
        """Return the step that training has reached; -1 if that is not known.

        Only the checkpoint written last counts, because checkpoints of an earlier training may have higher steps.
        """
        newest = None if self._newest is None else self._newest.checkpoint
        if newest is None or newest.step is None or not self.counts(newest.key):  # the journal may say so only now
            return self._settled
        return max(self._settled, newest.step)

    def apply(self, entries: Iterable[Entry], reached: int | None, *, live: bool) -> None:
        """Apply entries of the journal and the step that it has reached. `live`: they were written just now.

        A checkpoint that is corrupt or gone does not count, because it may not belong to this training.
        """
        if reached is not None and self._reached is not None and reached < self._reached:
            self._settled = -1  # another training began
        self._reached, self._none_counted = reached, False
        for entry in entries if live else ():
            step = self._step_of(entry)
            self._settled = max(self._settled, -1 if step is None else step)

    def record_scan(self, new: Collection[DiscoveredCheckpoint], found: Mapping[Key, DiscoveredCheckpoint]) -> None:
        """Note the checkpoints of a scan. `new`: those that the last scan did not find."""
        newest = self._newest
        stands = newest is not None and newest.checkpoint.key in found and self.counts(newest.checkpoint.key)
        among: Iterable[DiscoveredCheckpoint] = [newest, *new] if stands and newest is not None else found.values()
        if self._none_counted:  # going through thousands in each scan would take most of an idle daemon's time
            among = new
        counted = [item for item in among if self.counts(item.checkpoint.key)]
        self._none_counted = not counted
        with_step = (item for item in counted if item.checkpoint.step is not None)
        self._newest = max(with_step, key=lambda item: (item.written_at, item.checkpoint.step or 0), default=None)

    def _step_of(self, entry: Entry) -> int | None:
        """Return the step of the checkpoint that an entry settled; None if it settled none, or the step is unknown."""
        about = entry.plan.checkpoint if isinstance(entry, Closed) else entry.settlement
        if about is None or not self.counts(about.key):
            return None
        if isinstance(entry, Closed):
            by_number = entry.plan.checkpoint is not None and entry.plan.checkpoint.step_source == "order"
            return None if by_number or entry.outcome.status != OutcomeStatus.SUCCEEDED else about.step
        return about.step if entry.settlement.verdict in (Verdict.SKIPPED, Verdict.FAILED) else None
