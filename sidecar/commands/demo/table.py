"""Show evaluations to people: rows of the journal as a table, or as one line each. Pure.

All numbers come from the journal (`sidecar.publishing.report.rows`), except the time of a checkpoint's last write,
from which the lag counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from sidecar.protocol.records import PHASES

WIDE: Final = 100
"""The width of a terminal, in characters, from which each phase has a column of its own."""

# Names of the columns, and the phases that each adds up.
_EACH_PHASE: Final = {name: (name,) for name in PHASES}
_FEWER: Final = {
    "wait": ("detect", "agree", "join"),
    "restore": ("restore",),
    "evaluate": ("evaluate",),
    "save": ("save", "reduce"),
    "publish": ("publish",),
}
_WIDTHS: Final = {"loss": 6}
_CAPTION: Final = "The columns after workers are seconds; lag: from the last byte of a checkpoint to its numbers."
_FEWER_CAPTION: Final = "wait: detect, agree, join; save: with reduce. " + _CAPTION


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One attempt at a checkpoint, as it is shown. Numbers are None if the attempt failed."""

    checkpoint: str
    step: int | None
    status: str
    accuracy: float | None
    loss: float | None
    examples: int
    workers: int
    phases: Mapping[str, float]
    lag: float | None

    @property
    def succeeded(self) -> bool:
        """Return whether the evaluation succeeded, so that it has numbers."""
        return self.status == "succeeded"


def evaluations(rows: Iterable[Mapping[str, Any]], written_at: Mapping[str, float]) -> list[Evaluation]:
    """Convert rows of `sidecar history`. `written_at`: seconds since 1970 by name of checkpoint, where known."""
    return [_evaluation(row, written_at.get(row["checkpoint"])) for row in rows]


def table(shown: Sequence[Evaluation], width: int) -> Table:
    """Return a table with one line per evaluation, oldest first; `width` is the terminal's, in characters."""
    columns = _EACH_PHASE if width >= WIDE else _FEWER
    caption = _CAPTION if width >= WIDE else _FEWER_CAPTION
    result = Table(
        box=None,
        padding=(0, 1, 0, 0),
        header_style="bold",
        caption=caption,
        caption_justify="left",
        caption_style="dim",
    )
    for name in ("step", "accuracy", "loss", "examples", "workers", *columns, "lag"):
        # As wide as its numbers will be, so that nothing moves when the first ones come.
        result.add_column(name, justify="right", no_wrap=True, min_width=_WIDTHS.get(name, 4))
    for each in shown:
        result.add_row(*(Text(cell) for cell in _cells(each, columns)), style="" if each.succeeded else "red")
    return result


def sentence(each: Evaluation) -> str:
    """Return one evaluation as a line of text: `step 120: accuracy 0.8111, …`."""
    if not each.succeeded:
        return f"step {each.step}: {each.status}"
    seconds = ", ".join(f"{name} {_seconds(each.phases[name])}" for name in PHASES if name in each.phases)
    return (
        f"step {each.step}: accuracy {_number(each.accuracy)}, loss {_number(each.loss)}, {each.examples} examples, "
        f"{each.workers} workers, lag {_seconds(each.lag)} s ({seconds})"
    )


def _evaluation(row: Mapping[str, Any], written_at: float | None) -> Evaluation:
    values = row["metrics"].get("test", {})
    lag = None
    if written_at is not None and row["status"] == "succeeded":
        lag = max(0.0, datetime.fromisoformat(row["completed_at"]).timestamp() - written_at)
    return Evaluation(
        checkpoint=row["checkpoint"],
        step=row["step"],
        status=row["status"] if row["kind"] is None else f"{row['status']}: {row['kind']}",
        accuracy=values.get("accuracy", {}).get("value"),
        loss=values.get("loss", {}).get("value"),
        examples=sum(row["examples"].values()),
        workers=row["workers"],
        phases=row["phases"],
        lag=lag,
    )


def _cells(each: Evaluation, columns: Mapping[str, Sequence[str]]) -> list[str]:
    if not each.succeeded:
        return [str(each.step), "failed", "", "", str(each.workers)]
    seconds = [_sum(each.phases, names) for names in columns.values()]
    return [
        *(str(each.step), _number(each.accuracy), _number(each.loss), str(each.examples), str(each.workers)),
        *(_seconds(part) for part in seconds),
        _seconds(each.lag),
    ]


def _sum(phases: Mapping[str, float], names: Sequence[str]) -> float | None:
    known = [phases[name] for name in names if name in phases]
    return sum(known) if known else None


def _number(value: float | None) -> str:
    return "nan" if value is None else f"{value:.4f}"


def _seconds(value: float | None) -> str:
    """Return seconds in at most four characters, the width of a column."""
    if value is None:
        return "-"
    digits = sum(value < limit for limit in (10, 100))
    return f"{value:.{digits}f}"
