"""List the checkpoints in the watched directory, and in the pins that protect checkpoints against deletion.

Each scan parses only files that changed. The catalog never waits, writes or imports a framework. It blocks for as long
as the storage does, so the storage thread calls it. It does not decide which checkpoints are wanted.

`KnownCheckpoints` holds what the scans found. A checkpoint that lies in both places is represented by its pin, because
training may delete the other one at any moment. Checkpoints are in order of discovery. Steps that were read from names
are consistent with each other.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

from sidecar.checkpoints.candidate_decision import CandidateDecider
from sidecar.checkpoints.checkpoint_directory import CheckpointDirectory
from sidecar.checkpoints.discovery_order import DiscoveryOrder
from sidecar.checkpoints.discovery_rules import DiscoveryRules
from sidecar.checkpoints.file_group_reader import FileGroupReader
from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.inspect import stem_of
from sidecar.checkpoints.presence import Answer, Presence, ask, ask_directory
from sidecar.checkpoints.scan import DiscoveredCheckpoint, PinScan, PinScanner, ScanResult
from sidecar.checkpoints.step_names import NamedSteps
from sidecar.checkpoints.subfolder_hint import SubfolderHint
from sidecar.checkpoints.subfolders import Subfolders
from sidecar.errors import StorageError
from sidecar.protocol.records import Key, Settlement
from sidecar.system.bounded_calls import Calls, HangingError, call_directly
from sidecar.system.bucket_folder import BucketFolder, place_of
from sidecar.system.clock import Clock

_MADE_ELSEWHERE: Final = "a node is making a pin of it, or left one unfinished"


class Catalog:
    """Hold the checkpoints of a directory and its pins, as of the last scan. Both folders may not exist yet.

    `calls` makes calls that may hang, by the name of the entry that they read. `longer` makes the calls that read files
    whose inspection takes long, one at a time and without waiting; `rest` is called between parts of such an
    inspection, and `progress` before each group of files that is read, because a scan may take long.
    """

    def __init__(
        self,
        root: Path,
        pins_dir: Path,
        pins: PinScanner,
        *,
        rules: DiscoveryRules,
        clock: Clock,
        calls: Calls = call_directly,
        longer: Calls = call_directly,
        rest: Callable[[], object] = lambda: None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._root = root if isinstance(root, BucketFolder) else root.absolute()
        self._source = getattr(root, "source", None) if isinstance(root, BucketFolder) else None
        self._pins_dir = pins_dir.absolute()
        self._pins = pins
        self._clock = clock
        self._calls = calls
        state = self._pins_dir.parent.parent  # the state of all runs, which contains no checkpoints
        never = str(state.relative_to(self._root)) if state.is_relative_to(self._root) else None

        def directory(below: str) -> CheckpointDirectory:
            decider = CandidateDecider(root=self._root / below, below=below, rules=rules)
            return CheckpointDirectory(
                FileGroupReader(top=self._root, decider=decider, clock=clock),
                self._corrupt.append,
                clock=clock,
                calls=calls,
                longer=longer,
                rest=rest,
                progress=progress,
            )

        self._corrupt: list[Settlement] = []  # given up and not reported yet
        self._directory = directory("")
        self._subfolders = Subfolders(
            root=self._directory, new=directory, never=never, full_sweep_seconds=rules.full_sweep_seconds
        )
        self._subfolder_hint = SubfolderHint(self._root, never, calls, clock)
        self._known = KnownCheckpoints(compares_names=rules.step_pattern is None)

    def scan(self, hints: Collection[str] | None = None, *, sweep: bool = True, at_once: bool = False) -> ScanResult:
        """Scan once. Raises `StorageError` if a folder exists and cannot be read.

        `hints`: paths from the checkpoint directory that file events reported since the last scan; None: there are no
        events, or some were missed. `sweep`: whether the scan goes beyond the hints. `at_once`: list a bucket
        although that is not due.
        """
        now = self._clock.now()
        missing = False
        try:
            if self._source is not None:
                self._source.refresh(at_once=at_once)
            self._directory.scan(
                now, None if hints is None else {hint.partition("/")[0] for hint in hints}, sweep=sweep
            )
            self._subfolders.scan(now, hints, sweep=sweep)
        except FileNotFoundError:
            missing = not isinstance(self._root, BucketFolder)  # where no source asks for the objects
            self._directory.forget()
            self._subfolders.forget()
        except OSError as error:
            raise StorageError(f"cannot read {place_of(self._root)}: {error.strerror}") from error
        # The pins come second: a checkpoint that is pinned and deleted meanwhile is then found in one of both.
        pins = self._pins.scan(now)
        directories = (self._directory, *self._subfolders.directories())
        self._known.merge([found for directory in directories for found in directory.found()], pins.found, now)
        found, places = self._known.by_key, self._known.places
        making = pins.making - {digest[:12] for _, digest in found} if pins.making else pins.making
        corrupt = tuple(self._corrupt)
        self._corrupt.clear()
        return ScanResult(
            by_key=found,
            corrupt=corrupt,
            waiting=(
                *chain.from_iterable(directory.waiting() for directory in directories),
                *self._subfolders.waiting(),
                *(() if self._source is None else self._source.waiting()),
                *pins.reasons,
                *((f"@{digest}", _MADE_ELSEWHERE) for digest in sorted(making)),
            ),
            left_out=tuple(chain.from_iterable(directory.left_out() for directory in directories)),
            missing=missing,
            places=places,
            broken=pins.broken,
            making=making,
            unknown=self._unknown(directories, pins),
            unclaimed=pins.unclaimed,
            folders=self._subfolders.newest(self._root),
            below=None if places or missing or not sweep else self._subfolder_hint.remedy(now),
        )

    def is_missing(self) -> bool:
        """Return whether the checkpoint directory does not exist, as far as storage says."""
        if isinstance(self._root, BucketFolder):
            return False
        try:
            self._root.stat()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return False

    def ask(self, found: DiscoveredCheckpoint) -> Answer:
        """Return whether the files of a checkpoint exist, by their names."""
        try:
            return self._calls(f"/ask {found.checkpoint.folder}", lambda: ask(found, self._root, self._pins_dir))
        except HangingError as error:
            return Answer(Presence.UNKNOWN, str(error.strerror))

    def ask_directory(self, found: DiscoveredCheckpoint) -> Answer:
        """Return whether the files of a checkpoint lie in the checkpoint directory, by their names."""
        try:
            return self._calls(f"/ask {found.checkpoint.folder}", lambda: ask_directory(found, self._root))
        except HangingError as error:
            return Answer(Presence.UNKNOWN, str(error.strerror))

    def _unknown(self, directories: Collection[CheckpointDirectory], pins: PinScan) -> Mapping[str, str]:
        """Return why checkpoints cannot be read now, by folder name, without those that have a readable pin."""
        unread = dict(chain.from_iterable(directory.unknown() for directory in directories))
        if not unread:
            return pins.unknown
        pinned = {found.checkpoint.folder for found in pins.found.values()}
        return {folder: why for folder, why in unread.items() if folder not in pinned} | dict(pins.unknown)


class KnownCheckpoints:
    """Merge the checkpoints that each scan reads in the directory and in the pins.

    `compares_names`: whether steps in names are found by a comparison of all names. False if the user set a pattern.
    """

    def __init__(self, *, compares_names: bool) -> None:
        self._compares_names = compares_names
        self._lying: Collection[DiscoveredCheckpoint] = []  # read in the directory by the last scan
        self._pinned: Mapping[Key, DiscoveredCheckpoint] = {}  # read in the pins by the last scan
        self._sources: dict[Key, DiscoveredCheckpoint] = {}  # both of these, as they were read
        self._merged: dict[Key, DiscoveredCheckpoint] = {}  # the same in order of discovery, with consistent steps
        self._order = DiscoveryOrder()
        self._names = NamedSteps()

    @property
    def by_key(self) -> Mapping[Key, DiscoveredCheckpoint]:
        """Return the complete checkpoints in order of discovery: the same object as long as nothing changes."""
        return self._merged

    @property
    def places(self) -> Mapping[Key, int]:
        """Return the places in the order of discovery, also of checkpoints that were discovered and are gone."""
        return self._order.places

    def merge(
        self, lying: Collection[DiscoveredCheckpoint], pinned: Mapping[Key, DiscoveredCheckpoint], now: float
    ) -> None:
        """Add the checkpoints that one scan read, and remove the others: `lying` in the directory, `pinned` in pins."""
        if lying == self._lying and pinned == self._pinned:
            return
        in_directory = {found.checkpoint.key: found for found in lying}
        sources = in_directory | dict(pinned)
        changed = {key: found for key, found in sources.items() if found is not self._sources.get(key)}
        changed |= self._with_agreed_steps(changed)
        new = [found for key, found in changed.items() if key not in self._merged]
        self._order.add(new, self._merged, in_directory, now)
        self._order.forget_gone(sources)
        merged = dict(self._merged)
        for key in self._merged.keys() - sources.keys():
            del merged[key]
        merged.update((key, self._as_discovered(found)) for key, found in changed.items())
        if new:
            merged = {key: merged[key] for key in sorted(merged, key=self._order.places.__getitem__)}
        self._merged = merged
        self._lying, self._pinned, self._sources = lying, pinned, sources

    def _with_agreed_steps(self, items: Mapping[Key, DiscoveredCheckpoint]) -> dict[Key, DiscoveredCheckpoint]:
        """Return the checkpoints whose steps are in their names, with steps from a comparison of all names.

        A step that a pin or an earlier scan gave to a checkpoint stays. So nodes that saw different names agree about
        pinned checkpoints, and the step of a checkpoint does not change.
        """
        named = {key: item for key, item in items.items() if item.checkpoint.step_source in ("name", "order")}
        if not self._compares_names or not named:
            return {}
        stems = {key: stem_of(item.checkpoint.name, FORMATS[item.checkpoint.format]) for key, item in named.items()}
        for stem in stems.values():
            self._names.add(stem)
        agreed = {}
        for key, item in named.items():
            if item.checkpoint.pin is None:
                known = self._merged.get(key)
                step = self._names.step(stems[key]) if known is None else known.checkpoint.step
                source = ("order" if step is None else "name") if known is None else known.checkpoint.step_source
                checkpoint = replace(item.checkpoint, step=step, step_source=source)
                agreed[key] = replace(item, checkpoint=checkpoint)
        return agreed

    def _as_discovered(self, item: DiscoveredCheckpoint) -> DiscoveredCheckpoint:
        """Return a checkpoint with the time of its first discovery."""
        seen_at = self._order.seen_at[item.checkpoint.key]
        return item if item.seen_at == seen_at else replace(item, seen_at=seen_at)
