"""Decide what is retained of what workers saved. Pure.

Weights and predictions stay for the newest evaluations and for the best one, as long as they fit into the bytes that
may be used. Metric states stay for more evaluations: many of the newest, the best ones, and every k-th one if that is
set. The journal keeps the numbers of all evaluations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sidecar.coordination.journal_state import JournalState
from sidecar.protocol.records import Plan
from sidecar.retention.saves.best import BestBy

_LOOKED_BACK: Final = 20  # evaluations before the kept ones that a restarted daemon thins, if there is anything to
_FAILED_KEPT: Final = 20  # failed plans of whose saves a daemon thinks that starts, and reads a long journal
TRIES: Final = 5  # at a folder that cannot be tidied; after them it stays as it is
_AGAIN_SECONDS: Final = 60.0  # between two of them
_GRACE_SECONDS: Final = 60.0  # by then every daemon has read of the failure, and its killed workers write no more


@dataclass(frozen=True, slots=True)
class StatesRule:
    """Say how many evaluations keep their metric states, in addition to the best ones."""

    keep: int | None = None  # how many of the newest ones; None: all
    every: int | None = None  # older plans with a number that can be divided by it keep them, too; None: none of them


@dataclass(frozen=True, slots=True)
class RetainedStates:
    """Say which evaluations keep their folders, and with them the metric states."""

    # The oldest plan of the newest evaluations. Every plan from it on is retained.
    before: int
    checkpoints: frozenset[str]  # names of the folders in `evaluations` of which nothing is old
    every: int | None = None  # plans whose number can be divided by it are retained, however old they are

    def is_old(self, checkpoint: str, plan: int) -> bool:
        """Return whether the folder of a plan may be removed. `checkpoint`: the name of the folder above it."""
        kept = self.every is not None and plan % self.every == 0
        return plan < self.before and checkpoint not in self.checkpoints and not kept


@dataclass(frozen=True, slots=True)
class CleanupRequest:
    """Folders, relative to the run's state directory."""

    drop: tuple[str, ...] = ()  # remove altogether: what failed plans left
    thin: tuple[str, ...] = ()  # keep metric states, remove weights and predictions
    measure: tuple[str, ...] = ()  # kept as they are: how much disk do they use
    retained: RetainedStates | None = None  # remove some folders of evaluations that are older than these


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupResult:
    """Hold the result of a cleanup request."""

    sizes: Mapping[str, int] = field(default_factory=dict)  # bytes of the folders that were to be measured
    failed: Mapping[str, str] = field(default_factory=dict)  # folders of which something stayed, and why
    unmeasured: tuple[str, ...] = ()  # what was measured in part, as sentences
    old: int = 0  # folders of old evaluations that were removed, once all of them were visited
    old_failed: str | None = None  # why one of them could not be removed, as a sentence


