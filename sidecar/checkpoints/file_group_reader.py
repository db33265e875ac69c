"""Read the files of one group, and say which complete checkpoints they are, with reasons for everything else.

`FileGroupReader.read` does all the reading that a group of files needs, changes nothing and remembers nothing: what was
known of its candidates goes in, what is known now comes out. It blocks for as long as the storage does. When files
count as complete is decided by `completeness`.
"""

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sidecar.checkpoints.checkpoint_glob import CheckpointGlob
from sidecar.checkpoints.complete_marker import CompleteMarker
from sidecar.checkpoints.completeness import Complete, Corrupt, Wait, completeness
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCandidate:
    """What is remembered about one candidate between scans.

    Args:
        format: Its format.
        name: Its name in its directory.
        files: Its files; of a complete checkpoint only those that it needs.
        unchanged_since: Since when these files are the same.
        inspected_at: When they were read last.
        verdict: What reading them showed; None once it is complete.
        accepted: Whether its files need not be waited for any more.
        given_up: Whether it was reported as corrupt.
        found: The complete checkpoint, once it is one.
    """

    format: Format
    name: str
    files: tuple[File, ...]
    unchanged_since: float
    inspected_at: float
    verdict: Inspection | CheckpointError | None
    accepted: bool = False
    given_up: bool = False
    found: DiscoveredCheckpoint | None = None

    @property
    def is_over(self) -> bool:
        """Return whether nothing more happens to it while its files stay as they are."""
        return self.given_up or self.found is not None


