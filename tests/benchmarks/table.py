"""Measure what a benchmark found: a table, the figures that are required, and notes. Rendered as text and JSON."""

import dataclasses
import json
from dataclasses import dataclass, field

Cell = str | int | float


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that somebody requires something of."""

    name: str
    value: float
    required: float
    sense: str = "at most"  # or: at least
    unit: str = ""

    @property
    def reached(self):
        """Return whether the number is as good as required."""
        return self.value <= self.required if self.sense == "at most" else self.value >= self.required

    def __str__(self):
        verdict = "reached" if self.reached else "**not reached**"
        required = f"required {self.sense} {self.required:g}{self.unit}"
        return f"{self.name}: {shown(self.value)}{self.unit}, {required}: {verdict}"


@dataclass(frozen=True, slots=True)
class Table:
    """The outcome of one topic."""

    title: str
    how: str  # what is compared, and how
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    figures: list[Figure]
    notes: list[str] = field(default_factory=list)  # where the time goes, what to know when reading

    def markdown(self, measured_on=""):
        """A section of RESULTS.md, which reads well in a terminal, too."""
        cells = [self.columns, *[tuple(shown(cell) for cell in row) for row in self.rows]]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.columns))]
        lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        parts = [f"## {self.title}", self.how, "\n".join(lines), "\n".join(f"- {figure}" for figure in self.figures)]
        parts += ["\n".join(f"- {note}" for note in self.notes), measured_on]
        return "\n\n".join(part for part in parts if part) + "\n"

    def to_json(self, **more):
        """Strict JSON; `more` is kept beside the table."""
        figures = [dataclasses.asdict(figure) | {"reached": figure.reached} for figure in self.figures]
        body = dataclasses.asdict(self) | {"figures": figures} | more
        return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, body):
        """Return what `to_json` wrote."""
        fields = [each.name for each in dataclasses.fields(Figure)]
        figures = [Figure(**{name: figure[name] for name in fields}) for figure in body["figures"]]
        rows = [tuple(row) for row in body["rows"]]
        return cls(body["title"], body["how"], tuple(body["columns"]), rows, figures, body["notes"])


def shown(cell):
    """A number with as many digits as mean something, text as it is."""
    if not isinstance(cell, float):
        return f"{cell:,}" if isinstance(cell, int) else cell
    return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.1f}" if abs(cell) >= 100 else f"{cell:.3f}"