@dataclass(slots=True, kw_only=True)
class Retention:
    """Follow the journal, and say what may be removed."""

    keep: int  # how many of the newest evaluations keep everything
    best: BestBy = field(default_factory=BestBy)  # says which evaluation is retained in addition
    # What all that is kept may use together. The newest stays even so, and the best one unless it alone uses more.
    max_bytes: int | None = None
    # Whether the saves of the evaluation to which the link `exports/best` leads are retained as well, since the next
    # evaluation is compared with its predictions. Nothing is removed before that is known.
    retains_linked: bool = False
    states: StatesRule = StatesRule()  # which evaluations keep their metric states in addition
    _linked: str | None = None
    _knows_link: bool = False
    _newest: tuple[str, ...] = ()  # oldest first
    _best: str | None = None
    _too_large: str | None = None  # was the best, and could not stay
    _leaving: tuple[str, ...] = ()
    _failed: dict[str, float] = field(default_factory=dict)  # folder: when its plan failed
    _measured: tuple[str, ...] = ()
    _sizes: Mapping[str, int] = field(default_factory=dict)
    _trying: dict[str, tuple[int, float]] = field(default_factory=dict)  # tries that failed, and when the next is due

    @property
    def bytes(self) -> int:
        """Disk used by what is kept, as far as it was measured."""
        return sum(self._sizes.get(folder, 0) for folder in self._kept)

    def resume(self, history: JournalState) -> None:
        """Go on from what the journal says, without having followed it."""
        self._newest = tuple(history.folders[-self.keep :])
        self._best = self.best.folder(history)
        before = history.folders[: -self.keep][-_LOOKED_BACK:]
        self._leaving = tuple(folder for folder in before if folder != self._best)

    def succeeded(self, history: JournalState) -> None:
        """Note that an evaluation succeeded: its saves are the newest now, and maybe the best."""
        before = self._kept
        best = self.best.folder(history)
        self._best = None if best == self._too_large else best
        self._newest = (*self._newest, history.folders[-1])[-self.keep :]
        gone = tuple(folder for folder in before if folder not in self._kept)
        self._leaving = (*self._leaving, *gone)[-_LOOKED_BACK:]

    def link(self, folder: str | None) -> None:
        """Note to which evaluation the link `exports/best` leads, by the folder of its saves."""
        if not self.retains_linked:
            return
        before, self._knows_link = self._kept, True
        self._linked = None if folder == self._too_large else folder
        gone = tuple(folder for folder in before if folder not in self._kept)
        self._leaving = tuple(folder for folder in (*self._leaving, *gone) if folder != self._linked)[-_LOOKED_BACK:]

    def failed(self, plan: Plan, now: float) -> None:
        """Note that a plan failed: nobody will ask for its saves."""
        self._failed[plan.folder] = now
        for folder in list(self._failed)[:-_FAILED_KEPT]:
            del self._failed[folder]

    def due(self, now: float) -> CleanupRequest:
        """Return what to do now; said again until it is `done`, since storage may fail."""
        drop = (folder for folder, since in self._failed.items() if now >= since + _GRACE_SECONDS)
        return CleanupRequest(
            tuple(folder for folder in drop if self._is_due(folder, now)),
            tuple(folder for folder in self._thinned() if self._is_due(folder, now)),
            self._kept if self._kept != self._measured else (),
        )

    def retained_states(self, history: JournalState) -> RetainedStates | None:
        """Return which evaluations keep their metric states; None if that are all, or if it is not known yet."""
        if self.states.keep is None or (self.retains_linked and not self._knows_link):
            return None
        newest = history.folders[-max(self.states.keep, self.keep) :]
        if len(newest) < self.states.keep:
            return None
        best = (each.folder for each in self.best.ranked(history))
        plan = history.open
        others = () if plan is None or plan.checkpoint is None else (plan.folder,)
        names = frozenset(folder.split("/")[1] for folder in (*newest, *best, *self._kept, *others))
        return RetainedStates(int(newest[0].rpartition("-")[2]), names, self.states.every)

    def done(self, tidying: CleanupRequest, tidied: CleanupResult, now: float) -> list[str]:
        """Note that a request was carried out; return the folders that are not tried again."""
        abandoned = []
        for folder in (*tidying.drop, *tidying.thin):
            tries, _ = self._trying.pop(folder, (0, now))
            if folder not in tidied.failed:
                continue
            if tries + 1 < TRIES:
                self._trying[folder] = tries + 1, now + _AGAIN_SECONDS
            else:
                abandoned.append(folder)
        for folder in set(tidying.drop) - self._trying.keys():
            self._failed.pop(folder, None)
        again = tuple(folder for folder in tidying.thin if folder in self._trying and folder not in self._leaving)
        self._leaving = (
            tuple(folder for folder in self._leaving if folder not in tidying.thin or folder in self._trying) + again
        )
        self._newest = tuple(folder for folder in self._newest if folder not in tidying.thin)
        if self._best in tidying.thin:
            self._best, self._too_large = None, self._best
        if self._linked in tidying.thin:
            self._linked, self._too_large = None, self._linked
        if tidying.measure:
            self._measured, self._sizes = tidying.measure, tidied.sizes
        return abandoned

    def _is_due(self, folder: str, now: float) -> bool:
        return now >= self._trying.get(folder, (0, now))[1]

    @property
    def _kept(self) -> tuple[str, ...]:
        """Oldest first."""
        apart = dict.fromkeys(each for each in (self._linked, self._best) if each not in (None, *self._newest))
        return (*(str(folder) for folder in apart), *self._newest)

    def _thinned(self) -> tuple[str, ...]:
        """Return what has to go, once it is known what stays."""
        return () if self.retains_linked and not self._knows_link else (*self._leaving, *self._too_much())

    def _too_much(self) -> list[str]:
        """Return what has to go for the others to fit, the oldest first; nothing before all are measured."""
        kept, removed = self._kept, list[str]()
        if self.max_bytes is None or kept != self._measured:
            return []
        left = self.bytes
        for folder in kept[:-1]:
            fits_alone = self._sizes[folder] <= self.max_bytes
            if left > self.max_bytes and not (folder in (self._best, self._linked) and fits_alone):
                left -= self._sizes[folder]
                removed.append(folder)
        return removed
