"""Read the results of a run as plain records, for `sidecar.results`, and find the evaluations that people name.

Nothing is written, and no daemon is needed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from sidecar.coordination.closed_plan import read_success
from sidecar.coordination.journal import Journal
from sidecar.coordination.journal_state import Closed, Entry, EntryLog, JournalState
from sidecar.coordination.run import read_run
from sidecar.coordination.storage import PosixStorage
from sidecar.coordination.totals import number_of
from sidecar.errors import SettingsError
from sidecar.protocol.example_inputs import Input, input_record
from sidecar.publishing.export import exported
from sidecar.publishing.report import bests, plan_of
from sidecar.publishing.stretches import with_breaks
from sidecar.retention.saves.evaluation_differences import NumberDifference, changed_inputs, differences
from sidecar.system.plain_text import one_line

Record = dict[str, Any]

_NAMED: Final = 5  # names in a message


@dataclass(slots=True)
class RunRecords:
    """Read one run. `root`: its state directory."""

    root: Path
    _state: JournalState = field(default_factory=JournalState)

    def history(self) -> list[Record]:
        """Return one record for each number of each evaluation, as `sidecar export` writes them, oldest first.

        Raises `SettingsError` if there is no run, and as `Journal`.
        """
        return [asdict(one) for closed, broken in with_breaks(self._entries()) for one in exported(closed, broken)]

    def compare(self, old: str, new: str, best_metric: str | None = None) -> list[Record]:
        """Return one record for each number that two evaluations have, with the difference of `new` from `old`.

        `old`, `new`: what a person calls them, see `plans_by_name`. Raises `SettingsError` for an evaluation that is
        not there, and as `history`.
        """
        plans = plans_by_name(self._entries(), lambda: self._state, best_metric)
        storage = PosixStorage(self.root)
        before, after = (named_evaluation(plans, name, lambda plan: read_success(storage, plan)) for name in (old, new))
        return [
            difference_record(one, changed_inputs(self.root, after, before, one))
            for one in differences(self.root, after, before)
        ]

    def _entries(self) -> Iterator[Entry]:
        storage = PosixStorage(self.root)
        if (run := read_run(storage)) is None:
            raise SettingsError(
                f"{self.root} holds no run: give the directory of the checkpoints, and state_dir or run"
            )
        self._state = JournalState(log=EntryLog(keep=1))
        for record in Journal(storage, run).read_to_end():
            yield from self._state.apply(record)


def plans_by_name(
    entries: Iterable[Entry], state: Callable[[], JournalState], best_metric: str | None
) -> dict[str, int]:
    """Return the number of the newest successful plan by what a person may call its checkpoint.

    That is its name, its step, `newest`, or `best`: the best one by `best_metric` or the first metric with a direction.
    `state` returns what follows from all entries, once they were read.
    """
    by_step, by_name, newest = dict[str, int](), dict[str, int](), dict[str, int]()
    for entry in entries:
        if isinstance(entry, Closed) and entry.outcome.result is not None and entry.plan.checkpoint is not None:
            by_name[entry.plan.checkpoint.name] = newest["newest"] = entry.plan.plan
            if entry.plan.checkpoint.step is not None:
                by_step[str(entry.plan.checkpoint.step)] = entry.plan.plan
    found = {f"{eval_set}/{name}": plan_of(best) for (eval_set, name), best in bests(state()).items()}
    best = found.get(best_metric or next(iter(found), ""))
    return newest | ({} if best is None else {"best": best}) | by_step | by_name


def named_evaluation(plans: dict[str, int], name: str, read: Callable[[int], Closed | None]) -> Closed:
    """Return the evaluation of that name. `read` reads a plan. Raises `SettingsError` if there is none."""
    found = read(plans[name]) if name in plans else None
    if found is None:
        known = ", ".join(list(plans)[-_NAMED:]) or "none"
        raise SettingsError(
            f"{one_line(name)!r} was not evaluated: write one of {one_line(known)}, or another of `history`"
        )
    return found


def difference_record(one: NumberDifference, inputs: Mapping[int, Input]) -> Record:
    """Return a difference as plain values. `inputs`: of the examples that changed, by their numbers."""
    return {
        "metric": one.metric,
        "label": one.label,
        "old": number_of(one.old),
        "new": number_of(one.new),
        "difference": one.found.number,
        "lower": one.found.lower,
        "upper": one.found.upper,
        "rule": one.found.rule,
        "verdict": one.verdict,
        "detectable": one.detectable,
        "fixed": list(one.fixed),
        "broken": list(one.broken),
        "changes_known": one.changes_known,
        "inputs": {place: input_record(shown) for place, shown in inputs.items()},
        "note": one.found.note,
    }
