"""Evaluate the first batches of a rank several times: what a user supplies must give the same numbers each time.

The first batch is evaluated twice, and again after all others. A difference is refused. A rank that has few batches of
a set evaluates its first one more often, so that what changes late is found with any number of workers. Batches 0, 1,
2 and 4 of an eval set are also evaluated in halves, by the ranks that own them, so that all numbers of workers find the
same. Of a set that divides itself, each rank has such batches. Imports numpy, never a framework.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from numpy.typing import NDArray

from sidecar.evaluation.batch_dependence import BatchDependence
from sidecar.evaluation.eval_loop import BatchOutput
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.repeatability import AFTER_OTHERS, REPEATED
from sidecar.evaluation.states import SetStates

RequireEqual = Callable[[Sequence[NDArray[Any]], Sequence[NDArray[Any]], str], None]
_DIVIDED: Final = (0, 1, 2, 4)
"""Numbers of the batches that are evaluated in halves. The examples of a single batch may all be equally long."""

_WHOLE_CALLS: Final = 8
_CALLS: Final = 64
"""Limits of the batches that each rank gives to the model and the metrics, although it owns fewer of the set. Beyond
the former the model gets single examples, which cost little."""

Halves = Callable[[int], tuple[set[str], bool]]
"""A function that evaluates the halves of a batch, given its number. It returns the names of what depends on the
division, and whether the batch is telling: if not, the halves of a later evaluation are tried again."""

Small = Callable[[], None]
"""A function that calls the model with a small part of a batch. It may raise, if the model takes whole batches only."""


class FirstBatch:
    """Hold what the first batches of the eval sets have shown so far. It stays in memory between checkpoints.

    Args:
        dependence: Collects what depends on batches.
        require_equal: Raises `EvaluationError` unless arrays of two evaluations of a batch are equal.
        contents: Returns the states of each metric for the arrays of a batch, as texts by name.
    """

    def __init__(
        self,
        dependence: BatchDependence,
        require_equal: RequireEqual,
        contents: Callable[[list[NDArray[Any]]], Mapping[str, str]],
    ) -> None:
        self.dependence = dependence
        self._require_equal, self._contents = require_equal, contents
        self._repeated: set[str] = set()  # eval sets whose first batch was evaluated several times
        self._divided: set[tuple[str, int]] = set()  # batches that were evaluated in halves, by eval set and number

    def of(self, eval_set: str, batches: int, ranks: int) -> "FirstBatchOfSet":
        """Return the checks for one evaluation of an eval set by so many ranks.

        `batches`: the number of all ranks; 0 if it is unknown, as of a set that divides itself. Then each rank takes
        the others to have as many as itself.
        """
        return FirstBatchOfSet(self, eval_set, batches, ranks)

    def is_repeated(self, eval_set: str) -> bool:
        """Return whether the first batch was evaluated several times before, and gave the same numbers."""
        return eval_set in self._repeated

    def note_repeated(self, eval_set: str) -> None:
        """Remember that the first batch gave the same numbers each time."""
        self._repeated.add(eval_set)

    def divide(self, eval_set: str, number: int, halves: Halves) -> None:
        """Evaluate the halves of a batch, unless it was divided before and was telling."""
        if (eval_set, number) in self._divided:
            return
        found, is_telling = halves(number)
        self.dependence.add(eval_set, found)
        if is_telling:
            self._divided.add((eval_set, number))

    def require_equal(self, one: BatchOutput, other: BatchOutput, when: str) -> None:
        """Raise `EvaluationError` unless two outputs for the same batch are equal."""
        self._require_equal(one.arrays, other.arrays, when)

    def contents(self, output: BatchOutput) -> Mapping[str, str]:
        """Return the states of each metric for a batch, as texts by name."""
        return self._contents(output.arrays)


class FirstBatchOfSet:
    """Check the first batch during one evaluation of an eval set."""

    def __init__(self, known: FirstBatch, eval_set: str, batches: int, ranks: int) -> None:
        self._known, self._eval_set, self._batches, self._ranks = known, eval_set, batches, ranks
        self._seen = 0
        self._kept: tuple[BatchOutput, Callable[[], BatchOutput], Mapping[str, str], Small] | None = None

    def see(
        self, output: BatchOutput, number: int, *, again: Callable[[], BatchOutput], halves: Halves, small: Small
    ) -> None:
        """Check the output of a batch if it is the first one of this rank, or one of those that are divided.

        Args:
            output: The output.
            number: Number of the batch in the eval set; 0 if it is unknown.
            again: Evaluates the same batch.
            halves: Evaluates its halves.
            small: Calls the model with a small part of the batch.
        """
        number, self._seen = max(number, self._seen), self._seen + 1
        if self._seen == 1 and not self._known.is_repeated(self._eval_set):
            self._kept = output, again, self._known.contents(output), small
            self._known.require_equal(output, again(), REPEATED)
        if number in _DIVIDED:
            self._known.divide(self._eval_set, number, halves)

    def finish(self, states: SetStates) -> None:
        """Check the first batch again after all others, and add to the states what depends on batches."""
        if self._kept is not None:
            output, again, contents, small = self._kept
            takes_small = True
            for number in range(self._seen, min(self._batches or self._seen * self._ranks, _CALLS)):
                if number < _WHOLE_CALLS:
                    self._known.require_equal(output, again(), AFTER_OTHERS)
                else:
                    takes_small = takes_small and _succeeds(small)
                _require_same_contents(contents, self._known.contents(output))
            self._known.require_equal(output, again(), AFTER_OTHERS)
            _require_same_contents(contents, self._known.contents(output))
            self._known.note_repeated(self._eval_set)
        self._known.dependence.add_to(states, self._eval_set)


def _succeeds(small: Small) -> bool:
    try:
        small()
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - a model may take batches of one size only
        return False
    return True


def _require_same_contents(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    for name, content in before.items():
        if after[name] != content:
            raise EvaluationError(
                "task_error",
                f"metric {name!r} gives other sums for the first batch after all others: it draws random numbers or "
                f"keeps something from batch to batch. Keep it in the states that `states` returns",
            )
