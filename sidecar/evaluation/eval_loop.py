"""Evaluate one eval set on one rank: run the batches of the rank, and add the outputs to exact states.

The loop is the same for every framework: a `Run` computes one batch, an `Add` adds the outputs of several batches to
states; a `BatchBuffer` gathers them until then. The loop counts examples, finds numbers that are not finite, passes on
rows to save and reports progress.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.backend import Rows, SaveRows, Tick
from sidecar.evaluation.data import nonfinite
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.reader import EvalSetReader
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.data.slice_table import SliceTable
from sidecar.evaluation.finished_batches import FinishedBatches, Place, merged_into
from sidecar.evaluation.metrics import sliced
from sidecar.evaluation.metrics.foreign import conclude
from sidecar.evaluation.states import ExactSum, SetStates

EXAMPLES: Final = "examples"
"""Name of the state that counts the evaluated examples. Every eval set has it, in addition to those of its metrics."""
LEFT_OUT: Final = "examples left out"
"""Name of a state that counts examples of the data that the user's own code leaves out of its batches. A backend may
have it."""


_BATCHES: Final = 64  # more batches would not save more time
_AHEAD: Final = 2  # batches that are computed, or wait for that, while the output of the one before is taken
_BYTES: Final = 1 << 20  # larger outputs, such as images, are added batch by batch: copies would cost more


Add = Callable[[list[list[NDArray[Any]]], Sequence[int | None]], None]
"""A function that takes several batches: for each output a list of one array per batch, and the numbers of the first
examples of the batches."""


class BatchBuffer:
    """Gather the outputs of batches, and pass several at once to `add`."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self._batches: list[list[NDArray[Any]]] = []
        self._firsts: list[int | None] = []
        self._bytes = 0

    def add(self, outputs: list[NDArray[Any]], first: int | None) -> None:
        """Gather the outputs of one batch; pass all outputs on if the buffer is full."""
        self._batches.append(outputs)
        self._firsts.append(first)
        self._bytes += sum(array.nbytes for array in outputs)
        if len(self._firsts) == _BATCHES or self._bytes >= _BYTES:
            self.flush()

    def flush(self) -> None:
        """Pass on the gathered outputs."""
        if not self._firsts:
            return
        by_output = [list(arrays) for arrays in zip(*self._batches, strict=True)]
        firsts = self._firsts
        self._batches, self._firsts, self._bytes = [], [], 0
        self._add(by_output, firsts)


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """The results that a framework computed for one batch.

    Attributes:
        arrays: Arrays for the metrics, in the same number and order for every batch.
        finite: For each array of predictions, whether its rows (n,) are finite.
        columns: Columns that the task saves, by name; one row for each example.
        in_turn: Inputs of the metrics that are updated in turn, batch by batch.
    """

    arrays: list[NDArray[Any]]
    finite: Sequence[NDArray[np.bool_]]
    columns: Mapping[str, NDArray[Any]]
    in_turn: Any = None


Run = Callable[[Batch, int, int | None], BatchOutput]
"""A function that computes one batch, given its number and the number of its first example in the eval set. The
latter is None if both are unknown."""


def computed_in_order(
    own: Iterable[Place], run: Run, at_once: Executor | None
) -> Iterator[tuple[Place, Callable[[], BatchOutput]]]:
    """Yield the batches in order, each with a function that returns its output.

    The threads of `at_once` compute the next batches meanwhile; None: the function itself computes its batch.
    """
    begun: deque[tuple[Place, Future[BatchOutput]]] = deque()
    try:
        for number, first, batch in own:
            if at_once is None:
                yield (number, first, batch), partial(run, batch, number, first)
                continue
            begun.append(((number, first, batch), at_once.submit(run, batch, number, first)))
            if len(begun) > _AHEAD:
                place, computing = begun.popleft()
                yield place, computing.result
        while begun:
            place, computing = begun.popleft()
            yield place, computing.result
    finally:
        wait([computing for _, computing in begun])  # after an error nothing may go on in another thread


