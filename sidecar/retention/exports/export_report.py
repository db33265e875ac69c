"""Define what one pass over the exports reports to the daemon. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple


class Change(StrEnum):
    """Name what happened to an export."""

    MADE = "made"
    REMOVED = "removed"
    RETURNED = "returned"  # to the pins, because its checkpoint is evaluated again
    BEST = "best"  # the link `best` leads to it now


class ExportChange(NamedTuple):
    """Hold one change: the name of the checkpoint and, for a new best one, how much better it is."""

    change: Change
    checkpoint: str
    better: str = "the first one"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportsReport:
    """Hold the result of one pass over the exports."""

    bytes: int = 0  # bytes of all exports
    # Why exports could not be made, removed or linked, by their names; each scan tries again
    problems: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[ExportChange, ...] = ()  # the changes since the last report
    linked: bool = False  # whether the link `best` was read or set, so that `best` is known
    best: str | None = None  # folder of the saves of the evaluation to which that link leads; None if there is no link


NO_EXPORTS: Final = ExportsReport()
