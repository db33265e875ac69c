"""Decide what an inspected candidate is: a complete checkpoint, one that waits, one that is given up, or none at all.

`file_group_reader` inspects the candidates and asks here. `completeness` decides when files count as complete. The only
reads are of names: whether the user's marker is there, and which other files lie next to a copy.
"""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sidecar.checkpoints.completeness import Complete, Corrupt, Wait, completeness
from sidecar.checkpoints.discovery_rules import DiscoveryRules
from sidecar.checkpoints.files import is_temporary, sampled_digest
from sidecar.checkpoints.formats import Candidate, Inspection, file_group
from sidecar.checkpoints.inspect import as_checkpoint, step_in
from sidecar.checkpoints.known_candidate import KnownCandidate
from sidecar.checkpoints.scan import DiscoveredCheckpoint, in_folder, written_at
from sidecar.errors import CheckpointError
from sidecar.protocol.records import Settlement
from sidecar.protocol.states import Verdict

_NUMBERS: Final = re.compile("[0-9]+")


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
        decision = self._completeness(candidate, inspected, None, now)
        if isinstance(decision, Complete):  # the marker is only searched if nothing else is missing
            inspected = replace(inspected, accepted=True)
            decision = self._completeness(candidate, inspected, self._missing_marker(inspected), now)
        if isinstance(decision, Wait):
            return CandidateDecision(inspected, waiting=decision.reason)
        if isinstance(decision, Corrupt):
            given_up = self._settlement(inspected, decision.error)
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

    def _completeness(
        self, candidate: Candidate, inspected: KnownCandidate, missing_marker: str | None, now: float
    ) -> Complete | Wait | Corrupt:
        """Decide by the settings whether the candidate is complete. `missing_marker`: as for `completeness`."""
        assert inspected.verdict is not None
        return completeness(
            inspected.verdict,
            now - inspected.unchanged_since,
            committed=candidate.committed or inspected.accepted,
            missing_marker=missing_marker,
            quiet_seconds=self.rules.quiet_seconds,
            corrupt_after_seconds=self.rules.corrupt_after_seconds,
        )

    def _missing_marker(self, candidate: KnownCandidate) -> str | None:
        """Return the path of the user's marker if it is required and missing. Raises OSError."""
        is_folder = not candidate.format.endings
        if self.rules.marker is None or self.rules.marker.is_there(self.root, candidate.name, is_folder=is_folder):
            return None
        return self.rules.marker.path(self.named(candidate.name), is_folder=is_folder)

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
