"""Hold the facts about one possible checkpoint between two scans."""

from dataclasses import dataclass

from sidecar.checkpoints.files import File
from sidecar.checkpoints.formats.format import Format, Inspection
from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.errors import CheckpointError


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
