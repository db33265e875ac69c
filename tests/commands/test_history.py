"""The entries of a run are read in steps: all of them, or the newest ones without those before."""

import io
import json
import math
import shutil
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

import pytest
from commands.conftest import as_checkpoint
from commands.journal_files import Writers
from fakes import FakeClock
from journals import settlement
from records import settlement_of
from rich.console import Console

from sidecar.commands.history import RunHistory, _print_json, _print_tables
from sidecar.commands.history_table import best_plans
from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.commands.terminal import reading_progress
from sidecar.coordination import snapshot_store
from sidecar.coordination.compaction import Compaction
from sidecar.coordination.journal import Journal, read_history
from sidecar.coordination.journal_state import EntryLog, JournalState
from sidecar.coordination.run import open_run
from sidecar.coordination.snapshot import RECENT, take
from sidecar.coordination.storage import PosixStorage
from sidecar.publishing.history_filter import HistoryFilter
from sidecar.publishing.report import entry_rows

PLANS = 60


@contextmanager
def silent():
    yield lambda *_: None


class Counted:
    """A storage that notes which files are read."""

    def __init__(self, storage):
        self.storage, self.read_paths = storage, []

    def read(self, path, limit=None):
        """Note which path is read, and return its content."""
        self.read_paths.append(path)
        return self.storage.read(path, limit)

    def __getattr__(self, name):
        return getattr(self.storage, name)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Evaluations of every kind, most of them in segments, and a snapshot of all but the newest ones."""
    storage = PosixStorage(tmp_path_factory.mktemp("written"))
    run = open_run(storage, 0.0)
    writers = Writers(storage, run)
    for number in range(1, PLANS + 1):
        subject = as_checkpoint(number, "abcdef0123456789"[number % 16])
        if number % 7 == 0:
            subject = replace(subject, step=None)
        settles = [settlement(f"old-{number}-{each}", "skipped", step=None) for each in range(number % 5)]
        writers.propose(*settles, checkpoint=subject if number % 11 else None)
        if number % 11:
            writers.close(kind="stalled" if number % 6 == 0 else None)
        if number == PLANS - 20:
            history = JournalState(log=EntryLog(keep=RECENT))
            for record in Journal(storage, run).read_to_end():
                history.apply(record)
            snapshot_store.write(storage, take(history, run))
    for _ in Compaction(storage, run, kept_plans=25, most_plans=10).carry_out(PLANS):
        pass
    return storage.root


@pytest.fixture
def long(written, storage):
    """A copy of that journal."""
    shutil.copytree(written, storage.root)
    return storage


def reader(storage, clock=None):
    return RunHistory(storage, StorageTimeout(5.0, "/x", clock), silent)


def test_all_entries_in_both_orders(long):
    """They are those of the whole fold, with the numbers of checkpoints that have no step."""
    expected = read_history(long)
    history = reader(long)
    assert list(history.oldest_first()) == expected.entries
    assert replace(history.state, log=expected.log) == expected
    history = reader(long)
    assert list(history.newest_first()) == expected.entries[::-1]
    assert replace(history.state, log=expected.log) == expected
    assert history.state.log.count == expected.log.count


def test_all_entries_without_a_snapshot(long):
    """A view that is lost changes nothing."""
    expected = read_history(long).entries
    long.remove(snapshot_store.PATH)
    assert list(reader(long).newest_first()) == expected[::-1]


@pytest.mark.parametrize("newest", [1, 3, 64, 65, 100, 1000])
def test_the_newest_entries(long, newest):
    """They come in the order of the journal; more than there are is no mistake."""
    expected = [entry for entry in read_history(long).entries if entry.plan.task == "t1"]
    assert list(reader(long).chosen(HistoryFilter(newest=newest))) == expected[-newest:]
    chosen = list(reader(long).chosen(HistoryFilter(newest=newest, last_step=30)))
    below = list(HistoryFilter(last_step=30).apply(expected))
    assert chosen == below[-newest:]


@pytest.fixture
def parts(monkeypatch):
    """A history with more than five rows is long."""
    monkeypatch.setattr("sidecar.commands.history._PART", 5)


def streamed(storage, wanted):
    """Return the rows of a history, and the plans with the best values."""
    history = reader(storage)
    entries = history.chosen(wanted)
    rows, best = history.rows(wanted, list(islice(entries, 6)), entries)
    return list(rows), best


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("newest", [None, 50])
@pytest.mark.parametrize("given_up", [False, True])
def test_rows_that_are_not_held_are_the_same(long, writers, checkpoint, newest, given_up):
    """Also the row of an attempt that a settlement made final long afterwards."""
    if given_up:
        lost = checkpoint(6, "0")
        writers.propose(settlement_of(lost, "failed"), checkpoint=None)
    expected = entry_rows(read_history(long).entries if newest is None else read_history(long).entries[-newest:])
    rows, best = streamed(long, HistoryFilter(newest=newest))
    assert rows == expected
    final = [row["plan"] for row in rows if row["final"] and row["status"] == "failed"]
    assert final == ([6 if newest is None else PLANS + 1] if given_up else [])  # the attempt, or else the settlement
    assert best == best_plans(read_history(long))


@pytest.mark.usefixtures("parts")
def test_a_long_history_is_printed_in_several_tables(long, capsys, monkeypatch):
    """Each has its heading, and below the last one stand the reasons of the newest failures."""
    monkeypatch.setenv("COLUMNS", "120")
    rows, best = streamed(long, HistoryFilter())
    _print_tables(iter(rows), best)
    out = capsys.readouterr().out
    assert out.count("checkpoint") == math.ceil(len(rows) / 5)
    assert [out.count(f" {row['checkpoint']} ") > 0 for row in rows] == [True] * len(rows)
    assert out.count("gave up after 3 attempts") == 1


@pytest.mark.parametrize("rows", [[], [{"a": [1, "x\ny"]}], [{"a": {}}, {"b": None}, {}]])
def test_rows_are_printed_as_one_list(capsys, rows):
    """As if they had been printed at once."""
    _print_json(iter(rows))
    assert capsys.readouterr().out == json.dumps(rows, indent=1) + "\n"


def test_the_newest_entries_do_not_read_the_oldest(long):
    """Only what is behind the snapshot is read, and the plan with which that ends."""
    counted = Counted(long)
    assert len(list(reader(counted).chosen(HistoryFilter(newest=20)))) == 20
    plans = {path for path in counted.read_paths if path.startswith("plans/")}
    assert plans <= {f"plans/{number:012d}.json" for number in (1, *range(PLANS - 20, PLANS + 2))}


def test_there_is_no_run(storage):
    """There are no entries either."""
    history = reader(storage)
    assert list(history.oldest_first()) == list(history.newest_first()) == []
    assert history.state.log.count == 0


def test_folding_does_not_count_as_silence_of_storage(long):
    """However long the reader takes between two answers."""
    clock = FakeClock()
    history = reader(long, clock)
    assert len([pass_by(clock, 60) for _ in history.oldest_first()]) == read_history(long).log.count


def pass_by(clock, seconds):
    """Move the clock forward by some seconds."""
    clock.seconds += seconds


def test_progress_is_shown_once_reading_takes_long():
    """On a terminal after two seconds, and nowhere else."""
    for terminal in (True, False):
        clock, text = FakeClock(), io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=80)
        with reading_progress(console, clock) as report:
            report(100, 300)
            clock.seconds += 1.9
            report(200, 300)
            assert text.getvalue() == ""
            clock.seconds += 0.2
            report(250, 300)
        assert ("reading the journal: plan 250 of 300" in text.getvalue()) == terminal
