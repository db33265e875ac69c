"""Fold the journal's entries into one small record for each, so that thousands of evaluations take a few megabytes.

An entry of `JournalState` with 20 metrics takes 8 kB. A record here takes 24 bytes for each number, and shares all
names with the others. Pure: `reader` feeds it, `curve` and the HTTP views read it.
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

from sidecar.coordination.comparability import Stretches
from sidecar.coordination.journal_state import Closed, Entry, Settled
from sidecar.coordination.totals import number_of
from sidecar.protocol.records import Key, Result
from sidecar.protocol.states import OutcomeStatus, Verdict

MESSAGE_CHARACTERS: Final = 400
"""The most characters of a reason that are held for each attempt. The details of one evaluation have all of them."""

_PER_METRIC: Final = 3  # value, lower bound, upper bound

Names = tuple[tuple[str, str, str], ...]
"""Eval set, metric and goal (`max`, `min`, `none`) of each number of an evaluation, in the task's order."""


class Number(NamedTuple):
    """Hold one number of an evaluation. A bound that is missing is NaN."""

    value: float
    lower: float
    upper: float

    def as_json(self) -> dict[str, Any]:
        """Return the number as `sidecar history --json` has it: without NaN and infinity, which are not JSON."""
        return {
            "value": finite(self.value),
            "hex": self.value.hex(),
            "lower": finite(self.lower),
            "upper": finite(self.upper),
        }


