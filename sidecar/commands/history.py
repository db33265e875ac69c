"""Print the results of a run for people (`history`) or for other programs (`export`), or say why there are none.

A run is read in short steps, so that a long one takes little memory. Storage is asked in a thread of its own, and its
answers are folded here. So only the silence of storage counts against `storage_timeout_seconds`, and Ctrl-C ends the
command between two steps at the latest.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain, islice
from textwrap import indent
from typing import Any, Final, Literal

import typer
from rich.console import Console

from sidecar.commands.hints import no_result, no_run
from sidecar.commands.history_plot import plots, series_of
from sidecar.commands.history_table import Metric, best_plans, left_out_line, sparklines, table, winners
from sidecar.commands.status.observe import observer_of
from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.commands.terminal import newest_reasons, print_below_history, reading_progress
from sidecar.coordination import snapshot_store
from sidecar.coordination.compaction import single_files
from sidecar.coordination.journal import Journal
from sidecar.coordination.journal_state import Closed, Entry, EntryLog, JournalState
from sidecar.coordination.run import find_run, read_run
from sidecar.coordination.snapshot import RECENT
from sidecar.coordination.storage import Storage
from sidecar.errors import SettingsError
from sidecar.protocol.records import Outcome, Plan
from sidecar.publishing.export import ExportFormat, as_csv, as_json_lines, as_openmetrics
from sidecar.publishing.history_filter import HistoryFilter
from sidecar.publishing.report import Row, final_failures, streamed_rows
from sidecar.settings import Settings
from sidecar.system.plain_text import printable

HistoryForm = Literal["table", "plot", "csv", "json"]


Progress = Callable[[], AbstractContextManager[Callable[[int, int], None]]]
"""Show people how far the journal was read: the number of a plan, and that of the last one, or 0 if none is known."""

_STEP: Final = 100  # records between two reports
_BACK: Final = 250  # plans that are read before those that are known
_PART: Final = 500  # rows that are held, and rows of one table


class RunHistory:
    """Yield the entries of a run, and hold the state that follows from all of them in `state`.

    Raises as `Journal` and `StorageTimeout.call`.
    """

    def __init__(self, storage: Storage, timeout: StorageTimeout, progress: Progress) -> None:
        self.storage = storage
        self.timeout = timeout
        self.progress = progress
        self.state = JournalState()

    def chosen(self, wanted: HistoryFilter) -> Iterator[Entry]:
        """Yield the entries that were asked for, oldest first. `state` is complete once they end."""
        if wanted.newest is None:
            yield from wanted.apply(self.oldest_first())
            return
        yield from reversed(list(islice(wanted.apply(self.newest_first()), wanted.newest)))

    def oldest_first(self) -> Iterator[Entry]:
        """Yield all entries in the order of the journal, and fold it meanwhile."""
        self.state = JournalState(log=EntryLog(keep=1))
        if (run := self.timeout.call(lambda: read_run(self.storage))) is None:
            return
        with self.progress() as report:
            last = max(self.timeout.call(lambda: single_files(self.storage))[0], default=0)
            journal = Journal(self.storage, run)
            for record in self._to_end(journal):
                report(record.plan, last)
                yield from self.state.apply(record)

    def rows(
        self, wanted: HistoryFilter, first: list[Entry], further: Iterator[Entry]
    ) -> tuple[Iterator[Row], Mapping[Metric, int]]:
        """Return the rows of the chosen entries, and the plans of the best values of the whole run.

        If there are `further` entries behind the `first` ones, the journal is read ahead instead of holding all rows.
        """
        if wanted.newest is not None or len(first) <= _PART:
            first += further
            return streamed_rows(first, final_failures(first)), best_plans(self.state)
        ahead = RunHistory(self.storage, self.timeout, self.progress)
        next(ahead.newest_first(), None)
        best, final = best_plans(ahead.state), set[int]()
        if ahead.state.totals.checkpoints["failed"]:  # otherwise no attempt became final
            final = final_failures(wanted.apply(ahead.oldest_first()))
        return streamed_rows(chain(first, further), final), best

    def newest_first(self) -> Iterator[Entry]:
        """Yield all entries, the newest first: those behind the snapshot, and further back only as far as asked."""
        if (run := self.timeout.call(lambda: read_run(self.storage))) is None:
            return
        journal = Journal(self.storage, run)
        found = self.timeout.call(lambda: snapshot_store.resume(self.storage, journal))
        self.state = found or JournalState(log=EntryLog(keep=RECENT))
        with self.progress() as report:
            last = max(self.timeout.call(lambda: single_files(self.storage))[0], default=0)
            for record in self._to_end(journal):
                report(record.plan, last)
                self.state.apply(record)
            newest = list(self.state.entries)
            end = 0 if len(newest) == self.state.log.count else newest[0].plan.plan
            # The log may have forgotten some entries of the oldest plan that it knows: these are read again below.
            yield from reversed([entry for entry in newest if entry.plan.plan > end])
            while end > 0:
                first = max(1, end - _BACK + 1)
                report(first, 0)
                yield from reversed(list(self._between(Journal(self.storage, run), first, end)))
                end = first - 1

    def _to_end(self, journal: Journal) -> Iterator[Plan | Outcome]:
        """Yield the records up to the end of the journal. Storage is asked for some at a time."""
        records = journal.read_to_end()
        while step := self.timeout.call(lambda: list(islice(records, _STEP))):
            yield from step

    def _between(self, journal: Journal, first: int, last: int) -> Iterator[Entry]:
        """Yield the entries of closed plans, folded without what was before: that does not change them."""
        state = JournalState(through=first - 1, ordinals=self.state.ordinals)
        journal.skip_to(first)
        while step := self.timeout.call(lambda: journal.read_new(_STEP)):
            for record in step:
                if record.plan > last:
                    return
                yield from state.apply(record)


def form_of(asked: Mapping[HistoryForm, bool]) -> HistoryForm:
    """Return the form that was asked for, or a table. Raises `SettingsError` if there are several."""
    given = [form for form, is_asked in asked.items() if is_asked]
    if len(given) > 1:
        named = " and ".join(f"--{form}" for form in given)
        raise SettingsError(f"{named} are {len(given)} formats: give one of them")
    return given[0] if given else "table"


def history_of(flags: dict[str, Any], console: Console) -> tuple[Settings, RunHistory]:
    """Return the settings, and the reader of the run's history, which shows its progress on a console."""
    settings, timeout, observer = observer_of(flags)
    progress = partial(reading_progress, console, timeout.clock)
    return settings, RunHistory(observer.storage, timeout, progress)


