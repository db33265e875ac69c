"""Looks at the checkpoints, sees to it that those that are wanted are held, and tidies what workers saved.

Called from the courier's thread. It decides nothing of its own: what is wanted is said by the daemon.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sidecar.artifacts.cleanup import ArtifactCleanup
from sidecar.artifacts.retention import CleanupRequest, CleanupResult
from sidecar.checkpoints.catalog import Catalog
from sidecar.checkpoints.presence import Answer, Presence
from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.checkpoints.watch import Watch
from sidecar.clock import Clock
from sidecar.errors import StorageError
from sidecar.pins.background import BackgroundPinner
from sidecar.pins.copy_arbiter import CopyArbiter
from sidecar.pins.disk_budget import DiskBudget
from sidecar.pins.executor import PinChanges, PinExecutor, settlement
from sidecar.pins.policy import PinDecision, PinPolicy
from sidecar.records import Key, Settlement
from sidecar.states import Verdict

_CLEAN_SECONDS: Final = 5.0  # between two looks at pins in the making, whether somebody makes them still


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What was said of one look, and who of it is to be held or let go, in order of discovery."""

    found: Mapping[Key, DiscoveredCheckpoint]
    version: object
    basis: object
    wanted: PinDecision
    concerned: list[Key]


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What one look brought. `pins_bytes`: None if it is as before; `no_room`: what could not be pinned, and why."""

    look: ScanResult
    given_up: tuple[Settlement, ...]
    pins_bytes: int | None
    watch_problem: str | None
    no_room: Mapping[Key, str]
    done: bool


@dataclass(slots=True)
class PinReconciler:
    """The folders of one run: checkpoints, their pins, and what workers saved of their evaluations."""

    root: Path  # the run's state directory
    catalog: Catalog
    watch: Watch | None  # None: this node does not look at checkpoints
    pinner: BackgroundPinner
    saves: ArtifactCleanup
    clock: Clock
    room: DiskBudget = field(default_factory=DiskBudget)
    is_done: Callable[[], bool] = lambda: False  # whether the trainer's marker is there
    sweep_seconds: float = 2.0  # between looks at more than file events tell of
    corrupt_after_seconds: float = 60.0  # before what cannot be pinned as it was found is given up
    turns: CopyArbiter = field(default_factory=CopyArbiter)
    _hints: set[str] = field(default_factory=set)  # names that changed since a look succeeded
    _swept_at: float = float("-inf")
    _clean_at: float = float("-inf")
    _lost: list[Settlement] = field(default_factory=list)  # not yet told: a look may fail after it found them
    _chosen: _Chosen | None = None  # as long as neither what is found nor what is wanted changes
    _seen: Mapping[Key, DiscoveredCheckpoint] = field(default_factory=dict)  # by the last look
    _shown: Mapping[Key, DiscoveredCheckpoint] = field(
        default_factory=dict
    )  # to the daemon, by the last look that did not fail
    _news: set[Key] = field(default_factory=set)  # what may differ between the two
    _measured: frozenset[Key] | None = None  # the pins that were, when it was told what they hold
    _absent: dict[Key, DiscoveredCheckpoint] = field(default_factory=dict)  # found before and not now, and yet not gone
    _fading: dict[Key, DiscoveredCheckpoint] = field(default_factory=dict)  # gone, but some node is copying it still
    _pinning: PinExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._pinning = PinExecutor(
            self.pinner,
            self.room,
            self.turns,
            self.clock,
            self.corrupt_after_seconds,
            self._ask,
        )

    def _ask(self, found: DiscoveredCheckpoint) -> Answer:
        return self.catalog.ask(found)

    def has_no_place(self) -> bool:
        """Whether the state directory lies in a checkpoint directory that is not there yet, and must not create it."""
        if not self.root.is_dir():
            with contextlib.suppress(StorageError):  # what is in the way is explained by who writes there
                return self._note(self.catalog.look()).missing
        return False

    def clean(self) -> None:
        """Remove what daemons that died left half pinned, this node's first: it would count as held for good."""
        now = self.clock.now()
        if now >= self._clean_at:
            self._clean_at = now + _CLEAN_SECONDS
            with contextlib.suppress(StorageError):  # who looks at the pins tells of it
                self.pinner.clean(now, self.turns.copy_turn_seconds)

    def tidy(self, tidying: CleanupRequest) -> CleanupResult:
        """Remove what is no longer kept, measure what is; never raises: nothing rests on it."""
        return self.saves.tidy(tidying)

    def look(self, wants: PinPolicy, *, leaving: bool) -> Reconciliation:
        """Let go what is not wanted, pin what is; tells what is found now and what was lost on the way.

        `leaving`: this is the last look. Raises `StorageError` if a folder cannot be listed.
        """
        self.clean()
        done = self.is_done()  # before the look, which then sees all that was saved before the marker
        look = self._look(at_all=done)
        chosen = self._choose(look, wants)
        result = self._pinning.let_go(look, wants, chosen.wanted, leaving=leaving)
        self.turns.begin(self.pinner.bytes_copied)
        self._pinning.hold(look, chosen.concerned, chosen.wanted, wants.before, result)
        self._lost += result.lost
        self._fading = self._follow_copies(look, wants, result)
        made = {("", digest) for digest in look.making if self.turns.goes_on(digest, self.clock.now())}
        seen = replace(
            look.changed(result.changes),
            before=self._shown,
            news=self._news | result.changes.keys(),
            copied=frozenset(self._fading.keys() | made),
            unknown={**look.unknown, **result.unknown},
            failed=result.failed,
            waiting=(*look.waiting, *result.waiting) if result.waiting else look.waiting,
        )
        self._shown, self._news = seen.by_key, set(result.changes)
        pins_bytes = self._measure_pins(seen)
        given_up, self._lost = tuple(self._lost), []
        problem = self.watch.problem if self.watch is not None else None
        return Reconciliation(seen, given_up, pins_bytes, problem, result.no_room, done)

    def let_go(self, wants: PinPolicy) -> None:
        """Let go what is not wanted, and hold nothing, as nothing can be written; the next look tells what it found.

        Raises `StorageError` if a folder cannot be listed.
        """
        look = self._look(at_all=False)
        result = self._pinning.let_go(look, wants, self._choose(look, wants).wanted, leaving=False)
        self._lost += result.lost
        self._news |= result.changes.keys()

    def _look(self, *, at_all: bool) -> ScanResult:
        """Look at what file events told of and, every now and then, beyond that; or `at_all`, as they may be late."""
        if self.watch is None:
            return self._note(self.catalog.look())
        self.watch.ensure()
        hints, now = self.watch.changed(), self.clock.now()
        if hints is None or at_all:
            look, self._swept_at = self.catalog.look(), now
        else:
            self._hints |= hints
            sweep = now >= self._swept_at + self.sweep_seconds
            look = self.catalog.look(self._hints, sweep=sweep)
            self._swept_at = now if sweep else self._swept_at
        self._hints = set()
        self.watch.follow(look.folders)
        return self._note(look)

    def _note(self, look: ScanResult) -> ScanResult:
        """Remember what the look tells only once, as whoever is to hear it may not, this time."""
        self._lost += look.corrupt
        self._news |= look.news_since(self._seen)
        self._seen = look.by_key
        return self._with_absent(look)

    def _with_absent(self, look: ScanResult) -> ScanResult:
        """Add what was found before and is not now, but for what is gone: that is said by its own files only."""
        broken = {each.found.checkpoint.key for each in look.broken}
        left = {key: self._shown[key] for key in self._news & self._shown.keys()} | self._absent
        absent, unknown = dict[Key, DiscoveredCheckpoint](), dict(look.unknown)
        for key, found in left.items():
            if key in look.by_key or key in broken:
                continue
            presence, why = self.catalog.ask(found)
            if presence is not Presence.GONE:
                absent[key] = found
            if presence is Presence.UNKNOWN:
                unknown[found.checkpoint.folder] = f"cannot be read: {why}"
        self._news |= self._absent.keys() ^ absent.keys()
        self._absent = absent
        return replace(look.changed(absent), unknown=unknown) if absent else look

    def _choose(self, look: ScanResult, wants: PinPolicy) -> _Chosen:
        """What is wanted, and what is to be held or let go; nobody is asked about thousands that are settled."""
        known, version, basis = self._chosen, wants.version, wants.basis  # what comes meanwhile is asked for again
        if known is not None and known.found is look.by_key and known.version == version:
            return known
        among = look.by_key
        if known is not None and known.basis == basis and known.wanted.undecided is not None:
            among = {key: among[key] for key in look.in_order(known.wanted.undecided | self._news)}
        wanted = wants(among)
        concerned = look.in_order({*wanted.hold, *look.pinned, *self._pinning.damaged})
        self._chosen = _Chosen(look.by_key, version, basis, wanted, concerned)
        return self._chosen

    def close(self) -> None:
        """Look no more."""
        if self.watch is not None:
            self.watch.stop()

    def _follow_copies(self, look: ScanResult, wants: PinPolicy, result: PinChanges) -> dict[Key, DiscoveredCheckpoint]:
        """What is gone but still being copied; it has vanished once that ends without a pin, or gets no further."""
        gone = {key: self._shown[key] for key in self._news & self._shown.keys()} | self._fading
        fading: dict[Key, DiscoveredCheckpoint] = {}
        for key, found in gone.items():
            if key in look.by_key or key not in wants({key: found}).hold:
                continue
            if self.turns.copied(found) is not None and not self.turns.is_mine(found, before=0, now=self.clock.now()):
                fading[key] = found
                result.waiting.append((found.checkpoint.name, "it was deleted, and is still being copied"))
            elif key in self._fading:
                self._lost.append(settlement(found, Verdict.VANISHED, "it was deleted before it was copied"))
        return fading

    def _measure_pins(self, look: ScanResult) -> int | None:
        """What pins hold, from what the look saw: asking the storage for each file of each pin takes long for many."""
        if (pinned := frozenset(look.pinned)) == self._measured:
            return None
        self._measured = pinned
        return sum(file.size for each in look.pinned.values() for file in each.files)
