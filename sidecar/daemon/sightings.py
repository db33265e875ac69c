"""What looks at the checkpoint directory have shown: what is there, what went, and what of it is to be evaluated.

The world tells it of looks and of the journal, and asks it. No I/O and no clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sidecar.checkpoints.found import Found, Look
from sidecar.history import History
from sidecar.policy import BEFORE_START, pending
from sidecar.records import Checkpoint, Key, Outcome, Plan, Settlement
from sidecar.selection import Choice, Selection
from sidecar.status import Newest

_DELETED: Final = "it was deleted before it was evaluated"


@dataclass(slots=True)
class Sightings:
    """One node's. Times are seconds of its own clock."""

    selection: Selection = field(default_factory=Selection)
    start_new: bool = False  # checkpoints that were there before the first start do not count
    found: Mapping[Key, Found] = field(default_factory=dict)  # in order of discovery
    missing: bool = False  # the checkpoint directory does not exist
    hint: str | None = None  # what a person may want to look at
    newest: Newest | None = None  # the one discovered last, also when it is gone
    given_up: dict[Key, Settlement] = field(default_factory=dict)  # and not settled yet
    unwanted: set[Key] | None = None  # there before the start; None: no look yet
    no_room: Mapping[Key, str] = field(default_factory=dict)
    done: bool = False  # the trainer's marker says that it saved its last checkpoint
    _finds: int = 0  # looks that found or lost something
    reopened: int = 0  # how often a checkpoint that was settled may have become one that is not
    _broken: dict[Key, Settlement] = field(default_factory=dict)  # told as corrupt, settled or not
    # Vanished, unless the next look finds them after all; and when they were discovered.
    _missed: dict[Key, tuple[Settlement, float]] = field(default_factory=dict)
    _incomplete: frozenset[tuple[str, str] | Key] = frozenset()  # names, and what they lack: being written is no rest
    _incomplete_since: float = 0.0
    _told_waiting: tuple[object, frozenset[tuple[str, str]]] = (None, frozenset())  # by the last look
    _appeared: dict[Key, float] = field(default_factory=dict)  # seconds since 1970, if it was seen to appear
    _seen_something: bool = False
    _empty_since: float | None = None
    _look: Look = field(default_factory=lambda: Look((), (), (), missing=False))  # the last one
    _relevant: list[Checkpoint] = field(default_factory=list)
    _news: set[Key] = field(default_factory=set)  # since these were chosen
    _chosen_for: tuple[str | None, int] | None = None
    _chosen_in: tuple[int, int, bool, str | None, bool] | None = None
    _choice: Choice = field(default_factory=lambda: Selection().choose((), History()))

    # -- told ------------------------------------------------------------------------------------------------------

    def fold(self, record: Plan | Outcome) -> None:
        """The journal went on."""
        self.done = False  # a new run may have begun meanwhile: the next look says
        if isinstance(record, Outcome):
            return
        for settlement in record.settles:
            self.given_up.pop(settlement.key, None)
            self.reopened += settlement.verdict in ("requeued", "failed")  # this may be of one task only
            if settlement.verdict == "requeued" and (broken := self._broken.get(settlement.key)) is not None:
                self.given_up[settlement.key] = broken  # what was known against it is void, but for what still holds
        if self.unwanted and not record.line_open:  # what was there before the start is settled, for all nodes
            self.unwanted = set()

    def see(
        self, look: Look, given_up: tuple[Settlement, ...], history: History, task: str | None, now: float, wall: float
    ) -> list[Found]:
        """The checkpoint directory was looked at; returns what is new there."""
        here, before = look.by_key, self.found
        news = {key for key in look.news_since(before) if here.get(key) is not before.get(key)}
        new = [here[key] for key in look.in_order(key for key in news if key not in before)]
        gone = [key for key in news if key not in here]
        if new and new[-1] is look.found[-1] and not self._is_older(new[-1]):
            self.newest = Newest(new[-1].checkpoint.step, new[-1].written_at)
        if self.unwanted is None:
            self.unwanted = {found.checkpoint.key for found in new} if self.only_new(history) else set()
        else:
            self._appeared |= {found.checkpoint.key: wall for found in new}
            for key in gone:
                self._appeared.pop(key, None)
        if not look.missing:  # a directory that is gone may come back, with all that was in it
            held = look.copied.union(each.found.checkpoint.key for each in look.broken)
            lost = history.unsettled((key for key in gone if key not in held), task)
            self._miss(here, lost, new, given_up, history, task, now)
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

    def _note_incomplete(self, look: Look, now: float) -> None:
        if self._told_waiting[0] is not look.waiting:
            self._told_waiting = look.waiting, frozenset(look.waiting)
        incomplete = self._told_waiting[1] | self._missed.keys()
        if incomplete != self._incomplete or look.copied:  # a copy that grows ends as a pin, or is told of
            self._incomplete, self._incomplete_since = incomplete, now

    def _miss(
        self,
        here: Mapping[Key, Found],
        gone: Iterable[Key],
        new: Sequence[Found],
        given_up: tuple[Settlement, ...],
        history: History,
        task: str | None,
        now: float,
    ) -> None:
        """Note what this look lost. What vanished is given up for ever, so it must be gone in the next look too."""
        missed = {}
        for key in gone:
            found, each = self.found[key], self.found[key].checkpoint
            missed[key] = Settlement(each.name, each.digest, each.step, "vanished", _DELETED), found.seen_at
        # What was lost on the way to its pin was discovered with what is new here, if it was not known before.
        lately = min((found.seen_at for found in new), default=now)
        for lost in given_up:
            if lost.verdict == "vanished":
                missed[lost.key] = lost, self.found[lost.key].seen_at if lost.key in self.found else lately
        certain = {settlement.key: settlement for settlement in given_up if settlement.verdict != "vanished"}
        still = {key: each for key, each in self._missed.items() if key not in here}
        certain |= {key: each for key, (each, _) in self._passed_over(still, here, history, task).items()}
        missed = {key: each for key, each in missed.items() if key not in certain}
        self._missed = self._passed_over(missed, here, history, task)
        self._broken |= {each.key: each for each in given_up if each.verdict == "corrupt"}
        self._broken = {key: each for key, each in self._broken.items() if key not in here}
        self.given_up = {
            key: settlement
            for key, settlement in (self.given_up | certain).items()
            if key not in here and not history.is_settled(key, task)
        }

    def _is_older(self, found: Found) -> bool:
        """Whether it is another's pin of what training deleted, perhaps, before it saved what was discovered last."""
        newest = self.newest
        return found.checkpoint.pin is not None and newest is not None and found.written_at < newest.written_at

    def _passed_over(
        self,
        missed: dict[Key, tuple[Settlement, float]],
        here: Mapping[Key, Found],
        history: History,
        task: str | None,
    ) -> dict[Key, tuple[Settlement, float]]:
        """How these end: what would not have been evaluated anyway is skipped, and let go on purpose, perhaps."""
        if not missed:
            return missed
        gone = [(seen, Checkpoint(each.name, each.digest, each.step, "")) for each, seen in missed.values()]
        there = [(here[key].seen_at, here[key].checkpoint) for key in history.unsettled(here, task)]
        waiting = [each for _, each in sorted([*gone, *there], key=_by_discovery)]
        choice = self.selection.choose(self._waiting_among(waiting, history, task), history)
        reasons = choice.passed | dict.fromkeys(self.unwanted or (), BEFORE_START)
        return {
            key: (replace(each, verdict="skipped", reason=reasons[key]), seen) if key in reasons else (each, seen)
            for key, (each, seen) in missed.items()
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

    def only_new(self, history: History) -> bool:
        """Whether what the first look finds does not count."""
        return self.start_new and history.line_open

    def detected_after(self, key: Key) -> float | None:
        """Seconds from the last write of a checkpoint to its being seen complete; None if that was not watched.

        The storage's clock is compared with this node's, so this is only ever shown, never decided on.
        """
        found, appeared = self.found.get(key), self._appeared.get(key)
        return max(0.0, appeared - found.written_at) if found is not None and appeared is not None else None

    def relevant(self, history: History, task: str | None) -> list[Checkpoint]:
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

    def choice(self, history: History, task: str | None) -> Choice:
        """What becomes of those that need an evaluation."""
        self.relevant(history, task)
        return self._choice

    def _waiting_among(self, checkpoints: Sequence[Checkpoint], history: History, task: str | None) -> list[Checkpoint]:
        """Those that need an evaluation and were not there before the start, with start=new."""
        waiting = pending(history, checkpoints, task)
        return [each for each in waiting if each.key not in self.unwanted] if self.unwanted else waiting


def _by_discovery(seen: tuple[float, Checkpoint]) -> tuple[float, bool, int]:
    """As in the catalog: within one look by step."""
    at, checkpoint = seen
    return at, checkpoint.step is None, checkpoint.step or 0
