"""Make intervals for values that are weighted, several for one example, or of groups of examples. Imports numpy only.

Values that have no weights, one for each independent example, need none of this: see `sidecar.evaluation.intervals`.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.intervals import Interval, clustered
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo
from sidecar.evaluation.states import ExactSum, GroupSums, SetStates, exact_sum, state_of

_SUMS: Final = "groups"
_UNKNOWN: Final = "ungrouped"
_SEVERAL: Final = "several"


def cluster_states(info: EvalSetInfo) -> SetStates:
    """Return new states, next to those of the metric's number."""
    return {_SUMS: GroupSums(info.examples, info.groups), _UNKNOWN: ExactSum((), "int64")}


def add_clusters(
    states: SetStates,
    batch: EvalBatch,
    values: NDArray[np.float64],
    weights: NDArray[np.float32],
    examples: NDArray[np.intp] | None,
) -> None:
    """Add values (m,) with weights (m,) above 0. `examples`: the number of each one's example in the batch (m,).

    None: the rows of the batch are not examples. Nothing is added for values that are independent and have no weights.
    """
    is_plain = batch.weights is None and examples is not None and np.array_equal(examples, np.arange(len(values)))
    places = None if examples is None else batch.places_of(examples)
    add_places(states, places, values, weights, examples, is_plain=is_plain)


def add_places(
    states: SetStates,
    places: NDArray[np.intp] | None,
    values: NDArray[np.float64],
    weights: NDArray[np.float32],
    rows: NDArray[np.intp] | None = None,
    *,
    is_plain: bool,
) -> None:
    """Add values (m,) with weights (m,) above 0. `places`: the number of each one's example in the whole set (m,).

    None: it is unknown. `rows`: its number in the batch (m,), for states by slice. `is_plain`: whether each value is
    that of another example, with the weight 1.
    """
    if _SUMS not in states or (is_plain and groups_of(states) is None):
        return
    if places is None:
        exact_sum(states, _UNKNOWN).add_each(np.ones(len(values), np.bool_), rows)
        return
    sums = state_of(states, _SUMS, GroupSums)
    with np.errstate(all="ignore"):  # the sums count NaN, infinities and overflows
        sums.add_values(places, values * weights, weights, rows)


def groups_of(states: SetStates) -> NDArray[np.int64] | None:
    """Return the number of the group of each example of the set; None if it has no groups."""
    sums = states.get(_SUMS)
    return sums.groups if isinstance(sums, GroupSums) else None


def cluster_interval(states: SetStates, *, is_proportion: bool) -> Interval:
    """Return the interval of Σ w·v / Σ w; none if the group of a value is unknown, or there are fewer than two."""
    if _SUMS not in states or int(exact_sum(states, _UNKNOWN).integers()):
        return None, None
    values, weights = exact_sum(states, _SUMS).round().tolist()
    return clustered(values, weights, is_proportion=is_proportion)


def alone_states(info: EvalSetInfo | None = None) -> SetStates:
    """Return new states that tell whether values are independent; none for a set with groups, whose values are not."""
    return {} if info is not None and info.groups is not None else {_SEVERAL: ExactSum((), "int64")}


def add_alone(states: SetStates, count: int, rows: NDArray[np.intp] | None = None, *, one_per_example: bool) -> None:
    """Note whether each of `count` values is the only one of its example. `rows`: see `add_places`."""
    if _SEVERAL in states and not one_per_example:
        exact_sum(states, _SEVERAL).add_each(np.ones(count, np.bool_), rows)


def are_alone(states: SetStates) -> bool:
    """Return whether all values are independent: one for each example, without groups."""
    return _SEVERAL in states and not int(exact_sum(states, _SEVERAL).integers())
