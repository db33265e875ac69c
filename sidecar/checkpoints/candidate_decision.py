"""Decide what an inspected candidate is: a complete checkpoint, one that waits, one that is given up, or none at all.

A checkpoint is complete as soon as all of this holds:

1. Its structure is whole, as its format says: every file is there, and the files agree with one another.
2. The write is finished: the writer's own state file names the checkpoint and no newer write has begun (`committed`);
   or all content agrees with checksums that the writer adds last, as in zip archives; or its files have not changed for
   `quiet_seconds`.
3. Its files do not look as if they belonged to two saves, or have not changed for `corrupt_after_seconds`.
4. The user's marker is there, if `complete_marker` asks for one.

A checkpoint whose structure is not whole waits, and is corrupt once its files have not changed for
`corrupt_after_seconds`. `file_group_reader` inspects the candidates, in the formats of `formats/`, and asks here. The
only reads are of names: whether the user's marker is there, and which other files lie next to a copy.
"""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sidecar.checkpoints.discovery_rules import DiscoveryRules
from sidecar.checkpoints.files import File, is_temporary, sampled_digest
from sidecar.checkpoints.formats import Candidate, Format, Inspection, file_group
from sidecar.checkpoints.inspect import as_checkpoint, step_in
from sidecar.checkpoints.scan import DiscoveredCheckpoint, in_folder, written_at
from sidecar.errors import CheckpointError
from sidecar.protocol.records import Settlement
from sidecar.protocol.states import Verdict

