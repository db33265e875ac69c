"""Hold the newest numbers of each eval set, and find those with which newer numbers cannot be compared. Pure."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from sidecar.coordination.comparability import seen_data
from sidecar.protocol.record_limits import SNAPSHOT, AtMost
from sidecar.protocol.records import Checkpoint, Result

_GROWING: Final = AtMost(SNAPSHOT.values)  # one task may name its eval sets and metrics anew in every evaluation


@dataclass(frozen=True, slots=True)
class Latest:
    """Hold the newest numbers of an eval set."""

    checkpoint: Checkpoint
    result: Result


@dataclass(frozen=True, slots=True)
class NewestTask:
    """Hold the task of the newest evaluation, and the newest numbers of evaluations with it."""

    task: str | None = None  # digest of its code
    successes: int = 0  # since the task changed
    goals: Annotated[dict[str, str], _GROWING] = field(default_factory=dict)  # EVAL_SET/METRIC: max, min or none
    latest: Annotated[dict[str, Latest], _GROWING] = field(default_factory=dict)  # by eval set

    def succeed(self, task: str | None, checkpoint: Checkpoint, result: Result | None) -> "NewestTask":
        """Return this with one more evaluation. Eval sets that took no part retain their newest numbers."""
        if task != self.task:  # another task may have other eval sets, and begins with all of them
            return NewestTask(task).succeed(task, checkpoint, result)
        more = replace(self, successes=self.successes + 1)
        if result is None:
            return more
        goals = {
            f"{eval_set}/{name}": value.goal
            for eval_set, values in result.metrics.items()
            for name, value in values.items()
        }
        latest = dict.fromkeys(result.examples, Latest(checkpoint, result))
        return replace(more, goals=self.goals | goals, latest=self.latest | latest)

    def outdated(self, task: str | None, result: Result | None) -> frozenset[str] | None:
        """Return the eval sets whose numbers so far cannot be compared with a new result; None: all of them.

        All are outdated if the task is another one. Else it is those whose data changed since they took part last.
        What is best begins anew with the new result.
        """
        if task != self.task:
            return None
        seen = {} if result is None else seen_data(result)
        before = {name: seen_data(self.latest[name].result)[name] for name in seen if name in self.latest}
        return frozenset(name for name, data in before.items() if not data.may_equal(seen[name]))

    def successes_of(self, task: str | None) -> int:
        """Return how many evaluations succeeded with a task, if it is the newest."""
        return self.successes if task == self.task else 0
