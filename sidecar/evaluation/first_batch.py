"""Evaluate the first batches of a rank several times: what a user supplies must give the same numbers each time.

Three checks need more than one evaluation of a batch:

- The first batch of a rank is evaluated again after all others, and its first example alone several times. A difference
  is refused. A rank with few batches repeats its first one more often, so that any number of workers finds a change
  that comes late.
- Both ends of the first batch are evaluated alone. Equal predictions for ends that differ in the whole are refused.
- Parts of the batches 0 to 7 of an eval set are evaluated on their own, by the ranks that own these batches. So all
  numbers of workers find the same. In a set that divides itself, each rank has such batches.

Imports numpy, never a framework.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from numpy.typing import NDArray

from sidecar.evaluation.batch_dependence import BatchDependence
from sidecar.evaluation.eval_loop import BatchOutput
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.repeatability import AFTER_OTHERS, REPEATED, are_equal
from sidecar.evaluation.row_comparison import FEW, kept_by_size, rows_differ, told_apart
from sidecar.evaluation.states import SetStates

RequireEqual = Callable[[Sequence[NDArray[Any]], Sequence[NDArray[Any]], str], None]
DIVIDED: Final = range(8)
"""Numbers of the batches that are evaluated in parts. The examples of a single batch may all be equally long. If each
2nd, 3rd, … or 8th batch is of another kind, one of that kind is among these."""

_WHOLE_CALLS: Final = 8
_CALLS: Final = 64
"""Limits of the batches that each rank gives to the model and the metrics, although it owns fewer of the set. Beyond
the former the model gets single examples, which cost little."""

REPEATED_CALLS: Final = 12
"""Number of calls of the metrics, and of the model with the first example alone, one after the other: what counts its
calls may change with each 10th."""


class OfParts(NamedTuple):
    """Hold what parts of a batch have shown.

    Attributes:
        found: The names of what depends on the division.
        is_telling: Whether predictions differ from row to row. If not, parts are tried again in a later evaluation.
        are_compared: Whether the model predicted for parts, and their rows were compared with those of the batch.
    """

    found: set[str]
    is_telling: bool = True
    are_compared: bool = False


Parts = Callable[[int], OfParts]
"""A function that evaluates parts of a batch, given its number."""

Predict = Callable[[slice], BatchOutput]
"""A function that lets the model predict for the examples at these places alone. It may raise, if the model takes whole
batches only."""

Contents = Callable[[list[NDArray[Any]]], Mapping[str, str]]
"""A function that returns the states of each metric of a set for the arrays of a batch, as texts by name."""

FIRST_EXAMPLE: Final = slice(0, 1)


class FirstBatch:
    """Hold what the first batches of the eval sets have shown so far. It stays in memory between checkpoints.

    `dependence` collects what depends on batches.
    """

    def __init__(self, dependence: BatchDependence, require_equal: RequireEqual) -> None:
        self.dependence = dependence
        self._require_equal = require_equal
        self._repeated: set[str] = set()  # eval sets whose first batch was evaluated several times
        self._divided: set[tuple[str, int]] = set()  # batches that were evaluated in parts, by eval set and number

    def of(self, eval_set: str, batches: int, ranks: int, contents: Contents) -> "FirstBatchOfSet":
        """Return the checks for one evaluation of an eval set by so many ranks.

        `batches`: the number of all ranks; 0 if it is unknown, as of a set that divides itself. Then each rank takes
        the others to have as many as itself.
        """
        return FirstBatchOfSet(self, eval_set, batches, ranks, contents)

    def is_repeated(self, eval_set: str) -> bool:
        """Return whether the first batch was evaluated several times before, and gave the same numbers."""
        return eval_set in self._repeated

    def note_repeated(self, eval_set: str) -> None:
        """Remember that the first batch gave the same numbers each time."""
        self._repeated.add(eval_set)

    def is_divided(self, eval_set: str, number: int) -> bool:
        """Return whether parts of the batch have to be evaluated: it was not divided before, or was not telling."""
        return number in DIVIDED and (eval_set, number) not in self._divided

    def divide(self, eval_set: str, number: int, parts: Parts) -> bool:
        """Evaluate parts of a batch, and return whether the model predicts for them what it predicts for the batch."""
        found, is_telling, are_compared = parts(number)
        self.dependence.add(eval_set, found)
        if is_telling:
            self._divided.add((eval_set, number))
        return is_telling and are_compared and not found

    def require_equal(self, one: BatchOutput, other: BatchOutput, when: str) -> None:
        """Raise `EvaluationError` unless two outputs for the same batch are equal."""
        self._require_equal(one.arrays, other.arrays, when)


class FirstBatchOfSet:
    """Check the first batch during one evaluation of an eval set."""

    def __init__(self, known: FirstBatch, eval_set: str, batches: int, ranks: int, contents: Contents) -> None:
        self._contents = contents
        self._known, self._eval_set, self._batches, self._ranks = known, eval_set, batches, ranks
        self._seen = self._equal = 0  # batches, and those whose parts have the predictions of the whole
        self._kept: _Kept | None = None

    def divides_next(self, number: int) -> bool:
        """Return whether parts of the next batch will be evaluated. `number`: as in `see`."""
        return self._known.is_divided(self._eval_set, max(number, self._seen))

    def see(
        self,
        output: BatchOutput,
        number: int,
        examples: int,
        *,
        again: Callable[[], BatchOutput],
        parts: Parts,
        predict: Predict,
    ) -> None:
        """Check the output of a batch if it is the first one of this rank, or one of those that are divided.

        `number`: that of the batch in the eval set; 0 if it is unknown. `again` evaluates the same batch, and `parts`
        parts of it; `predict` lets the model predict for some of its examples.
        """
        is_divided, number = self.divides_next(number), max(number, self._seen)
        self._seen += 1
        if is_divided:  # first, while the step has what it kept of the batch
            self._equal += self._known.divide(self._eval_set, number, parts)
        if self._seen == 1 and not self._known.is_repeated(self._eval_set):
            _require_told_apart(predict, examples)
            alone = tried(predict, FIRST_EXAMPLE)
            kept = self._kept = _Kept(output, self._contents(output.arrays), again, predict, alone, examples)
            if kept.alone is None:
                self._known.require_equal(output, again(), REPEATED)
            else:
                self._known.require_equal(kept.alone, predict(FIRST_EXAMPLE), REPEATED)

    def finish(self, states: SetStates) -> None:
        """Check the first batch again after all others, and add to the states what depends on batches."""
        if self._kept is not None:
            self._repeat(self._kept)
            self._known.note_repeated(self._eval_set)
        self._known.dependence.add_to(states, self._eval_set)

    def _repeat(self, kept: "_Kept") -> None:
        known = self._known
        for number in range(self._seen, min(self._batches or self._seen * self._ranks, _CALLS)):
            if number < _WHOLE_CALLS:
                known.require_equal(kept.output, kept.again(), AFTER_OTHERS)
            elif kept.alone is not None:
                known.require_equal(kept.alone, kept.predict(FIRST_EXAMPLE), AFTER_OTHERS)
            require_same_contents(kept.contents, self._contents(kept.output.arrays))
        known.require_equal(kept.output, kept.again(), AFTER_OTHERS)
        for _ in range(REPEATED_CALLS):
            require_same_contents(kept.contents, self._contents(kept.output.arrays))
        if kept.alone is not None:
            # Calls for the whole and for parts took turns: what changes with each 2nd to 12th would have differed
            calls = REPEATED_CALLS if self._equal < len(DIVIDED) else 1
            for _ in range(min(calls, kept.examples)):
                known.require_equal(kept.alone, kept.predict(FIRST_EXAMPLE), AFTER_OTHERS)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The first batch of a rank, while its others are evaluated."""

    output: BatchOutput
    contents: Mapping[str, str]  # the states of each metric for it
    again: Callable[[], BatchOutput]
    predict: Predict
    alone: BatchOutput | None  # what the model computes for the first example; None if it takes whole batches only
    examples: int


