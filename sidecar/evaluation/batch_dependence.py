"""Remember which numbers depend on how examples are divided into batches, for the notes of a result.

Three comparisons find them, each of a whole batch with parts of it: the rows of predictions (`row_comparison`), the
states of a metric given the same predictions (`metric_additivity`), and the values of a loss. A mean of batch means, or
a model that normalises by the batch, fails one of them.

Batches do not depend on the number of workers, so such a number is exact as well, and a note says how it depends on
batches. It is refused for an eval set whose batches do depend on the number of workers. A finding of one rank holds for
all ranks, so findings are summed in a state of their own.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from sidecar.evaluation.data.batch_source import Division
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum

MODEL: Final = "\0model"
"""Stands among the names of metrics for the predictions."""

LABELS: Final = "\0labels"
"""Stands among the names of metrics for labels and weights that a step returns."""

ORDER: Final = "\0order"
"""Stands among the names of metrics for labels that stand in other rows of a batch than their examples."""

UNTESTED: Final = "\0untested"
"""Stands among the names of metrics for "parts of a batch cannot be evaluated"."""

LOGITS: Final = "\0logits"
"""Stands among the names of metrics for predictions that a metric takes for probabilities, though they are none."""

_STATE: Final = "by_batch"  # not the name of a state of a metric: these contain a slash
_SIZE: Final = "another batch size gives another number"
_NOTES: Final = {
    MODEL: f"the model's predictions for an example depend on the other examples of its batch; {_SIZE}",
    LABELS: f"labels or weights of an example depend on the other examples of its batch; {_SIZE}",
    ORDER: "batches have their examples in another order than the data",
    LOGITS: (
        "predictions are not all from 0 to 1, and a metric compares them with thresholds from 0 to 1: let the last "
        "layer end in a sigmoid, or write from_logits=True for AUC and thresholds=0 for Precision and Recall"
    ),
    UNTESTED: (
        "parts of a batch cannot be evaluated, so it is not known whether the numbers depend on the size of batches"
    ),
}


class BatchDependence:
    """Remember what was found to depend on batches, by eval set, and add it to states that all ranks sum up.

    The findings of an evaluation hold for later ones: a later checkpoint may hide them.

    `names`: all metrics that may depend on the batches. `MODEL`, `LABELS`, `ORDER`, `LOGITS` and `UNTESTED` are
    added.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = (*dict.fromkeys(names), MODEL, LABELS, ORDER, LOGITS, UNTESTED)
        self._found: dict[str, set[str]] = {}

    def add(self, eval_set: str, names: Iterable[str]) -> None:
        """Remember that these numbers of an eval set depend on its batches."""
        self._found.setdefault(eval_set, set()).update(names)

    def states(self) -> SetStates:
        """Return the empty state that sums the findings of all ranks."""
        return {_STATE: ExactSum((len(self._names),), "int64")}

    def add_to(self, states: SetStates, eval_set: str) -> None:
        """Add the findings of this rank to the state. Call it once in each evaluation."""
        found = self._found.get(eval_set, set())
        exact_sum(states, _STATE).add(np.array([name in found for name in self._names], np.int64))

    def metrics(self, states: SetStates) -> list[str]:
        """Return the names of the metrics that depend on batches according to at least one rank."""
        return [name for name in self._found_by_any(states) if name not in _NOTES]

    def notes(self, states: SetStates, metrics: Sequence[str] | None = None) -> tuple[str, ...]:
        """Return notes for the reader of the result, from the states of all ranks.

        `metrics` are the names to show, if not those of `metrics`.
        """
        found = self._found_by_any(states)
        metrics = self.metrics(states) if metrics is None else metrics
        notes = [_NOTES[name] for name in found if name in _NOTES]
        if metrics:
            verb = "depends" if len(metrics) == 1 else "depend"
            notes.insert(0, f"{', '.join(metrics)} {verb} on how examples are divided into batches; {_SIZE}")
        return tuple(notes)

    def refuse(self, states: SetStates, eval_set: str, sharding: Division, *, has_keys: bool = False) -> None:
        """Raise `EvaluationError` if a number depends on batches that depend on the number of workers.

        `has_keys`: the set has groups or slices, which need to know the row of each example.
        """
        if has_keys and ORDER in self._found_by_any(states):
            raise task_error(
                f"batches of eval set {eval_set!r} have their examples in another order than the data, since the "
                f"collate function or the step sorts them, so groups and slices would be those of other examples: keep "
                f"the order, such as pack_padded_sequence(…, enforce_sorted=False), or let the step put labels and "
                f"predictions back with [torch.argsort(order)]"
            )
        found = [name for name in self._found_by_any(states) if name not in (ORDER, LOGITS, UNTESTED)]
        if not found or sharding not in ("own", "files"):
            return
        which = (
            "predictions"
            if MODEL in found
            else "labels or weights"
            if LABELS in found
            else ", ".join(repr(name.rpartition(":")[2]) for name in found)
        )
        reason = "divides itself" if sharding == "own" else "is divided by files"
        raise task_error(
            f"{which} of eval set {eval_set!r} would depend on how examples are divided into batches, and the set "
            f"{reason}, so that its batches depend on the number of workers: let its source yield all examples, or "
            f"compute a value for each example from this example alone"
        )

    def _found_by_any(self, states: SetStates) -> list[str]:
        if _STATE not in states:  # the findings of an evaluation that has not ended
            return []
        counts = exact_sum(states, _STATE).integers()
        return [name for name, count in zip(self._names, counts, strict=True) if count]
