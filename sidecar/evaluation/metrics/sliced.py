"""Measure a metric over each slice of an eval set, in the same pass as over the whole set. Imports numpy only.

A metric whose number follows from a value of each example gets all examples once for each definition of slices, and
adds each value to the sums of its slice. Any other metric gets the examples of a batch that belong to a slice as a
batch of its own, with states of its own. These parts depend on the data alone, so the numbers have the same bits for
any number of ranks. Values that do not depend on their batch are added for several batches at once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.data.slice_table import SliceTable
from sidecar.evaluation.failures import CannotBeMergedError
from sidecar.evaluation.metrics.accuracy import Accuracy, TopK
from sidecar.evaluation.metrics.auc import BinnedAUC
from sidecar.evaluation.metrics.calibration import Calibration
from sidecar.evaluation.metrics.confusion_matrix import ConfusionMatrix
from sidecar.evaluation.metrics.foreign import InTurn
from sidecar.evaluation.metrics.log_loss import LogLoss, Perplexity
from sidecar.evaluation.metrics.mean import Mean
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, Metric, MetricResult
from sidecar.evaluation.metrics.random_groups import FEWEST_EXAMPLES, RandomGroups, new_reasons
from sidecar.evaluation.metrics.regression import MAE, MSE, R2, RMSE
from sidecar.evaluation.metrics.sums import Sums
from sidecar.evaluation.states import ExactSum, KeyedStates, SetStates, exact_sum
from sidecar.protocol.records import WORST, Slice, Value

BY_SLICE: Final = "by slice"
"""Name of the state of a metric, and of the one that counts the examples of each slice."""

_BY_GROUP: Final = "by random group"
_WHY: Final = "reasons for no interval"

MOST_NUMBERS: Final = 1000
"""The most numbers of slices in a result: each becomes a series."""

LEAST_EXAMPLES: Final = 20
"""The least examples of a slice that can be the worst one: the number of a smaller slice is mostly noise."""

_MOST_GROUPS: Final = 64  # of a slice: the groups of the whole set would take a thousand times 400 kB
_COUNT: Final = "count"
_IN_ANY_BATCH: Final = (Accuracy, TopK, ConfusionMatrix, MSE, MAE, RMSE, R2)
"""Metrics whose values of an example have the same bits in any batch: they compare, subtract and multiply."""

_BY_EXAMPLE: Final = (*_IN_ANY_BATCH, LogLoss, Perplexity, Mean, Calibration, BinnedAUC)
"""Metrics that add a value of each example, or of each of its positions."""

_BYTES: Final = 16 << 20  # that the sums of slices may take while values are added to them; more slices take turns
_WORD: Final = 8

_OPPOSITE: Final[Mapping[str, Callable[..., Any]]] = {"max": min, "min": max}


class _Slices(KeyedStates):
    """Keep the states of each slice. `table` says which examples belong to it; None: the states are read only."""

    def __init__(self, shard: Shard, new: Callable[[], SetStates], table: SliceTable | None = None) -> None:
        super().__init__(shard, new)
        self.table = table

    def merge(self, other: Self) -> None:
        """Add the states of another one to those made here, which take further examples."""
        for key, _ in other.items() if self.table is not None else ():
            self.of(key)
        super().merge(other)


def new_states(metric: Metric, info: EvalSetInfo) -> SetStates:
    """Return the new states of a metric for a set, and those of random groups and of its slices if it can have them."""
    states = metric.states(info)
    if isinstance(metric, Sums) and info.intervals is not False and (info.examples or 0) >= FEWEST_EXAMPLES:
        states |= {_BY_GROUP: RandomGroups(info.shard, info), _WHY: new_reasons()}
    return states if isinstance(metric, InTurn) else states | states_by_slice(metric.states, info)


def states_by_slice(new: Callable[[EvalSetInfo], SetStates], info: EvalSetInfo) -> SetStates:
    """Return the state of the slices of a set, next to the states that `new` returns; nothing if it cannot have one."""
    if info.slices is None:
        return {}
    # Numbers of groups are united by their remainder, which needs no more than their number.
    groups = None if info.groups is None else info.groups % _MOST_GROUPS
    examples = None if info.examples is None else min(info.examples, _MOST_GROUPS)
    of_slice = replace(info, examples=examples, groups=groups, slices=None)
    if not KeyedStates.can_hold(new(of_slice)):
        return {}
    return {BY_SLICE: _Slices(info.shard, lambda: new(of_slice), info.slices)}


def add(metric: Metric, states: SetStates, batches: Sequence[EvalBatch]) -> None:
    """Add batches to the states of a metric, and their parts to those of random groups and of the slices."""
    by_group, of_metric = states.get(_BY_GROUP), _of_metric(states)
    for batch in batches:
        metric.add(of_metric, batch)
        if isinstance(by_group, RandomGroups) and isinstance(metric, Sums):
            _add_groups(metric, by_group, exact_sum(states, _WHY), batch)
    if BY_SLICE not in states:
        return
    joined = _joined(batches) if type(metric) in _IN_ANY_BATCH else batches
    places = [_places(metric.name, batch) for batch in joined]
    if type(metric) not in _BY_EXAMPLE:
        for batch, own in zip(joined, places, strict=True):
            for of_slice, chosen in slices_of(states, own):
                metric.add(of_slice, batch.part(chosen))
        return
    for of_slices, number, chosen in parts_of(states, *places):
        metric.add(of_slices, joined[number].part(chosen))


def _places(measured: str, batch: EvalBatch) -> NDArray[np.intp]:
    """Return the numbers of the examples of a batch in the whole set. Raises `TaskError` if rows are not examples."""
    rows = {len(part) for part in (batch.y, batch.predictions)}
    places = batch.places_of(np.arange(max(rows) if batch.examples is None else batch.examples))
    assert places is not None, "a set whose examples have no numbers has no slices"
    require_rows(measured, len(places), rows)
    return places


def _joined(batches: Sequence[EvalBatch]) -> Sequence[EvalBatch]:
    """Return batches as one, whose parts take fewer calls of a metric; as they are if their rows are not alike."""
    forms = {
        tuple((part.dtype, part.shape[1:]) for part in (batch.y, batch.predictions, batch.weights) if part is not None)
        for batch in batches
    }
    if len(forms) > 1 or any({len(batch.y), len(batch.predictions)} != {batch.examples} for batch in batches):
        return batches
    weights = [batch.weights for batch in batches if batch.weights is not None]
    places = joined_places([batch.first for batch in batches], [len(batch.y) for batch in batches])
    y, predictions = (np.concatenate([getattr(batch, part) for batch in batches]) for part in ("y", "predictions"))
    united = np.concatenate(weights) if weights else None
    return [replace(batches[0], y=y, predictions=predictions, weights=united, places=places, examples=len(y))]


def joined_places(firsts: Sequence[int | None], examples: Sequence[int]) -> NDArray[np.intp]:
    """Return the numbers in the whole set of the examples of batches, given those of their first ones."""
    assert None not in firsts, "a set whose examples have no numbers has no slices"
    return np.concatenate(
        [np.arange(first or 0, (first or 0) + count) for first, count in zip(firsts, examples, strict=True)]
    )


def slices_of(states: SetStates, places: NDArray[np.intp]) -> Iterator[tuple[SetStates, NDArray[np.intp]]]:
    """Yield the states of each slice that has some of these examples, with their numbers among them.

    Nothing is yielded for states without slices. `places`: the numbers of the examples in the whole set.
    """
    by_slice = states.get(BY_SLICE)
    if not isinstance(by_slice, _Slices) or by_slice.table is None:
        return
    for key, chosen in by_slice.table.of(places):
        yield by_slice.of(key), chosen


def parts_of(states: SetStates, *places: NDArray[np.intp]) -> Iterator[tuple[SetStates, int, NDArray[np.intp]]]:
    """Yield sums for slices as `divided` does, the number of a batch, and the rows of it that are in one of them.

    The values of these rows have to be added to the sums, which add each to those of the slice of its row. `places`:
    for each batch, the numbers of its examples in the whole set.
    """
    ends = list(accumulate(map(len, places), initial=0))
    for sums, numbers in divided(states, np.concatenate(places)):
        for batch, (begin, end) in enumerate(pairwise(ends)):
            rows = np.flatnonzero(numbers[begin:end] >= 0)
            for state in sums.values():
                state.part_of_row = numbers[begin:end][rows]
            if len(rows):
                shared: SetStates = dict(sums)
                yield shared, batch, rows


def divided(states: SetStates, places: NDArray[np.intp]) -> Iterator[tuple[dict[str, ExactSum], NDArray[np.intp]]]:
    """Yield, for each definition of slices, sums by slice and the number of each example's slice; -1: it is in none.

    After it, what was added to the sums is added to the states of the slices. All states of the metric are exact sums.
    Nothing is yielded for states without slices. `places`: the numbers of the examples in the whole set.
    """
    by_slice = states.get(BY_SLICE)
    if not isinstance(by_slice, _Slices) or by_slice.table is None:
        return
    made = by_slice.new()
    new = {name: exact_sum(made, name) for name in made}
    most = max(1, _BYTES // (_WORD * sum(state.width * state.rows for state in new.values())))
    for names, numbers in by_slice.table.divided(places):
        for first in range(0, len(names), most):
            some, own = names[first : first + most], numbers - first
            sums = {name: state.by_part(len(some)) for name, state in new.items()}
            yield sums, np.where((own >= 0) & (own < len(some)), own, -1)
            by_slice.merge_parts(some, sums)


def require_rows(measured: str, examples: int, rows: AbstractSet[int]) -> None:
    """Raise `TaskError` if these numbers of rows of labels, predictions or values are not that of the examples."""
    if rows != {examples}:
        raise TaskError(
            f"metric {measured!r}: slices are for labels and predictions with one row for each of {examples} "
            f"examples, found {' and '.join(map(str, sorted(rows)))} rows: leave Task(slices=…) out"
        )


def _add_groups(metric: Sums, groups: RandomGroups, why: ExactSum, batch: EvalBatch) -> None:
    """Add a batch to the random groups of a metric, if its rows are examples."""
    count = len(batch.predictions) if batch.examples is None else batch.examples
    places = batch.places_of(np.arange(count))
    if places is not None and {len(batch.y), len(batch.predictions)} == {count}:
        groups.add_parts(places, lambda rows: metric.sums_of(batch.part(rows)), why)


def computed(metric: Metric, states: SetStates) -> MetricResult:
    """Return the final numbers of a metric, of the whole set and by slice."""
    by_group = states.get(_BY_GROUP)
    result = metric.compute(_of_metric(states))
    if isinstance(by_group, RandomGroups) and isinstance(metric, Sums):
        result = by_group.with_intervals(metric.name, result, exact_sum(states, _WHY), metric.numbers_of)
    return with_slices(result, states, metric.compute)


def with_slices(result: MetricResult, states: SetStates, compute: Callable[[SetStates], MetricResult]) -> MetricResult:
    """Return a result for the whole set with the numbers that `compute` returns for each slice."""
    by_slice = states.get(BY_SLICE)
    if not isinstance(by_slice, KeyedStates):
        return result
    return replace(result, slices={key: _values(compute, one) for key, one in by_slice.items()})


def _values(compute: Callable[[SetStates], MetricResult], states: SetStates) -> Mapping[str, Value]:
    """Return the numbers of a slice; none if the metric of a framework has none for so few examples."""
    try:
        return compute(states).values
    except CannotBeMergedError:
        return {}


def _of_metric(states: SetStates) -> SetStates:
    """Return the states that the metric made, which may be of a user's class."""
    return {name: state for name, state in states.items() if name not in (BY_SLICE, _BY_GROUP, _WHY)}


