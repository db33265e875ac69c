"""Estimate how uncertain numbers are that follow from sums, from the sums of random groups of examples.

The numbers without each group in turn show how much they vary: the jackknife with deleted groups. The group of an
example follows from its place in the data, or from its key in a set with groups, so the bits do not depend on workers
or batches. Imports numpy only.
"""

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.intervals import FEWEST, skewed, student_t
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult
from sidecar.evaluation.row_comparison import are_near
from sidecar.evaluation.states import ExactSum, NamedSums
from sidecar.protocol.records import Value

FEWEST_EXAMPLES: Final = 100
"""The fewest examples of a set whose numbers have such an interval."""

MOST_SKEWNESS: Final = 0.24
"""The largest skewness of the sum of all groups that counts, but for areas under curves of scores.

That of few errors is larger, and 99 % of the intervals would contain the truth.
"""

_GROUPS: Final = 128
_EXAMPLES: Final = 1000  # about so many take part: each may need a call of a function
_MOST_NUMBERS: Final = 256  # of the sums of a group
_SHARE: Final = 0.05  # of an evaluation that the calls for groups may take
_SECONDS: Final = 0.1  # that they may always take
_COUNT: Final = "examples of each group"

_REASONS: Final = (
    "parts of batches would take its function more than 5 % of the evaluation",
    f"it has more than {_MOST_NUMBERS} sums",
    "its function does not take parts of batches",
)
_TOO_SLOW, _TOO_LARGE, _FAILS = range(len(_REASONS))


