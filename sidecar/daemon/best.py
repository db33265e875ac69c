"""Which evaluation is the best so far, by one metric: its saves are kept. Pure."""

from dataclasses import dataclass, field

from sidecar.observers.totals import has_direction, improves, number_of
from sidecar.records import Result, Value


@dataclass(slots=True)
class Best:
    """Compares results one by one, in the order of the journal.

    Args:
        metric: EVAL_SET/METRIC. None: the first one with a direction that the task lists, chosen anew when its code
            changes; so an evaluation that leaves an eval set out is not compared by another metric. The first one with
            a task leaves out none.
    """

    metric: str | None = None
    _task: str | None = None
    _known: dict[str, Value] = field(default_factory=dict)  # all that this task measured so far, the newest values
    _chosen: str | None = None
    _record: tuple[str, tuple[str, float]] | None = None  # the metric; its goal and the number to beat

    def improves(self, result: Result) -> bool:
        """Whether this result is better than all before it; it is the one to beat then."""
        values = _by_name(result)
        if self._task != result.task:
            self._task, self._known = result.task, {}
            self._chosen = self.metric or next((name for name, each in values.items() if has_direction(each)), None)
        self._known |= values
        found = values.get(self._chosen or "")
        record = self._record[1] if self._record is not None and self._record[0] == self._chosen else None
        if found is None or not improves(found, record):
            return False
        self._record = str(self._chosen), (found.goal, number_of(found))
        return True

    def complaint(self) -> str | None:
        """Why the metric that was asked for cannot tell what is better, as far as the results so far say."""
        values = self._known
        if self.metric is None or (self.metric in values and has_direction(values[self.metric])):
            return None
        known = [name for name, each in values.items() if has_direction(each)]
        trouble = "has no direction" if self.metric in values else "was not measured"
        return f"best_metric {self.metric!r} {trouble}; these could be: {', '.join(known) or 'none'}"


def _by_name(result: Result) -> dict[str, Value]:
    return {
        f"{eval_set}/{name}": value for eval_set, values in result.metrics.items() for name, value in values.items()
    }
