"""Find out of each evaluation whether it is the best so far by one metric, and how many came since the best.

It is a fold over the evaluations in the order of the journal, so any node that reads the same journal decides the same.
It does no I/O itself; `exceeds_noise` may. Hooks and the early stop use it. `sidecar.retention.saves.best` chooses the
metric in the same way for the saves.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sidecar.coordination.key_set import KeySet
from sidecar.coordination.newest_task import NewestTask
from sidecar.coordination.totals import has_direction, improves, number_of
from sidecar.protocol.records import Value
from sidecar.publishing.sinks.sink import Evaluation

Metric = tuple[str, str]
"""Eval set and name of a metric."""

IsBetter = Callable[[Evaluation, Evaluation | None, Metric], bool]
"""Return whether an evaluation is better by a metric than the best one so far; None: there is none yet."""


class ExceedsNoise(Protocol):
    """Return whether an evaluation is better by more than noise than an older one, by EVAL_SET/METRIC.

    `past`: whether the evaluation was delivered before; then nothing is computed from predictions, and nothing
    recorded. Raises `StorageError` if that is unknown now, so that the evaluation is delivered again.
    """

    def __call__(self, new: Evaluation, old: Evaluation, metric: str, /, *, past: bool) -> bool:
        """Compare them."""


def better_value(evaluation: Evaluation, best: Evaluation | None, metric: Metric) -> bool:
    """Return whether the value is better than the best one. NaN never is."""
    return better_by(0.0)(evaluation, best, metric)


def better_by(min_delta: float) -> IsBetter:
    """Return a comparison that asks for a value that is better by more than `min_delta`, a number of 0 or more."""

    def is_better(evaluation: Evaluation, best: Evaluation | None, metric: Metric) -> bool:
        value, record = value_of(evaluation, metric), None if best is None else value_of(best, metric)
        if value is None:
            return False
        if record is None:
            return improves(value, None)
        least = number_of(record) + (min_delta if record.goal == "max" else -min_delta)
        return improves(value, (record.goal, least))

    return is_better


def value_of(evaluation: Evaluation, metric: Metric) -> Value | None:
    """Return the value of a metric in an evaluation; None if that did not measure it."""
    eval_set, name = metric
    return evaluation.result.metrics.get(eval_set, {}).get(name)


@dataclass(slots=True, kw_only=True)
class BestSoFar:
    """Compare each evaluation with the best one before it.

    An evaluation that did not measure the metric, as with `every_nth`, counts neither way. So does another evaluation
    of a checkpoint that was evaluated before, unless it is better than the best one. If it is of the best checkpoint
    itself, its value replaces the one before. If the task or the data of the eval set
    changed, everything begins anew, because the numbers cannot be compared.
    """

    # EVAL_SET/METRIC. None: the first one with a direction that the newest task lists.
    metric: str | None = None
    is_better: IsBetter = better_value  # compares two evaluations
    # Asked about an evaluation that is better, unless it is the first. None: noise does not matter.
    exceeds_noise: ExceedsNoise | None = None
    since: int = 0
    """The number of evaluations since the best one."""
    begun: int = 0
    """How often the comparison of the metric began anew."""
    _best: dict[Metric, Evaluation] = field(default_factory=dict)
    _seen: dict[Metric, KeySet] = field(default_factory=dict)
    _task: NewestTask = field(default_factory=NewestTask)
    metric_compared: Metric | None = None
    """The metric by which the newest evaluation was compared; None before the first one."""

    def renewed(self) -> "BestSoFar":
        """Return one that compares in the same way, and knows no evaluation."""
        return BestSoFar(metric=self.metric, is_better=self.is_better, exceeds_noise=self.exceeds_noise)

    def note(self, evaluation: Evaluation, *, past: bool = False) -> bool:
        """Add an evaluation, and return whether it is a new best one. `past`: whether it was delivered before.

        Raises `StorageError` if noise matters, and the comparison cannot be read now. Then it may be added again.
        """
        self._begin_anew(self._task.outdated(evaluation.result.task, evaluation.result))
        self._task = self._task.succeed(evaluation.result.task, evaluation.checkpoint, evaluation.result)
        metric = self._chosen(evaluation)
        if metric is None or (value := value_of(evaluation, metric)) is None or not has_direction(value):
            return False
        if metric != self.metric_compared:
            self.metric_compared, self.since = metric, 0
        best, key = self._best.get(metric), evaluation.checkpoint.key
        seen = self._seen.setdefault(metric, KeySet())
        again, is_new = key in seen, self._is_new(evaluation, best, metric, past=past)
        seen.add(key)
        if is_new:
            self._best[metric], self.since = evaluation, 0
        elif best is not None and best.checkpoint.key == key and improves(value, None):
            self._best[metric] = evaluation
        elif not again:
            self.since += 1
        return is_new

    def _begin_anew(self, eval_sets: frozenset[str] | None) -> None:
        """Forget the evaluations with which newer ones cannot be compared. None: all of them."""
        for metric in [each for each in self._seen if eval_sets is None or each[0] in eval_sets]:
            self._best.pop(metric, None)
            del self._seen[metric]
            if metric == self.metric_compared:
                self.since, self.begun = 0, self.begun + 1

    def _is_new(self, evaluation: Evaluation, best: Evaluation | None, metric: Metric, *, past: bool) -> bool:
        if not self.is_better(evaluation, best, metric):
            return False
        if best is None or self.exceeds_noise is None:
            return True
        return self.exceeds_noise(evaluation, best, "/".join(metric), past=past)

    @property
    def best(self) -> tuple[Metric, Evaluation] | None:
        """Return the metric and the best evaluation by it; None if there is none yet."""
        if self.metric_compared is None or self.metric_compared not in self._best:
            return None
        return self.metric_compared, self._best[self.metric_compared]

    def _chosen(self, evaluation: Evaluation) -> Metric | None:
        """Return the metric by which this compares; None if the evaluation did not measure it.

        Names may contain a slash, so the text of a metric is compared and not split.
        """
        chosen = self.metric or next((name for name, goal in self._task.goals.items() if goal in ("max", "min")), None)
        measured = ((eval_set, name) for eval_set, values in evaluation.result.metrics.items() for name in values)
        return next(((eval_set, name) for eval_set, name in measured if f"{eval_set}/{name}" == chosen), None)