class RandomGroups(NamedSums):
    """Keep the sums of random groups of examples: the arrays (groups, …) of each sum, by name.

    Args:
        shard: This rank, and the number of ranks.
        info: The eval set, whose number of examples is known. None: the sums are read only.
        now: Returns seconds of a monotonic clock.
        spent: Returns the seconds of the processor that this thread has used.
    """

    def __init__(
        self,
        shard: Shard,
        info: EvalSetInfo | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        super().__init__(shard)
        self._info = EvalSetInfo(0, shard) if info is None else info
        self._now, self._spent_now = now, spent
        self._began, self._spent = now(), 0.0

    def add_parts(
        self, places: NDArray[np.intp], sums_of: Callable[[NDArray[np.intp]], Mapping[str, Any]], why: ExactSum
    ) -> None:
        """Add the examples of a batch with these numbers in the whole set (n,).

        `sums_of`: returns the sums of the rows of the batch with these numbers. `why`: counts the reasons why there are
        no intervals; after the first one nothing is added.
        """
        if why.used().any():
            return
        began = self._spent_now()
        groups = groups_of(places, self._info, _GROUPS)
        found: dict[str, NDArray[Any]] = {_COUNT: np.zeros(_GROUPS, np.int64)}
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # a part may lack a class
            try:
                for group in np.unique(groups[groups >= 0]).tolist():
                    rows = np.flatnonzero(groups == group)
                    sums = {name: np.asarray(one) for name, one in sums_of(rows).items()}
                    if sum(one.size for one in sums.values()) > _MOST_NUMBERS:
                        why.add(_one(_TOO_LARGE))
                        return
                    for name, one in (sums | {_COUNT: np.array(len(rows))}).items():
                        found.setdefault(name, np.zeros((_GROUPS, *one.shape), _wide(one)))[group] = one
                if len(found) > 1:
                    self.add(found)
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001 - code of a user, which took the whole batch
                why.add(_one(_FAILS))
                return
        self._spent += self._spent_now() - began
        if self._spent > _SECONDS + _SHARE * (self._now() - self._began):
            why.add(_one(_TOO_SLOW))

    def with_intervals(
        self, metric: str, result: MetricResult, why: ExactSum, numbers_of: Callable[[dict[str, Any]], MetricResult]
    ) -> MetricResult:
        """Return the result of a metric with intervals for its numbers that lack one, or a note with the reason.

        The variance is that of J. Shao and C. F. J. Wu, "A general theory for jackknife variance estimation", Annals of
        Statistics 17 (1989) 1176-1197; the interval is that of `skewed`, with the differences that groups make.
        `numbers_of`: returns the numbers for totals by name.
        """
        for reason, count in zip(_REASONS, why.integers().tolist(), strict=True):
            if count:
                return replace(result, notes=(*result.notes, f"metric {metric!r} has no 95 % interval: {reason}"))
        sums = self.totals()
        sizes = sums.pop(_COUNT, np.zeros(0))
        used = np.flatnonzero(sizes)
        if len(used) < FEWEST:
            return result
        totals = {name: one.sum(axis=0) for name, one in sums.items()}

        def numbers(totals: Mapping[str, Any]) -> dict[str, float]:
            found = numbers_of({name: one if one.ndim else one.item() for name, one in totals.items()})
            return {name: float.fromhex(number.hex) for name, number in found.values.items()}

        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                others = [numbers({name: totals[name] - one[group] for name, one in sums.items()}) for group in used]
                whole, twice = (numbers({name: one * times for name, one in totals.items()}) for times in (1, 2))
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - code of a user, for a part of the data
            return result
        values = dict(result.values)
        for name, number in values.items():
            if number.value is not None and number.lower is None and all(name in each for each in (*others, twice)):
                without = np.array([each[name] for each in others])
                of_sizes = sizes[used].astype(np.float64)
                values[name] = with_interval(
                    number, whole[name], twice[name], without, of_sizes, self._info.examples or 0
                )
        return replace(result, values=values)


def groups_of(places: NDArray[np.intp], info: EvalSetInfo, count: int) -> NDArray[np.int64]:
    """Return the random group of each example, of so many groups; -1 for those that take no part."""
    numbers = places if info.groups is None else info.groups[places]
    hashed = _hashed(numbers.astype(np.uint64))
    groups = np.asarray(hashed % np.uint64(count), np.int64)
    takes_part = (hashed >> np.uint64(32)) * float(info.examples or 0) < _EXAMPLES * 2.0**32
    groups[~takes_part] = -1
    return groups


def new_reasons() -> ExactSum:
    """Return a new state that counts the reasons why there are no intervals."""
    return ExactSum((len(_REASONS),), "int64")


def _one(reason: int) -> NDArray[np.int64]:
    return np.asarray(np.arange(len(_REASONS)) == reason, np.int64)


def _wide(array: NDArray[Any]) -> type[np.int64 | np.float64]:
    return np.int64 if array.dtype.kind in "biu" else np.float64


def with_interval(
    number: Value,
    whole: float,
    twice: float,
    without: NDArray[np.float64],
    sizes: NDArray[np.float64],
    examples: int,
    most_bias: float = math.inf,
    rounding: float = 1e-12,
    most_skewness: float = MOST_SKEWNESS,
) -> Value:
    """Return a number of a set of so many examples with its interval.

    There is none for a total, which doubles if each example counts twice, for a number that is not one of sums, and for
    one that few examples bias, as the jackknife of M. H. Quenouille, Biometrika 43 (1956) 353-360, shows.

    Args:
        number: The number of the whole set.
        whole: The same of all groups, which have all examples or some.
        twice: The same if each example counts twice.
        without: The numbers without each group.
        sizes: The number of examples of each group.
        examples: That of the set.
        most_bias: The largest bias of the number, in standard errors.
        rounding: The relative error of the numbers: a standard error that is not larger says nothing.
        most_skewness: The largest skewness of the sum of all groups that counts.
    """
    count = float(sizes.sum())
    moved = (whole - without) * (1 - sizes / count)
    moved -= moved.mean()
    squares = math.fsum((moved**2).tolist())
    if not (math.isfinite(squares) and squares > 0 and number.value is not None):
        return number
    error = math.sqrt(squares * len(sizes) / (len(sizes) - 1))
    if error <= rounding * abs(whole):
        return number
    bias = (len(sizes) - 1) * (float(without.mean()) - whole) * count / examples
    if abs(bias) > error * math.sqrt(count / examples) * most_bias:
        return number
    is_whole = are_near(whole, number.value) if count == examples else abs(whole - number.value) <= _FAR * error
    if not is_whole or abs(twice - whole) > error * _SMALL:
        return number
    skewness = math.fsum((moved**3).tolist()) / len(sizes) / (squares / len(sizes)) ** 1.5
    most, t = most_skewness * math.sqrt(len(sizes)), student_t(len(sizes) - 1)
    skewness = max(-most, min(most, skewness))
    lower, upper = skewed(number.value, error * math.sqrt(count / examples), skewness, len(sizes), t)
    return replace(number, lower=lower, upper=upper)


_FAR: Final = 5.0
_SMALL: Final = 0.1


def _hashed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64 bits for each number that look random.

    It is the generator of G. L. Steele, D. Lea and C. H. Flood, "Fast splittable pseudorandom number generators",
    OOPSLA 2014.
    """
    mixed = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), np.uint64)
