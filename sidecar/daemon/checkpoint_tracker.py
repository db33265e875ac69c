"""What looks at the checkpoint directory have shown: what is there, what went, and what of it is to be evaluated.

The world tells it of looks and of the journal, and asks it. No I/O and no clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.coordination.journal_state import BEFORE_START, JournalState
from sidecar.observability.status import Newest
from sidecar.policy.selection import Choice, Selection, pending
from sidecar.policy.settlements import REOPENED
from sidecar.records import Checkpoint, Key, Outcome, Plan, Settlement
from sidecar.states import Verdict

_DELETED: Final = "it was deleted before it was evaluated"
_SEEN_TOLD: Final = 64  # names of checkpoints in a heartbeat


@dataclass(frozen=True, slots=True)
class _Missed:
    """A checkpoint that is gone, how it ends if it stays so, and when it was discovered, written and lost.

    If it was lost on the way to its pin, and not discovered before, it counts as written last.
    """

    settlement: Settlement
    seen_at: float
    written_at: float
    since: float


@dataclass(slots=True)
class CheckpointTracker:
    """One node's. Times are seconds of its own clock."""

    selection: Selection = field(default_factory=Selection)
    start_new: bool = False  # checkpoints that were there before the first start do not count
    vanished_after_seconds: float = 60.0  # for so long it must be gone from every scan
    found: Mapping[Key, DiscoveredCheckpoint] = field(default_factory=dict)  # in order of discovery
    missing: bool = False  # the checkpoint directory does not exist
    began_first: bool = False  # this daemon looked for the checkpoint directory before training created it
    hint: str | None = None  # what a person may want to look at
    newest: Newest | None = None  # the one discovered last, also when it is gone
    given_up: dict[Key, Settlement] = field(default_factory=dict)  # and not settled yet
    unwanted: set[Key] | None = None  # there before the start; None: no look yet
    no_room: Mapping[Key, str] = field(default_factory=dict)
    done: bool = False  # the trainer's marker says that it saved its last checkpoint
    _finds: int = 0  # looks that found or lost something
    reopened: int = 0  # how often a checkpoint that was settled may have become one that is not
    _broken: dict[Key, Settlement] = field(default_factory=dict)  # told as corrupt, settled or not
    _missed: dict[Key, _Missed] = field(default_factory=dict)  # and not given up yet
    _reopened_at: dict[Key, float] = field(default_factory=dict)  # of those that had vanished and were there again
    _unreadable: frozenset[str] = frozenset()
    _unreadable_in: tuple[object, ...] = ()
    _incomplete: frozenset[tuple[str, str] | Key] = frozenset()  # names, and what they lack: being written is no rest
    _incomplete_since: float = 0.0
    _told_waiting: tuple[object, frozenset[tuple[str, str]]] = (None, frozenset())  # by the last look
    _appeared: dict[Key, float] = field(default_factory=dict)  # seconds since 1970, if it was seen to appear
    _seen_something: bool = False
    _empty_since: float | None = None
    _look: ScanResult = field(default_factory=lambda: ScanResult((), (), (), missing=False))  # the last one
    _relevant: list[Checkpoint] = field(default_factory=list)
    _news: set[Key] = field(default_factory=set)  # since these were chosen
    _chosen_for: tuple[str | None, int] | None = None
    _chosen_in: tuple[int, int, bool, str | None, bool] | None = None
    _choice: Choice = field(default_factory=lambda: Selection().choose((), JournalState()))

    # -- told ------------------------------------------------------------------------------------------------------

    def fold(self, record: Plan | Outcome, now: float) -> None:
        """The journal went on."""
        self.done = False  # a new run may have begun meanwhile: the next look says
        if isinstance(record, Outcome):
            return
        for settlement in record.settles:
            self.given_up.pop(settlement.key, None)
            self.reopened += settlement.verdict in (Verdict.REQUEUED, Verdict.FAILED)  # this may be of one task only
            if settlement.reason == REOPENED:
                self._reopened_at[settlement.key] = now
            if settlement.verdict == Verdict.REQUEUED and (broken := self._broken.get(settlement.key)) is not None:
                self.given_up[settlement.key] = broken  # what was known against it is void, but for what still holds
        if self.unwanted and not record.line_open:  # what was there before the start is settled, for all nodes
            self.unwanted = set()

    def see(
        self,
        look: ScanResult,
        given_up: tuple[Settlement, ...],
        history: JournalState,
        task: str | None,
        now: float,
        wall: float,
    ) -> list[DiscoveredCheckpoint]:
        """The checkpoint directory was looked at; returns what is new there."""
        here, before = look.by_key, self.found
        news = {key for key in look.news_since(before) if here.get(key) is not before.get(key)}
        new = [here[key] for key in look.in_order(key for key in news if key not in before)]
        gone = [key for key in news if key not in here]
        if new and new[-1] is look.found[-1] and not self._is_older(new[-1]):
            each = new[-1].checkpoint
            self.newest = Newest(each.step, new[-1].written_at, each.name, each.digest, each.step_source)
        if self.unwanted is None:
            only_new = self.only_new(history) and not self.began_first
            self.unwanted = {found.checkpoint.key for found in new} if only_new else set()
        else:
            self._appeared |= {found.checkpoint.key: wall for found in new}
            for key in gone:
                self._appeared.pop(key, None)
        if look.missing:  # a directory that is gone may come back, with all that was in it
            self._missed = {key: replace(each, since=now) for key, each in self._missed.items()}
        else:
            lost = history.unsettled(gone, task)
            self._miss(look, lost, new, given_up, history, task, now)
        self.found, self._look = here, replace(look, before=None)
        self._finds += bool(news)
        self._news |= news
        self._note_incomplete(look, now)
        self.missing = look.missing
        if here or look.waiting or given_up or history.count:
            self._seen_something, self.hint = True, None
        elif not look.missing and self._empty_since is None:
            self._empty_since = now
        return new

    def note(self, no_room: Mapping[Key, str], *, done: bool) -> Mapping[Key, str]:
        """What the look could not pin, and whether the trainer says that it is done; returns what is new of the first.

        One that found no room is followed by others, so as long as there is one the next are not new.
        """
        before, self.no_room, self.done = self.no_room, no_room, done
        return no_room if not before else {}

    def _note_incomplete(self, look: ScanResult, now: float) -> None:
        if self._told_waiting[0] is not look.waiting:
            self._told_waiting = look.waiting, frozenset(look.waiting)
        # What is given up stays among them until it is settled: another node may find it whole, and say no more.
        incomplete = (
            self._told_waiting[1] | self._missed.keys() | self.given_up.keys() | {("", at) for at in look.unknown}
        )
        if incomplete != self._incomplete or look.copied:  # a copy that grows ends as a pin, or is told of
            self._incomplete, self._incomplete_since = incomplete, now

    def _miss(
        self,
        look: ScanResult,
        gone: Iterable[Key],
        new: Sequence[DiscoveredCheckpoint],
        given_up: tuple[Settlement, ...],
        history: JournalState,
        task: str | None,
        now: float,
    ) -> None:
        """Note what this look lost. What vanished is given up for ever, so it must be gone from all looks for a while.

        What is gone and would not have been evaluated anyway is given up in the next look: its verdict is another.
        """
        here, missed = look.by_key, dict(self._missed)
        for key in gone:
            found, each = self.found[key], self.found[key].checkpoint
            deleted = Settlement(each.name, each.digest, each.step, Verdict.VANISHED, _DELETED)
            missed[key] = _Missed(deleted, found.seen_at, found.written_at, now)
        # What was lost on the way to its pin was discovered with what is new here, if it was not known before.
        lately = min((found.seen_at for found in new), default=now)
        for lost in given_up:
            if lost.verdict == Verdict.VANISHED:
                known = self.found.get(lost.key)
                seen_at, written_at = (known.seen_at, known.written_at) if known else (lately, float("inf"))
                gone_now = missed.get(lost.key) or _Missed(lost, seen_at, written_at, now)
                missed[lost.key] = replace(gone_now, settlement=lost)
        held = look.copied.union(each.found.checkpoint.key for each in look.broken)
        missed = {
            key: replace(each, since=now) if key in held else each
            for key, each in missed.items()
            if key not in here and not self._is_unknown(each.settlement, look) and not history.is_settled(key, task)
        }
        missed = self._passed_over(missed, here, history, task)
        over = {key for key, each in missed.items() if now >= each.since + self.vanished_after_seconds}
        over |= {
            key for key in missed.keys() & self._missed.keys() if missed[key].settlement.verdict == Verdict.SKIPPED
        }
        certain = {settlement.key: settlement for settlement in given_up if settlement.verdict != Verdict.VANISHED}
        certain |= {key: missed[key].settlement for key in over}
        self._missed = {key: each for key, each in missed.items() if key not in certain}
        self._broken |= {each.key: each for each in given_up if each.verdict == Verdict.CORRUPT}
        self._broken = {key: each for key, each in self._broken.items() if key not in here}
        self.given_up = {
            key: settlement
            for key, settlement in (self.given_up | certain).items()
            if key not in here and not history.is_settled(key, task) and not self._is_unknown(settlement, look)
        }

    def _is_unknown(self, settlement: Settlement, look: ScanResult) -> bool:
        """Whether a pin of it stands that cannot be read now."""
        each = Checkpoint(settlement.name, settlement.digest, settlement.step, "")
        return bool(look.unknown) and each.folder in look.unknown

    def _is_older(self, found: DiscoveredCheckpoint) -> bool:
        """Whether it is another's pin of what training deleted, perhaps, before it saved what was discovered last."""
        newest = self.newest
        return found.checkpoint.pin is not None and newest is not None and found.written_at < newest.written_at

    def _passed_over(
        self,
        missed: dict[Key, _Missed],
        here: Mapping[Key, DiscoveredCheckpoint],
        history: JournalState,
        task: str | None,
    ) -> dict[Key, _Missed]:
        """How these end: what would not have been evaluated anyway is skipped, and let go on purpose, perhaps."""
        if not missed:
            return missed
        gone = [
            (each.seen_at, each.written_at, Checkpoint(told.name, told.digest, told.step, ""))
            for each, told in ((each, each.settlement) for each in missed.values())
        ]
        waited = [here[key] for key in history.unsettled(here, task)]
        there = [(each.seen_at, each.written_at, each.checkpoint) for each in waited]
        waiting = [each for _, _, each in sorted([*gone, *there], key=_by_discovery)]
        choice = self.selection.choose(self._waiting_among(waiting, history, task), history)
        reasons = choice.passed | dict.fromkeys(self.unwanted or (), BEFORE_START)
        return {
            key: replace(each, settlement=replace(each.settlement, verdict=Verdict.SKIPPED, reason=reasons[key]))
            if key in reasons
            else each
            for key, each in missed.items()
        }

    # -- asked -----------------------------------------------------------------------------------------------------

    @property
    def looked(self) -> bool:
        """Whether the checkpoint directory was looked at."""
        return self.unwanted is not None

    @property
    def empty_since(self) -> float | None:
        """Since when the checkpoint directory shows nothing at all; None once it showed anything."""
        return None if self._seen_something else self._empty_since

    @property
    def incomplete_since(self) -> float | None:
        """Since when the same things in the directory are no complete checkpoints; None if there are none."""
        return self._incomplete_since if self._incomplete else None

    def only_new(self, history: JournalState) -> bool:
        """Whether what the first look finds does not count."""
        return self.start_new and history.line_open

    def detected_after(self, key: Key) -> float | None:
        """Seconds from the last write of a checkpoint to its being seen complete; None if that was not watched.

        The storage's clock is compared with this node's, so this is only ever shown, never decided on.
        """
        found, appeared = self.found.get(key), self._appeared.get(key)
        return max(0.0, appeared - found.written_at) if found is not None and appeared is not None else None

    def relevant(self, history: JournalState, task: str | None) -> list[Checkpoint]:
        """Those that need an evaluation or are pinned: the rest is looked through only when something has changed."""
        state = self._finds, history.through, history.open is None, task, self.done
        if self._chosen_in != state:
            among: Iterable[Key] = self.found
            if self._chosen_for == (task, self.reopened):  # what was settled is settled still
                among = filter(self.found.__contains__, self._news.union(each.key for each in self._relevant))
            chosen = {*history.unsettled(among, task), *self._look.pinned}
            self._relevant = [self.found[key].checkpoint for key in self._look.in_order(chosen)]
            self._chosen_for, self._news = (task, self.reopened), set()
            waiting = self._waiting_among(self._relevant, history, task)
            self._choice = self.selection.choose(waiting, history, over=self.done)
            self._chosen_in = state
        return self._relevant

    def unreadable(self, history: JournalState, tasks: AbstractSet[str | None]) -> frozenset[str]:
        """Return names, as `Checkpoint.folder`, of what this node cannot read now and some task may still need."""
        unknown = self._look.unknown
        if not unknown:
            return frozenset()
        state = unknown, history.through, history.open is None, tasks
        if self._unreadable_in != state:
            known = {key[1][:12]: key for key in (*history.succeeded, *history.settled)}
            settled = {
                name
                for name in unknown
                if (key := known.get(name.rpartition("@")[2])) and all(history.is_settled(key, task) for task in tasks)
            }
            self._unreadable, self._unreadable_in = frozenset(unknown) - settled, state
        return self._unreadable

    @property
    def failed(self) -> Mapping[str, str]:
        """Why checkpoints could not be pinned, or pins not let go, by their names as `Checkpoint.folder`."""
        return self._look.failed

    @property
    def unknown(self) -> Mapping[str, str]:
        """Why this node cannot read checkpoints now, by their names as `Checkpoint.folder`."""
        return self._look.unknown

    def sees(
        self, history: JournalState, task: str | None, tasks: AbstractSet[str | None]
    ) -> tuple[tuple[str, ...], bool]:
        """Return the oldest checkpoints that this node finds whole and some task needs, and whether there are more."""
        whole = (
            each.folder
            for each in self.relevant(history, task)
            if not all(history.is_settled(each.key, one) for one in tasks)
        )
        seen = list(islice(filter(lambda folder: folder not in self._look.unknown, whole), _SEEN_TOLD + 1))
        return tuple(seen[:_SEEN_TOLD]), len(seen) > _SEEN_TOLD

    def returned(self, history: JournalState, now: float) -> list[Checkpoint]:
        """Return complete checkpoints that the journal says have vanished, and that nobody reopened a moment ago."""
        vanished = [key for key in history.totals.checkpoints[Verdict.VANISHED] if key in self.found]
        keys = [
            key for key in vanished if history.settled.get(key) == Verdict.VANISHED and key not in history.succeeded
        ]
        return [
            self.found[key].checkpoint
            for key in self._look.in_order(keys)
            if now >= self._reopened_at.get(key, float("-inf")) + self.vanished_after_seconds
        ]

    def choice(self, history: JournalState, task: str | None) -> Choice:
        """What becomes of those that need an evaluation."""
        self.relevant(history, task)
        return self._choice

    def _waiting_among(
        self, checkpoints: Sequence[Checkpoint], history: JournalState, task: str | None
    ) -> list[Checkpoint]:
        """Those that need an evaluation and were not there before the start, with start=new."""
        waiting = pending(history, checkpoints, task)
        return [each for each in waiting if each.key not in self.unwanted] if self.unwanted else waiting


def _by_discovery(seen: tuple[float, float, Checkpoint]) -> tuple[float, bool, int, float]:
    """As in the catalog: within one look by step, and then by the time at which it was written."""
    at, written_at, checkpoint = seen
    return at, checkpoint.step is None, checkpoint.step or 0, written_at
