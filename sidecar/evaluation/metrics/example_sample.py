"""Estimate how uncertain any number of labels and predictions is, from about 1,000 of the examples.

Metrics of frameworks are computed again for this sample without each of its random groups. An example is in the sample,
and in its group, by a hash of its place in the data, or of its key in a set with groups. So the bits do not depend on
workers. Imports numpy, never a framework.
"""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.intervals import FEWEST
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult
from sidecar.evaluation.metrics.random_groups import FEWEST_EXAMPLES, MOST_SKEWNESS, groups_of, with_interval
from sidecar.evaluation.states import ExactSum, GatheredBatches, SetStates, exact_sum
from sidecar.evaluation.states.array_bytes import decode, encode

Numbers = Callable[[Sequence[NDArray[Any]], int], Mapping[str, float]]
"""A function that returns the numbers for arrays with a row for each example, each of which counts so many times."""

MOST_BYTES_OF_ROW: Final = 5 << 10
"""The most bytes of the row of an example in an array for a sample."""

_SAMPLE: Final = "sample"
_SLOW: Final = "slow intervals"
_GROUPS: Final = 40
_MOST_BYTES: Final = 2 * MOST_BYTES_OF_ROW  # of an example
_MOST_BIAS: Final = 1 / 3  # in standard errors: of such intervals nearly 94 % contain the truth
_ROUNDING: Final = 1e-6  # relative: frameworks compute in float32
_BYTES: Final = 32 << 20  # of a sample with its heads
_SHARE: Final = 0.05  # of an evaluation that the intervals of a set may take
_SECONDS: Final = 0.1  # that they may always take


class _Sample(GatheredBatches):
    """Keep the places and arrays of the examples in the sample. `info`: None if they are read only."""

    def __init__(self, shard: Shard, info: EvalSetInfo | None = None) -> None:
        super().__init__(shard, _BYTES)
        self.info = info


def new_sample(info: EvalSetInfo, names: Sequence[str]) -> SetStates:
    """Return new states of a sample for metrics with these names; nothing if the set has too few examples for one."""
    if info.intervals is False or not names or (info.examples or 0) < FEWEST_EXAMPLES:
        return {}
    return {_SAMPLE: _Sample(info.shard, info), _SLOW: ExactSum((len(names),), "int64")}


def has_sample(states: SetStates) -> bool:
    """Return whether examples are added to a sample, so that their arrays are needed."""
    return _SAMPLE in states


def add_to_sample(states: SetStates, first: int | None, arrays: Sequence[NDArray[Any]]) -> None:
    """Add the examples of a batch that are in the sample, given arrays with a row for each of its examples."""
    sample = states.get(_SAMPLE)
    if not isinstance(sample, _Sample) or sample.info is None or first is None or not len(arrays[0]):
        return
    places = np.arange(first, first + len(arrays[0]))
    chosen = groups_of(places, sample.info, _GROUPS) >= 0
    if chosen.any():
        if sum(array.nbytes for array in arrays) > len(places) * _MOST_BYTES:
            return
        sample.put(first, encode([[places[chosen]], *([array[chosen]] for array in arrays)]))


def require_fast(
    states: SetStates,
    metrics: Mapping[str, Numbers],
    seconds: float,
    *,
    spent: Callable[[], float] = time.thread_time,  # returns the seconds of the processor that were used
) -> None:
    """Note which metrics would take more than 5 % of these seconds of an evaluation, or 0.1 s.

    One computation of each, for the examples of this rank, is measured, after one of two examples, which may trace it.
    Nothing happens if `Task(intervals=True)` asks for all intervals.
    """
    sample = states.get(_SAMPLE)
    if not isinstance(sample, _Sample) or sample.info is None or sample.info.intervals:
        return
    read, planned = _read(sample), 0.0
    for number, numbers_of in enumerate(metrics.values()):
        if read is None:
            return
        _numbers(numbers_of, [array[:2] for array in read[1]], 1)
        began = spent()
        _numbers(numbers_of, read[1], 1)
        needed = (spent() - began) * (_GROUPS + 2)
        if planned + needed > _SECONDS + _SHARE * seconds:
            exact_sum(states, _SLOW).add((np.arange(len(metrics)) == number).astype(np.int64))
        else:
            planned += needed


def with_intervals(
    result: MetricResult, states: SetStates, metrics: Mapping[str, Numbers], name: str, *, is_area: bool = False
) -> MetricResult:
    """Return the result of the metric of this name with intervals for its numbers that lack one.

    `metrics`: all that share the sample, in the order of `new_sample`. Numbers without an interval: those that change
    if each example counts twice, that the sample does not have nearly, and that few examples bias by more than a third
    of the standard error. There is none if one of two labels is rare: less than 93 % would contain the truth.
    `is_area`: whether it is one under a curve of scores, in which no prediction is wrong: all of its skewness counts.
    """
    sample = states.get(_SAMPLE)
    if not isinstance(sample, _Sample) or sample.info is None or name not in metrics:
        return result
    if exact_sum(states, _SLOW).integers()[list(metrics).index(name)]:
        note = f"metric {name!r} has no 95 % interval, which would take more than 5 % of the evaluation"
        return replace(result, notes=(*result.notes, f"{note}: Task(intervals=True) makes it"))
    if (read := _read(sample)) is None:
        return result
    places, arrays = read
    groups = groups_of(places, sample.info, _GROUPS)
    used, sizes = np.unique(groups, return_counts=True)
    if len(used) < FEWEST or len(places) < FEWEST_EXAMPLES or _has_a_rare_label(arrays[0]):
        return result
    numbers_of = metrics[name]
    whole, twice = (_numbers(numbers_of, arrays, times) for times in (1, 2))
    others = [_numbers(numbers_of, [array[groups != group] for array in arrays], 1) for group in used]
    values, examples = dict(result.values), sample.info.examples or 0
    for key, number in values.items():
        if number.value is None or number.lower is not None or any(key not in each for each in (whole, twice, *others)):
            continue
        without = np.array([each[key] for each in others])
        of_groups = sizes.astype(np.float64)
        values[key] = with_interval(
            number,
            whole[key],
            twice[key],
            without,
            of_groups,
            examples,
            most_bias=_MOST_BIAS,
            rounding=_ROUNDING,
            most_skewness=math.inf if is_area else MOST_SKEWNESS,
        )
    return replace(result, values=values)


def _read(sample: _Sample) -> tuple[NDArray[np.intp], list[NDArray[Any]]] | None:
    """Return places and arrays of the sample in the order of the data; None if it is empty or rows are not alike."""
    batches = [[array for (array,) in decode(content)] for content in sample.contents()]
    if len({tuple((array.dtype, array.shape[1:]) for array in batch) for batch in batches}) != 1:
        return None
    places, *arrays = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return places, arrays


def _has_a_rare_label(labels: NDArray[Any]) -> bool:
    """Return whether there are two labels, and few examples have one of them."""
    counts = np.unique(labels, return_counts=True)[1]
    return len(counts) == 2 and counts.min() < FEWEST  # noqa: PLR2004 - yes and no


def _numbers(numbers_of: Numbers, arrays: Sequence[NDArray[Any]], times: int) -> Mapping[str, float]:
    """Return the numbers; none if the metric fails for a part of the data, which may lack a class."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return numbers_of(arrays, times)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - code of a library or a user, which took whole batches
        return {}
