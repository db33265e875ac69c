"""Find the best evaluations so far, by one metric: their saves, or their checkpoints, are retained. Pure.

`Totals.ranked` of the journal holds the best evaluations of each metric. `saves.retention` asks `BestBy` whose saves
stay, and the daemon's state asks `exported` which checkpoints an `ExportRule` wants below `exports`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.totals import RANKED, Best
from sidecar.protocol.export_rule import ExportRule

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class BestBy:
    """Compare the evaluations in the journal by `metric`, EVAL_SET/METRIC.

    None: the first one with a direction that the task lists, chosen anew when its code changes; so an evaluation that
    leaves an eval set out is not compared by another metric. The first one with a task leaves out none.
    """

    metric: str | None = None

    def folder(self, history: JournalState) -> str | None:
        """Return where the best evaluation so far saved; None if nothing says which it is."""
        ranked = ranking(history, self._name(history))
        return ranked[0].folder if ranked else None

    def ranked(self, history: JournalState) -> tuple[Best, ...]:
        """Return the best evaluations so far, and the best one before the task or the data changed."""
        return exported(history, ExportRule(metric=self._name(history), count=RANKED))

    def _name(self, history: JournalState) -> str:
        """Return the metric that is compared, as EVAL_SET/METRIC; empty if none has a direction."""
        return self.metric or next(_with_direction(history), "")

    def complaint(self, history: JournalState) -> str | None:
        """Return why the metric that was asked for cannot tell what is better, as far as the results so far say."""
        with_direction = list(_with_direction(history))
        if self.metric is None or history.newest is None or self.metric in with_direction:
            return None
        others = f"these could be: {', '.join(with_direction)}" if with_direction else "no other metric has one"
        if self.metric in history.newest_task.goals:
            remedy = f"write Task(goals={{{self.metric!r}: 'max'}}) if larger is better, else 'min'"
            return f"best_metric {self.metric!r} has no direction: {remedy}; {others}"
        return f"best_metric {self.metric!r} was not measured; these could be: {', '.join(with_direction) or 'none'}"


def ranking(history: JournalState, metric: str) -> tuple[Best, ...]:
    """Return the best evaluations by a metric, EVAL_SET/METRIC, the best one first; at most `totals.RANKED`."""
    return _by_name(history.totals.ranked).get(metric, ())


def exported(history: JournalState, rule: ExportRule) -> tuple[Best, ...]:
    """Return the evaluations whose checkpoints are exported by a rule, the best one first.

    The last one may be outdated: the best one before the task or the data changed. Its files may exist nowhere else,
    and a person may have changed no more than a comment in the task's file.
    """
    best = ranking(history, rule.metric)[: max(rule.count, 0)]
    before = _by_name(history.totals.outdated).get(rule.metric)
    if before is None or rule.count < 1 or any(before.pin == each.pin for each in best):
        return best
    return (*best, before)


def _by_name(found: Mapping[tuple[str, str], Found]) -> dict[str, Found]:
    return {f"{eval_set}/{name}": each for (eval_set, name), each in found.items()}


def _with_direction(history: JournalState) -> Iterator[str]:
    return (name for name, goal in history.newest_task.goals.items() if goal in ("max", "min"))
