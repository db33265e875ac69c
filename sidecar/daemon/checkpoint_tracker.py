"""Track the checkpoints in the checkpoint directory by its scans: present, lost, and waiting for an evaluation.

The daemon's state hands scans and records of the journal to the tracker. `ScanSelection` chooses among the checkpoints
of the newest scan, once for each scan and each record. No I/O and no clock.
"""

from collections.abc import Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, filterfalse, islice
from typing import Final

from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.coordination.checkpoint_verdicts import BEFORE_START
from sidecar.coordination.journal_state import JournalState
from sidecar.daemon.lost_checkpoints import LostCheckpoints, ScanChange
from sidecar.policy.selection import Choice, Selection, pending
from sidecar.policy.settlements import REOPENED
from sidecar.protocol.records import Checkpoint, Key, Outcome, Plan, Settlement, folder_name
from sidecar.protocol.states import Verdict
from sidecar.publishing.status import Newest

_MOST_NAMES: Final = 64  # of checkpoints in a heartbeat


@dataclass(frozen=True, slots=True)
class Selected:
    """Hold the checkpoints of one scan that matter at one moment of the journal."""

    moment: tuple[object, ...]  # the moment of the journal, this node's task, and whether training is done
    relevant: list[Checkpoint]  # the checkpoints that need an evaluation or are pinned, in order of discovery
    choice: Choice  # the decision for each of them that needs an evaluation


@dataclass(slots=True)
class ScanSelection:
    """Hold the choice among the checkpoints of the newest scan until a scan or a record of the journal changes it.

    The policy and the pin policy choose again, because they choose among other checkpoints, as their docstrings say.
    """

    selection: Selection  # the settings that select the checkpoints to evaluate
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


@dataclass(slots=True)
class EmptyDirectory:
    """Hold the time since when an existing directory has been empty, until anything is found."""

    # The time of the first scan that found the directory empty; None: it was not found, or something was found since
    since: float | None = None
    hint: str | None = None  # a sentence that says what a person should check because nothing was found for long
    _is_over: bool = False  # something was found in the directory or the journal

    def needs_hint(self, now: float, after_seconds: float) -> bool:
        """Return whether nothing was found for so long, and nobody was told what to check."""
        return self.since is not None and now >= self.since + after_seconds and self.hint is None

    def note_hint(self, hint: str) -> None:
        """Note the sentence that says what to check."""
        self.hint = hint

    def update(self, scan: ScanResult, *, anything: bool, now: float) -> None:
        """Apply a scan. `anything`: whether the scan found an entry, or the journal has records of checkpoints."""
        if anything:
            self._is_over, self.since, self.hint = True, None, None
        elif not scan.missing and not self._is_over and self.since is None:
            self.since = now


@dataclass(slots=True)
class IncompleteEntries:
    """Hold the entries that are not complete checkpoints, and since when these are the same.

    While files are written, the entries or their reasons change. The run ends only after they have not changed for a
    while.
    """

    _entries: frozenset[tuple[str, str] | Key] = frozenset()  # (name, reason), or the key of a lost checkpoint
    _since: float = 0.0

    @property
    def since(self) -> float | None:
        """Return since when the same entries are not complete checkpoints; None if there are none."""
        return self._since if self._entries else None

    def update(self, scan: ScanResult, lost: AbstractSet[Key], now: float) -> None:
        """Apply a scan, and the checkpoints that are gone or given up and not settled.

        A checkpoint that was given up counts until it is settled, because another node may find it whole. A copy that
        grows restarts the time, because it ends as a pin, or is reported as lost.
        """
        unreadable = {("", name) for name in scan.unknown}
        entries: frozenset[tuple[str, str] | Key] = frozenset(scan.waiting) | lost | unreadable
        if entries != self._entries or scan.copied:
            self._entries, self._since = entries, now


