"""Which checkpoints there are: in the watched directory, and in the pins that hold them against deletion.

Each look re-reads only what changed. It never waits, writes or imports a framework; it blocks for as long as the
storage does, so the I/O thread calls it. What is complete, what is not yet and what will never be is decided here;
which checkpoint is wanted is not.
"""

import contextlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from sidecar.bounded_calls import Calls, HangingError, call_directly
from sidecar.checkpoints.checkpoint_directory import CheckpointDirectory, Findings
from sidecar.checkpoints.checkpoint_glob import TOP, CheckpointGlob
from sidecar.checkpoints.complete_marker import CompleteMarker
from sidecar.checkpoints.completeness import CompletenessJudge
from sidecar.checkpoints.discovery_order import DiscoveryOrder
from sidecar.checkpoints.formats import FORMATS, looked_for
from sidecar.checkpoints.inspect import stem_of
from sidecar.checkpoints.presence import Answer, Presence, ask
from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.checkpoints.step_names import NamedSteps
from sidecar.checkpoints.subfolder_hint import remedy_below
from sidecar.checkpoints.subfolders import Subfolders
from sidecar.clock import Clock
from sidecar.errors import StorageError
from sidecar.pins.index import PinIndex
from sidecar.records import Key

_PINS: Final = "/pins"  # among families, of which none is named with a slash at the beginning
_MAKING: Final = "/making"  # likewise
_BELOW_SECONDS: Final = 30.0  # between two looks into sub-folders that are not asked for
_MADE_ELSEWHERE: Final = "a node is making a pin of it, or left one unfinished"


