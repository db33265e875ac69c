"""Find numbers that depend on how examples are divided into batches: some batches are evaluated whole and in parts.

Three comparisons find them. The rows of predictions for the parts must be those for the whole batch, up to rounding.
The states of a metric must add up, given the same predictions. So must the values of a loss. A mean of batch means, or
a model that normalises by the batch, fails one of them.

Batches do not depend on the number of workers, so such a number is exact as well, and a note says how it depends on
batches. It is refused for an eval set whose batches do depend on the number of workers. A finding of one rank holds for
all ranks, so findings are summed in a state of their own. Imports numpy, never a framework.
"""

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.data.batch_source import Batch, Division
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError, task_error
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, Metric, MetricResult, runs_code_of_users
from sidecar.evaluation.states import ExactSum, NamedSums, PerExampleValues, SetStates, State, exact_sum
from sidecar.evaluation.states.min_max import MinMax

MODEL: Final = "\0model"
"""Stands among the names of metrics for the predictions."""

LABELS: Final = "\0labels"
"""Stands among the names of metrics for labels and weights that a step returns."""

UNTESTED: Final = "\0untested"
"""Stands among the names of metrics for "parts of a batch cannot be evaluated"."""

_STATE: Final = "by_batch"  # not the name of a state of a metric: these contain a slash
_SIZE: Final = "another batch size gives another number"
_NOTES: Final = {
    MODEL: f"the model's predictions for an example depend on the other examples of its batch; {_SIZE}",
    LABELS: f"labels or weights of an example depend on the other examples of its batch; {_SIZE}",
    UNTESTED: (
        "parts of a batch cannot be evaluated, so it is not known whether the numbers depend on the size of batches"
    ),
}
TOLERANCE: Final = 1e-4
"""The largest difference by rounding between float32 values of a batch and of its halves, relative to the largest
value."""

_DOUBLINGS: Final = 17  # of a first batch, to find metrics that read their states
_ENDS: Final = (5, 6)
_SMALL: Final = 32
"""Numbers of examples that are evaluated on their own, at the beginning and at the end of a batch; and that up to which
the halves of a batch cost little."""

_TOLD_APART: Final = 8  # examples at each end of a batch, at most
_OF_OTHER_SIZES: Final = (slice(0, 5), slice(0, 2), slice(2, 5))
_COARSE: Final = {"float16": 2.0**-10, "tfloat32": 2.0**-10, "bfloat16": 2.0**-7, "float8_e8m0fnu": 1.0} | {
    "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e5m2fnuz": 2.0**-2,
}  # distance of 1 to the next number
_ROUNDINGS: Final = 4  # of a coarse type, one after the other
_SHARED: Final = 1 / 16
"""The part of the tolerance that is relative to the largest value of all columns instead of the same column: a small
column may be a difference of large numbers."""


Divide = Callable[[Sequence[slice]], Sequence[tuple[Batch, int]]]
"""A function that returns parts of a batch with their sizes, given their places; none if it cannot be divided."""


