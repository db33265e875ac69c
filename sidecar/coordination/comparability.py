"""Decide whether the numbers of two evaluations can be compared. Pure: the one rule for all that rank or subtract them.

Numbers can be compared if the code of the task, the data of the eval set and the number of its examples are equal.
Fingerprints of data are compared if both were made in the same way. A set that divides itself has none, and neither do
records of old releases; a set whose files are divided one by one has another kind of fingerprint than the same set that
is divided by batches, as with fewer files than workers. There the number of examples alone decides.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sidecar.protocol.records import EvalData, Result


@dataclass(frozen=True, slots=True)
class SeenData:
    """Describe the data of an eval set in one evaluation."""

    data: EvalData | None
    examples: int

    def may_equal(self, other: "SeenData") -> bool:
        """Return whether the data may be equal, so that numbers can be compared."""
        one, two = self.data, other.data
        if self.examples != other.examples or one is None or two is None:
            return self.examples == other.examples
        if None in (one.fingerprint, two.fingerprint) or not _are_alike(one, two):
            return True
        return one.fingerprint == two.fingerprint

    def is_known_to_equal(self, other: "SeenData") -> bool:
        """Return whether the fingerprints prove that the data are equal, as far as fingerprints can."""
        one, two = self.data, other.data
        if one is None or two is None or None in (one.fingerprint, two.fingerprint):
            return False
        return _are_alike(one, two) and self.may_equal(other)


def _are_alike(one: EvalData, two: EvalData) -> bool:
    """Return whether two fingerprints were made in the same way."""
    return (one.sharding, one.sampled) == (two.sharding, two.sampled)


def seen_data(result: Result) -> dict[str, SeenData]:
    """Return the data of each eval set of a result."""
    return {name: SeenData(result.data.get(name), examples) for name, examples in result.examples.items()}


TASK_CHANGED: Final = "the code of the task changed"


def obstacle(new: Result, old: Result, eval_set: str) -> str | None:
    """Return why the numbers of two results cannot be compared, as a clause; None if they can be."""
    if new.task != old.task:
        return TASK_CHANGED
    after, before = seen_data(new).get(eval_set), seen_data(old).get(eval_set)
    if after is None or before is None:
        return f"one of them did not measure {eval_set!r}"
    return None if after.may_equal(before) else data_changed([eval_set])


def data_changed(eval_sets: Iterable[str]) -> str:
    """Return the clause for eval sets whose data changed."""
    return f"the data of {', '.join(map(repr, eval_sets))} changed"


@dataclass(slots=True)
class Stretches:
    """Follow results in the order of the journal, and find where their numbers stop being comparable."""

    _task: str | None = None
    _newest: dict[str, SeenData] = field(default_factory=dict)  # by eval set

    def add(self, result: Result) -> Mapping[str, str]:
        """Return, by eval set, why numbers from this result on cannot be compared with those before it."""
        seen, before = seen_data(result), self._newest
        is_other_task = self._task not in (None, result.task)
        broken = [name for name in seen if name in before and not before[name].may_equal(seen[name])]
        found = dict.fromkeys(broken, data_changed(broken))
        if is_other_task:
            found = dict.fromkeys((name for name in seen if name in before), TASK_CHANGED)
        self._task, self._newest = result.task, seen if is_other_task else before | seen
        return found
