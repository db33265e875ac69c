"""Add up the journal: how many checkpoints ended in which way, the best values, and how long phases took.

Each record is added once, so that adding costs the same after ten of them or ten thousand. Pure.
"""

import math
import operator
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import Final

from sidecar.coordination.key_set import KeySet
from sidecar.protocol.records import PHASES, Checkpoint, Key, Outcome, Plan, Result, Settlement, Value, folder_name
from sidecar.protocol.states import FAILURE_CLASSES

BUCKETS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, math.inf)
"""The upper bounds in seconds, from a warm local restore to an hour on a large eval set."""

_IMPROVES: Final = {"max": operator.gt, "min": operator.lt}

RANKED: Final = 10
"""The number of best evaluations that are known for each metric: the most that `export_best` can retain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """Hold one of the best values of a metric, and the checkpoint that reached it."""

    goal: str
    hex: str  # the exact number as `float.hex`, because it may be inf, which is not a JSON number
    step: int | None
    folder: str  # the folder of its saves, relative to the run's state directory
    checkpoint: str  # the checkpoint's name
    step_source: str | None
    outdated: bool = False  # later numbers of the metric cannot be compared with it

    @property
    def number(self) -> float:
        """Return the value as a float."""
        return float.fromhex(self.hex)

    @property
    def pin(self) -> str:
        """Return the name of the checkpoint's folder in pins and exports: `ckpt-5@0123456789ab`."""
        return self.folder.split("/")[1]

    @property
    def plan(self) -> int:
        """Return the number of the plan that measured the value."""
        return int(self.folder.rpartition("/plan-")[2])


@dataclass(frozen=True, slots=True)
class VoidRecord:
    """Name a record of the journal that was set aside: the number of its plan, and why."""

    plan: int
    reason: str


@dataclass(slots=True)
class SetAside:
    """Hold the records of the journal that were set aside: their number, and the newest of them."""

    count: int = 0
    newest: VoidRecord | None = None

    def add(self, plan: int, reason: str) -> None:
        """Add a record."""
        self.count, self.newest = self.count + 1, VoidRecord(plan, reason)


@dataclass(frozen=True, slots=True)
class Durations:
    """Hold a histogram of seconds: how many durations lie in each of `BUCKETS`, and their sum."""

    counts: tuple[int, ...]
    total: float

    def add(self, seconds: float) -> "Durations":
        """Return the histogram with one more duration. A negative one counts as 0, because two clocks may disagree."""
        bucket = bisect_left(BUCKETS, max(seconds, 0.0))
        counts = (*self.counts[:bucket], self.counts[bucket] + 1, *self.counts[bucket + 1 :])
        return Durations(counts, self.total + max(seconds, 0.0))

    def cumulative(self) -> list[tuple[str, float]]:
        """Return pairs of an upper bound and how many durations were not longer."""
        seen, pairs = 0, []
        for bound, count in zip(BUCKETS, self.counts, strict=True):
            seen += count
            pairs.append(("+Inf" if math.isinf(bound) else str(bound), float(seen)))
        return pairs


_NO_DURATIONS: Final = Durations((0,) * len(BUCKETS), 0.0)