@dataclass(slots=True, kw_only=True)
class CheckpointTracker:
    """Track the checkpoints that one node has seen. Times are seconds of its own clock."""

    # Selects the checkpoints of the newest scan to evaluate
    choices: ScanSelection = field(default_factory=lambda: ScanSelection(Selection()))
    # The checkpoints that are gone or damaged, and how they end
    lost: LostCheckpoints = field(default_factory=LostCheckpoints)
    start_new: bool = False  # whether checkpoints that existed before the first start do not count
    began_first: bool = False  # whether this daemon began before training created the checkpoint directory
    newest: Newest | None = None  # the checkpoint discovered last, even if it is gone
    unwanted: set[Key] | None = None  # checkpoints that existed before the start; None: nothing was scanned yet
    no_room: Mapping[Key, str] = field(default_factory=dict)  # why checkpoints were not pinned for lack of room
    done: bool = False  # whether the trainer's marker says that it saved its last checkpoint
    missing: bool = False  # whether the checkpoint directory does not exist
    # Whether the checkpoint directory has been empty, and since when
    empty: EmptyDirectory = field(default_factory=EmptyDirectory)
    # The entries of it that are not complete checkpoints, and since when
    incomplete: IncompleteEntries = field(default_factory=IncompleteEntries)
    _scan: ScanResult = field(default_factory=ScanResult)  # the last one
    _reopened_at: dict[Key, float] = field(default_factory=dict)  # of vanished checkpoints that came back
    _appeared: dict[Key, float] = field(default_factory=dict)  # seconds since 1970, if a scan saw it appear

    # -- what happens ----------------------------------------------------------------------------------------------

    def fold(self, record: Plan | Outcome, now: float) -> None:
        """Apply a record of the journal."""
        self.done = False  # a new run may have begun meanwhile: the next scan reads the marker again
        if isinstance(record, Outcome):
            return
        for settlement in record.settles:
            self.lost.settle(settlement)
            if settlement.reason == REOPENED:
                self._reopened_at[settlement.key] = now
        if self.unwanted and not record.line_open:  # all checkpoints from before the start are settled, for all nodes
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
        """Apply a scan of the checkpoint directory, and return the new checkpoints in order of discovery."""
        present, before = scan.by_key, self.found
        new = [present[key] for key in filterfalse(before.__contains__, present)] if present is not before else []
        if new and new[-1] is scan.found[-1] and not self._is_older(new[-1]):
            latest = new[-1].checkpoint
            self.newest = Newest(
                step=latest.step,
                written_at=new[-1].written_at,
                checkpoint=latest.name,
                digest=latest.digest,
                step_source=latest.step_source,
            )
        if self.unwanted is None:
            only_new = self.only_new(history) and not self.began_first
            self.unwanted = {discovered.checkpoint.key for discovered in new} if only_new else set()
        else:
            self._appeared = {key: at for key, at in self._appeared.items() if key in present}
            self._appeared |= {discovered.checkpoint.key: wall for discovered in new}
        if scan.missing:
            self.lost.postpone(now)
        else:
            change = ScanChange(
                scan=scan,
                before=before,
                new=new,
                given_up=given_up,
                is_settled=partial(history.verdicts.is_settled, task=task),
                passed_over=lambda waiting: self._passed_over(waiting, history, task),
            )
            self.lost.update(change, now)
        self._scan, self.missing = scan, scan.missing
        if present is not before:
            self.choices.forget()
        self.incomplete.update(scan, self.lost.keys(), now)
        self.empty.update(scan, anything=bool(present or scan.waiting or given_up or history.log.count), now=now)
        return new

    def note_missing(self, *, missing: bool) -> bool:
        """Note whether the checkpoint directory is missing, and return whether that is new."""
        before, self.missing = self.missing, missing
        return missing and not before

    def note_beginning(self) -> None:
        """Note that this daemon began before training created the checkpoint directory."""
        self.began_first = True

    def note_done(self, *, done: bool) -> None:
        """Note whether the trainer's marker exists."""
        self.done = done

    def note(self, no_room: Mapping[Key, str], *, done: bool) -> Mapping[Key, str]:
        """Note which checkpoints could not be pinned, and whether training is done; return the former if they are new.

        After a checkpoint without room the next ones have no room either, so they are new only if there were none.
        """
        self.note_done(done=done)
        before, self.no_room = self.no_room, no_room
        return no_room if not before else {}

    def _is_older(self, discovered: DiscoveredCheckpoint) -> bool:
        """Return whether a checkpoint may be a pin of one that training saved before the one discovered last."""
        newest = self.newest
        return (
            discovered.checkpoint.pin is not None and newest is not None and discovered.written_at < newest.written_at
        )

    def _passed_over(self, waiting: Sequence[Checkpoint], history: JournalState, task: str | None) -> Mapping[Key, str]:
        """Return the checkpoints that would not be evaluated, and why. The last one of a finished training would be."""
        choice = self.choices.choose(waiting, history, task, self.unwanted or (), over=self.done)
        return choice.passed | dict.fromkeys(self.unwanted or (), BEFORE_START)

    # -- what is known ---------------------------------------------------------------------------------------------

    @property
    def found(self) -> Mapping[Key, DiscoveredCheckpoint]:
        """Return the complete checkpoints of the newest scan, in order of discovery."""
        return self._scan.by_key

    @property
    def given_up(self) -> Mapping[Key, Settlement]:
        """Return the settlements of checkpoints that this node gave up and the journal has not settled yet."""
        return self.lost.given_up

    @property
    def has_scanned(self) -> bool:
        """Return whether the checkpoint directory was scanned."""
        return self.unwanted is not None

    def only_new(self, history: JournalState) -> bool:
        """Return whether the checkpoints of the first scan do not count."""
        return self.start_new and history.backlog_cutoff_pending

    def detected_after(self, key: Key) -> float | None:
        """Return the seconds from the last write of a checkpoint to its discovery; None if no scan saw it appear.

        This compares the storage's clock with this node's, so it is for display only, never for a decision.
        """
        discovered, appeared = self.found.get(key), self._appeared.get(key)
        return max(0.0, appeared - discovered.written_at) if discovered is not None and appeared is not None else None

    def lag(self, key: Key, wall: float) -> float | None:
        """Return the seconds from the last write of a checkpoint to the time `wall`; None if no scan saw it appear.

        For display only, as `detected_after`.
        """
        discovered = self.found.get(key) if key in self._appeared else None
        return None if discovered is None else round(max(0.0, wall - discovered.written_at), 3)

    def relevant(self, history: JournalState, task: str | None) -> list[Checkpoint]:
        """Return the checkpoints that need an evaluation or are pinned, in order of discovery."""
        return self._select(history, task).relevant

    def choice(self, history: JournalState, task: str | None) -> Choice:
        """Return the decision for each checkpoint that needs an evaluation."""
        return self._select(history, task).choice

    def _select(self, history: JournalState, task: str | None) -> Selected:
        """Return the choice among the checkpoints of the newest scan."""
        return self.choices.select(self._scan, history, task, self.unwanted or (), over=self.done)

    def unreadable(self, history: JournalState, tasks: AbstractSet[str | None]) -> frozenset[str]:
        """Return the folder names of checkpoints that this node cannot read now and some task may still need."""
        names = frozenset(self._scan.unknown)
        if not names:
            return names
        settled = {
            folder_name(key)
            for key in chain(history.verdicts.succeeded.in_folders(names), history.verdicts.settled)
            if all(history.verdicts.is_settled(key, task) for task in tasks)
        }
        return names - settled

    def broken_pin(self, folder: str) -> str | None:
        """Return why the pin with this folder name certainly has wrong content, by the newest scan; None if not."""
        certain = {pin.expected.checkpoint.folder: pin.why for pin in self._scan.broken if pin.certain}
        return certain.get(folder)

    @property
    def failed(self) -> Mapping[str, str]:
        """Return why checkpoints could not be pinned or unpinned, by their folder names."""
        return self._scan.failed

    @property
    def unknown(self) -> Mapping[str, str]:
        """Return why this node cannot read checkpoints now, by their folder names."""
        return self._scan.unknown

    def sees(
        self, history: JournalState, task: str | None, tasks: AbstractSet[str | None]
    ) -> tuple[tuple[str, ...], bool]:
        """Return the oldest checkpoints that this node finds whole and some task needs, and whether there are more."""
        whole = (
            checkpoint.folder
            for checkpoint in self.relevant(history, task)
            if not all(history.verdicts.is_settled(checkpoint.key, one) for one in tasks)
        )
        names = list(islice((name for name in whole if name not in self._scan.unknown), _MOST_NAMES + 1))
        return tuple(names[:_MOST_NAMES]), len(names) > _MOST_NAMES

    def returned(self, history: JournalState, now: float) -> list[Checkpoint]:
        """Return complete checkpoints that vanished by the journal, and that nobody reopened a moment ago."""
        vanished = {
            key
            for key in history.totals.checkpoints[Verdict.VANISHED]
            if history.verdicts.settled.get(key) == Verdict.VANISHED and key not in history.verdicts.succeeded
        }
        return [
            discovered.checkpoint
            for key, discovered in (self.found.items() if vanished else ())
            if key in vanished and now >= self._reopened_at.get(key, float("-inf")) + self.lost.vanished_after_seconds
        ]