class BatchObserver(Protocol):
    """Follow an evaluation from batch to batch, as callbacks of Keras do."""

    def begin(self) -> None:
        """Handle a batch that is about to be computed."""

    def end(self, states: Callable[[], SetStates]) -> None:
        """Handle a batch that was computed. `states` returns the states of the metrics up to this batch."""


@dataclass(slots=True)
class _Counted:
    """Count the examples of this rank, also by slice, and the predictions that are not finite."""

    shard: Shard
    slices: SliceTable | None
    places: list[NDArray[np.intp]] = field(default_factory=list)
    examples: int = 0
    predicted: nonfinite.NonfiniteCounter = field(default_factory=nonfinite.NonfiniteCounter)

    def states(self, *others: nonfinite.NonfiniteCounter) -> SetStates:
        """Return the counts as states, with what other counters found."""
        total = ExactSum((), "int64")
        total.add(np.int64(self.examples))
        by_slice = {} if self.slices is None else {sliced.BY_SLICE: sliced.new_counts(self.shard)}
        sliced.count(by_slice, self.slices, self.places)
        return by_slice | {EXAMPLES: total} | nonfinite.states(self.shard, *others, self.predicted)


def evaluate_set(
    reader: EvalSetReader,
    states: SetStates,
    *,
    run: Run,
    add: Add,
    finish: Callable[[], None],
    shard: Shard,
    tick: Tick,
    keep: SaveRows,
    observer: BatchObserver | None = None,
    update_in_turn: Callable[[Any], None] | None = None,
    taken: SetStates | None = None,
    finished: FinishedBatches | None = None,
    at_once: Executor | None = None,
) -> SetStates:
    """Evaluate the batches of one eval set that belong to this rank, and return the states of its metrics.

    Others in what is returned count examples, also of slices, and numbers that are not finite. `states` are new, and
    are filled here: `run` computes one batch, `add` adds the outputs of several, and `finish` is called once all are in
    them. `tick` is called after every batch, `observer` before and after it. `keep` takes the rows to save.
    `update_in_turn` takes the inputs of the metrics in turn, once for every batch, in order. `taken`: states that an
    attempt before found, of which those that this rank takes over are returned instead of evaluating anything; empty if
    it takes over none. None: evaluate. `finished`: the batches that need not be run. `at_once` runs several batches at
    the same time; everything else is done in order.
    """
    pending, counted, inputs = BatchBuffer(add), _Counted(shard, reader.slices), reader.inputs()
    finished = finished or FinishedBatches()
    if taken is not None:
        return merged_into(states | counted.states(), taken)
    finished.begin(states, counted.states(), is_numbered=reader.examples is not None)

    def up_to_now() -> SetStates:
        pending.flush()
        return states

    for (number, first, batch), computed in computed_in_order(finished.left(reader.own(), tick), run, at_once):
        if observer is not None:
            observer.begin()
        output = computed()
        if finished.is_compared(number):
            tick()
            continue
        if update_in_turn is not None:
            update_in_turn(output.in_turn)
        examples = reader.examples_in(batch)
        if reader.slices is not None and first is not None:
            reader.slices.put(batch, first, examples)
            counted.places.append(np.arange(first, first + examples))
        pending.add(output.arrays, first)
        counted.examples += examples
        counted.predicted.add("prediction", output.finite, examples, number, first)
        if output.columns:
            groups = None if reader.groups is None or first is None else reader.groups[first : first + examples]
            shown = inputs.of(batch, first, examples, output.columns)
            keep(reader.name, Rows(first, examples, output.columns, groups, shown))
        if observer is not None:
            observer.end(up_to_now)
        finished.add(number, up_to_now, counted.states)
        tick()
    finished.finish(up_to_now, counted.states)
    pending.flush()
    finish()
    conclude(states)
    return states | finished.states(counted.states(reader.nonfinite))
