"""Print in what two evaluations of a run differ: every number with its interval, and the examples that changed."""

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console

from sidecar.commands.history import RunHistory, history_of
from sidecar.commands.history_table import best_plans
from sidecar.coordination.closed_plan import read_success
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.totals import number_of
from sidecar.errors import SettingsError
from sidecar.protocol.records import shown_step
from sidecar.retention.saves.evaluation_differences import NumberDifference, differences
from sidecar.settings import Settings
from sidecar.system.plain_text import number, one_line

_SHOWN: Final = 50  # examples
_BOTH: Final = 2
_WITH_DIRECTORY: Final = 3


def print_comparison(flags: dict[str, Any], typed: Sequence[str], *, as_csv: bool) -> None:
    """Print the differences of evaluation B from evaluation A. `typed`: the directory, if it is given, A and B."""
    if len(typed) not in (_BOTH, _WITH_DIRECTORY):
        raise SettingsError(f"compare takes two checkpoints, found {len(typed)}: sidecar compare ckpts best newest")
    *directory, first, second = typed
    if directory:
        flags = flags | {"checkpoint_dir": Path(directory[0])}
    settings, history = history_of(flags, Console(stderr=True))
    plans = _plans(settings, history)
    old, new = (_evaluation(history, plans, name) for name in (first, second))
    found = history.timeout.call(lambda: list(differences(settings.run_dir, new, old)))
    if as_csv:
        _print_csv(found)
        return
    typer.echo(f"{_title(new)} compared with {_title(old)}")
    for line in _lines(found):
        typer.echo(one_line(line))


def _plans(settings: Settings, history: RunHistory) -> dict[str, int]:
    """Return the number of the newest successful plan by what a person may type for its checkpoint."""
    by_step, by_name, newest = dict[str, int](), dict[str, int](), dict[str, int]()
    for entry in history.oldest_first():
        if isinstance(entry, Closed) and entry.outcome.result is not None and entry.plan.checkpoint is not None:
            by_name[entry.plan.checkpoint.name] = newest["newest"] = entry.plan.plan
            if entry.plan.checkpoint.step is not None:
                by_step[str(entry.plan.checkpoint.step)] = entry.plan.plan
    best = {f"{eval_set}/{name}": plan for (eval_set, name), plan in best_plans(history.state).items()}
    metric = settings.best_metric or next(iter(best), None)
    words = newest | ({"best": best[metric]} if metric in best else {})
    return words | by_step | by_name


def _evaluation(history: RunHistory, plans: dict[str, int], name: str) -> Closed:
    """Return an evaluation by what was typed. Raises `SettingsError` if there is none."""
    found = None
    if name in plans:
        found = history.timeout.call(lambda: read_success(history.storage, plans[name]))
    if found is None:
        known = ", ".join(list(plans)[-5:]) or "none"
        raise SettingsError(
            f"{one_line(name)!r} was not evaluated: write one of {one_line(known)}, or another of `history`"
        )
    return found


def _title(closed: Closed) -> str:
    checkpoint = closed.plan.checkpoint
    assert checkpoint is not None, "its plan has evaluated it"
    return one_line(f"{checkpoint.name} (step {shown_step(checkpoint.step, checkpoint.step_source)})")


def _lines(found: Iterable[NumberDifference]) -> Iterable[str]:
    for one in found:
        name = f"{one.metric} {one.label}".strip()
        numbers = f"{name}: {number(number_of(one.old))} → {number(number_of(one.new))}"
        if one.found.rule == "none":
            yield f"{numbers}, which cannot be compared: {one.found.note}"
            continue
        yield f"{numbers}, {_difference(one)}"
        if one.found.note and not one.label:
            yield f"    not compared example by example: {one.found.note}"
        if (least := one.detectable) is not None and one.found.examples is not None and not one.verdict:
            yield (
                f"    {one.found.examples:,} such examples show a difference of {least:.3g} in 80 % of all cases; half "
                f"of it needs {4 * one.found.examples:,}"
            )
        for word, places in (("fixed", one.fixed), ("broken", one.broken)):
            if places:
                more = f" and {len(places) - _SHOWN:,} more (--csv)" if len(places) > _SHOWN else ""
                yield f"    {len(places):,} {word}: {', '.join(map(str, places[:_SHOWN]))}{more}"


def _difference(one: NumberDifference) -> str:
    """Return `+0.02 (95 % 0.01 to 0.03, paired): better`."""
    found = one.found
    by = "not finite" if found.number is None else f"{found.number:+.4g}"
    if found.lower is None or found.upper is None:
        return f"{by} (noise unknown)"
    verdict = one.verdict or "within noise"
    return f"{by} (95 % {found.lower:.4g} to {found.upper:.4g}, {found.rule}): {verdict}"


def _print_csv(found: Iterable[NumberDifference]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("metric", "example", "change"))
    for one in found:
        for change, places in (("fixed", one.fixed), ("broken", one.broken)):
            writer.writerows((one.metric, place, change) for place in places)
