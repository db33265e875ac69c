"""Find out whether an evaluation is better than the best one before it by more than noise, as `best_by` may say.

`sidecar.retention.saves.comparison_store` compares, once for all nodes and for all that ask.
"""

import threading
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.coordination.closed_plan import read_success
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.storage import Storage
from sidecar.errors import StorageError
from sidecar.publishing.sinks.sink import Evaluation
from sidecar.retention.saves.comparison_store import ComparisonStore


@dataclass(slots=True)
class RecordedComparisons:
    """Compare by the records in the state directory. Several threads may use it.

    A daemon that resumes reads the whole past, of which each evaluation may have to be compared. That costs one small
    file for each comparison, and no predictions, which were removed long ago for most of them.
    """

    storage: Storage  # the state directory, for journal and records
    root: Path  # its path, for the saved values of examples
    _stores: dict[str, ComparisonStore] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, new: Evaluation, old: Evaluation, metric: str, /, *, past: bool) -> bool:
        """Compare two evaluations that measured the metric. Raises `StorageError` and `RecordError`."""
        with self._lock:  # the first one that asks compares, and the others get its answer
            store = self._stores.setdefault(metric, ComparisonStore(self.storage, self.root, metric))
            if past:
                return store.was_better(_run_of(new), (new.plan, new.result), (old.plan, old.result))
            return store.is_better(self._closed(new), self._closed(old))

    def _closed(self, evaluation: Evaluation) -> Closed:
        """Return the evaluation as the journal has it."""
        closed = read_success(self.storage, evaluation.plan)
        if closed is None:
            raise StorageError(f"plan {evaluation.plan} is not visible in the journal at present: it is read again")
        return closed


def _run_of(evaluation: Evaluation) -> str:
    """Return the id of the run: events have only its name, but their own ids begin with it."""
    return evaluation.id.partition("-")[0]