_NUMBERS: Final = re.compile("[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCandidate:
    """Hold the facts about one candidate that are retained between two scans."""

    format: Format  # the format of its files
    name: str  # the name in its directory
    # All its files. Once the checkpoint is complete, only the files that it needs.
    files: tuple[File, ...]
    unchanged_since: float  # the time since when these files have not changed
    inspected_at: float  # the time when the files were last read
    # The result of reading the files; None once the checkpoint is complete
    verdict: Inspection | CheckpointError | None
    accepted: bool = False  # whether the files count as complete, so that no more time has to pass
    given_up: bool = False  # whether the candidate was reported as corrupt
    found: DiscoveredCheckpoint | None = None  # the complete checkpoint, once the candidate is one
    # Why the checkpoint is not evaluated: it has the training state of another one, or is no checkpoint
    left_out: str | None = None

    @property
    def is_over(self) -> bool:
        """Return whether the candidate needs no further reading as long as its files do not change."""
        return self.given_up or self.found is not None or self.left_out is not None


@dataclass(frozen=True, slots=True)
class CandidateDecision:
    """Hold a candidate after the decision, why it is not complete, and its record if it is given up."""

    candidate: KnownCandidate
    waiting: str | None = None
    given_up: Settlement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateDecider:
    """Decide about the candidates in one directory."""

    root: Path  # the directory: the checkpoint directory itself, or its sub-folder `below`
    below: str  # the path of the directory from the checkpoint directory; empty: that directory itself
    rules: DiscoveryRules  # the settings by which checkpoints are found

    def named(self, name: str) -> str:
        """Return the full name of a checkpoint in the directory: its path from the checkpoint directory."""
        return in_folder(self.below, name)

    def ends(self, candidate: KnownCandidate) -> tuple[float, float]:
        """Return the times at which a candidate is accepted, and given up, if its files do not change any more."""
        since, verdict = candidate.unchanged_since, candidate.verdict
        is_doubtful = isinstance(verdict, Inspection) and verdict.doubt is not None
        wait = self.rules.corrupt_after_seconds if is_doubtful else self.rules.quiet_seconds
        return since + wait, since + self.rules.corrupt_after_seconds

    def decide(self, candidate: Candidate, inspected: KnownCandidate, now: float) -> CandidateDecision:
        """Return the candidate as a complete checkpoint, given up, left out, or as it was with the reason."""
        if inspected.is_over or inspected.verdict is None:
            return CandidateDecision(inspected)
        unchanged_seconds, is_written = now - inspected.unchanged_since, candidate.committed or inspected.accepted
        lacking = why_incomplete(inspected.verdict, unchanged_seconds, self.rules, is_written=is_written)
        if lacking is None:  # the marker is only searched if nothing else is missing
            inspected = replace(inspected, accepted=True)
            lacking = self._missing_marker(inspected)
        if isinstance(lacking, str):
            return CandidateDecision(inspected, waiting=lacking)
        if lacking is not None:
            given_up = self._settlement(inspected, lacking)
            return CandidateDecision(replace(inspected, given_up=True), given_up=given_up)
        assert isinstance(inspected.verdict, Inspection)
        if inspected.verdict.aside is not None and self._is_beside_others(inspected):
            left_out = f"it is {inspected.verdict.aside}"
            return CandidateDecision(replace(inspected, left_out=left_out, verdict=None))
        for other in inspected.verdict.same_as:
            if self.rules.glob.accepts(self.named(other)):
                why = f"it has the training state of {self.named(other)}"
                return CandidateDecision(replace(inspected, left_out=why, verdict=None))
        found = self._found(candidate, inspected, inspected.verdict, now)
        return CandidateDecision(replace(inspected, found=found, verdict=None))

    def _is_beside_others(self, candidate: KnownCandidate) -> bool:
        """Return whether files that are set aside lie beside checkpoints, instead of being what the user watches.

        They do in a sub-folder that the user did not name, and in a folder with files of checkpoints of other names.
        Raises OSError.
        """
        if self.below and not self.rules.glob.names(self.below):
            return True
        groups = {file_group(file.name, self.rules.looked_for) for file in candidate.files}
        own = {_NUMBERS.sub("#", group) for group in groups if group is not None}
        with os.scandir(self.root) as entries:
            others = (
                file_group(entry.name, self.rules.looked_for) for entry in entries if not is_temporary(entry.name)
            )
            return any(_NUMBERS.sub("#", other) not in own for other in others if other is not None)

    def _missing_marker(self, candidate: KnownCandidate) -> str | None:
        """Return that the user's marker is missing, by its path, if it is required and missing. Raises OSError."""
        is_folder = not candidate.format.endings
        if self.rules.marker is None or self.rules.marker.is_there(self.root, candidate.name, is_folder=is_folder):
            return None
        path = self.rules.marker.path(self.named(candidate.name), is_folder=is_folder)
        return f"whole, but {path} is missing (complete_marker)"

    def _found(
        self, candidate: Candidate, inspected: KnownCandidate, inspection: Inspection, now: float
    ) -> DiscoveredCheckpoint:
        """Return the complete checkpoint that a candidate is, with only the files that it needs."""
        needed = set(inspection.files)
        files = tuple(file for file in candidate.files if file.name in needed)
        files = inspected.files if files == inspected.files else files  # one copy in memory: there may be thousands
        checkpoint = as_checkpoint(inspected.format, self.named(inspected.name), inspection, self.rules.step_expression)
        return DiscoveredCheckpoint(
            checkpoint=checkpoint, folder=self.root, written_at=written_at(files), seen_at=now, files=files
        )

    def _settlement(self, candidate: KnownCandidate, error: CheckpointError) -> Settlement:
        """Return the record that settles a candidate as corrupt. The digest samples its files."""
        digest = sampled_digest(self.root, (file.name for file in candidate.files))
        name = self.named(candidate.name)
        return Settlement(
            name=name,
            digest=digest,
            step=step_in(name, candidate.format, self.rules.step_expression),
            verdict=Verdict.CORRUPT,
            reason=str(error),
        )


def why_incomplete(
    verdict: Inspection | CheckpointError, unchanged_seconds: float, rules: DiscoveryRules, *, is_written: bool
) -> str | CheckpointError | None:
    """Return what files that have not changed for so many seconds lack, apart from the user's marker.

    None: nothing. A text: why they may become a complete checkpoint. An error: they are damaged, and nobody writes them
    any more. `verdict`: the result of reading them as their format. `is_written`: whether they need not be quiet.
    """
    if isinstance(verdict, CheckpointError):
        return str(verdict) if unchanged_seconds < rules.corrupt_after_seconds else verdict
    if verdict.doubt is not None and unchanged_seconds < rules.corrupt_after_seconds:
        return f"whole, but {verdict.doubt}: waits until unchanged for {rules.corrupt_after_seconds:g} s"
    if not is_written and unchanged_seconds < rules.quiet_seconds:
        return f"whole, but no state file names it: waits until unchanged for {rules.quiet_seconds:g} s"
    return None
