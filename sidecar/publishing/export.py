"""Write all results of a run as CSV, JSON lines or OpenMetrics, which other programs read.

A scrape of Prometheus sees the newest result only, and misses one that was replaced within the interval. This module
gets the entries of the journal instead, oldest first, so it leaves out nothing. Each form is yielded in parts, so that
a long run takes little memory. Pure.
"""

import csv
import io
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from operator import attrgetter
from typing import Final, Literal

from prometheus_client.utils import floatToGoString

from sidecar.coordination.journal_state import Closed, Entry
from sidecar.protocol.records import Value
from sidecar.publishing.result_series import FAMILIES, result_samples
from sidecar.publishing.stretches import with_breaks
from sidecar.system.clock import seconds_of
from sidecar.system.plain_text import encodable, one_line

ExportFormat = Literal["csv", "jsonl", "openmetrics"]

_LEAST_MILLISECONDS: Final = 1  # between two results: the resolution of Prometheus

_FORMULA: Final = ("=", "+", "-", "@")
"""The characters that begin a formula in a spreadsheet."""

_NAMES: Final = ("checkpoint", "eval_set", "metric", "class_label", "slice", "completed_at", "digest")
"""The columns of a table with texts that come from files and other people's code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedNumber:
    """Hold one number of one evaluation. Its fields are the columns of the CSV, and the keys of the JSON.

    `value` is `nan`, `inf` or `-inf` as text where a number is not finite; `hex` has the exact bits of any number
    (`float.hex`). `class_label` and `slice` are empty unless the number is about one of them. `data_changed` is
    true if numbers of the eval set from here on cannot be compared with those before: its data or the code of the task
    changed.
    """

    plan: int
    completed_at: str
    checkpoint: str
    digest: str
    step: int | None
    step_source: str | None
    eval_set: str
    metric: str
    class_label: str
    value: float | str
    hex: str
    lower: float | None
    upper: float | None
    examples: int | None  # None: a function of the task measured the set, and did not say the number
    workers: int
    data_changed: bool = False
    slice: str = ""


_COLUMNS: Final = tuple(column.name for column in fields(ExportedNumber))
_cells = attrgetter(*_COLUMNS)

_LINES: Final = 1000  # of a part


def exported(closed: Closed, broken: Mapping[str, str]) -> Iterator[ExportedNumber]:
    """Yield every number of a successful evaluation. `broken`: as `with_breaks` yields it."""
    plan, checkpoint, result = closed.plan, closed.checkpoint, closed.result
    counted = result.counted()
    for eval_set, metric, class_label, label, value in _values(closed):
        of_slice = result.slices.get(eval_set, {}).get(label)
        yield ExportedNumber(
            plan=plan.plan,
            completed_at=closed.outcome.completed_at,
            checkpoint=one_line(checkpoint.name),
            digest=checkpoint.digest,
            step=checkpoint.step,
            step_source=checkpoint.step_source,
            eval_set=one_line(eval_set),
            metric=one_line(metric),
            class_label=one_line(class_label),
            value=value.number,
            hex=value.hex,
            lower=value.lower,
            upper=value.upper,
            examples=counted.get(eval_set) if of_slice is None else of_slice.examples,
            workers=result.workers,
            data_changed=eval_set in broken,
            slice=one_line(label),
        )


def as_csv(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield a table with one row for each number, for spreadsheets and data frames.

    Control characters are escaped: Python's writer does not quote a carriage return, which would begin another row.
    Names that a spreadsheet would take for a formula begin with an apostrophe, which shows them as text.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for closed, broken in with_breaks(entries):
        for number in exported(closed, broken):
            cells = zip(_COLUMNS, _cells(number), strict=True)
            writer.writerow(_as_text(cell) if name in _NAMES else cell for name, cell in cells)
        yield text.getvalue()
        text.seek(0)
        text.truncate()
    yield text.getvalue()


def _as_text(name: str) -> str:
    """Return a name in one line that no spreadsheet calculates."""
    name = one_line(name)
    return f"'{name}" if name.startswith(_FORMULA) else name


def as_json_lines(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield one JSON object per line for each number."""
    for closed, broken in with_breaks(entries):
        numbers = (dict(zip(_COLUMNS, _cells(number), strict=True)) for number in exported(closed, broken))
        yield "".join(json.dumps(number, allow_nan=False) + "\n" for number in numbers)


