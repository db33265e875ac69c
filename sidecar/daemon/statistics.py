"""Count events for people only. No decision depends on these counts. No I/O and no clock."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sidecar.checkpoints.unseen_steps import UnseenSteps
from sidecar.coordination.journal_state import Entry, Settled
from sidecar.protocol.records import Outcome, Plan
from sidecar.protocol.states import OutcomeStatus
from sidecar.retention.exports.export_report import NO_EXPORTS, ExportsReport


@dataclass(slots=True, kw_only=True)
class Statistics:
    """Hold the counts and sizes of one daemon since it started."""

    pins_bytes: int = 0
    saves_bytes: int = 0
    exports: ExportsReport = NO_EXPORTS
    journal_problems: tuple[str, ...] = ()  # why the newest snapshot or segment could not be written
    groups_formed: int = 0
    group: tuple[str, ...] = ()  # the workers of the newest evaluation
    gaps: UnseenSteps = field(default_factory=UnseenSteps)

    def note_saves(self, saves_bytes: int, journal_problems: tuple[str, ...]) -> None:
        """Note the size of what workers saved, and why the journal grows."""
        self.saves_bytes, self.journal_problems = saves_bytes, journal_problems

    def note_scan(self, pins_bytes: int, exports: ExportsReport) -> None:
        """Note the size of pins, and the exports."""
        self.pins_bytes, self.exports = pins_bytes, exports

    def note_group(self, plan: Plan | None, *, live: bool) -> None:
        """Note the group of the newest evaluation, and count it if it is new. `live`: its record is new, too."""
        group = tuple(member.worker for member in plan.members or ()) if plan is not None else ()
        self.groups_formed += live and group != self.group
        self.group = group

    def note_names(self, record: Plan | Outcome, entries: Sequence[Entry], is_there: Callable[[str], bool]) -> None:
        """Note that some node saw the checkpoints that a record names, which ends the gaps before settled ones."""
        if isinstance(record, Plan) and record.checkpoint is not None:
            self.gaps.journaled(record.checkpoint.name, is_there, settled=False)
        for entry in entries:
            about = entry.settlement if isinstance(entry, Settled) else entry.plan.checkpoint
            if about is not None:
                settled = isinstance(entry, Settled) or entry.outcome.status == OutcomeStatus.SUCCEEDED
                self.gaps.journaled(about.name, is_there, settled=settled)
