"""Read everything about one evaluation, or about the difference of two, from shared storage."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sidecar.coordination.closed_plan import read_closed
from sidecar.coordination.comparability import obstacle
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.storage import Storage
from sidecar.errors import RecordError, SidecarError, StorageError, StorageLostError
from sidecar.protocol.records import Outcome
from sidecar.publishing.evaluation_archive.confusion import matrices
from sidecar.publishing.report import closed_row, numbers

if TYPE_CHECKING:
    from sidecar.retention.saves.evaluation_differences import NumberDifference

EXAMPLES_SHOWN: Final = 50
"""The most examples of a comparison that changed from wrong to right, or from right to wrong."""

EXAMPLES_PAIRED: Final = 500_000
"""The most examples that are paired for the differences of one evaluation, so that its page does not wait for long."""

_TOO_MANY: Final = "there are too many examples for the page of an evaluation; the comparison pairs them"

_MOST_SAVES: Final = 64  # larger groups than any that was seen


class Other(NamedTuple):
    """Name a number of another evaluation."""

    eval_set: str
    metric: str
    plan: int


@dataclass(frozen=True, slots=True)
class DetailsReader:
    """Read the details of evaluations. Methods block as long as storage does, and raise `StorageError`."""

    storage: Storage  # the state directory of the run
    root: Path  # the same as a folder, in which predictions lie
    log_of: Callable[[Closed], str | None] = lambda _: None  # returns the log file of a worker of this node
    most_paired: int = EXAMPLES_PAIRED

    def details(self, plan: int, run: str | None) -> dict[str, Any] | None:
        """Return everything about a plan of a run; None if its records are missing or damaged."""
        closed = self._closed(plan, run)
        if closed is None or closed.plan.checkpoint is None:
            return None
        try:
            found = details_json(closed, self._saved(closed.outcome))
        except _NoStatesError:
            found = details_json(closed)
        found["states_removed"] = bool(found["saves"]) and self._is_empty(closed.plan.folder)
        return found | {"log": self.log_of(closed)}

    def comparison(self, new: int, old: int, run: str | None) -> dict[str, Any] | None:
        """Return in what two evaluations of a run differ; None if the records of one are missing or damaged."""
        after, before = self._closed(new, run), self._closed(old, run)
        if after is None or after.outcome.result is None or before is None or before.outcome.result is None:
            return None
        from sidecar.publishing.run_records import difference_record  # noqa: PLC0415 - only who compares pays for it
        from sidecar.retention.saves.evaluation_differences import changed_inputs, differences  # noqa: PLC0415

        found = [
            difference_record(one, changed_inputs(self.root, after, before, one, EXAMPLES_SHOWN))
            for one in differences(self.root, after, before)
        ]
        for one in found:
            for kind in ("fixed", "broken"):
                one[f"{kind}_count"], one[kind] = len(one[kind]), one[kind][:EXAMPLES_SHOWN]
            for kind in ("old", "new", "difference"):
                one[kind] = one[kind] if one[kind] is not None and math.isfinite(one[kind]) else None
        rows = {"new": closed_row(after), "old": closed_row(before)}
        return rows | {"differences": found, "confusion": self._changed_matrices(after.outcome, before.outcome)}

    def distances(self, plan: int, others: Collection[Other], run: str | None) -> dict[Other, dict[str, Any]]:
        """Return the difference of each number of a plan from that of another one, with its interval.

        They are paired while no more than `most_paired` examples are read. What cannot be read is missing.
        """
        from sidecar.retention.saves.evaluation_differences import differences  # noqa: PLC0415 - as for a comparison

        new, left, found = self._closed(plan, run), self.most_paired, dict[Other, dict[str, Any]]()
        olds = {each: self._closed(each, run) for each in {other.plan for other in others}}
        for other in others:
            old, metric = olds[other.plan], f"{other.eval_set}/{other.metric}"
            if new is None or new.outcome.result is None or old is None or old.outcome.result is None:
                continue
            unpaired = _TOO_MANY if new.result.examples.get(other.eval_set, 0) > left else None
            try:
                one = next(differences(self.root, new, old, metric, unpaired), None)
            except StorageError as error:
                one = next(differences(self.root, new, old, metric, str(error)), None)
            if one is not None:
                found[other] = difference_json(one)
                left -= one.found.examples or 0
        return found

    def _changed_matrices(self, new: Outcome, old: Outcome) -> list[dict[str, Any]]:
        """Return each confusion matrix of an outcome minus that of the one before, if they can be compared."""
        assert new.result is not None
        assert old.result is not None
        try:
            after, before = matrices(new.result, self._saved(new)), matrices(old.result, self._saved(old))
        except _NoStatesError:
            return []
        known = {(one["set"], one["metric"], *one["classes"]): one["matrix"] for one in before}
        found = []
        for one in after:
            other = known.get((one["set"], one["metric"], *one["classes"]))
            if other is not None and obstacle(new.result, old.result, one["set"]) is None:
                rows = zip(one["matrix"], other, strict=True)
                found.append(one | {"matrix": [[x - y for x, y in zip(*pair, strict=True)] for pair in rows]})
        return found

    def _closed(self, plan: int, run: str | None) -> Closed | None:
        try:
            return read_closed(self.storage, plan, run)
        except (RecordError, StorageLostError):
            return None

    def _is_empty(self, folder: str) -> bool:
        """Return whether nothing is in a folder, or it is not there; False if that cannot be read."""
        try:
            return not self.storage.names(folder)
        except SidecarError:
            return False

    def _saved(self, outcome: Outcome) -> Iterator[bytes]:
        """Yield the metric states that each rank saved. Raises `_NoStatesError` unless all are there."""
        result = outcome.result
        if result is None or len(result.saves) > _MOST_SAVES:
            return
        for folder in result.saves:
            try:
                content = self.storage.read(f"{folder}/states.json")
            except SidecarError as error:
                raise _NoStatesError from error
            if content is None:
                raise _NoStatesError
            yield content


class _NoStatesError(Exception):
    """The metric states of a rank are missing, or cannot be read."""


def difference_json(one: "NumberDifference") -> dict[str, Any]:
    """Return a difference with its interval, with the keys of `sidecar.results.compare`."""
    found = one.found
    return {
        "difference": found.number,
        "lower": found.lower,
        "upper": found.upper,
        "rule": found.rule,
        "verdict": one.verdict,
        "note": found.note,
    }


def details_json(closed: Closed, saved: Iterable[bytes] = ()) -> dict[str, Any]:
    """Return the row of `sidecar history --json` with everything else that the journal knows of a plan.

    `closed`: the plan and its outcome. `saved`: the metric states that the ranks saved, which hold the confusion
    matrices.
    """
    plan, outcome, result = closed.plan, closed.outcome, closed.outcome.result
    return closed_row(closed) | {
        "proposer": plan.proposer,
        "closed_by": outcome.closed_by,
        "node": outcome.node,
        "rank": outcome.rank,
        "odd": list(outcome.odd),
        "task": plan.task,
        "members": [asdict(member) for member in plan.members or ()],
        "variables": result and result.variables,
        "profile": {} if result is None else dict(result.profile),
        "data": {} if result is None else {name: asdict(data) for name, data in result.data.items()},
        "classes": {}
        if result is None
        else {
            eval_set: {metric: numbers(by_class) for metric, by_class in by_metric.items()}
            for eval_set, by_metric in result.classes.items()
        },
        "slices": {}
        if result is None
        else {
            eval_set: {
                label: {"examples": one.examples, "metrics": numbers(one.metrics)} for label, one in slices.items()
            }
            for eval_set, slices in result.slices.items()
        },
        "saves": [] if result is None else list(result.saves),
        "states_removed": False,
        "warnings": [] if result is None else result.warnings(),
        "notes": [] if result is None else list(result.notes),
        "confusion": [] if result is None else matrices(result, saved),
    }
