"""Hold the facts about one possible checkpoint between two scans."""

from dataclasses import dataclass

from sidecar.checkpoints.files import File
from sidecar.checkpoints.formats.format import Format, Inspection
from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCandidate:
    """Hold the facts about one candidate that are retained between two scans.

    Args:
        format: The format of its files.
        name: The name in its directory.
        files: All its files. Once the checkpoint is complete, only the files that it needs.
        unchanged_since: The time since when these files have not changed.
        inspected_at: The time when the files were last read.
        verdict: The result of reading the files; None once the checkpoint is complete.
        accepted: Whether the files count as complete, so that no more time has to pass.
        given_up: Whether the candidate was reported as corrupt.
        found: The complete checkpoint, once the candidate is one.
        left_out: Why the checkpoint is not evaluated: it has the training state of another one, or is no checkpoint.
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
    left_out: str | None = None

    @property
    def is_over(self) -> bool:
        """Return whether the candidate needs no further reading as long as its files do not change."""
        return self.given_up or self.found is not None or self.left_out is not None
