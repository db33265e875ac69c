"""Find metrics whose states for a batch are not the sum of those for its parts, given the same predictions.

Counts must be equal to the bit, and sums of floats up to rounding. Imports numpy, never a framework.
"""

import json
import warnings
from dataclasses import replace
from itertools import permutations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError, task_error
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, Metric, MetricResult, runs_code_of_users
from sidecar.evaluation.row_comparison import are_near, halves_of, kept_by_size, told_apart
from sidecar.evaluation.states import ExactSum, NamedSums, PerExampleValues, SetStates, State
from sidecar.evaluation.states.min_max import MinMax

_DOUBLINGS: Final = 17  # of a first batch, to find metrics that read their states
_OF_OTHER_SIZES: Final = (slice(0, 5), slice(0, 2), slice(2, 5))


def metric_depends_on_batches(metric: Metric, batch: EvalBatch) -> bool | None:
    """Return whether the states of a metric for a batch are not the sum of those for its halves.

    The predictions are the same, so counts must be equal to the bit, and sums of floats up to rounding. Metrics of this
    package that take no function of a user's are known to add up. None: the batch cannot be divided, since its rows are
    not examples.
    """
    examples = _examples_in(batch)
    halves = halves_of(examples)
    if halves is None:
        return False
    given = (part for part in (batch.y, batch.predictions, batch.weights) if part is not None)
    if any(part.shape[:1] != (examples,) for part in given):
        return None
    if not runs_code_of_users(metric):
        return False
    whole = states_of(metric, batch)
    _require_told_apart(metric, batch, whole)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # a half may lack a class
            summed = states_of(metric, *(_part(batch, half) for half in halves))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - code of a user, which took the whole batch
        return True
    return states_differ(metric, whole, summed)


def _require_told_apart(metric: Metric, batch: EvalBatch, whole: SetStates) -> None:
    """Raise `EvaluationError` if the last examples of a batch get what a metric made of as many others.

    Parts of sizes that it did not see before must add up: a metric that depends on batches keeps nothing.
    """
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            begin, rest, end = (_part(batch, place) for place in told_apart(_examples_in(batch)))
            mixed = replace(end, predictions=end.predictions[::-1])  # ranks of few examples, say, may all be 1
            if len({_text_of(states_of(metric, part)) for part in (begin, end, mixed)}) > 1:
                return
            few, *parts = (_part(batch, place) for place in _OF_OTHER_SIZES)
            adds_up = not states_differ(metric, states_of(metric, few), states_of(metric, *parts))
            is_kept = adds_up and states_differ(metric, whole, states_of(metric, rest, end))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - code of a user, which took the whole batch
        return
    if is_kept:
        raise kept_by_size(f"metric {metric.name!r}")


def states_of(metric: Metric, *batches: EvalBatch) -> SetStates:
    """Return the states of a metric for batches that are all of an eval set."""
    firsts = np.cumsum([0, *map(_examples_in, batches)])
    is_counted = all(batch.first is not None for batch in batches)
    states = metric.states(EvalSetInfo(int(firsts[-1]) if is_counted else None, Shard(0, 1)))
    for batch, first in zip(batches, firsts, strict=False):
        metric.add(states, replace(batch, first=int(first) if is_counted else None))
    return states


def contents_of(metric: Metric, batch: EvalBatch) -> str:
    """Return the states of a metric for a batch as a text, to find metrics that keep something or draw at random.

    Raises `EvaluationError` for a metric that adds something else to states that other batches are in.
    """
    if not runs_code_of_users(metric):
        return ""
    if not hasattr(metric, "_function"):  # then it is of a user's class, whose `add` gets the states
        _require_independent(metric, batch)
    return _text_of(states_of(metric, batch))


def _text_of(states: SetStates) -> str:
    return json.dumps({name: state.to_json() for name, state in states.items()}, sort_keys=True)


