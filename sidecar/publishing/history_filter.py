"""Filter a run's history by steps, eval sets and metrics, before it is shown or exported. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TypeVar

from sidecar.coordination.journal_state import Closed, Entry
from sidecar.protocol.records import Result

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFilter:
    """Choose what of a history is shown."""

    eval_sets: Sequence[str] | None = None  # globs of eval sets; none: all of them
    metrics: Sequence[str] | None = None  # globs of metrics; none: all of them
    first_step: int | None = None  # the smallest training step; None: any
    last_step: int | None = None  # the largest training step; None: any
    newest: int | None = None  # the number of newest entries that are read, of those that are left; None: all of them

    def apply(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the entries that were chosen, of any age, with the numbers that were chosen.

        With eval sets or metrics, only evaluations that have such a number stay. Entries without a step, such as those
        of checkpoints whose step is unknown, stay only if all steps do.
        """
        for entry in entries:
            if not self._has(_step_of(entry)):
                continue
            if not self.eval_sets and not self.metrics:
                yield entry
            elif isinstance(entry, Closed) and entry.outcome.result is not None:
                result = self._result(entry.outcome.result)
                if any(result.metrics.values()) or any(result.classes.values()):
                    yield Closed(entry.plan, replace(entry.outcome, result=result))

    def _has(self, step: int | None) -> bool:
        if step is None:
            return self.first_step is None and self.last_step is None
        return (self.first_step is None or step >= self.first_step) and (
            self.last_step is None or step <= self.last_step
        )

    def _result(self, result: Result) -> Result:
        sets = _named(result.examples, self.eval_sets)
        return replace(
            result,
            examples=sets,
            metrics={name: _named(values, self.metrics) for name, values in result.metrics.items() if name in sets},
            classes={name: _named(values, self.metrics) for name, values in result.classes.items() if name in sets},
            slices={
                name: {label: replace(one, metrics=_named(one.metrics, self.metrics)) for label, one in slices.items()}
                for name, slices in result.slices.items()
                if name in sets
            },
        )


def _named(values: Mapping[str, T], globs: Sequence[str] | None) -> dict[str, T]:
    """Return the items whose name matches one of the globs, or all if there is none."""
    return {name: value for name, value in values.items() if not globs or any(fnmatchcase(name, g) for g in globs)}


def _step_of(entry: Entry) -> int | None:
    if isinstance(entry, Closed):
        return None if entry.plan.checkpoint is None else entry.plan.checkpoint.step
    return entry.settlement.step
