"""Hold the newest numbers of each eval set, and decide whether the data of an eval set changed. Pure."""

from dataclasses import dataclass, field, replace

from sidecar.records import Checkpoint, EvalData, Result


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
    goals: dict[str, str] = field(default_factory=dict)  # EVAL_SET/METRIC, in the task's order: max, min or none
    latest: dict[str, Latest] = field(default_factory=dict)  # by eval set

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

    def successes_of(self, task: str | None) -> int:
        """Return how many evaluations succeeded with a task, if it is the newest."""
        return self.successes if task == self.task else 0


@dataclass(frozen=True, slots=True)
class SeenData:
    """Describe the data of an eval set in one evaluation."""

    data: EvalData | None
    examples: int

    def may_equal(self, other: "SeenData") -> bool:
        """Return whether the data may be equal, so that numbers can be compared. Some records have only counts."""
        known = [data.fingerprint for data in (self.data, other.data) if data is not None]
        fingerprints = {fingerprint for fingerprint in known if fingerprint is not None}
        return self.examples == other.examples and len(fingerprints) <= 1


def seen_data(result: Result) -> dict[str, SeenData]:
    """Return the data of each eval set of a result."""
    return {name: SeenData(result.data.get(name), examples) for name, examples in result.examples.items()}
