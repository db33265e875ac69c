"""Count the examples with NaN or infinite numbers by place, and locate the first one.

Imports numpy, never a framework. The counts of a rank are sent in two states of each eval set. So they need no further
collective, and take only two zeros if everything is finite.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.backend import States, Stream
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.states import ExactSum, MinMax, SetStates, exact_sum, state_of
from sidecar.protocol.records import Nonfinite

WEIGHT: Final = "weight"
PLACES: Final = ("input", "label", WEIGHT, "prediction")
"""The places where an example can have non-finite numbers: the parts of a batch in order, then the prediction."""

_COUNTS: Final = "nonfinite"
_FIRST: Final = "nonfinite_first"  # not the name of a state of a metric: these contain a slash
_NOWHERE: Final = np.iinfo(np.int64).max


class NonfiniteCounter:
    """Count the examples with non-finite numbers in the batches of one eval set on one rank.

    Attributes:
        counts: Number of such examples, by place.
        first: Numbers of the first such example's batch and of the example itself (2, places), from 0; the largest
            int64 if unknown.
        is_final: Whether later evaluations see the same data, so that they need not be counted again.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(len(PLACES), np.int64)
        self.first = np.full((2, len(PLACES)), _NOWHERE, np.int64)
        self.is_final = False

    def add(
        self, place: str, finite: Sequence[NDArray[np.bool_]], examples: int, batch: int, first: int | None
    ) -> None:
        """Count the examples of one batch. Call this in the order of the data.

        `place`: one of PLACES. `finite`: for each tensor of the place, which rows are finite; a tensor without a row
        for each example is ignored. `batch`, `first`: the numbers of the batch and of its first example in the whole
        eval set.
        """
        per_example = [rows for rows in finite if rows.shape == (examples,) and not rows.all()]
        if not per_example or (rows := np.flatnonzero(~np.logical_and.reduce(per_example))).size == 0:
            return
        column = PLACES.index(place)
        self.counts[column] += rows.size
        if first is not None:
            self.first[:, column] = np.minimum(self.first[:, column], (batch, first + rows[0]))


def states(shard: Shard, *counters: NonfiniteCounter) -> SetStates:
    """Return the counts of a rank as states, which are reduced with those of the metrics."""
    counts, first = ExactSum((len(PLACES),), "int64"), MinMax((2, len(PLACES)), "int64", "min", shard)
    for counter in counters:
        counts.add(counter.counts)
        if (counter.first != _NOWHERE).any():
            first.add(counter.first)
    return {_COUNTS: counts, _FIRST: first}


def totals(streams: Sequence[Stream], reduced: States) -> dict[str, dict[str, Nonfinite]]:
    """Return the counts of all ranks by eval set and place, without zeros.

    Raises `EvaluationError` (`nonfinite_input`) if an eval set refuses such examples. Predictions are never refused: a
    diverged model is a valid result.
    """
    totals_by_set = {stream.eval_set: dict(_totals_of(reduced[stream.eval_set])) for stream in streams}
    for stream in streams:
        for place, total in totals_by_set[stream.eval_set].items():
            if stream.refuses_nonfinite and place != "prediction":
                raise EvaluationError(
                    "nonfinite_input",
                    f"{total.describe(stream.eval_set, place)}, and EvalSet(nonfinite='refuse') allows none: fix the "
                    f"data or filter such examples out; if they mark missing inputs, set nonfinite='allow'",
                )
    return {eval_set: places for eval_set, places in totals_by_set.items() if places}


def _totals_of(states: SetStates) -> Iterator[tuple[str, Nonfinite]]:
    if _COUNTS not in states:  # a backend may not count such examples
        return
    firsts = state_of(states, _FIRST, MinMax)
    columns = zip(PLACES, exact_sum(states, _COUNTS).integers(), *firsts.values(), strict=True)
    for place, count, batch, example in columns:
        is_known = example != _NOWHERE
        if count:
            yield place, Nonfinite(int(count), int(batch) if is_known else None, int(example) if is_known else None)