_Places = TypeVar("_Places")
_Output = TypeVar("_Output")


def tried(predict: Callable[[_Places], _Output], places: _Places) -> _Output | None:
    """Return what the model predicts for these examples alone; None if it takes whole batches only."""
    try:
        return predict(places)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - a model may take batches of one size only
        return None


def _require_told_apart(predict: Predict, examples: int) -> None:
    """Raise `EvaluationError` if examples get what the model predicted for as many others before."""
    begin, _, end = told_apart(examples, FEW)
    first, last = (tried(predict, places) if begin.stop else None for places in (begin, end))
    if first is None or last is None or not are_equal(first.arrays, last.arrays):
        return
    whole = tried(predict, slice(0, examples))
    if whole is None or any(len(array) != examples for array in whole.arrays):
        return
    fitting = [not rows_differ([array[places] for array in whole.arrays], [first.arrays]) for places in (begin, end)]
    if len(set(fitting)) > 1:
        raise kept_by_size("the model")


def require_same_contents(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise `EvaluationError` for a metric whose states for the first batch, given as texts by name, have changed."""
    for name, content in before.items():
        if after[name] != content:
            raise task_error(
                f"metric {name!r} gives other sums for the first batch after all others: it draws random numbers or "
                f"keeps something from batch to batch. Keep it in the states that `states` returns"
            )
