"""Declare the settings by which checkpoints are found, in the checkpoint directory and in pins. No I/O."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sidecar.checkpoints.checkpoint_glob import CheckpointGlob
from sidecar.checkpoints.file_group import CompleteMarker
from sidecar.checkpoints.formats import Format, looked_for


@dataclass(frozen=True, kw_only=True)
class DiscoveryRules:
    """Hold the settings by which checkpoints are found. Each field has the name of its setting."""

    quiet_seconds: float = 3.0  # how long the files of a checkpoint that no state file names must stay unchanged
    # How long the files of a broken checkpoint must stay unchanged before it is given up, and how long a pin must be
    # broken before that is certain
    corrupt_after_seconds: float = 60.0
    full_sweep_seconds: float = 300.0  # every file is compared again within this time, however many there are
    # The object-graph path of the variable that holds the step; then no other variable is read
    step_key: str | None = None
    # A regular expression whose first group is the step in a name, whatever the files hold
    step_pattern: str | None = None
    # The pattern of the marker that a complete checkpoint must have; see `CompleteMarker`
    complete_marker: str | None = None
    formats: tuple[str, ...] = ()  # the formats to scan for; empty: all
    # A glob of names that are checkpoints, whatever their format; then no other names count
    checkpoint_pattern: str | None = None
    checkpoint_glob: tuple[str, ...] = ("*",)  # the paths below the checkpoint directory that may be checkpoints

    @cached_property
    def step_expression(self) -> re.Pattern[str] | None:
        """Return the compiled `step_pattern`."""
        return None if self.step_pattern is None else re.compile(self.step_pattern)

    @cached_property
    def marker(self) -> CompleteMarker | None:
        """Return the marker that a complete checkpoint must have; None: it needs none."""
        return None if self.complete_marker is None else CompleteMarker(self.complete_marker)

    @cached_property
    def looked_for(self) -> Sequence[Format]:
        """Return the formats to scan for: those of the user's pattern if there is one."""
        return looked_for(self.formats, self.checkpoint_pattern)

    @cached_property
    def glob(self) -> CheckpointGlob:
        """Return the sub-folders to scan, and the names of checkpoints in them."""
        return CheckpointGlob.of(self.checkpoint_glob)
