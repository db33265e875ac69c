"""Decide when files count as a complete checkpoint.

A checkpoint is complete as soon as all of this holds:

1. Its structure is whole, as its format says: every file is there, and the files agree with one another.
2. The write is finished: the writer's own state file names the checkpoint and no newer write has begun (`committed`);
   or all content agrees with checksums that the writer adds last, as in zip archives; or its files have not changed for
   `quiet_seconds`.
3. Its files do not look as if they belonged to two saves, or have not changed for `corrupt_after_seconds`.
4. The user's marker is there, if `complete_marker` asks for one.

A checkpoint whose structure is not whole waits, and is corrupt once its files have not changed for
`corrupt_after_seconds`. Pure: the reading is done by `file_group_reader`, in the formats of `formats/`.
"""

from dataclasses import dataclass

from sidecar.checkpoints.formats.format import Inspection
from sidecar.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Complete:
    """Accept the files as a complete checkpoint."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait, because the files may become a complete checkpoint; `reason` says what is missing."""

    reason: str


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Give the files up, because they are damaged and nobody writes them any more."""

    error: CheckpointError


def completeness(
    verdict: Inspection | CheckpointError,
    unchanged_seconds: float,
    *,
    committed: bool,
    missing_marker: str | None,
    quiet_seconds: float,
    corrupt_after_seconds: float,
) -> Complete | Wait | Corrupt:
    """Decide whether files that have not changed for `unchanged_seconds` are a complete checkpoint.

    `verdict`: the result of reading them as their format. `committed`: whether they may be used before they have been
    unchanged for `quiet_seconds`. `missing_marker`: the path of the user's marker if it is required and missing.
    """
    if isinstance(verdict, CheckpointError):
        return Wait(str(verdict)) if unchanged_seconds < corrupt_after_seconds else Corrupt(verdict)
    if verdict.doubt is not None and unchanged_seconds < corrupt_after_seconds:
        return Wait(f"whole, but {verdict.doubt}: waits until unchanged for {corrupt_after_seconds:g} s")
    if not committed and unchanged_seconds < quiet_seconds:
        return Wait(f"whole, but no state file names it: waits until unchanged for {quiet_seconds:g} s")
    if missing_marker is not None:
        return Wait(f"whole, but {missing_marker} is missing (complete_marker)")
    return Complete()
