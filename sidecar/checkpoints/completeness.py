"""Decide which files of one group are a complete checkpoint, which are not complete yet, and which never will be.

`CompletenessJudge.read` does all the reading that a group of files needs, changes nothing and remembers nothing: what
was judged before goes in, what is judged now comes out. It blocks for as long as the storage does.
"""

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sidecar.checkpoints.checkpoint_glob import CheckpointGlob
from sidecar.checkpoints.complete_marker import CompleteMarker
from sidecar.checkpoints.files import File, Listing, contents, sampled_digest, stat_files
from sidecar.checkpoints.formats import Candidate, Format, Inspection
from sidecar.checkpoints.inspect import as_checkpoint, step_in
from sidecar.checkpoints.scan import DiscoveredCheckpoint, in_folder, written_at
from sidecar.clock import Clock
from sidecar.entry_errors import Entry, Meaning, meaning
from sidecar.errors import CheckpointError, CorruptError, VanishedError
from sidecar.records import Settlement
from sidecar.states import Verdict

_OLD_SECONDS: Final = 3600.0  # far more than the clocks of machines differ, which share a storage


@dataclass(frozen=True, slots=True)
class Judged:
    """What is remembered about one candidate between looks; of what was found its verdict is not kept."""

    format: Format
    name: str
    files: tuple[File, ...]
    unchanged_since: float
    inspected_at: float
    verdict: Inspection | CheckpointError | None
    accepted: bool = False
    told: bool = False
    found: DiscoveredCheckpoint | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to it while its files stay as they are."""
        return self.told or self.found is not None


@dataclass(slots=True)
class FileGroupReading:
    """What reading a family brought.

    `listing` is None if it could not be listed. `unknown`: folder names of checkpoints that were found before and
    cannot be read now, and why; they are in `judged` as they were. `again`: look once more soon.
    """

    listing: Listing | None = None
    judged: list[Judged] = field(default_factory=list)
    reasons: list[tuple[str, str]] = field(default_factory=list)
    given_up: list[Settlement] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    again: bool = False


@dataclass(frozen=True, slots=True)
class CompletenessJudge:
    """The rules by which families are judged; they are the catalog's. `below` leads from `top` to the directory."""

    top: Path
    quiet_seconds: float
    corrupt_after_seconds: float
    step_key: str | None
    step_pattern: re.Pattern[str] | None
    marker: CompleteMarker | None
    formats: Sequence[Format]
    clock: Clock
    glob: CheckpointGlob
    below: str = ""

    @property
    def root(self) -> Path:
        """The directory whose families these are: the checkpoint directory, or a folder in it."""
        return self.top / self.below

    def named(self, name: str) -> str:
        """Return the path of a name in the directory from the checkpoint directory: a checkpoint's full name."""
        return in_folder(self.below, name)

    def read(
        self,
        directory: int,
        name: str,
        members: Iterable[str],
        named: Container[str],
        before: Sequence[Judged],
        now: float,
    ) -> FileGroupReading:
        """Judge what there is of the family `name` in the opened directory.

        `members`: the names of its files; `named`: what the state file lists; `before`: how it was judged before.
        """
        reading = FileGroupReading()
        try:
            reading.listing = stat_files(self.root, directory, members)._replace(named=named)
        except OSError as error:
            return self.unread(name, before, error)
        for format_ in self.formats:
            known = {each.name: each for each in before if each.format.name == format_.name}
            try:
                candidates = list(format_.candidates(self.root, reading.listing))
            except OSError as error:
                for each in known.values():
                    self._keep(each, error, reading)
                reading.reasons.append((self.named(name), _unreadable(error)))
                reading.again = True
                continue
            for candidate in candidates:
                if self.glob.accepts(self.named(candidate.name)):
                    self._read(format_, candidate, known.get(candidate.name), reading, now)
        return reading

    def unread(self, name: str, before: Sequence[Judged], error: OSError) -> FileGroupReading:
        """Return what is said of a family that cannot be read at all: what was judged before still holds."""
        reading = FileGroupReading(again=True)
        for each in before:
            self._keep(each, error, reading)
        reading.reasons.append((self.named(name), _unreadable(error)))
        return reading

    def ends(self, judged: Judged) -> tuple[float, float]:
        """Return when it has been unchanged long enough to be accepted, and to be given up."""
        since = judged.unchanged_since
        return since + self.quiet_seconds, since + self.corrupt_after_seconds

    def _read(
        self, format_: Format, candidate: Candidate, known: Judged | None, reading: FileGroupReading, now: float
    ) -> None:
        """Judge one candidate; an error of the storage stays with it."""
        if candidate.leaving is not None:
            reading.reasons.append((self.named(candidate.name), f"{candidate.leaving} is a link out of the directory"))
            return
        again = False
        while True:
            try:
                judged = self._judge(format_, candidate, known, now)
                judged, told, reason = self._report(candidate, judged, now)
            except VanishedError:  # deleted while it was looked at, or on NFS not there yet
                reading.again = True
                return
            except OSError as error:
                meant = meaning(Entry.CHECKPOINT, error, again=again)
                if meant is Meaning.RETRY:
                    again = True
                    continue
                reading.again = True
                if meant is Meaning.UNKNOWN:
                    reading.reasons.append((self.named(candidate.name), _unreadable(error)))
                    if known is not None and contents(known.files) == contents(_among(known, candidate)):
                        self._keep(known, error, reading)
                return
            reading.judged.append(judged)
            if told is not None:
                reading.given_up.append(told)
            if reason is not None:
                reading.reasons.append((self.named(candidate.name), reason))
            return

    def _keep(self, known: Judged, error: OSError, reading: FileGroupReading) -> None:
        """Keep what was known of a candidate, as its files cannot be read now."""
        reading.judged.append(known)
        if known.found is not None:
            reading.unknown[known.found.checkpoint.folder] = _unreadable(error)

    def _judge(self, format_: Format, candidate: Candidate, known: Judged | None, now: float) -> Judged:
        """Inspect a candidate, unless its files are those that were inspected before."""
        if known is not None and known.files == candidate.files and not self._is_due(known, now):
            return known
        verdict: Inspection | CheckpointError
        try:
            verdict = format_.inspect(self.root, candidate.name, step_key=self.step_key)
            if not format_.endings:
                self._require_same_files(format_, candidate)
        except (VanishedError, OSError):
            raise
        except CheckpointError as error:
            verdict = error
        except Exception as error:  # noqa: BLE001 - one file, which anybody may have written, must not end the daemon
            verdict = CorruptError(f"reading it failed, please report it: {type(error).__name__}: {error}")
        if known is not None and contents(known.files) == contents(candidate.files):
            # A link was made to it, or undone; or it was repaired, or its last write came within one tick of a clock.
            return replace(known, files=candidate.files, inspected_at=now, verdict=verdict, told=False, found=None)
        return Judged(format_, candidate.name, candidate.files, now, now, verdict)

    def _require_same_files(self, format_: Format, candidate: Candidate) -> None:
        """Raise `VanishedError` if files of a folder were deleted meanwhile: some may be missing in what was seen."""
        now = format_.candidates(self.root, Listing({}, folders=(candidate.name,)))
        names = {file.name for each in now for file in each.files}
        if any(file.name not in names for file in candidate.files):
            raise VanishedError(f"{candidate.name} is being deleted")

    def _is_due(self, known: Judged, now: float) -> bool:
        """Whether it must be inspected once more before it is accepted, or given up.

        Kernels set the times of files by a clock that ticks every few milliseconds, so what is written in place right
        after a look may show nowhere: the flag that closes an HDF5 file, say. Old files were not written right then.
        """
        if known.is_over or now < min(self.ends(known)):
            return False
        if self.clock.wall() - written_at(known.files) > _OLD_SECONDS:
            return False
        return known.inspected_at < max(end for end in self.ends(known) if now >= end)

    def _report(self, candidate: Candidate, judged: Judged, now: float) -> tuple[Judged, Settlement | None, str | None]:
        """Find it, give it up, or say why neither."""
        if judged.is_over:
            return judged, None, None
        unchanged_seconds = now - judged.unchanged_since
        if isinstance(judged.verdict, CheckpointError):
            if unchanged_seconds < self.corrupt_after_seconds:
                return judged, None, str(judged.verdict)
            return replace(judged, told=True), self._give_up(judged, judged.verdict), None
        assert judged.verdict is not None
        is_settled = candidate.committed or unchanged_seconds >= self.quiet_seconds
        judged = replace(judged, accepted=judged.accepted or is_settled)
        if not judged.accepted:
            why = f"whole, but no state file says so: waits until unchanged for {self.quiet_seconds:g} s"
            return judged, None, why
        is_folder = not judged.format.endings
        if self.marker is not None and not self.marker.is_there(self.root, judged.name, is_folder=is_folder):
            path = self.marker.path(self.named(judged.name), is_folder=is_folder)
            return judged, None, f"whole, but {path} is not there (complete_marker)"
        assert isinstance(judged.verdict, Inspection)
        needed = set(judged.verdict.files)
        files = tuple(file for file in candidate.files if file.name in needed)
        files = judged.files if files == judged.files else files  # tens of thousands are remembered: once is enough
        checkpoint = as_checkpoint(judged.format, self.named(judged.name), judged.verdict, self.step_pattern)
        found = DiscoveredCheckpoint(checkpoint, self.root, written_at(files), now, files)
        return replace(judged, found=found, verdict=None), None, None

    def _give_up(self, judged: Judged, error: CheckpointError) -> Settlement:
        digest = sampled_digest(self.root, (file.name for file in judged.files))
        name = self.named(judged.name)
        step = step_in(name, judged.format, self.step_pattern)
        return Settlement(name, digest, step, Verdict.CORRUPT, str(error))


def _among(known: Judged, candidate: Candidate) -> list[File]:
    """The candidate's files, as far as they were of it before: of what was found only those it needs are kept."""
    names = {file.name for file in known.files}
    return [file for file in candidate.files if file.name in names]


def _unreadable(error: OSError) -> str:
    return f"cannot be read: {error.strerror}"
