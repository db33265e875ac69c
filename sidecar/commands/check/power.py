"""Tell how small an improvement an eval set can show, from the newest two evaluations of the run."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from typing import Final

from sidecar.commands.check.finding import Finding
from sidecar.commands.history import RunHistory
from sidecar.commands.state_storage import state_storage
from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.totals import has_direction
from sidecar.errors import SidecarError
from sidecar.protocol.records import Result
from sidecar.retention.saves.evaluation_differences import NumberDifference, differences
from sidecar.settings import Settings

_COMPARED: Final = 2


def power(settings: Settings, storage_timeout: StorageTimeout) -> Iterator[Finding]:
    """Report the smallest difference of `best_metric` that is seen in 80 % of all cases.

    Nothing is reported while there are fewer than two evaluations with a comparable number that has an interval.
    """
    history = RunHistory(state_storage(settings, storage_timeout.answered), storage_timeout, _silent)
    try:
        successes = (entry for entry in history.newest_first() if isinstance(entry, Closed) and entry.outcome.result)
        newest = list(islice(successes, _COMPARED))
        if len(newest) < _COMPARED or newest[0].outcome.result is None:
            return
        result = newest[0].outcome.result
        metric = settings.best_metric or _first(result)
        found = storage_timeout.call(lambda: list(differences(settings.run_dir, newest[0], newest[1], metric)))
    except SidecarError:  # the journal has its own finding
        return
    for one in found:
        if (text := _described(one, result)) is not None:
            yield Finding(what="power", ok=True, text=text)


def _silent() -> nullcontext[Callable[[int, int], None]]:
    return nullcontext(lambda *_: None)


def _first(result: Result) -> str:
    """Return the first metric with a direction; an empty text if there is none."""
    names = (f"{name}/{key}" for name, by_key in result.metrics.items() for key in by_key if has_direction(by_key[key]))
    return next(names, "")


def _described(one: NumberDifference, result: Result) -> str | None:
    """Return the power of a comparison as a sentence; None if the noise is unknown."""
    if (least := one.detectable) is None or not least > 0:
        return None
    examples = next((count for name, count in result.examples.items() if one.metric.startswith(f"{name}/")), 0)
    if one.found.rule != "paired":
        pairs = f"{examples:,} examples, compared by the intervals of two evaluations,"
    elif changed := len(one.fixed) + len(one.broken):
        pairs = f"{examples:,} examples, of which {changed / examples:.1%} changed between the newest two evaluations,"
    else:
        pairs = f"{examples:,} pairs of examples, as those of the newest two evaluations,"
    needed = f"; for {least / 2:.2g} you need {4 * examples:,}" if examples else ""
    return f"{one.metric}: {pairs} show a difference of {least:.2g} in 80 % of all cases{needed}"
