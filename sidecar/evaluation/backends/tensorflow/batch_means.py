"""Find the metrics that depend on how examples are divided into batches, such as a mean of batch means.

Batches do not depend on the number of workers, so such a number is exact as well, but a note says how it depends on
batches. A finding of one rank holds for all ranks, so the findings are summed in a state of their own.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from sidecar.evaluation.states import ExactSum, SetStates, exact_sum

_STATE: Final = "by_batch"  # not the name of a state of a metric: these contain a slash
_UNKNOWN: Final = ""  # stands in the list of names for "cannot be determined"
_NOT_KNOWN: Final = (
    "the model takes batches of one size only, so parts of a batch cannot show which numbers are means over batches"
)


class BatchMeans:
    """Record which metrics were found to depend on the batches.

    Args:
        names: All metrics that may depend on the batches.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._is_by_batch = dict.fromkeys([*names, _UNKNOWN], False)

    def add(self, name: str) -> None:
        """Remember that this metric depends on the batches."""
        self._is_by_batch[name] = True

    def add_unknown(self) -> None:
        """Remember that the model does not accept a part of a batch, so that such metrics cannot be found."""
        self._is_by_batch[_UNKNOWN] = True

    def states(self) -> SetStates:
        """Return the empty state that sums the findings of all ranks."""
        return {_STATE: ExactSum((len(self._is_by_batch),), "int64")}

    def add_to(self, states: SetStates) -> None:
        """Add the findings of this rank to the state."""
        exact_sum(states, _STATE).add(np.array(list(self._is_by_batch.values()), np.int64))

    def names(self, states: SetStates) -> list[str]:
        """Return the names of the metrics that depend on the batches according to at least one rank."""
        return [name for name in self._names(states) if name != _UNKNOWN]

    def notes(self, states: SetStates) -> tuple[str, ...]:
        """Return a note for the reader of the result if some of these metrics cannot be found."""
        return (_NOT_KNOWN,) if _UNKNOWN in self._names(states) else ()

    def _names(self, states: SetStates) -> list[str]:
        if _STATE not in states:
            return []
        counts = exact_sum(states, _STATE).integers()
        return [name for name, count in zip(self._is_by_batch, counts, strict=True) if count]


def by_batch_note(names: Sequence[str]) -> tuple[str, ...]:
    """Return a note for the reader of the result about the metrics of these names; no note without names."""
    if not names:
        return ()
    predicate = "is a mean over batches" if len(names) == 1 else "are means over batches"
    return (f"{', '.join(names)} {predicate}, as in Keras; another batch size gives another number",)