class Catalog:
    """The checkpoints of one directory and its pins, as this process has come to know them.

    Args:
        root: the checkpoint directory; it may not exist yet.
        pins: the folder of pins; it may not exist yet.
        quiet_seconds: how long the files of a checkpoint that no state file names must stay unchanged.
        corrupt_after_seconds: how long those of a broken one must, before it is given up.
        full_sweep_seconds: by then every file was looked at again, however many there are.
        step_key: the object-graph path of the variable that holds the step; no other is then looked at.
        step_pattern: regular expression whose first group is the step in a name, whatever the files hold.
        complete_marker: a file without which nothing counts as complete; see `marker`.
        formats: which formats to look for; empty: all.
        checkpoint_pattern: glob of names that are checkpoints, whatever their format; none else is then looked for.
        glob: in which sub-folders to look, and for which names.
        clock: time.
        calls: makes calls that may hang, by the name of what they read.
        looked: called after each checkpoint and each pin that a look was about, since looks may take long.
    """

    def __init__(
        self,
        root: Path,
        pins: Path,
        *,
        quiet_seconds: float,
        corrupt_after_seconds: float = 60.0,
        full_sweep_seconds: float = 300.0,
        step_key: str | None = None,
        step_pattern: str | None = None,
        complete_marker: str | None = None,
        formats: Collection[str] = (),
        checkpoint_pattern: str | None = None,
        glob: CheckpointGlob = TOP,
        clock: Clock,
        calls: Calls = call_directly,
        looked: Callable[[], None] = lambda: None,
    ) -> None:
        self._root = root.absolute()
        self._pins = pins.absolute()
        state = self._pins.parent.parent  # of all runs: nothing in it is a checkpoint
        self._never = str(state.relative_to(self._root)) if state.is_relative_to(self._root) else None
        judge = CompletenessJudge(
            self._root,
            quiet_seconds,
            corrupt_after_seconds,
            step_key,
            None if step_pattern is None else re.compile(step_pattern),
            None if complete_marker is None else CompleteMarker(complete_marker),
            looked_for(formats, checkpoint_pattern),
            clock,
            glob,
        )
        self._findings = Findings()

        def directory(below: str) -> CheckpointDirectory:
            return CheckpointDirectory(
                replace(judge, below=below),
                self._findings,
                full_sweep_seconds=full_sweep_seconds,
                clock=clock,
                calls=calls,
                looked=looked,
            )

        self._directory = directory("")
        self._subfolders = Subfolders(
            self._directory,
            directory,
            self._findings,
            never=self._never,
            full_sweep_seconds=full_sweep_seconds,
        )
        self._step_pattern = step_pattern
        self._below: str | None = None
        self._below_at = float("-inf")
        self._clock = clock
        self._calls = calls
        self._held = PinIndex(
            pins,
            corrupt_after_seconds=corrupt_after_seconds,
            step_key=step_key,
            step_pattern=judge.step_pattern,
            checkpoint_pattern=checkpoint_pattern,
            calls=calls,
            looked=looked,
        )
        self._found: dict[Key, DiscoveredCheckpoint] = {}
        self._in_order: tuple[DiscoveredCheckpoint, ...] = ()
        self._discovery = DiscoveryOrder()
        self._names = NamedSteps()

    def look(self, hints: Collection[str] | None = None, *, sweep: bool = True) -> ScanResult:
        """Look once; raises `StorageError` if a folder exists and cannot be read.

        `hints`: paths from the checkpoint directory that file events told of since the last look; None: there are no
        events, or not of all changes. `sweep`: look beyond them, too.
        """
        now = self._clock.now()
        missing = False
        try:
            self._directory.look(now, None if hints is None else _in_root(hints), sweep=sweep)
            self._subfolders.look(now, hints, sweep=sweep)
        except FileNotFoundError:
            missing = True
            self._forget_root()
        except OSError as error:
            raise StorageError(f"cannot read the checkpoint directory {self._root}: {error.strerror}") from error
        # After the directory: what is pinned and deleted meanwhile is seen in one of them.
        findings = self._findings
        findings.affected |= self._held.look(now)
        findings.note_reasons(_PINS, self._held.reasons)
        before, news = self._found, frozenset(findings.affected)
        if news:
            self._merge(now)
        making = self._unseen()
        findings.note_reasons(_MAKING, [(f"@{digest}", _MADE_ELSEWHERE) for digest in sorted(making)])
        corrupt, findings.untold = tuple(findings.untold), []
        held = self._held
        return ScanResult(
            self._in_order,
            corrupt,
            findings.waiting,
            missing,
            self._found,
            held.found,
            held.broken,
            before,
            news,
            self._discovery.order,
            making=making,
            unknown=self._all_unknown(),
            unclaimed=held.unclaimed,
            folders=self._subfolders.newest(self._root),
            below=None if missing or self._discovery.order or not sweep else self._remedy_below(now),
        )

    def ask(self, found: DiscoveredCheckpoint) -> Answer:
        """Ask whether the files of a checkpoint are there, by their names."""
        try:
            return self._calls(f"/ask {found.checkpoint.folder}", lambda: ask(found, self._root, self._pins))
        except HangingError as error:
            return Answer(Presence.UNKNOWN, str(error.strerror))

    def _remedy_below(self, now: float) -> str | None:
        """Return what would find checkpoints in sub-folders, as none was ever found; it is looked for now and then."""
        if now >= self._below_at:
            self._below_at = now + _BELOW_SECONDS
            with contextlib.suppress(HangingError):
                self._below = self._calls("/below", lambda: remedy_below(self._root, self._never))
        return self._below

    def _forget_root(self) -> None:
        self._directory.forget()
        self._subfolders.forget()

    def _all_unknown(self) -> Mapping[str, str]:
        """What cannot be read now, and is not read from a pin that can."""
        if not self._findings.unknown:
            return self._held.unknown
        pinned = {found.checkpoint.folder for found in self._held.found.values()}
        families = self._findings.unknown.values()
        lying = {folder: why for each in families for folder, why in each.items() if folder not in pinned}
        return lying | dict(self._held.unknown)

    def _merge(self, now: float) -> None:
        """Put what changed in its place in the order of discovery; what is pinned is found in its pin."""
        found, changed = dict(self._found), dict[Key, DiscoveredCheckpoint]()
        for key in self._findings.affected:
            item = self._held.found.get(key) or self._findings.lying.get(key)
            if item is None:
                found.pop(key, None)
            else:
                changed[key] = item
        self._compare_names(changed)
        new = [item for key, item in changed.items() if key not in found]
        are_last = self._discovery.add(new, found, self._findings.lying, now)
        order = self._discovery.order
        for key in sorted(changed, key=order.__getitem__):
            found[key] = self._as_discovered(changed[key])
        if not are_last:
            found = dict(sorted(found.items(), key=lambda pair: order[pair[0]]))
        self._findings.affected.clear()
        self._found, self._in_order = found, tuple(found.values())

    def _compare_names(self, changed: dict[Key, DiscoveredCheckpoint]) -> None:
        """Take steps in names from a comparison with the others; what a pin or an earlier look says of one stays.

        So nodes that saw other names agree about what is pinned, and the step of a checkpoint does not change.
        """
        named = {key: item for key, item in changed.items() if item.checkpoint.step_source in ("name", "order")}
        if self._step_pattern is not None:
            return
        stems = {key: stem_of(item.checkpoint.name, FORMATS[item.checkpoint.format]) for key, item in named.items()}
        for stem in stems.values():
            self._names.add(stem)
        for key, item in named.items():
            checkpoint = item.checkpoint
            if checkpoint.pin is not None:
                continue
            if (known := self._found.get(key)) is not None:
                step, source = known.checkpoint.step, known.checkpoint.step_source
            else:
                step = self._names.step(stems[key])
                source = "order" if step is None else "name"
            if (step, source) != (checkpoint.step, checkpoint.step_source):
                changed[key] = replace(item, checkpoint=replace(checkpoint, step=step, step_source=source))

    def _unseen(self) -> frozenset[str]:
        """Pins that some node makes of what this one does not see, as training deleted it before it looked."""
        if not self._held.making:
            return self._held.making
        return self._held.making.difference(digest[:12] for _, digest in self._found)

    def _as_discovered(self, item: DiscoveredCheckpoint) -> DiscoveredCheckpoint:
        _, seen_at = self._discovery.order[item.checkpoint.key]
        return item if item.seen_at == seen_at else replace(item, seen_at=seen_at)


def _in_root(hints: Collection[str]) -> set[str]:
    """Return the names directly in the directory, also of what happened further down."""
    return {hint.partition("/")[0] for hint in hints}
