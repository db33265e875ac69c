"""Find the best evaluation so far, by one metric: its saves are retained. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from sidecar.coordination.journal_state import JournalState


@dataclass(frozen=True, slots=True)
class BestBy:
    """Compare the evaluations in the journal.

    Args:
        metric: EVAL_SET/METRIC. None: the first one with a direction that the task lists, chosen anew when its code
            changes; so an evaluation that leaves an eval set out is not compared by another metric. The first one with
            a task leaves out none.
    """

    metric: str | None = None

    def folder(self, history: JournalState) -> str | None:
        """Return where the best evaluation so far saved; None if nothing says which it is."""
        by_name = {f"{eval_set}/{name}": best for (eval_set, name), best in history.totals.best.items()}
        best = by_name.get(self.metric or next(_with_direction(history), ""))
        return None if best is None else best.folder

    def complaint(self, history: JournalState) -> str | None:
        """Return why the metric that was asked for cannot tell what is better, as far as the results so far say."""
        with_direction = list(_with_direction(history))
        if self.metric is None or history.newest is None or self.metric in with_direction:
            return None
        trouble = "has no direction" if self.metric in history.newest_task.goals else "was not measured"
        return f"best_metric {self.metric!r} {trouble}; these could be: {', '.join(with_direction) or 'none'}"


def _with_direction(history: JournalState) -> Iterator[str]:
    return (name for name, goal in history.newest_task.goals.items() if goal in ("max", "min"))