@dataclass(slots=True, kw_only=True)
class Totals:
    """Add up the journal's entries, one by one. All known series exist from the start, as 0."""

    checkpoints: dict[str, KeySet] = field(
        default_factory=lambda: {
            status: KeySet() for status in ("evaluated", "failed", "skipped", "vanished", "corrupt")
        }
    )
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAILURE_CLASSES, 0))
    durations: dict[str, Durations] = field(default_factory=lambda: dict.fromkeys(PHASES, _NO_DURATIONS))
    ranked: dict[tuple[str, str], tuple[Best, ...]] = field(default_factory=dict)  # the best first, `RANKED` at most
    outdated: dict[tuple[str, str], Best] = field(default_factory=dict)
    """The best value of each metric before its ranking began anew last: the checkpoint is still exported."""
    changes: dict[str, int] = field(default_factory=dict)  # by eval set: how often its data changed
    nonfinite: set[tuple[str, str]] = field(default_factory=set)  # eval sets and places that ever held such numbers
    set_aside: SetAside = field(default_factory=SetAside)  # records of the journal

    @property
    def best(self) -> dict[tuple[str, str], Best]:
        """Return the best value of each metric so far."""
        return {metric: ranked[0] for metric, ranked in self.ranked.items()}

    def settled(self, settlement: Settlement) -> None:
        """Add a settlement. A checkpoint counts once, however often it is settled; requeueing takes nothing back."""
        self.checkpoints.get(settlement.verdict, KeySet()).add(settlement.key)

    def reopened(self, key: Key) -> None:
        """Drop the best values of an evaluation that a person requeued, because its numbers do not count any more."""
        folder = f"evaluations/{folder_name(key)}/"
        left = (
            (metric, tuple(best for best in ranked if not best.folder.startswith(folder)))
            for metric, ranked in self.ranked.items()
        )
        self.ranked = {metric: ranked for metric, ranked in left if ranked}
        self.outdated = {metric: best for metric, best in self.outdated.items() if not best.folder.startswith(folder)}

    def begin_anew(self, eval_sets: frozenset[str] | None) -> None:
        """Begin the rankings of these eval sets anew, because newer numbers cannot be compared; None: all rankings."""
        over = {
            metric: ranked[0] for metric, ranked in self.ranked.items() if eval_sets is None or metric[0] in eval_sets
        }
        self.outdated |= {metric: replace(best, outdated=True) for metric, best in over.items()}
        self.ranked = {metric: ranked for metric, ranked in self.ranked.items() if metric not in over}

    def failed(self, outcome: Outcome) -> None:
        """Add a plan that failed."""
        kind = outcome.kind if outcome.kind in FAILURE_CLASSES else "unknown"  # the label's values stay bounded
        self.failures[kind or "unknown"] = self.failures.get(kind or "unknown", 0) + 1

    def succeeded(self, plan: Plan, checkpoint: Checkpoint, result: Result) -> None:
        """Add an evaluation."""
        self.checkpoints["evaluated"].add(checkpoint.key)
        for eval_set in result.examples:
            self.changes[eval_set] = self.changes.get(eval_set, 0) + (eval_set in result.changed)
        self.nonfinite |= {(eval_set, place) for eval_set, places in result.nonfinite.items() for place in places}
        for phase, seconds in result.phases.items():
            if phase in self.durations:
                self.durations[phase] = self.durations[phase].add(seconds)
        for eval_set, values in result.metrics.items():
            for name, value in values.items():
                self._rank((eval_set, name), value, checkpoint, plan)

    def _rank(self, metric: tuple[str, str], value: Value, checkpoint: Checkpoint, plan: Plan) -> None:
        """Put a value among the best ones of its metric, behind those that are as good."""
        if not has_direction(value) or math.isnan(number_of(value)):
            return
        # Another goal means another task: its numbers do not compete with the old ones.
        ranked = tuple(best for best in self.ranked.get(metric, ()) if best.goal == value.goal)
        place = sum(not improves(value, (best.goal, best.number)) for best in ranked)
        if place >= RANKED:
            return
        new = Best(
            goal=value.goal,
            hex=number_of(value).hex(),
            step=checkpoint.step,
            folder=plan.folder,
            checkpoint=checkpoint.name,
            step_source=checkpoint.step_source,
        )
        self.ranked[metric] = (*ranked[:place], new, *ranked[place:])[:RANKED]


def has_direction(value: Value) -> bool:
    """Return whether one number can be better than another."""
    return value.goal in _IMPROVES


def improves(value: Value, record: tuple[str, float] | None) -> bool:
    """Return whether a value is better than a record (goal, number). NaN and a value without a goal never are."""
    number = number_of(value)
    if not has_direction(value) or math.isnan(number):
        return False
    # Another goal means another task: its numbers do not compete with the old ones.
    return record is None or record[0] != value.goal or bool(_IMPROVES[value.goal](number, record[1]))


def number_of(value: Value) -> float:
    """Return the number as a float; `hex` has the numbers that strict JSON cannot carry."""
    if value.value is not None:
        return value.value
    try:
        return float.fromhex(value.hex)
    except (ValueError, OverflowError):
        return math.nan
