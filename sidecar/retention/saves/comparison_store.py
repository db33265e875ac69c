"""Compare two evaluations once for all nodes: the first comparison that is recorded holds, as long as it is possible.

A record is `comparisons/<plan>-<other plan>-<metric>.json` in the run's state directory. Saved predictions are removed
some time after an evaluation, so a comparison that is made later could have another result. The number of looks is the
number of plans between the two evaluations, so that each node knows it, whatever else it has compared.
"""

import contextlib
import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sidecar.coordination.comparability import obstacle, seen_data
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.storage import Storage
from sidecar.coordination.unique_names import create_and_read
from sidecar.errors import RecordError
from sidecar.protocol.codec import dumps, loads
from sidecar.protocol.record_limits import SMALL
from sidecar.protocol.records import Result, Value
from sidecar.retention.saves.comparison import (
    NOT_COMPARABLE,
    Comparison,
    Difference,
    Pairs,
    compare_values,
    comparison,
    confidence_after,
    contradiction,
    published,
    size_of,
    value_of,
)
from sidecar.retention.saves.example_values import UnusableError, groups_of, values_of
from sidecar.system.bucket_folder import BucketState
from sidecar.system.confined import Folder, open_folder
from sidecar.system.plain_text import one_line

_PART: Final = 4096  # pairs that are added at once
_REMEMBERED: Final = 64


@dataclass(slots=True)
class ComparisonStore:
    """Compare evaluations of one run by one metric, and record the results."""

    storage: Storage  # the state directory, for the records
    root: Path  # its path, for the saved values of examples
    metric: str  # EVAL_SET/METRIC
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
        difference = self._by_numbers(new[1], old[1], (after, before), confidence_after(abs(plan - old_plan)))
        found = comparison(run, self.metric, (plan, after), (old_plan, before), difference)
        data = self.storage.read(self._path(plan, old_plan), SMALL.size) if difference.rule != NOT_COMPARABLE else None
        return _valid(data, found, (after, before)).better

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
        values = self._value(new), self._value(old)
        confidence = confidence_after(abs(new.plan.plan - old.plan.plan))
        difference = self._by_numbers(new.outcome.result, old.outcome.result, values, confidence)
        found = self._comparison(new, old, difference)
        if difference.rule == NOT_COMPARABLE:
            return found
        path = self._path(new.plan.plan, old.plan.plan)
        data = self.storage.read(path, SMALL.size)
        if data is None:
            try:
                own = self._comparison(new, old, self._paired(new, old, difference, size_of(*values)))
            except UnusableError as error:
                own = replace(found, note=one_line(str(error)))
            data = create_and_read(self.storage, path, dumps(own))
        return _valid(data, found, values)

    def _by_numbers(
        self, new: Result | None, old: Result | None, values: tuple[Value, Value], confidence: float
    ) -> Difference:
        """Return the difference by the published numbers alone, or why there is none."""
        assert new is not None  # it has a number
        assert old is not None
        why = obstacle(new, old, eval_set_of(new, self.metric))
        if why is not None:
            return Difference(rule=NOT_COMPARABLE, number=None, confidence=confidence, note=why)
        return compare_values(*values, confidence)

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

    def _paired(self, new: Closed, old: Closed, expected: Difference, size: float) -> Difference:
        """Return the difference of the values of the same examples. Raises `UnusableError` if they are not known."""
        eval_set = eval_set_of(new.result, self.metric)
        saved = saved_pair(self.root, new, old, eval_set, self.metric.removeprefix(f"{eval_set}/"))
        pairs = Pairs()
        for start in range(0, len(saved[0]), _PART):
            pairs.add(*(part[start : start + _PART] for part in saved))
        found = pairs.difference(expected.confidence)
        if found is not None and found.lower is None:
            raise UnusableError("there are fewer than 20 groups of examples, or all differ alike")
        if found is None or (found := published(found, expected, size)) is None:
            raise UnusableError("the values of examples do not give the difference of the published numbers")
        return found


def saved_pair(
    root: Path, new: Closed, old: Closed, eval_set: str, metric: str
) -> "tuple[array[float], array[float], array[float]]":
    """Return the values of a metric for the same examples in two evaluations, by the place of the example in the data.

    The third array has the numbers of their groups, or nothing. `root`: the state directory. Raises `UnusableError` if
    they are not known, and `StorageError` if the bucket that holds them does not answer.
    """
    after, before = new.result, old.result
    if not seen_data(after)[eval_set].is_known_to_equal(seen_data(before)[eval_set]):
        raise UnusableError(f"no fingerprint says that both have the same examples of {eval_set!r}")
    try:
        with opened_saves(root, (new, old), eval_set, metric) as folder:
            newer, older = (values_of(folder, each, eval_set, metric) for each in (new, old))
            groups = groups_of(folder, new, eval_set)
    except OSError as error:
        raise UnusableError(f"the state directory cannot be opened: {error.strerror}") from error
    return newer, older, groups


def opened_saves(
    root: Path, evaluations: Sequence[Closed], eval_set: str, metric: str
) -> contextlib.AbstractContextManager[Folder]:
    """Open the folder that holds the values that were saved of a metric; of a bucket, one with copies of them."""
    if not isinstance(root, BucketState):
        return open_folder(root)
    from sidecar.retention.saves.bucket_saves import fetched_columns  # noqa: PLC0415 - only where the state is in a bucket

    return fetched_columns(root, evaluations, eval_set, metric)


def eval_set_of(result: Result, metric: str) -> str:
    """Return the eval set of EVAL_SET/METRIC in a result that has measured it. Names may contain a slash."""
    return next(
        eval_set for eval_set, metrics in result.metrics.items() for name in metrics if f"{eval_set}/{name}" == metric
    )


def _valid(data: bytes | None, found: Comparison, values: tuple[Value, Value]) -> Comparison:
    """Return a recorded comparison; the one that was found by the published numbers if it is absent or impossible."""
    try:
        record = loads(Comparison, data) if data is not None else None
    except RecordError:
        record = None
    return found if record is None or contradiction(record, found, values[0].goal, size_of(*values)) else record
