"""Describe the runs that one process serves, for its page and its metrics. Data only.

`commands.many_runs` makes the summaries of a daemon, and `commands.page` those of runs that it only reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from sidecar.publishing.evaluation_archive.reader import ArchiveReader
from sidecar.system.plain_text import one_line, printable


class RunState(StrEnum):
    """Name how far a run is between its beginning and its end."""

    STARTING = "starting"  # its settings are read
    SERVING = "serving"
    ENDING = "ending"  # its worker processes and sinks end
    ENDED = "ended"  # as its settings say
    FAILED = "failed"  # it begins again after a pause


class ReadState(StrEnum):
    """Name whether a run that no daemon of this process serves can be read."""

    READ = "read"
    UNREADABLE = "unreadable"  # it is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Describe one run of this process. Others may choose its names, so they are written as every output can show."""

    run: str
    place: str  # its directory or URL
    state: RunState | ReadState
    reason: str | None = None  # why it failed, how it ended, or who serves it
    seconds: float | None = None  # in which it used worker processes
    has_turn: bool = False  # whether it may have worker processes now
    status: dict[str, Any] | None = None  # the content of its /api/status; None: it is not served
    archive: ArchiveReader | None = None

    def __post_init__(self) -> None:
        shown = {
            "run": one_line(self.run),
            "place": one_line(self.place),
            "reason": self.reason and printable(self.reason),
        }
        for name, text in shown.items():
            object.__setattr__(self, name, text)

    def json(self) -> dict[str, Any]:
        """Return what /api/status of all runs says of this one."""
        status = self.status or {}
        newest = status.get("evaluation") or {}
        return {
            "run": self.run,
            "node": status.get("node"),
            "checkpoint_dir": self.place,
            "state": self.state,
            "reason": self.reason,
            "ready": None if isinstance(self.state, ReadState) else bool(status.get("ready")),
            "unready": status.get("unready"),
            "has_turn": self.has_turn,
            "used_seconds": None if self.seconds is None else round(self.seconds, 3),
            "pending": status.get("pending"),
            "evaluated": status.get("evaluated"),
            "failing": status.get("failing"),
            "newest_step": newest.get("step"),
            "newest_completed_at": newest.get("completed_at"),
            "main": _main_metric(status.get("best") or {}, newest),
            "url": runs_path(self.run),
        }


def _main_metric(best: Mapping[str, Any], newest: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the best and the newest value of the first metric that has a direction; None if there is none yet."""
    for eval_set, by_metric in (newest.get("metrics") or {}).items():
        for metric, value in by_metric.items():
            if (reached := best.get(f"{eval_set}/{metric}")) is not None:
                return {
                    "metric": f"{eval_set}/{metric}",
                    "goal": reached["goal"],
                    "best": {key: reached[key] for key in ("value", "hex", "step", "step_source", "checkpoint")},
                    "newest": {key: value[key] for key in ("value", "hex")},
                    "data": (newest.get("data") or {}).get(eval_set),
                    "examples": newest["examples"].get(eval_set),
                }
    return None


def runs_path(run: str) -> str:
    """Return the path of a run's page."""
    return f"/runs/{quote(run, safe='')}/"