@dataclass(slots=True, kw_only=True)
class FileGroupReading:
    """What reading a group of files brought.

    Args:
        listing: The files, or None if they could not be listed.
        candidates: What is known of each candidate now.
        reasons: (name, reason) of what is not complete, or not yet.
        given_up: Candidates that are given up as corrupt.
        unknown: Why checkpoints that were found before cannot be read now, by their folder names.
        again: Whether to read the group once more soon.
    """

    listing: Listing | None = None
    candidates: list[KnownCandidate] = field(default_factory=list)
    reasons: list[tuple[str, str]] = field(default_factory=list)
    given_up: list[Settlement] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroupReader:
    """Read groups of files by the settings of the catalog.

    `top`: the checkpoint directory; `root`: the directory whose groups are read, that one or `below` in it.
    """

    top: Path
    root: Path
    quiet_seconds: float
    corrupt_after_seconds: float
    step_key: str | None
    step_pattern: re.Pattern[str] | None
    marker: CompleteMarker | None
    formats: Sequence[Format]
    clock: Clock
    glob: CheckpointGlob
    below: str = ""

    def named(self, name: str) -> str:
        """Return the path of a name in the directory from the checkpoint directory: a checkpoint's full name."""
        return in_folder(self.below, name)

    def read(
        self,
        directory: int,
        name: str,
        members: Iterable[str],
        named: Container[str],
        before: Sequence[KnownCandidate],
        now: float,
    ) -> FileGroupReading:
        """Read the group `name` in the opened directory.

        `members`: the names of its files; `named`: what the state file lists; `before`: what was known of it.
        """
        reading = FileGroupReading()
        try:
            reading.listing = stat_files(self.root, directory, members)._replace(named=named)
        except OSError as error:
            return self.unread(name, before, error)
        for format_ in self.formats:
            known = {candidate.name: candidate for candidate in before if candidate.format.name == format_.name}
            try:
                candidates = list(format_.candidates(self.root, reading.listing))
            except OSError as error:
                for candidate in known.values():
                    self._retain(candidate, error, reading)
                reading.reasons.append((self.named(name), _unreadable(error)))
                reading.again = True
                continue
            for found in candidates:
                if self.glob.accepts(self.named(found.name)):
                    self._read(format_, found, known.get(found.name), reading, now)
        return reading

    def unread(self, name: str, before: Sequence[KnownCandidate], error: OSError) -> FileGroupReading:
        """Return the reading of a group that cannot be read at all: what was known before still holds."""
        reading = FileGroupReading(again=True)
        for candidate in before:
            self._retain(candidate, error, reading)
        reading.reasons.append((self.named(name), _unreadable(error)))
        return reading

    def ends(self, candidate: KnownCandidate) -> tuple[float, float]:
        """Return when its files have been unchanged long enough to be accepted, and to be given up."""
        since = candidate.unchanged_since
        return since + self.quiet_seconds, since + self.corrupt_after_seconds

    def _read(
        self,
        format_: Format,
        candidate: Candidate,
        known: KnownCandidate | None,
        reading: FileGroupReading,
        now: float,
    ) -> None:
        """Read one candidate; an error of the storage stays with it."""
        if candidate.leaving is not None:
            reading.reasons.append((self.named(candidate.name), f"{candidate.leaving} is a link out of the directory"))
            return
        again = False
        while True:
            try:
                inspected = self._inspect(format_, candidate, known, now)
                reading.candidates.append(self._decide(candidate, inspected, reading, now))
            except VanishedError:  # deleted while it was read, or on NFS not there yet
                reading.again = True
            except OSError as error:
                meant = meaning(Entry.CHECKPOINT, error, again=again)
                if meant is Meaning.RETRY:
                    again = True
                    continue
                reading.again = True
                if meant is Meaning.UNKNOWN:
                    reading.reasons.append((self.named(candidate.name), _unreadable(error)))
                    if known is not None and contents(known.files) == contents(_among(known, candidate)):
                        self._retain(known, error, reading)
            return

    def _retain(self, known: KnownCandidate, error: OSError, reading: FileGroupReading) -> None:
        """Retain what was known of a candidate, because its files cannot be read now."""
        reading.candidates.append(known)
        if known.found is not None:
            reading.unknown[known.found.checkpoint.folder] = _unreadable(error)

    def _inspect(
        self, format_: Format, candidate: Candidate, known: KnownCandidate | None, now: float
    ) -> KnownCandidate:
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
            return replace(known, files=candidate.files, inspected_at=now, verdict=verdict, given_up=False, found=None)
        return KnownCandidate(
            format=format_,
            name=candidate.name,
            files=candidate.files,
            unchanged_since=now,
            inspected_at=now,
            verdict=verdict,
        )

    def _require_same_files(self, format_: Format, candidate: Candidate) -> None:
        """Raise `VanishedError` if files of a folder were deleted meanwhile: some may be missing in what was read."""
        now = format_.candidates(self.root, Listing({}, folders=(candidate.name,)))
        names = {file.name for other in now for file in other.files}
        if any(file.name not in names for file in candidate.files):
            raise VanishedError(f"{candidate.name} is being deleted")

    def _is_due(self, known: KnownCandidate, now: float) -> bool:
        """Return whether it must be inspected once more before it is accepted, or given up.

        Kernels set the times of files by a clock that ticks every few milliseconds, so what is written in place right
        after a scan may show nowhere: the flag that closes an HDF5 file, say. Old files were not written right then.
        """
        if known.is_over or now < min(self.ends(known)):
            return False
        if self.clock.wall() - written_at(known.files) > _OLD_SECONDS:
            return False
        return known.inspected_at < max(end for end in self.ends(known) if now >= end)

    def _decide(
        self, candidate: Candidate, inspected: KnownCandidate, reading: FileGroupReading, now: float
    ) -> KnownCandidate:
        """Find a checkpoint, give it up, or note why neither."""
        if inspected.is_over or inspected.verdict is None:
            return inspected
        decision = self._completeness(candidate, inspected, None, now)
        if isinstance(decision, Complete):  # the marker is asked for only if nothing else is missing
            inspected = replace(inspected, accepted=True)
            decision = self._completeness(candidate, inspected, self._missing_marker(inspected), now)
        if isinstance(decision, Wait):
            reading.reasons.append((self.named(inspected.name), decision.reason))
            return inspected
        if isinstance(decision, Corrupt):
            reading.given_up.append(self._settlement(inspected, decision.error))
            return replace(inspected, given_up=True)
        assert isinstance(inspected.verdict, Inspection)
        return replace(inspected, found=self._found(candidate, inspected, inspected.verdict, now), verdict=None)

    def _completeness(
        self, candidate: Candidate, inspected: KnownCandidate, missing_marker: str | None, now: float
    ) -> Complete | Wait | Corrupt:
        assert inspected.verdict is not None
        return completeness(
            inspected.verdict,
            now - inspected.unchanged_since,
            committed=candidate.committed or inspected.accepted,
            missing_marker=missing_marker,
            quiet_seconds=self.quiet_seconds,
            corrupt_after_seconds=self.corrupt_after_seconds,
        )

    def _missing_marker(self, candidate: KnownCandidate) -> str | None:
        """Return the path of the user's marker if it should be there and is not; raises OSError."""
        is_folder = not candidate.format.endings
        if self.marker is None or self.marker.is_there(self.root, candidate.name, is_folder=is_folder):
            return None
        return self.marker.path(self.named(candidate.name), is_folder=is_folder)

    def _found(
        self, candidate: Candidate, inspected: KnownCandidate, inspection: Inspection, now: float
    ) -> DiscoveredCheckpoint:
        needed = set(inspection.files)
        files = tuple(file for file in candidate.files if file.name in needed)
        files = inspected.files if files == inspected.files else files  # thousands are remembered: once is enough
        checkpoint = as_checkpoint(inspected.format, self.named(inspected.name), inspection, self.step_pattern)
        return DiscoveredCheckpoint(checkpoint, self.root, written_at(files), now, files)

    def _settlement(self, candidate: KnownCandidate, error: CheckpointError) -> Settlement:
        digest = sampled_digest(self.root, (file.name for file in candidate.files))
        name = self.named(candidate.name)
        return Settlement(
            name=name,
            digest=digest,
            step=step_in(name, candidate.format, self.step_pattern),
            verdict=Verdict.CORRUPT,
            reason=str(error),
        )


def _among(known: KnownCandidate, candidate: Candidate) -> list[File]:
    """Return the candidate's files that it had before: of a complete checkpoint only the needed ones are remembered."""
    names = {file.name for file in known.files}
    return [file for file in candidate.files if file.name in names]


def _unreadable(error: OSError) -> str:
    return f"cannot be read: {error.strerror}"