def as_openmetrics(entries: Iterable[Entry], run: str) -> Iterator[str]:
    """Yield the series of all results, each sample with the time at which its evaluation was completed.

    `promtool tsdb create-blocks-from openmetrics` reads it. Times are those of the node that completed an evaluation;
    of two results in the same millisecond, the later one gets the next millisecond. A time that cannot be read is that
    of the evaluation before.
    """
    completed = array("q")
    families: dict[str, dict[tuple[str, ...], _Series]] = {}
    for closed, _ in with_breaks(entries):
        seconds = seconds_of(closed.outcome.completed_at)
        completed.append(round(1000 * seconds) if seconds is not None else completed[-1] if completed else 0)
        for sample in result_samples(run, closed.checkpoint, closed.result):
            family = families.setdefault(sample.family, {})
            if (series := family.get(sample.labels)) is None:
                series = family[sample.labels] = _Series()
            series.values.append(sample.value)
            series.evaluations.append(len(completed) - 1)
    order = _spread(completed)
    for name, series_by_labels in families.items():
        names, text = FAMILIES[name]
        yield f"# HELP {name} {text}\n# TYPE {name} gauge\n"
        for labels, series in series_by_labels.items():
            shown = ",".join(f'{each}="{_escaped(label)}"' for each, label in zip(names, labels, strict=True))
            lines = series.lines(f"{name}{{{shown}}}", completed, order)
            while part := "".join(islice(lines, _LINES)):
                yield part
    yield "# EOF\n"


@dataclass(frozen=True, slots=True)
class _Series:
    """Hold the samples of a series: numbers, and the numbers of their evaluations from 0. The arrays are small."""

    values: "array[float]" = field(default_factory=lambda: array("d"))
    evaluations: "array[int]" = field(default_factory=lambda: array("I"))

    def lines(self, series: str, times: Sequence[int], order: Sequence[int] | None) -> Iterator[str]:
        """Yield the samples as lines in the order of their times, in milliseconds. `order`: as `_spread` returns it."""
        samples = zip(self.evaluations, self.values, strict=True)
        for evaluation, value in samples if order is None else sorted(samples, key=lambda each: order[each[0]]):
            time = times[evaluation]
            number = floatToGoString(value)  # type: ignore[no-untyped-call]
            yield f"{series} {number} {time // 1000}.{time % 1000 * 1_000_000:09d}\n"


def _escaped(label: str) -> str:
    """Return the value of a label, as OpenMetrics writes it."""
    return encodable(label).replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _values(closed: Closed) -> Iterator[tuple[str, str, str, str, Value]]:
    """Yield each number with its eval set, metric, class and slice; these two are empty for the whole set."""
    result = closed.result
    for eval_set, metrics in result.metrics_of_examples():
        for metric, value in metrics.items():
            yield eval_set, metric, "", "", value
    for eval_set in result.classes.keys() & result.examples.keys():
        for metric, by_class in result.classes[eval_set].items():
            for label, value in by_class.items():
                yield eval_set, metric, label, "", value
    for eval_set in result.slices.keys() & result.examples.keys():
        for label, one in result.slices[eval_set].items():
            for metric, value in one.metrics.items():
                yield eval_set, metric, "", label, value


def _spread(completed: "array[int]") -> Sequence[int] | None:
    """Change times so that no two are equal; return the rank of each, or `None` if they are in their order."""
    by_time = sorted(range(len(completed)), key=completed.__getitem__)
    last, ranks = -1, array("I", bytes(array("I").itemsize * len(completed)))
    for rank, evaluation in enumerate(by_time):
        completed[evaluation] = last = max(completed[evaluation], last + _LEAST_MILLISECONDS)
        ranks[evaluation] = rank
    return None if all(rank == evaluation for evaluation, rank in enumerate(ranks)) else ranks
