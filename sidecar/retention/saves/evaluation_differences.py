"""Tell in what two evaluations differ: every number by eval set, metric, class and slice, and which examples changed.

Unlike `comparison_store`, it decides nothing and records nothing: one look at an interval of 95 %.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sidecar.coordination.comparability import obstacle
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.totals import has_direction
from sidecar.evaluation.intervals import Z
from sidecar.protocol.example_inputs import Input
from sidecar.protocol.records import Value
from sidecar.retention.saves.comparison import Difference, Pairs, compare_values, published, size_of
from sidecar.retention.saves.comparison_store import eval_set_of, saved_pair
from sidecar.retention.saves.example_inputs import inputs_of
from sidecar.retention.saves.example_values import UnusableError

_POWER: Final = 0.8416212335729143  # the 80 % quantile of the standard normal distribution
_FEWEST_CHANGED: Final = 6.720978787  # the mean of the Poisson distribution that is 5 or more in 80 % of cases


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberDifference:
    """Hold a number of two evaluations, and its difference: that of the newer one minus that of the older one."""

    metric: str  # EVAL_SET/METRIC
    label: str = ""  # of the class or slice, for a number of one
    old: Value
    new: Value
    found: Difference
    # Numbers of the examples, from 0 in the order of the data, of which the newer model alone is right, or the older
    # one alone. Empty if right or wrong is not known of each.
    fixed: tuple[int, ...] = ()
    broken: tuple[int, ...] = ()
    changes_known: bool = False  # right or wrong is known of each example

    @property
    def verdict(self) -> str:
        """Return `better` or `worse` if the interval excludes 0, and else an empty text."""
        if not has_direction(self.new) or self.found.lower is None:
            return ""
        opposite = {"max": "min", "min": "max"}[self.new.goal]
        return "better" if self.found.is_better(self.new.goal) else "worse" if self.found.is_better(opposite) else ""

    @property
    def detectable(self) -> float | None:
        """Return the difference that is seen in 80 % of all cases with such noise; None if the noise is unknown.

        It is (z(97.5 %) + z(80 %)) standard errors (J. Cohen, "Statistical Power Analysis", 2nd edition (1988)). If it
        is known which examples are right, it is at least the difference that changes five of them in 80 % of all cases:
        fewer changes have an interval that holds 0, even if all are improvements.
        """
        if self.found.lower is None or self.found.upper is None:
            return None
        least = (self.found.upper - self.found.lower) / 2 * (1 + _POWER / Z)
        if not (self.changes_known and self.found.examples):
            return least
        return max(least, _FEWEST_CHANGED / self.found.examples)


def differences(
    root: Path, new: Closed, old: Closed, only: str | None = None, unpaired: str | None = None
) -> Iterator[NumberDifference]:
    """Yield the differences of all numbers that both evaluations have, or of the metric `only`, as EVAL_SET/METRIC.

    `root`: the state directory of the run. `unpaired`: why no predictions are to be read, as a note; None: they are.
    Numbers that cannot be compared have a difference without a number, whose note says why; a note of another
    difference says why it is not paired. Raises `StorageError` if the bucket that holds predictions does not answer.
    """
    after, before = new.result, old.result
    for eval_set, metrics in after.metrics.items():
        common = {
            name: value
            for name, value in metrics.items()
            if name in before.metrics.get(eval_set, {}) and only in (None, f"{eval_set}/{name}")
        }
        why = obstacle(after, before, eval_set) if common else None
        for name, value in common.items():
            one = NumberDifference(
                metric=f"{eval_set}/{name}",
                old=before.metrics[eval_set][name],
                new=value,
                found=Difference(rule="none", number=None, note=why or ""),
            )
            yield one if why is not None else _found(root, new, old, eval_set, name, one, unpaired)
        of_classes, were = after.classes.get(eval_set, {}), before.classes.get(eval_set, {})
        for name, labels in of_classes.items() if why is None and only is None else ():
            for label, value in labels.items():
                if (was := were.get(name, {}).get(label)) is not None:
                    found = compare_values(value, was)
                    yield NumberDifference(metric=f"{eval_set}/{name}", label=label, old=was, new=value, found=found)
        slices, were_slices = after.slices.get(eval_set, {}), before.slices.get(eval_set, {})
        for label in sorted(slices.keys() & were_slices.keys()) if why is None and only is None else ():
            for name, value in slices[label].metrics.items():
                if (was := were_slices[label].metrics.get(name)) is not None:
                    found = compare_values(value, was)
                    yield NumberDifference(metric=f"{eval_set}/{name}", label=label, old=was, new=value, found=found)


def changed_inputs(
    root: Path, new: Closed, old: Closed, one: NumberDifference, most: int | None = None
) -> dict[int, Input]:
    """Return the inputs that workers saved of the first `most` examples that were fixed, and of those that were broken.

    `root`: the state directory of the run. Raises `StorageError` if the bucket that holds them does not answer.
    """
    places = (*one.fixed[:most], *one.broken[:most])
    return inputs_of(root, (new, old), eval_set_of(new.result, one.metric), places) if places else {}


def _found(
    root: Path, new: Closed, old: Closed, eval_set: str, name: str, one: NumberDifference, unpaired: str | None
) -> NumberDifference:
    """Return a difference with its interval, example by example if both evaluations have saved that."""
    by_numbers = compare_values(one.new, one.old)
    if unpaired is not None:
        return replace(one, found=replace(by_numbers, note=unpaired))
    try:
        newer, older, groups = saved_pair(root, new, old, eval_set, name)
    except UnusableError as error:
        return replace(one, found=replace(by_numbers, note=str(error)))
    pairs = Pairs()
    pairs.add(newer, older, groups)
    found = pairs.difference()
    paired = None if found is None else published(found, by_numbers, size_of(one.new, one.old))
    if paired is None:
        return replace(one, found=by_numbers)
    if not pairs.binary:
        return replace(one, found=paired)
    changed = [
        (place, after) for place, (after, before) in enumerate(zip(newer, older, strict=True)) if after != before
    ]
    return replace(
        one,
        found=paired,
        changes_known=True,
        fixed=tuple(place for place, after in changed if after),
        broken=tuple(place for place, after in changed if not after),
    )