def new_counts(shard: Shard) -> KeyedStates:
    """Return a new state that counts the examples of each slice."""
    return KeyedStates(shard, lambda: {_COUNT: ExactSum((), "int64")})


def count(states: Mapping[str, KeyedStates], table: SliceTable | None, places: Sequence[NDArray[np.intp]]) -> None:
    """Count the examples with these numbers, given by batch, by slice. Nothing happens without slices or examples."""
    if table is None or not places:
        return
    for key, rows in table.of(np.concatenate(places)):
        exact_sum(states[BY_SLICE].of(key), _COUNT).add(np.int64(len(rows)))


def counted(states: SetStates) -> dict[str, int]:
    """Return the number of examples of each slice of a set; nothing for a set without slices."""
    counts = states.get(BY_SLICE)
    if not isinstance(counts, KeyedStates):
        return {}
    return {key: int(exact_sum(one, _COUNT).integers()) for key, one in counts.items()}


def with_worst(numbers: MetricResult, examples: Mapping[str, int]) -> MetricResult:
    """Return the numbers of a set with the worst one of its slices for each metric that has a direction.

    It is called `worst_slice_accuracy`, and is that of a slice with at least 20 examples, if there is one. It has no
    interval, since it was chosen.
    """
    large = {name: found for name, found in numbers.slices.items() if examples[name] >= LEAST_EXAMPLES}
    found: dict[str, list[Value]] = {}
    for of_slice in (large or numbers.slices).values():
        for name, value in of_slice.items():
            if value.goal in _OPPOSITE and value.value is not None:
                found.setdefault(name, []).append(value)
    worst = {
        f"{WORST}{name}": replace(
            _OPPOSITE[values[0].goal](values, key=lambda value: value.value), lower=None, upper=None
        )
        for name, values in found.items()
    }
    return replace(numbers, values={**numbers.values, **worst})


def largest(
    numbers: Mapping[str, MetricResult], examples: Mapping[str, Mapping[str, int]]
) -> tuple[dict[str, dict[str, Slice]], tuple[str, ...]]:
    """Return the slices of each eval set with their numbers: the largest ones, of 1,000 numbers; and a note on others.

    `examples`: the number of examples by eval set and slice.
    """
    ordered = sorted(
        ((name, key) for name, result in numbers.items() for key in result.slices),
        key=lambda each: (-examples[each[0]][each[1]], each),
    )
    found: dict[str, dict[str, Slice]] = {}
    left, left_out = MOST_NUMBERS, 0
    for name, key in ordered:
        of_slice = dict(numbers[name].slices[key])
        if left_out or len(of_slice) > left:
            left_out += 1
            continue
        left -= len(of_slice)
        found.setdefault(name, {})[key] = Slice(examples=examples[name][key], metrics=of_slice)
    note = (
        f"{left_out:,} of {len(ordered):,} slices are not shown, the smallest ones: a result has at most "
        f"{MOST_NUMBERS:,} numbers of slices"
    )
    return found, (note,) if left_out else ()
