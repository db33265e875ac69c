"""Tell weights of examples from the numbers of the examples, in the third part of a batch (x, y, sample_weight).

Datasets for noisy labels or active learning return (x, y, index). Taken for weights, indices give a plausible wrong
number. So integers that look like numbers of examples are refused, and everything else is named in a note. Imports
numpy, never a framework.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.failures import EvaluationError, task_error
from sidecar.protocol.states import FailureKind

NOTE: Final = "the third part of each batch is taken as the weight of its examples"

_ENOUGH_VALUES: Final = 4096
_ENOUGH_BATCHES: Final = 64
_FEWEST_IN_TURN: Final = 5  # values that can be no weights if they are, say, 0 to 4
_FEWEST_IN_BATCH: Final = 4
_FEWEST_SORTED: Final = 8
_FEWEST_DIFFERENT: Final = 32
_SHOWN: Final = 6

Ints = NDArray[np.integer[Any]]


class ThirdPart:
    """Decide whether the third part of the batches of one eval set holds weights, by the batches seen so far.

    All ranks look at the same batches, so that they decide alike.

    `eval_set`: name of the eval set. `remedy`: what to write if the third part is no weight.
    """

    def __init__(self, eval_set: str, remedy: str) -> None:
        self._eval_set, self._remedy = eval_set, remedy
        self._batches: list[Ints] = []
        self._places: list[int | None] = []
        self._is_given = False
        self._can_be_numbers = True

    def begin(self) -> None:
        """Forget the batches of an earlier reading."""
        self._batches, self._places, self._can_be_numbers = [], [], True

    def look_at(self, part: Any, first: int | None) -> None:
        """Take the third part of one batch; `first` is the number of its first example in the set, if known."""
        self._is_given = True
        if not self._can_be_numbers or self._is_enough():
            return
        try:
            values = np.asarray(part)
        except Exception:  # noqa: BLE001 - a structure of weights by output, or tensors on another device
            self._can_be_numbers = False
            return
        if values.dtype.kind not in "iu" or values.ndim < 1 or values.size != len(values):
            self._can_be_numbers = False
            return
        self._batches.append(values.reshape(-1))
        self._places.append(first)

    @property
    def notes(self) -> tuple[str, ...]:
        """The note that there are weights, if a third part was seen."""
        return (NOTE,) if self._is_given else ()

    def require_weights(self) -> None:
        """Raise `EvaluationError` if the third part holds the numbers of the examples."""
        if not self._can_be_numbers or not self._batches or not _are_numbers(self._batches, self._places):
            return
        values = np.concatenate(self._batches)
        shown = ", ".join(str(value) for value in values[:_SHOWN]) + (", …" if len(values) > _SHOWN else "")
        raise task_error(
            f"eval set {self._eval_set!r}: the third part of each batch would be the weight of its examples, but it "
            f"holds their numbers ({shown}): {self._remedy}. If they are weights, return them as floats"
        )

    def _is_enough(self) -> bool:
        return len(self._batches) >= _ENOUGH_BATCHES or sum(map(len, self._batches)) >= _ENOUGH_VALUES


@contextmanager
def naming_weights(remedy: Callable[[], str]) -> Iterator[None]:
    """Add to an error about labels or shapes that the third part was taken as weight, and the remedy, unless empty."""
    try:
        yield
    except (TaskError, EvaluationError, TypeError, ValueError) as error:
        is_about_task = not isinstance(error, EvaluationError) or error.kind == FailureKind.TASK_ERROR
        line = remedy()
        if not line or not is_about_task or NOTE in str(error):
            raise
        is_own = isinstance(error, TaskError | EvaluationError)
        message = f"{'' if is_own else f'{type(error).__name__}: '}{error}. {NOTE[0].upper()}{NOTE[1:]}: {line}"
        raise (TaskError(message) if isinstance(error, TaskError) else task_error(message)) from error


def _are_numbers(batches: list[Ints], places: list[int | None]) -> bool:
    """Return whether integers look like numbers of examples: counted, or all different.

    Masks, counts and weights of classes repeat their values.
    """
    values = np.concatenate(batches)
    is_different = len(np.unique(values)) == len(values)
    if len(values) >= _FEWEST_IN_TURN and is_different and (_is_range(values) or _are_places(batches, places)):
        return True
    if len(values) >= _FEWEST_SORTED and (_is_sorted(values) or _are_ranges(batches)):
        return True
    return len(values) >= _FEWEST_DIFFERENT and is_different


def _is_range(values: Ints) -> bool:
    """Return whether values are n integers in a row, in any order."""
    return len(np.unique(values)) == len(values) == int(values.max()) - int(values.min()) + 1


def _are_places(batches: list[Ints], places: list[int | None]) -> bool:
    """Return whether each value is the number of its example in the set, or that with an offset."""
    offsets: set[int] = set()
    for values, first in zip(batches, places, strict=True):
        if first is None:
            return False
        offsets.update(int(value) - first - at for at, value in enumerate(values.tolist()))
    return len(offsets) == 1


def _are_ranges(batches: list[Ints]) -> bool:
    """Return whether each batch holds integers in a row, and at least one of them has enough."""
    return any(len(values) >= _FEWEST_IN_BATCH for values in batches) and all(map(_is_range, batches))


def _is_sorted(values: Ints) -> bool:
    listed = values.tolist()
    return all(one < other for one, other in pairwise(listed)) or all(one > other for one, other in pairwise(listed))
