"""Track what scans have shown of the checkpoint directory: what is there, what went, and what is to be evaluated.

The daemon's state tells the tracker of scans and of the journal, and asks it. No I/O and no clock.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, filterfalse, islice
from typing import Final

from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.coordination.journal_state import BEFORE_START, JournalState
from sidecar.daemon.lost_checkpoints import LostCheckpoints, ScanChange
from sidecar.observability.status import Newest
from sidecar.policy.selection import Choice, Selection, pending
from sidecar.policy.settlements import REOPENED
from sidecar.records import Checkpoint, Key, Outcome, Plan, Settlement, folder_name
from sidecar.states import Verdict

_MOST_NAMES: Final = 64  # of checkpoints in a heartbeat


@dataclass(frozen=True, slots=True)
class _Selected:
    """Hold the checkpoints of the last scan that are pinned or not settled, as of one state of the journal.

    `choice`: which checkpoints are to be evaluated, and which are to be skipped.
    """

    moment: tuple[object, ...]
    relevant: list[Checkpoint]
    choice: Choice


@dataclass(slots=True)
class CheckpointTracker:
    """Track the checkpoints that one node has seen. Times are seconds of its own clock.

    Args:
        selection: The settings that say which checkpoints are evaluated.
        start_new: Whether checkpoints that were there before the first start do not count.
        vanished_after_seconds: Seconds for which a checkpoint is gone from every scan before it has vanished.
        began_first: Whether this daemon looked for the checkpoint directory before training created it.
        hint: What a person may want to look at.
        newest: The checkpoint discovered last, also when it is gone.
        unwanted: Checkpoints that were there before the start; None: nothing was scanned yet.
        no_room: Why checkpoints were not pinned for want of room.
        done: Whether the trainer's marker says that it saved its last checkpoint.
        missing: Whether the checkpoint directory does not exist.
        lost: What is gone or damaged, and how it ends.
    """

    selection: Selection = field(default_factory=Selection)
    start_new: bool = False
    vanished_after_seconds: float = 60.0
    began_first: bool = False
    hint: str | None = None
    newest: Newest | None = None
    unwanted: set[Key] | None = None
    no_room: Mapping[Key, str] = field(default_factory=dict)
    done: bool = False
    missing: bool = False
    lost: LostCheckpoints = field(init=False)
    _scan: ScanResult = field(default_factory=ScanResult)  # the last one
    _reopened_at: dict[Key, float] = field(default_factory=dict)  # of those that had vanished and were there again
    _incomplete: frozenset[tuple[str, str] | Key] = frozenset()  # what is no complete checkpoint, and why
    _incomplete_since: float = 0.0  # since when these are the same: while files are written they are not
    _appeared: dict[Key, float] = field(default_factory=dict)  # seconds since 1970, if it was seen to appear
    _empty: tuple[bool, float | None] = (True, None)  # whether nothing was ever seen, and since when
    _selected: _Selected | None = None  # until the next scan, or record of the journal

    def __post_init__(self) -> None:
        self.lost = LostCheckpoints(self.vanished_after_seconds)

    # -- told ------------------------------------------------------------------------------------------------------

    def fold(self, record: Plan | Outcome, now: float) -> None:
        """Take in a record of the journal."""
        self.done = False  # a new run may have begun meanwhile: the next scan says
        if isinstance(record, Outcome):
            return
        for settlement in record.settles:
            self.lost.settle(settlement)
            if settlement.reason == REOPENED:
                self._reopened_at[settlement.key] = now
        if self.unwanted and not record.line_open:  # what was there before the start is settled, for all nodes
            self.unwanted = set()

    def see(
        self,
        scan: ScanResult,
        given_up: tuple[Settlement, ...],
        history: JournalState,
        task: str | None,
        now: float,
        wall: float,
    ) -> list[DiscoveredCheckpoint]:
        """Take in a scan of the checkpoint directory; return what is new there, in order of discovery."""
        here, before = scan.by_key, self.found
        new = [here[key] for key in filterfalse(before.__contains__, here)] if here is not before else []
        if new and new[-1] is scan.found[-1] and not self._is_older(new[-1]):
            latest = new[-1].checkpoint
            self.newest = Newest(latest.step, new[-1].written_at, latest.name, latest.digest, latest.step_source)
        if self.unwanted is None:
            only_new = self.only_new(history) and not self.began_first
            self.unwanted = {discovered.checkpoint.key for discovered in new} if only_new else set()
        else:
            self._appeared = {key: at for key, at in self._appeared.items() if key in here}
            self._appeared |= {discovered.checkpoint.key: wall for discovered in new}
        if scan.missing:
            self.lost.postpone(now)
        else:
            change = ScanChange(
                scan=scan,
                before=before,
                new=new,
                given_up=given_up,
                is_settled=partial(history.is_settled, task=task),
                passed_over=lambda waiting: self._passed_over(waiting, history, task),
            )
            self.lost.update(change, now)
        self._scan, self._selected = scan, self._selected if here is before else None
        self._note_incomplete(scan, now)
        self.missing = scan.missing
        if here or scan.waiting or given_up or history.count:
            self._empty, self.hint = (False, None), None
        elif not scan.missing and self._empty == (True, None):
            self._empty = True, now
        return new

    def note(self, no_room: Mapping[Key, str], *, done: bool) -> Mapping[Key, str]:
        """Take in what could not be pinned, and whether training is done; return what is new of the first.

        A checkpoint that found no room is followed by others, so as long as there is one the next are not new.
        """
        before, self.no_room, self.done = self.no_room, no_room, done
        return no_room if not before else {}

    def _note_incomplete(self, scan: ScanResult, now: float) -> None:
        # What is given up stays among them until it is settled: another node may find it whole.
        unreadable = {("", name) for name in scan.unknown}
        incomplete: frozenset[tuple[str, str] | Key] = frozenset(scan.waiting) | self.lost.keys() | unreadable
        if incomplete != self._incomplete or scan.copied:  # a copy that grows ends as a pin, or is reported as lost
            self._incomplete, self._incomplete_since = incomplete, now

    def _is_older(self, discovered: DiscoveredCheckpoint) -> bool:
        """Return whether it may be the pin of a checkpoint that training saved before the one discovered last."""
        newest = self.newest
        return (
            discovered.checkpoint.pin is not None and newest is not None and discovered.written_at < newest.written_at
        )

    def _passed_over(self, waiting: Sequence[Checkpoint], history: JournalState, task: str | None) -> Mapping[Key, str]:
        choice = self.selection.choose(self._waiting_among(waiting, history, task), history)
        return choice.passed | dict.fromkeys(self.unwanted or (), BEFORE_START)

    # -- asked -----------------------------------------------------------------------------------------------------

    @property
    def found(self) -> Mapping[Key, DiscoveredCheckpoint]:
        """Return the complete checkpoints that are there, in order of discovery."""
        return self._scan.by_key

    @property
    def given_up(self) -> Mapping[Key, Settlement]:
        """Return how checkpoints end that this node gave up and the journal has not settled yet."""
        return self.lost.given_up

    @property
    def looked(self) -> bool:
        """Return whether the checkpoint directory was scanned."""
        return self.unwanted is not None

    @property
    def empty_since(self) -> float | None:
        """Return since when the checkpoint directory shows nothing at all; None once it showed anything."""
        is_empty, since = self._empty
        return since if is_empty else None

    @property
    def incomplete_since(self) -> float | None:
        """Return since when the same things in the directory are no complete checkpoints; None if there are none."""
        return self._incomplete_since if self._incomplete else None

    def only_new(self, history: JournalState) -> bool:
        """Return whether the checkpoints of the first scan do not count."""
        return self.start_new and history.backlog_cutoff_pending

    def detected_after(self, key: Key) -> float | None:
        """Return the seconds from the last write of a checkpoint to its discovery; None if that was not watched.

        The storage's clock is compared with this node's, so this is only ever shown, never decided on.
        """
        discovered, appeared = self.found.get(key), self._appeared.get(key)
        return max(0.0, appeared - discovered.written_at) if discovered is not None and appeared is not None else None

    def relevant(self, history: JournalState, task: str | None) -> list[Checkpoint]:
        """Return the checkpoints that need an evaluation or are pinned, in order of discovery."""
        return self._select(history, task).relevant

    def choice(self, history: JournalState, task: str | None) -> Choice:
        """Return what becomes of the checkpoints that need an evaluation."""
        return self._select(history, task).choice

    def _select(self, history: JournalState, task: str | None) -> _Selected:
        """Select among what the last scan found; once for each scan and each record of the journal."""
        moment = history.through, history.open is None, task, self.done
        if self._selected is None or self._selected.moment != moment:
            relevant = {*history.unsettled(self.found, task), *self._scan.pinned()}
            checkpoints = [discovered.checkpoint for key, discovered in self.found.items() if key in relevant]
            waiting = self._waiting_among(checkpoints, history, task)
            choice = self.selection.choose(waiting, history, over=self.done)
            self._selected = _Selected(moment, checkpoints, choice)
        return self._selected

    def unreadable(self, history: JournalState, tasks: AbstractSet[str | None]) -> frozenset[str]:
        """Return names, as `Checkpoint.folder`, of what this node cannot read now and some task may still need."""
        names = frozenset(self._scan.unknown)
        if not names:
            return names
        digests = {name.rpartition("@")[2] for name in names}
        settled = {
            folder_name(key)
            for key in chain(history.succeeded, history.settled)
            if key[1][:12] in digests and all(history.is_settled(key, task) for task in tasks)
        }
        return names - settled

    @property
    def failed(self) -> Mapping[str, str]:
        """Return why checkpoints could not be pinned or unpinned, by their names as `Checkpoint.folder`."""
        return self._scan.failed

    @property
    def unknown(self) -> Mapping[str, str]:
        """Return why this node cannot read checkpoints now, by their names as `Checkpoint.folder`."""
        return self._scan.unknown

    def sees(
        self, history: JournalState, task: str | None, tasks: AbstractSet[str | None]
    ) -> tuple[tuple[str, ...], bool]:
        """Return the oldest checkpoints that this node finds whole and some task needs, and whether there are more."""
        whole = (
            checkpoint.folder
            for checkpoint in self.relevant(history, task)
            if not all(history.is_settled(checkpoint.key, one) for one in tasks)
        )
        names = list(islice((name for name in whole if name not in self._scan.unknown), _MOST_NAMES + 1))
        return tuple(names[:_MOST_NAMES]), len(names) > _MOST_NAMES

    def returned(self, history: JournalState, now: float) -> list[Checkpoint]:
        """Return complete checkpoints that the journal says have vanished, and that nobody reopened a moment ago."""
        vanished = {
            key
            for key in history.totals.checkpoints[Verdict.VANISHED]
            if history.settled.get(key) == Verdict.VANISHED and key not in history.succeeded
        }
        return [
            discovered.checkpoint
            for key, discovered in (self.found.items() if vanished else ())
            if key in vanished and now >= self._reopened_at.get(key, float("-inf")) + self.vanished_after_seconds
        ]

    def _waiting_among(
        self, checkpoints: Sequence[Checkpoint], history: JournalState, task: str | None
    ) -> list[Checkpoint]:
        """Return those that need an evaluation and were not there before the start, with `start=new`."""
        waiting = pending(history, checkpoints, task)
        unwanted = self.unwanted or ()
        return [checkpoint for checkpoint in waiting if checkpoint.key not in unwanted]