@dataclass(slots=True, kw_only=True)
class ArchivedEvaluation:
    """Hold one row of `sidecar history`: an attempt at an evaluation, or the settlement of a checkpoint."""

    plan: int
    attempt: int | None
    checkpoint: str
    digest: str
    step: int | None
    step_source: str | None
    status: str
    final: bool
    kind: str | None
    message: str | None
    workers: int
    completed_at: str
    examples: dict[str, int]
    names: Names = ()
    numbers: "array[float]" = field(default_factory=lambda: array("d"))

    def number(self, place: int) -> Number:
        """Return the number at a place of `names`."""
        return Number(*self.numbers[_PER_METRIC * place : _PER_METRIC * (place + 1)])

    def metrics(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return all numbers by eval set and metric."""
        result: dict[str, dict[str, dict[str, Any]]] = {}
        for place, (eval_set, metric, _) in enumerate(self.names):
            result.setdefault(eval_set, {})[metric] = self.number(place).as_json()
        return result

    def as_json(self) -> dict[str, Any]:
        """Return the row, with the keys of `sidecar history --json`."""
        return {
            "plan": self.plan,
            "attempt": self.attempt,
            "checkpoint": self.checkpoint,
            "digest": self.digest,
            "step": self.step,
            "step_source": self.step_source,
            "status": self.status,
            "final": self.final,
            "kind": self.kind,
            "message": self.message,
            "workers": self.workers,
            "examples": self.examples,
            "metrics": self.metrics(),
            "completed_at": self.completed_at,
        }


class Series(NamedTuple):
    """Name a curve, and count its points."""

    eval_set: str
    metric: str
    goal: str  # of the newest evaluation
    points: int
    data: str | None  # fingerprint of the data of the newest evaluation; None: unknown


class Part(NamedTuple):
    """Name a number of one class or of one slice."""

    eval_set: str
    metric: str
    kind: Literal["class", "slice"]
    label: str

    def of(self, entry: Entry) -> Entry:
        """Return an entry whose result has this number alone, as that of the whole set, or none."""
        if not isinstance(entry, Closed) or (result := entry.outcome.result) is None:
            return entry
        if self.kind == "class":
            value = result.classes.get(self.eval_set, {}).get(self.metric, {}).get(self.label)
        else:
            found = result.slices.get(self.eval_set, {}).get(self.label)
            value = None if found is None else found.metrics.get(self.metric)
        alone = {} if value is None else {self.eval_set: {self.metric: value}}
        return replace(entry, outcome=replace(entry.outcome, result=replace(result, metrics=alone)))


class ArchivedEvaluations:
    """Hold a record for each row of `sidecar history`, oldest first. The owner guards it with a lock.

    Attributes:
        count: The number of entries of the journal that were added.
        rows: The rows.
    """

    def __init__(self) -> None:
        self.count = 0
        self.rows: list[ArchivedEvaluation] = []
        self._failed: dict[Key, tuple[str | None, ArchivedEvaluation]] = {}  # the newest attempt at each one
        self._shared: dict[Any, Any] = {}  # equal values are stored once
        self._series: dict[tuple[str, str], Series] = {}
        self._stretches = Stretches()
        self._breaks: dict[int, dict[str, str]] = {}  # by plan and eval set: why older numbers cannot be compared

    def add(self, entry: Entry) -> None:
        """Add the next entry of the journal. Rows follow the rules of `report.rows`."""
        self.count += 1
        if isinstance(entry, Closed):
            self._close(entry)
        else:
            self._settle(entry)

    def series(self) -> list[Series]:
        """Return all curves, in the order in which the journal names them first."""
        return list(self._series.values())

    def points(self, eval_set: str, metric: str) -> Iterator[tuple[ArchivedEvaluation, Number]]:
        """Yield every evaluation that has a metric, with its number, oldest first."""
        places: dict[int, int | None] = {}  # by the identity of `names`, which evaluations share
        for row in self.rows:
            key = id(row.names)
            if key not in places:
                found = (place for place, name in enumerate(row.names) if name[:2] == (eval_set, metric))
                places[key] = next(found, None)
            if (place := places[key]) is not None:
                yield row, row.number(place)

    def of_plan(self, plan: int) -> list[ArchivedEvaluation]:
        """Return the rows of a plan: one attempt, and the settlements that it holds."""
        return [row for row in self.rows if row.plan == plan]

    def starts(self, eval_set: str) -> list[int]:
        """Return the plans, in order, from which on numbers of an eval set cannot be compared with those before."""
        return [plan for plan, broken in self._breaks.items() if eval_set in broken]

    def json_of(self, row: ArchivedEvaluation) -> dict[str, Any]:
        """Return a row as JSON, and why older numbers cannot be compared with it, by eval set."""
        is_evaluated = row.status == OutcomeStatus.SUCCEEDED
        return row.as_json() | {"data_changed": self._breaks.get(row.plan, {}) if is_evaluated else {}}

    def before(self, plan: int, count: int) -> list[ArchivedEvaluation]:
        """Return the newest rows of plans before this one, newest first; all rows of a plan, or none of them."""
        end = bisect_left(self.rows, plan, key=lambda row: row.plan)
        start = max(0, end - count)
        if 0 < start < end:  # the older rows of the oldest plan would never be listed
            start = bisect_left(self.rows, self.rows[start].plan, key=lambda row: row.plan)
        return self.rows[start:end][::-1]

    def _close(self, closed: Closed) -> None:
        plan, outcome, result = closed.plan, closed.outcome, closed.outcome.result
        checkpoint = plan.checkpoint
        assert checkpoint is not None  # `JournalState` closes only plans that have a checkpoint
        row = ArchivedEvaluation(
            plan=plan.plan,
            attempt=plan.attempt,
            checkpoint=checkpoint.name,
            digest=checkpoint.digest,
            step=checkpoint.step,
            step_source=checkpoint.step_source,
            status=outcome.status,
            final=outcome.status == OutcomeStatus.SUCCEEDED,
            kind=outcome.kind,
            message=_cut(outcome.message),
            workers=len(plan.members or ()) if result is None else result.workers,
            completed_at=outcome.completed_at,
            examples={} if result is None else self._share(tuple(result.counted().items()), result.counted()),
        )
        if result is not None:
            if broken := self._stretches.add(result):
                self._breaks[plan.plan] = dict(broken)
            self._note_numbers(row, result)
        if outcome.status == OutcomeStatus.FAILED:
            self._failed[checkpoint.key] = plan.task, row
        self.rows.append(row)

    def _note_numbers(self, row: ArchivedEvaluation, result: Result) -> None:
        values = [
            ((eval_set, metric, value.goal), value)
            for eval_set, by_metric in result.metrics.items()
            for metric, value in by_metric.items()
        ]
        names = tuple(name for name, _ in values)
        row.names = self._share(names, names)
        for (eval_set, metric, goal), value in values:
            row.numbers.extend((number_of(value), _or_nan(value.lower), _or_nan(value.upper)))
            known = self._series.get((eval_set, metric))
            points = 1 if known is None else known.points + 1
            fingerprint = None if (data := result.data.get(eval_set)) is None else data.fingerprint
            self._series[eval_set, metric] = Series(eval_set, metric, goal, points, fingerprint)

    def _settle(self, settled: Settled) -> None:
        """Add a settlement. A final failure shares the row of the last failed attempt."""
        plan, settlement = settled.plan, settled.settlement
        task, row = self._failed.get(settlement.key, (None, None))
        if row is not None and settlement.verdict == Verdict.FAILED and settlement.task in (None, task):
            row.final = True
            del self._failed[settlement.key]
            return
        self.rows.append(
            ArchivedEvaluation(
                plan=plan.plan,
                attempt=None,
                checkpoint=settlement.name,
                digest=settlement.digest,
                step=settlement.step,
                step_source=None,
                status=settlement.verdict,
                final=settlement.verdict != Verdict.REQUEUED,
                kind=None,
                message=_cut(settlement.reason),
                workers=0,
                completed_at=plan.proposed_at,
                examples={},
            )
        )

    def _share(self, key: Any, value: Any) -> Any:
        return self._shared.setdefault(key, value)


def finite(value: float) -> float | None:
    """Return a number, or None if JSON cannot carry it."""
    return value if math.isfinite(value) else None


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _cut(text: str | None) -> str | None:
    """Return the end of a text, as the last line of a traceback names the error."""
    if text is None or len(text) <= MESSAGE_CHARACTERS:
        return text
    return f"… {text[-MESSAGE_CHARACTERS:]}"
