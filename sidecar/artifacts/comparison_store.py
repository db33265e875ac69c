"""Compare two evaluations once for all nodes: the first comparison that is recorded holds, as long as it is possible.

A record is `comparisons/<plan>-<other plan>-<metric>.json` in the run's state directory. Saved predictions are removed
some time after an evaluation, so a comparison that is made later could have another result.
"""

import contextlib
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sidecar.artifacts.comparison import (
    Comparison,
    Difference,
    Pairs,
    compare_values,
    comparison,
    contradiction,
    value_of,
)
from sidecar.artifacts.example_values import values_of
from sidecar.codec import dumps, loads
from sidecar.confined import open_folder
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.storage import Storage
from sidecar.coordination.unique_names import create_and_read
from sidecar.errors import RecordError
from sidecar.records import Result, Value

_PART: Final = 4096  # pairs that are added at once
_REMEMBERED: Final = 64
_LONGEST_RECORD: Final = 64 * 1024


@dataclass(slots=True)
class ComparisonStore:
    """Compare evaluations of one run by one metric, and record the results.

    Args:
        storage: The state directory, for the records.
        root: Its path, for the saved values of examples.
        metric: EVAL_SET/METRIC.
    """

    storage: Storage
    root: Path
    metric: str
    _known: dict[tuple[int, int], Comparison] = field(default_factory=dict)

    def is_better(self, new: Closed, old: Closed) -> bool:
        """Return whether the newer evaluation is better by more than noise. Raises `StorageError`."""
        return self.compare(new, old).better

    def was_better(self, run: str, new: tuple[int, Result], old: tuple[int, Result]) -> bool:
        """Return whether an evaluation of the past was better: as recorded, else by the published numbers alone.

        Reads no predictions, and records nothing. `run` is the id of the run; `new` and `old` are numbers of plans and
        their results. Raises as `compare`.
        """
        (plan, after), (old_plan, before) = ((plan, self._number(plan, result)) for plan, result in (new, old))
        found = comparison(run, self.metric, (plan, after), (old_plan, before), compare_values(after, before))
        data = self.storage.read(self._path(plan, old_plan))
        return _valid(data, found, after.goal).better

    def compare(self, new: Closed, old: Closed) -> Comparison:
        """Return the comparison that holds for all nodes. Both evaluations must have measured the metric.

        Raises `StorageError` if storage does not answer, and `RecordError` if one of them did not measure the metric.
        """
        key = new.plan.plan, old.plan.plan
        if key not in self._known:
            for oldest in list(self._known)[: 1 - _REMEMBERED]:
                del self._known[oldest]
            self._known[key] = self._agreed(new, old)
        return self._known[key]

    def _agreed(self, new: Closed, old: Closed) -> Comparison:
        """Return the recorded comparison, or record this node's own. An impossible record counts as none."""
        found = self._comparison(new, old, compare_values(self._value(new), self._value(old)))
        path = self._path(new.plan.plan, old.plan.plan)
        data = self.storage.read(path)
        if data is None:
            own = found
            if (paired := self._paired(new, old)) is not None:
                own = self._comparison(new, old, paired)
            data = create_and_read(self.storage, path, dumps(own))
        return _valid(data, found, self._value(new).goal)

    def _path(self, new: int, old: int) -> str:
        return f"comparisons/{new}-{old}-{hashlib.sha256(self.metric.encode()).hexdigest()[:12]}.json"

    def _comparison(self, new: Closed, old: Closed, found: Difference) -> Comparison:
        values = ((each.plan.plan, self._value(each)) for each in (new, old))
        return comparison(new.plan.run, self.metric, next(values), next(values), found)

    def _value(self, closed: Closed) -> Value:
        return self._number(closed.plan.plan, closed.outcome.result)

    def _number(self, plan: int, result: Result | None) -> Value:
        """Return the number of an evaluation. Raises `RecordError` if it has none."""
        if (value := value_of(result, self.metric)) is None:
            raise RecordError(f"plan {plan} did not measure {self.metric}")
        return value

    def _paired(self, new: Closed, old: Closed) -> Difference | None:
        """Return the difference of the values of the same examples; None if they are not known, or not the same."""
        if (eval_set := _common_data(new, old, self.metric)) is None:
            return None
        metric = self.metric.removeprefix(f"{eval_set}/")
        with contextlib.suppress(OSError), open_folder(self.root) as root:
            after = values_of(root, new, eval_set, metric)
            before = None if after is None else values_of(root, old, eval_set, metric)
            if after is not None and before is not None and len(after) == len(before):
                pairs = Pairs()
                for start in range(0, len(after), _PART):
                    pairs.add(after[start : start + _PART], before[start : start + _PART])
                return pairs.difference()
        return None


def _common_data(new: Closed, old: Closed, metric: str) -> str | None:
    """Return the eval set of a metric if both evaluations measured it on the same data; else None."""
    after, before = new.outcome.result, old.outcome.result
    if after is None or before is None:
        return None
    for eval_set, metrics in after.metrics.items():
        if any(f"{eval_set}/{name}" == metric for name in metrics):
            data, other = after.data.get(eval_set), before.data.get(eval_set)
            same = data is not None and other is not None and data.fingerprint == other.fingerprint is not None
            whole = same and data is not None and data.sampled is None
            return eval_set if whole and after.examples[eval_set] == before.examples.get(eval_set) else None
    return None


def _valid(data: bytes | None, found: Comparison, goal: str) -> Comparison:
    """Return a recorded comparison; the one that was found by the published numbers if it is absent or impossible."""
    try:
        record = loads(Comparison, data) if data is not None and len(data) <= _LONGEST_RECORD else None
    except RecordError:
        record = None
    return found if record is None or contradiction(record, found, goal) else record
