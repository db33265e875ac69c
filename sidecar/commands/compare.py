"""Print in what two evaluations of a run differ: every number with its interval, and the examples that changed."""

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console

from sidecar.commands.history import history_of
from sidecar.commands.load import configured_directory
from sidecar.coordination.closed_plan import read_success
from sidecar.coordination.journal_state import Closed
from sidecar.coordination.totals import number_of
from sidecar.errors import SettingsError
from sidecar.protocol.example_inputs import Input, input_record
from sidecar.protocol.records import shown_step
from sidecar.publishing.run_records import named_evaluation, plans_by_name
from sidecar.retention.saves.evaluation_differences import NumberDifference, changed_inputs, differences
from sidecar.system.plain_text import number, one_line, shortened

_Found = tuple[NumberDifference, Mapping[int, Input]]  # a difference, and inputs of the examples that changed

_SHOWN: Final = 50  # examples
_BOTH: Final = 2
_WITH_DIRECTORY: Final = 3


def print_comparison(flags: dict[str, Any], typed: Sequence[str], *, as_csv: bool) -> None:
    """Print the differences of evaluation B from evaluation A. `typed`: the directory, if it is given, A and B."""
    names = typed[1:] if len(typed) == _BOTH and _is_directory(flags, typed[0]) else typed
    if len(names) not in (_BOTH, _WITH_DIRECTORY):
        raise SettingsError(f"compare takes two checkpoints, found {len(names)}: sidecar compare ckpts best newest")
    *directory, first, second = typed
    if directory:
        flags = flags | {"checkpoint_dir": Path(directory[0])}
    settings, history = history_of(flags, Console(stderr=True))
    plans = plans_by_name(history.oldest_first(), lambda: history.state, settings.best_metric)

    def read(plan: int) -> Closed | None:
        return history.timeout.call(lambda: read_success(history.storage, plan))

    old, new = (named_evaluation(plans, name, read) for name in (first, second))
    most = None if as_csv else _SHOWN
    found = history.timeout.call(
        lambda: [
            (one, changed_inputs(settings.run_dir, new, old, one, most))
            for one in differences(settings.run_dir, new, old)
        ]
    )
    if as_csv:
        _print_csv(found)
        return
    typer.echo(f"{_title(new)} compared with {_title(old)}")
    for line in _lines(found):
        typer.echo(one_line(line))


def _is_directory(flags: dict[str, Any], word: str) -> bool:
    """Return whether a word is the directory of the checkpoints, and not one of them that is a folder."""
    path = Path(word).absolute()
    return flags["checkpoint_dir"] is None and path.is_dir() and configured_directory(flags) in (None, path)


def _title(closed: Closed) -> str:
    checkpoint = closed.checkpoint
    return one_line(f"{checkpoint.name} (step {shown_step(checkpoint.step, checkpoint.step_source)})")


def _lines(found: Iterable[_Found]) -> Iterable[str]:
    for one, inputs in found:
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
                shown = {place: inputs[place] for place in places[:_SHOWN] if place in inputs}
                yield from (f"        {place}: {shortened(of)}" for place, of in shown.items() if isinstance(of, str))
                if any(isinstance(of, bytes) for of in shown.values()):
                    yield "        images of them: on the status page, and in the table of --csv"


def _difference(one: NumberDifference) -> str:
    """Return `+0.02 (95 % 0.01 to 0.03, paired): better`."""
    found = one.found
    by = "not finite" if found.number is None else f"{found.number:+.4g}"
    if found.lower is None or found.upper is None:
        return f"{by} (noise unknown)"
    verdict = one.verdict or "within noise"
    return f"{by} (95 % {found.lower:.4g} to {found.upper:.4g}, {found.rule}): {verdict}"


def _print_csv(found: Iterable[_Found]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("metric", "example", "change", "input"))
    for one, inputs in found:
        for change, places in (("fixed", one.fixed), ("broken", one.broken)):
            writer.writerows((one.metric, place, change, _as_text(inputs.get(place, ""))) for place in places)


def _as_text(shown: Input) -> str:
    """Return a text in one line, or an image as an address that holds it."""
    return one_line(shown) if isinstance(shown, str) else str(input_record(shown)["image"])
