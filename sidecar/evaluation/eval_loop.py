"""Evaluate one eval set on one rank: own batches through the model, outputs into exact states.

The same for every framework: a `Run` computes one batch, an `Add` puts the outputs of several batches into states. This
loop counts examples, finds numbers that are not finite, hands over rows to save and reports progress.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.backend import Keep, Rows, Tick
from sidecar.evaluation.batch_buffer import Add, BatchBuffer
from sidecar.evaluation.data import nonfinite
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.reader import EvalSetReader
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.states import ExactSum, SetStates

EXAMPLES: Final = "examples"
"""The state that every eval set has in addition to those of its metrics: how many examples were evaluated."""


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """Hold the results that a framework computed for one batch.

    Attributes:
        arrays: Everything that the metrics need, always as many arrays in the same order.
        finite: Which rows (n,) of each array of predictions are finite.
        columns: What the task saves, by the name of the column; one row for each example.
    """

    arrays: list[NDArray[Any]]
    finite: Sequence[NDArray[np.bool_]]
    columns: Mapping[str, NDArray[Any]]


Run = Callable[[Batch, int, int | None], BatchOutput]
"""Compute one batch, given its number and the place of its first example; that is None if nobody knows either."""


def evaluate_set(
    reader: EvalSetReader,
    states: SetStates,
    *,
    run: Run,
    add: Add,
    finish: Callable[[], None],
    shard: Shard,
    tick: Tick,
    keep: Keep,
) -> SetStates:
    """Evaluate this rank's own batches of one eval set.

    Args:
        reader: The eval set.
        states: New states of the metrics; they are filled.
        run: Computes one batch.
        add: Adds the outputs of several batches to `states`.
        finish: Called once all outputs are in the states.
        shard: Which rank this is, of how many.
        tick: Called after every batch.
        keep: Called with the rows to save, if there are any.

    Returns:
        The states, and those that count examples and numbers that are not finite.
    """
    counted = 0
    pending, predicted = BatchBuffer(add), nonfinite.Finds()
    for number, first, batch in reader.own():
        output = run(batch, number, first)
        examples = reader.examples_in(batch)
        pending.add(output.arrays, first)
        counted += examples
        predicted.add("prediction", output.finite, examples, number, first)
        if output.columns:
            keep(reader.name, Rows(first, examples, output.columns))
        tick()
    pending.flush()
    finish()
    total = ExactSum((), "int64")
    total.add(np.int64(counted))
    return states | {EXAMPLES: total} | nonfinite.states(shard, reader.nonfinite, predicted)