def _require_independent(metric: Metric, batch: EvalBatch) -> None:
    """Raise `EvaluationError` for a metric that reads its states: these hold the batches of one worker only.

    The batch is added to the states that it would leave behind if it came 1, 2, 4, … times, and each half to the states
    of the other one.
    """
    before = change = states_of(metric, batch)
    if not all(isinstance(state, ExactSum | MinMax) for state in change.values()):
        return

    def merged(*several: SetStates) -> SetStates:
        total = metric.states(EvalSetInfo(_examples_in(batch), Shard(0, 1)))
        for states in several:
            for name, state in total.items():
                state.merge(states[name])
        return total

    for _ in range(_DOUBLINGS):
        after = merged(before)
        metric.add(after, batch)
        _require_same(metric, after, merged(before, change))
        before = merged(before, before)
    places = halves_of(_examples_in(batch))
    if places is None or metric_depends_on_batches(metric, batch) is None:
        return
    try:
        for halves in permutations([_part(batch, place) for place in places]):
            _require_same(metric, states_of(metric, *halves), merged(*(states_of(metric, half) for half in halves)))
    except EvaluationError:
        raise
    except Exception:  # noqa: BLE001 - a half may lack a class
        return


def _require_same(metric: Metric, after: SetStates, expected: SetStates) -> None:
    for name, state in expected.items():
        values, others = _values_of(state), _values_of(after[name])
        if values is None or others is None or not np.array_equal(values[""], others[""], equal_nan=True):
            raise task_error(
                f"metric {metric.name!r} adds something else for a batch after others: it keeps something from batch "
                f"to batch, or reads its states, which hold the batches of one worker only. Add what the batch alone "
                f"says, and choose in compute"
            )


def states_differ(metric: Metric, one: SetStates, other: SetStates) -> bool:
    """Return whether states of a metric differ by more than the rounding of floats that were added to them."""
    compared = [_state_differs(metric, one, other, name) for name in one]
    if any(compared):
        return True
    return None in compared and _numbers_differ(metric, one, other)


def _part(batch: EvalBatch, half: slice) -> EvalBatch:
    weights = None if batch.weights is None else batch.weights[half]
    size = len(range(_examples_in(batch))[half])
    return replace(batch, y=batch.y[half], predictions=batch.predictions[half], weights=weights, examples=size)


def _examples_in(batch: EvalBatch) -> int:
    return len(batch.predictions) if batch.examples is None else batch.examples


def _state_differs(metric: Metric, one: SetStates, other: SetStates, state: str) -> bool | None:
    """Return whether two states differ by more than rounding; None for a kind of state that only its metric reads.

    A sum by name that the numbers do not depend on does not matter, such as a count of batches.
    """
    values, others = _values_of(one[state]), _values_of(other[state])
    if values is None or others is None:
        return None
    if values.keys() != others.keys():
        return True
    unlike = [name for name, array in values.items() if _are_unlike(array, others[name])]
    return any(_is_read(metric, states, state, name) for name in unlike for states in (one, other))


def _is_read(metric: Metric, states: SetStates, state: str, name: str) -> bool:
    """Return whether the numbers of a metric need a sum of this name; True for states that are a single sum."""
    sums = states[state]
    if not isinstance(sums, NamedSums):
        return True
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            lacking: SetStates = {**states, state: sums.without(name)}
            numbers, without = (_numbers_of(metric.compute(each)) for each in (states, lacking))
    except Exception:  # noqa: BLE001 - code of a user, which misses the sum
        return True
    return repr(numbers) != repr(without)


def _are_unlike(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return True
    return not are_near(one[None], other[None])  # each element is a column


def _values_of(state: State) -> dict[str, NDArray[Any]] | None:
    if isinstance(state, ExactSum):
        return {"": state.integers() if state.is_integral else state.round()}
    if isinstance(state, NamedSums):
        return state.totals()
    if isinstance(state, MinMax | PerExampleValues):
        return {"": state.values()}
    return None


def _numbers_differ(metric: Metric, one: SetStates, other: SetStates) -> bool:
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            numbers, others = (_numbers_of(metric.compute(states)) for states in (one, other))
    except Exception:  # noqa: BLE001 - a part of the data may not be enough for a number
        return False
    return numbers.keys() != others.keys() or not all(
        are_near(number, others[name]) for name, number in numbers.items()
    )


def _numbers_of(result: MetricResult) -> dict[tuple[str, str], float]:
    found = {(name, ""): float.fromhex(one.hex) for name, one in result.values.items()}
    for name, by_class in result.classes.items():
        found |= {(name, key): float.fromhex(one.hex) for key, one in by_class.items()}
    return found
