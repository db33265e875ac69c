"""Count the examples that hold NaN or infinite numbers by where they hold them, and locate the first.

Imports numpy, never a framework. The findings of a rank travel in two states of each eval set, so they cost no
collective, and only two zeros if all is finite.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.backend import States, Stream
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.states import ExactSum, MinMax, SetStates, exact_sum
from sidecar.records import Nonfinite

PLACES: Final = ("input", "label", "weight", "prediction")
"""The places where an example can hold non-finite numbers: the parts of a batch in their order, then the prediction."""

_COUNTS: Final = "nonfinite"
_FIRST: Final = "nonfinite_first"  # states of metrics have a slash in their names
_NOWHERE: Final = np.iinfo(np.int64).max


class Finds:
    """Count the non-finite examples that one rank found in the batches of one eval set.

    Attributes:
        counts: Examples, by place.
        first: Number of the first one's batch and its own (2, places), counted from 0; the largest int64 if unknown.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(len(PLACES), np.int64)
        self.first = np.full((2, len(PLACES)), _NOWHERE, np.int64)

    def add(
        self, place: str, finite: Sequence[NDArray[np.bool_]], examples: int, batch: int, first: int | None
    ) -> None:
        """Look at one batch; batches come in the order of the data.

        Args:
            place: One of PLACES.
            finite: Of each tensor there, which rows are finite. One that has not a row for each example says nothing
                about examples, and is passed over.
            examples: How many the batch holds.
            batch: Its number in the whole eval set.
            first: Place of its first example in the whole eval set; None where that is not known.
        """
        of_examples = [rows for rows in finite if rows.shape == (examples,) and not rows.all()]
        if not of_examples or (rows := np.flatnonzero(~np.logical_and.reduce(of_examples))).size == 0:
            return
        column = PLACES.index(place)
        self.counts[column] += rows.size
        if first is not None:
            self.first[:, column] = np.minimum(self.first[:, column], (batch, first + rows[0]))


def states(shard: Shard, *finds: Finds) -> SetStates:
    """Return the states in which the findings of a rank travel."""
    counts, first = ExactSum((len(PLACES),), "int64"), MinMax((2, len(PLACES)), "int64", "min", shard)
    for of_part in finds:
        counts.add(of_part.counts)
        if (of_part.first != _NOWHERE).any():
            first.add(of_part.first)
    return {_COUNTS: counts, _FIRST: first}


def totals(streams: Sequence[Stream], reduced: States) -> dict[str, dict[str, Nonfinite]]:
    """Return the findings of all ranks by eval set and place, where there are any.

    Raises `EvaluationError` (`nonfinite_input`) for what an eval set refuses; predictions never are: a diverged model
    is a result.
    """
    totals_by_set = {stream.eval_set: dict(_found(reduced[stream.eval_set])) for stream in streams}
    for stream in streams:
        for place, total in totals_by_set[stream.eval_set].items():
            if stream.refuses_nonfinite and place != "prediction":
                raise EvaluationError(
                    "nonfinite_input",
                    f"{total.told(stream.eval_set, place)}, and EvalSet(nonfinite='refuse') allows none: fix the data "
                    f"or filter such examples out; where they stand for values that are missing, nonfinite='count'",
                )
    return {eval_set: places for eval_set, places in totals_by_set.items() if places}


def _found(of_set: SetStates) -> Iterator[tuple[str, Nonfinite]]:
    if _COUNTS not in of_set:  # of a framework that does not look
        return
    firsts = of_set[_FIRST]
    assert isinstance(firsts, MinMax)
    columns = zip(PLACES, exact_sum(of_set, _COUNTS).integers(), *firsts.values(), strict=True)
    for place, count, batch, example in columns:
        is_known = example != _NOWHERE
        if count:
            yield place, Nonfinite(int(count), int(batch) if is_known else None, int(example) if is_known else None)