def why_empty(settings: Settings, history: RunHistory) -> str:
    """Return why the history that was read has no result, as a sentence; an empty text if it has some."""
    if history.state.log.count:
        return ""
    if history.timeout.call(lambda: find_run(history.storage)) is None:
        return history.timeout.call(lambda: no_run(settings))
    return no_result(settings)


def _contents_of(entries: Iterable[Entry]) -> str:
    """Return the metrics, eval sets and steps of a history, for a message to a person who asked for others."""
    metrics, eval_sets, steps = dict[str, None](), dict[str, None](), set[int]()
    for each in entries:
        if isinstance(each, Closed) and each.outcome.result is not None:
            for eval_set, values in each.outcome.result.metrics.items():
                eval_sets[eval_set] = None
                metrics |= dict.fromkeys(values)
            if each.plan.checkpoint is not None and each.plan.checkpoint.step is not None:
                steps.add(each.plan.checkpoint.step)
    span = f"; steps: {min(steps)} to {max(steps)}" if steps else ""
    return f"metrics: {', '.join(metrics) or 'none'}; eval sets: {', '.join(eval_sets) or 'none'}{span}"


def print_history_of(flags: dict[str, Any], wanted: HistoryFilter, form: HistoryForm) -> None:
    """Print the results that were asked for, oldest first: a table or plots for people, CSV, or a list of objects."""
    if form == "csv":
        print_export(flags, wanted, form)
        return
    settings, history = history_of(flags, Console(stderr=True))
    entries = history.chosen(wanted)
    first = list(islice(entries, _PART + 1))
    if form == "json":
        _print_json(history.rows(wanted, first, entries)[0])
    elif not first and (why := why_empty(settings, history)):
        typer.echo(why)
    elif not first:
        none = f"none of the {history.state.log.count} results is what the options ask for"
        typer.echo(printable(f"{none}; {_contents_of(history.oldest_first())}"))
    elif form == "plot":
        console = Console()
        colors = console.is_terminal and not console.no_color and console.color_system is not None
        series = series_of(chain(first, entries))  # reads to the end, which tells the best values
        for plot in plots(series, best_plans(history.state), width=console.width, colors=colors):
            typer.echo(plot)
    else:
        _print_tables(*history.rows(wanted, first, entries))


def _print_json(rows: Iterable[Row]) -> None:
    """Print the rows as one list, each as soon as it is known."""
    between = "[\n"
    for row in rows:
        typer.echo(between + indent(json.dumps(row, indent=1, allow_nan=False), " "), nl=False)
        between = ",\n"
    typer.echo("[]" if between == "[\n" else "\n]")


def _print_tables(rows: Iterator[Row], best: Mapping[Metric, int]) -> None:
    """Print a table of the rows, or several if there are many, and what stands below: it is about the last table."""
    console, reasons, shown, left_out = Console(), list[Row](), list[Row](), list[str]()
    broken: dict[int, Mapping[str, str]] = {}
    while part := list(islice(rows, _PART)):
        shown, broken = part, {row["plan"]: row["data_changed"] for row in part if row.get("data_changed")}
        drawn, left_out = table(shown, best, console.width, broken)
        console.print(drawn)
        reasons = newest_reasons(chain(reasons, shown))
    below = [left_out_line(left_out)] if left_out else []
    below += [*sparklines(shown, best, broken), *winners(shown, best, broken)]
    print_below_history(console, below, reasons)


def print_export(flags: dict[str, Any], wanted: HistoryFilter, form: ExportFormat) -> None:
    """Print the chosen numbers while they are read.

    If there are no results, print an empty document, and the reason on standard error.
    """
    here = Console(stderr=True, force_terminal=False) if sys.stdout.isatty() else Console(stderr=True)
    settings, history = history_of(flags, here)  # on a terminal, the document itself is the progress
    entries = history.chosen(wanted)
    if form == "csv":
        parts = as_csv(entries)
    elif form == "jsonl":
        parts = as_json_lines(entries)
    else:
        parts = as_openmetrics(entries, settings.run)
    for part in parts:
        typer.echo(part, nl=False)
    if why := why_empty(settings, history):
        typer.echo(why, err=True)
