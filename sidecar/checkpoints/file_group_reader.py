"""Read the files of one group, and return its complete checkpoints, with a reason for every other candidate.

`FileGroupReader.read` reads all files of a group. The reader is stateless: the caller passes the candidates of the last
scan and gets those of this scan. Reading blocks for as long as the storage does. `candidate_decision` decides what a
candidate is once it was inspected.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sidecar.checkpoints.candidate_decision import CandidateDecider, CandidateDecision, KnownCandidate
from sidecar.checkpoints.files import File, Listing, contents, stat_files
from sidecar.checkpoints.formats import Candidate, Format, Inspection
from sidecar.checkpoints.inspect import identified
from sidecar.checkpoints.scan import written_at
from sidecar.checkpoints.work_budget import TakesLongerError, WorkBudget
from sidecar.errors import CheckpointError, ChecksumError, CorruptError, VanishedError
from sidecar.protocol.records import Settlement
from sidecar.system.bucket_folder import BucketFolder
from sidecar.system.clock import Clock
from sidecar.system.entry_errors import Entry, Meaning, meaning

_TAKES_LONG: Final = "its structure takes long to read; other checkpoints are read meanwhile"
_JUST_SECONDS: Final = 60.0  # old files need no haste: a first scan may find thousands
_QUICKLY_CHECKED_BYTES: Final = 128 * 1024 * 1024  # a CRC-32 of so much takes 0.1 to 0.2 s
_OLD_SECONDS: Final = 3600.0  # far more than the difference between the clocks of two machines that share storage


@dataclass(slots=True, kw_only=True)
class FileGroupReading:
    """Hold the result of reading a group of files."""

    listing: Listing | None = None  # the files, or None if they could not be listed
    candidates: list[KnownCandidate] = field(default_factory=list)  # the candidates of the group
    # (name, reason) of each candidate that is not complete
    reasons: list[tuple[str, str]] = field(default_factory=list)
    given_up: list[Settlement] = field(default_factory=list)  # candidates that are given up as corrupt
    # Why checkpoints that were found before cannot be read now, by their folder names
    unknown: dict[str, str] = field(default_factory=dict)
    again: bool = False  # whether the group should soon be read once more


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroupReader:
    """Read groups of files in one directory."""

    top: Path  # the checkpoint directory
    # Decides about candidates in the directory whose groups are read: `top` itself, or a sub-folder
    decider: CandidateDecider
    clock: Clock  # the clock of this node, to compare with the times of files
    work: Callable[[], WorkBudget] = WorkBudget  # makes the budget for each inspection

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

        `members`: the names of its files. `named`: the checkpoints that the state file lists. `before`: the group's
        candidates as of the last scan. Raises `TakesLongerError` if one inspection needs more than a brief budget.
        """
        reading = FileGroupReading()
        try:
            reading.listing = stat_files(self.decider.root, directory, members)._replace(named=named)
        except OSError as error:
            return self.unread(name, before, error)
        for format_ in self.decider.rules.looked_for:
            known = {candidate.name: candidate for candidate in before if candidate.format.name == format_.name}
            try:
                candidates = list(format_.candidates(self.decider.root, reading.listing))
            except OSError as error:
                for former in known.values():
                    self._retain(former, error, reading)
                reading.reasons.append((self.decider.named(name), _unreadable(error)))
                reading.again = True
                continue
            except CheckpointError as error:
                reading.reasons.append((self.decider.named(name), str(error)))
                continue
            except Exception as error:  # noqa: BLE001 - files are untrusted, and must not end the daemon
                reading.reasons.append((self.decider.named(name), _failed(error)))
                reading.again = True
                continue
            for candidate in candidates:
                if self.decider.rules.glob.accepts(self.decider.named(candidate.name)):
                    self._read(format_, candidate, known.get(candidate.name), reading, now)
        return reading

    def postponed(self, name: str, before: Sequence[KnownCandidate]) -> FileGroupReading:
        """Return the reading of a group that waits for its turn to be read at length: its candidates stay as before."""
        reading = FileGroupReading(candidates=list(before), again=True)
        reading.reasons.append((self.decider.named(name), _TAKES_LONG))
        return reading

    def unread(self, name: str, before: Sequence[KnownCandidate], error: OSError) -> FileGroupReading:
        """Return the reading of a group that cannot be read at all: its candidates stay as they were."""
        reading = FileGroupReading(again=True)
        for candidate in before:
            self._retain(candidate, error, reading)
        reading.reasons.append((self.decider.named(name), _unreadable(error)))
        return reading

    def _read(
        self,
        format_: Format,
        candidate: Candidate,
        known: KnownCandidate | None,
        reading: FileGroupReading,
        now: float,
    ) -> None:
        """Read one candidate. An error of the storage affects this candidate only."""
        if candidate.leaving is not None:
            reading.reasons.append(
                (self.decider.named(candidate.name), f"{candidate.leaving} is a link out of the directory")
            )
            return
        again = False
        while True:
            try:
                inspected = self._inspect(format_, candidate, known, now)
                self._note(self.decider.decide(candidate, inspected, now), reading)
            except VanishedError:  # a file was deleted during the reading, or is not visible on NFS yet
                reading.again = True
            except OSError as error:
                meant = meaning(Entry.CHECKPOINT, error, again=again)
                if meant is Meaning.RETRY:
                    again = True
                    continue
                reading.again = True
                if meant is Meaning.UNKNOWN:
                    reading.reasons.append((self.decider.named(candidate.name), _unreadable(error)))
                    if known is not None and contents(known.files) == contents(_among(known, candidate)):
                        self._retain(known, error, reading)
            return

    def _note(self, decision: CandidateDecision, reading: FileGroupReading) -> None:
        """Note what was decided about a candidate."""
        reading.candidates.append(decision.candidate)
        if decision.waiting is not None:
            reading.reasons.append((self.decider.named(decision.candidate.name), decision.waiting))
        if decision.given_up is not None:
            reading.given_up.append(decision.given_up)

    def _retain(self, known: KnownCandidate, error: OSError, reading: FileGroupReading) -> None:
        """Retain a candidate as it was, because its files cannot be read now."""
        reading.candidates.append(known)
        if known.found is not None:
            reading.unknown[known.found.checkpoint.folder] = _unreadable(error)

    def _inspect(
        self, format_: Format, candidate: Candidate, known: KnownCandidate | None, now: float
    ) -> KnownCandidate:
        """Inspect a candidate, unless its files were inspected before and have not changed."""
        if known is not None and known.files == candidate.files and not self._is_due(known, now):
            return known
        verdict: Inspection | CheckpointError
        proven = False
        root = self.decider.root if isinstance(self.decider.root, BucketFolder) else None
        try:
            verdict = format_.inspect(
                self.decider.root, candidate.name, step_key=self.decider.rules.step_key, work=self.work()
            )
            if not format_.endings:
                self._require_same_files(format_, candidate)
            doubtful = known is not None and isinstance(known.verdict, ChecksumError)
            proven = self._is_proven(format_, candidate, verdict, doubtful=doubtful)
            verdict = verdict if root is None else identified(root, verdict)
        except (VanishedError, OSError, TakesLongerError):
            raise
        except CheckpointError as error:
            verdict = type(error)(*error.args)  # its traceback would keep every frame and what was read in memory
        except Exception as error:  # noqa: BLE001 - a file is untrusted, and must not end the daemon
            verdict = CorruptError(_failed(error))
        if known is not None and contents(known.files) == contents(candidate.files):
            # Its links changed, or it was repaired, or its last write came within one tick of the clock of file times.
            return replace(
                known,
                files=candidate.files,
                inspected_at=now,
                verdict=verdict,
                accepted=known.accepted or proven,
                given_up=False,
                found=None,
            )
        return KnownCandidate(
            format=format_,
            name=candidate.name,
            files=candidate.files,
            unchanged_since=now,
            inspected_at=now,
            verdict=verdict,
            accepted=proven,
        )

    def _require_same_files(self, format_: Format, candidate: Candidate) -> None:
        """Raise `VanishedError` if files of a folder were deleted meanwhile: the inspection may have missed some."""
        now = format_.candidates(self.decider.root, Listing({}, folders=(candidate.name,)))
        names = {file.name for other in now for file in other.files}
        if any(file.name not in names for file in candidate.files):
            raise VanishedError(f"{candidate.name} is being deleted")

    def _is_due(self, known: KnownCandidate, now: float) -> bool:
        """Return whether a candidate must be inspected once more before it is accepted, or given up.

        Kernels set the times of files by a clock that ticks every few milliseconds. So a write in place right after a
        scan may change neither size nor time, such as that of the flag that closes an HDF5 file. Files with an old time
        were not written during the last scan.
        """
        if known.is_over or now < min(self.decider.ends(known)):
            return False
        if self.clock.wall() - written_at(known.files) > _OLD_SECONDS:
            return False
        return known.inspected_at < max(end for end in self.decider.ends(known) if now >= end)

    def _is_proven(self, format_: Format, candidate: Candidate, inspection: Inspection, *, doubtful: bool) -> bool:
        """Return whether checksums prove that a checkpoint is whole.

        Only files that were just written are checked, or are `doubtful`, and no large ones: a scan must end soon.
        Raises as `Format.check`: `ChecksumError` for content that is not what was written.
        """
        if isinstance(self.decider.root, BucketFolder):
            return len(candidate.files) == 1  # an object is there as a whole, or not at all
        just_written = self.clock.wall() - written_at(candidate.files) < _JUST_SECONDS
        size = inspection.proof_bytes
        if size is None or size > _QUICKLY_CHECKED_BYTES or not (just_written or doubtful):
            return False
        format_.check(self.decider.root, candidate.name)
        return True


def _among(known: KnownCandidate, candidate: Candidate) -> list[File]:
    """Return those files of a candidate that `known` has, too. A complete checkpoint has only the needed files."""
    names = {file.name for file in known.files}
    return [file for file in candidate.files if file.name in names]


def _failed(error: Exception) -> str:
    """Return a reason for an error that only a bug in this program explains."""
    return f"reading it failed, please report it: {type(error).__name__}: {error}"


def _unreadable(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return (
            "cannot be read: Permission denied; run this daemon as the user who trains, or let training make its files "
            "readable for others: some writers, such as safetensors 0.8, save with mode 0600"
        )
    return f"cannot be read: {error.strerror}"
