"""Write all results of a run as CSV, JSON lines or OpenMetrics, which other programs read.

A scrape of Prometheus sees the newest result only, and misses one that was replaced within the interval. This module
reads the journal instead, so it leaves out nothing. Pure.
"""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Final, Literal

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Timestamp

from sidecar.coordination.journal_state import Closed, JournalState
from sidecar.protocol.records import Value
from sidecar.publishing.result_series import FAMILIES, result_samples
from sidecar.publishing.stretches import breaks
from sidecar.system.clock import seconds_of
from sidecar.system.plain_text import encodable, one_line

ExportFormat = Literal["csv", "jsonl", "openmetrics"]

_LEAST_MILLISECONDS: Final = 1  # between two results: the resolution of Prometheus

_FORMULA: Final = ("=", "+", "-", "@")
"""The characters that begin a formula in a spreadsheet."""

_NAMES: Final = ("checkpoint", "eval_set", "metric", "class_label", "completed_at", "digest")
"""The columns of a table with texts that come from files and other people's code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedNumber:
    """One number of one evaluation. Its fields are the columns of the CSV, and the keys of the JSON.

    `value` is `nan`, `inf` or `-inf` as text where a number is not finite; `hex` has the exact bits of any number
    (`float.hex`). `class_label` is empty unless the number is about one class. `data_changed` is true if numbers of the
    eval set from here on cannot be compared with those before: its data or the code of the task changed.
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


def exported(history: JournalState) -> Iterator[ExportedNumber]:
    """Yield every number of every successful evaluation, oldest first."""
    broken = breaks(history.entries)
    for closed, eval_set, metric, class_label, value in _values(history):
        plan, result = closed.plan, closed.outcome.result
        assert plan.checkpoint is not None
        assert result is not None
        yield ExportedNumber(
            plan=plan.plan,
            completed_at=closed.outcome.completed_at,
            checkpoint=one_line(plan.checkpoint.name),
            digest=plan.checkpoint.digest,
            step=plan.checkpoint.step,
            step_source=plan.checkpoint.step_source,
            eval_set=one_line(eval_set),
            metric=one_line(metric),
            class_label=one_line(class_label),
            value=value.number,
            hex=value.hex,
            lower=value.lower,
            upper=value.upper,
            examples=result.counted().get(eval_set),
            workers=result.workers,
            data_changed=eval_set in broken.get(plan.plan, {}),
        )


def as_csv(history: JournalState) -> str:
    """Return a table with one row for each number, for spreadsheets and data frames.

    Control characters are escaped: Python's writer does not quote a carriage return, which would begin another row.
    Names that a spreadsheet would take for a formula begin with an apostrophe, which shows them as text.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(ExportedNumber)], lineterminator="\n")
    writer.writeheader()
    for number in exported(history):
        row = asdict(number).items()
        writer.writerow({name: _as_text(cell) if name in _NAMES else cell for name, cell in row})
    return text.getvalue()


def _as_text(name: str) -> str:
    """Return a name in one line that no spreadsheet calculates."""
    name = one_line(name)
    return f"'{name}" if name.startswith(_FORMULA) else name


def as_json_lines(history: JournalState) -> str:
    """Return one JSON object per line for each number."""
    return "".join(json.dumps(asdict(number), allow_nan=False) + "\n" for number in exported(history))


def as_openmetrics(history: JournalState, run: str) -> str:
    """Return the series of all results, each sample with the time at which its evaluation was completed.

    `promtool tsdb create-blocks-from openmetrics` reads it. Times are those of the node that completed an evaluation;
    of two results in the same millisecond, the later one gets the next millisecond.
    """
    registry = CollectorRegistry()
    registry.register(_Past(history, run))
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return text.decode()


class _Past(Collector):
    """Collect the samples of all results, with their times."""

    def __init__(self, history: JournalState, run: str) -> None:
        self._history, self._run = history, run

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have samples. All samples of a series are together, oldest first."""
        evaluations = {closed.plan.plan: closed for closed in _evaluations(self._history)}
        series: dict[str, dict[tuple[str, ...], list[tuple[float, Timestamp]]]] = {}
        for plan, time in _times(self._history).items():
            checkpoint, result = evaluations[plan].plan.checkpoint, evaluations[plan].outcome.result
            assert checkpoint is not None
            assert result is not None
            for sample in result_samples(self._run, checkpoint, result):
                series.setdefault(sample.family, {}).setdefault(sample.labels, []).append((sample.value, time))
        for name, samples_by_labels in series.items():
            names, text = FAMILIES[name]
            family = GaugeMetricFamily(name, text, labels=names)
            for labels, samples in samples_by_labels.items():
                for value, time in samples:
                    family.add_metric([encodable(label) for label in labels], value, timestamp=time)
            yield family


def _values(history: JournalState) -> Iterator[tuple[Closed, str, str, str, Value]]:
    """Yield each number with its evaluation, eval set, metric and class; the class is empty for the whole set."""
    for closed in _evaluations(history):
        assert closed.outcome.result is not None
        result = closed.outcome.result
        for eval_set, metrics in result.metrics_of_examples():
            for metric, value in metrics.items():
                yield closed, eval_set, metric, "", value
        for eval_set in result.classes.keys() & result.examples.keys():
            for metric, by_class in result.classes[eval_set].items():
                for label, value in by_class.items():
                    yield closed, eval_set, metric, label, value


def _evaluations(history: JournalState) -> Iterator[Closed]:
    for entry in history.entries:
        if isinstance(entry, Closed) and entry.outcome.result is not None and entry.plan.checkpoint is not None:
            yield entry


def _times(history: JournalState) -> dict[int, Timestamp]:
    """Return the time of each evaluation by its plan, in order of time. No two are equal.

    An unreadable time follows the time of the plan before.
    """
    completed: dict[int, int] = {}
    last = 0
    for closed in _evaluations(history):
        seconds = seconds_of(closed.outcome.completed_at)
        last = last if seconds is None else round(1000 * seconds)
        completed[closed.plan.plan] = last
    times: dict[int, Timestamp] = {}
    last = -1
    for plan, milliseconds in sorted(completed.items(), key=lambda item: (item[1], item[0])):
        last = max(milliseconds, last + _LEAST_MILLISECONDS)
        times[plan] = Timestamp(last // 1000, last % 1000 * 1_000_000)
    return times