class BatchDependence:
    """Remember what was found to depend on batches, by eval set, and add it to states that all ranks sum up.

    The findings of an evaluation hold for later ones: a later checkpoint may hide them.

    `names`: all metrics that may depend on the batches. `MODEL`, `LABELS` and `UNTESTED` are added.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = (*dict.fromkeys(names), MODEL, LABELS, UNTESTED)
        self._found: dict[str, set[str]] = {}

    def add(self, eval_set: str, names: Iterable[str]) -> None:
        """Remember that these numbers of an eval set depend on its batches."""
        self._found.setdefault(eval_set, set()).update(names)

    def states(self) -> SetStates:
        """Return the empty state that sums the findings of all ranks."""
        return {_STATE: ExactSum((len(self._names),), "int64")}

    def add_to(self, states: SetStates, eval_set: str) -> None:
        """Add the findings of this rank to the state. Call it once in each evaluation."""
        found = self._found.get(eval_set, set())
        exact_sum(states, _STATE).add(np.array([name in found for name in self._names], np.int64))

    def metrics(self, states: SetStates) -> list[str]:
        """Return the names of the metrics that depend on batches according to at least one rank."""
        return [name for name in self._found_by_any(states) if name not in _NOTES]

    def notes(self, states: SetStates, metrics: Sequence[str] | None = None) -> tuple[str, ...]:
        """Return notes for the reader of the result, from the states of all ranks.

        `metrics` are the names to show, if not those of `metrics`.
        """
        found = self._found_by_any(states)
        metrics = self.metrics(states) if metrics is None else metrics
        notes = [_NOTES[name] for name in found if name in _NOTES]
        if metrics:
            verb = "depends" if len(metrics) == 1 else "depend"
            notes.insert(0, f"{', '.join(metrics)} {verb} on how examples are divided into batches; {_SIZE}")
        return tuple(notes)

    def refuse(self, states: SetStates, eval_set: str, sharding: Division) -> None:
        """Raise `EvaluationError` if a number depends on batches that depend on the number of workers."""
        found = [name for name in self._found_by_any(states) if name != UNTESTED]
        if not found or sharding not in ("own", "files"):
            return
        which = (
            "predictions"
            if MODEL in found
            else "labels or weights"
            if LABELS in found
            else ", ".join(repr(name.rpartition(":")[2]) for name in found)
        )
        reason = "divides itself" if sharding == "own" else "is divided by files"
        raise task_error(
            f"{which} of eval set {eval_set!r} would depend on how examples are divided into batches, and the set "
            f"{reason}, so that its batches depend on the number of workers: let its source yield all examples, or "
            f"compute a value for each example from this example alone"
        )

    def _found_by_any(self, states: SetStates) -> list[str]:
        if _STATE not in states:  # the findings of an evaluation that has not ended
            return []
        counts = exact_sum(states, _STATE).integers()
        return [name for name, count in zip(self._names, counts, strict=True) if count]


# -- batches and rows --------------------------------------------------------------------------------------------------


def halves_of(examples: int) -> tuple[slice, slice] | None:
    """Return the places of the first and the second half of a batch; None if it has a single example.

    The first half has an odd number of examples: neighbours that depend on each other are parted, such as pairs.
    """
    middle = (examples - 1) // 2 | 1 if examples > 1 else 0
    return (slice(0, middle), slice(middle, examples)) if middle else None


def ends_of(examples: int) -> tuple[slice, slice] | None:
    """Return the places of some examples at both ends of a batch; its halves if it is small, None for a single example.

    The first have an odd number, as in `halves_of`.
    """
    first, last = _ENDS
    if examples <= _SMALL:
        return halves_of(examples)
    return slice(0, first), slice(examples - last, examples)


def told_apart(examples: int) -> tuple[slice, slice, slice]:
    """Return the places of some examples at the beginning of a batch, then those of a division into two parts.

    The second part has as many examples as the first slice: what is kept by the number of examples is wrong for it.
    """
    size = min(_TOLD_APART, examples // 2)
    return slice(0, size), slice(0, examples - size), slice(examples - size, examples)


def kept_by_size(what: str) -> EvaluationError:
    """Return the error for a function of a task that returns what it computed for other examples."""
    return task_error(
        f"{what} gives the last examples of a batch what it computed for as many others: it keeps something by the "
        f"shape or the id of its arguments, such as in a dict. Compute it in each call"
    )


def tolerance_for(types: Iterable[Any]) -> float:
    """Return the relative tolerance for values that were computed in the coarsest of these types, given by name."""
    return max([TOLERANCE, *(_ROUNDINGS * _COARSE.get(str(each).rpartition(".")[2], 0.0) for each in types)])


def have_alike_rows(whole: Sequence[NDArray[Any]], halves: Sequence[Sequence[NDArray[Any]]]) -> bool:
    """Return whether arrays (n, …) of the halves can be compared with those of the whole batch, row by row."""
    return all(
        len(half) == len(whole) and all(one.shape[1:] == two.shape[1:] for one, two in zip(whole, half, strict=True))
        for half in halves
    ) and all(len(array) == sum(map(len, parts)) for array, *parts in zip(whole, *halves, strict=True))


def rows_at(arrays: Sequence[NDArray[Any]], places: Sequence[slice], examples: int) -> list[NDArray[Any]] | None:
    """Return the rows of arrays (n, …) at these places of a batch; None if their rows are not its examples.

    The halves of a batch have all rows.
    """
    if places == halves_of(examples):
        return list(arrays)
    if any(len(array) != examples for array in arrays):
        return None
    return [np.concatenate([array[place] for place in places]) for array in arrays]


def rows_differ(
    whole: Sequence[NDArray[Any]], halves: Sequence[Sequence[NDArray[Any]]], tolerance: float = TOLERANCE
) -> bool:
    """Return whether rows of the halves differ from those of the whole batch by more than rounding, or in number."""
    if not have_alike_rows(whole, halves):
        return True
    return any(
        not _are_near(array, np.concatenate(parts), tolerance) for array, *parts in zip(whole, *halves, strict=True)
    )


def is_telling(arrays: Sequence[NDArray[Any]]) -> bool:
    """Return whether rows differ. A model that predicts the same for all examples, such as a new one, hides a lot."""
    return any(array.dtype.hasobject or (len(array) > 0 and bool((array != array[:1]).any())) for array in arrays)


# -- metrics and their states ------------------------------------------------------------------------------------------


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
            if _text_of(states_of(metric, begin)) != _text_of(states_of(metric, end)):
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


def are_near(one: Any, other: Any, tolerance: float = TOLERANCE) -> bool:
    """Return whether numbers or arrays differ by at most the tolerance times the largest of them."""
    return _are_near(np.atleast_1d(np.asarray(one)), np.atleast_1d(np.asarray(other)), tolerance)


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
    return not _are_near(one[None], other[None], TOLERANCE)  # each element is a column


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


def _are_near(one: NDArray[Any], other: NDArray[Any], tolerance: float) -> bool:
    """Return whether two arrays (n, …) of one shape differ by rounding only. Integers and texts must be equal."""
    if one.shape != other.shape:
        return False
    if one.dtype.hasobject or other.dtype.hasobject:
        return all(_are_like(*each, tolerance) for each in zip(one.ravel(), other.ravel(), strict=True))
    if one.dtype.kind not in "fcV" and other.dtype.kind not in "fcV":
        return bool((one == other).all())
    kind: type[Any] = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
    first, second = one.astype(kind), other.astype(kind)
    with np.errstate(all="ignore"):
        same = (first == second) | (np.isnan(first) & np.isnan(second))
        magnitudes = np.maximum(np.abs(first), np.abs(second))
        magnitudes[~np.isfinite(magnitudes)] = 0.0
        by_column = magnitudes.max(axis=0, initial=0.0)
        allowed = tolerance * (by_column + _SHARED * by_column.max(initial=0.0))
        return bool((same | (np.abs(first - second) <= allowed)).all())


def _are_like(one: Any, other: Any, tolerance: float) -> bool:
    """Return whether two objects, such as texts, or arrays of the boxes in an image, differ by rounding only."""
    if isinstance(one, np.ndarray | np.generic | float) or isinstance(other, np.ndarray | np.generic | float):
        return are_near(one, other, tolerance)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_are_like(one[name], other[name], tolerance) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_are_like(*each, tolerance) for each in zip(one, other, strict=True))
    if isinstance(one, str | bytes | bool | int):
        return bool(one == other)
    return type(one) is type(other)
