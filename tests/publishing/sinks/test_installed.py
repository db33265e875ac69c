"""Sinks of other packages are loaded by name, and whatever is wrong with one is one sentence."""

import json
import os
import re
import threading
import time
from pathlib import Path

import pytest
from fakes import ListLog
from installed_sinks import install
from journals import Journal
from publishing.sinks.conftest import SHORT_PAUSES, until
from statuses import make_status

from sidecar.coordination.storage import PosixStorage
from sidecar.errors import SettingsError
from sidecar.publishing.sinks.delivery import Delivery
from sidecar.publishing.sinks.installed import load
from sidecar.publishing.sinks.journal_events import evaluations, placed
from sidecar.publishing.sinks.sink import SinkRefusedError, SinkUnavailableError

PATIENCE_SECONDS = 240.0
SOURCE = """
import os, threading, time
from sidecar.publishing.sinks.sink import SinkRefusedError, SinkUnavailableError

class Sink:
    def __init__(self, name, options):
        self.name, self.options, self.got = name, options, []

    def write(self, evaluation):
        if "raises" in self.options:
            raise self.options["raises"]
        if "hangs" in self.options:
            threading.Event().wait()
        if "clears" in self.options:
            evaluation.result.metrics.clear()
        if "forks" in self.options:
            self.child = os.fork()
        self.got.append(evaluation.plan)

def make(options, run, timeout_seconds):
    made = Sink(options.pop("name", "acme"), options)
    made.given = (run, timeout_seconds)
    return made

def make_none(options, run, timeout_seconds):
    return None

def make_exit(options, run, timeout_seconds):
    raise SystemExit(3)

def make_bug(options, run, timeout_seconds):
    return options["no such\\noption"]

def make_nothing():
    raise AssertionError

def make_hang(options, run, timeout_seconds):
    threading.Event().wait()

number = 5
"""
POINTS = {
    "acme": "acme_sinks:make",
    "none": "acme_sinks:make_none",
    "exits": "acme_sinks:make_exit",
    "bug": "acme_sinks:make_bug",
    "nothing": "acme_sinks:make_nothing",
    "hang": "acme_sinks:make_hang",
    "number": "acme_sinks:number",
    "missing": "acme_sinks:no_such_function",
    "module": "no_such_module:make",
}


@pytest.fixture(autouse=True)
def _installed(tmp_path, monkeypatch):
    install(tmp_path / "site", POINTS, SOURCE, monkeypatch)


def make(name="acme", options=None, **limits):
    return load(name, options or {}, "mnist", 7.0, **limits)


def evaluated():
    """Return one evaluation of a journal."""
    journal = Journal()
    journal.evaluate("ckpt-1", 100)
    (evaluation,) = evaluations(placed(journal.history.entries), "mnist", (2, 0))
    return evaluation


def deliver(sink, place, log):
    """Start a delivery of one result, as a daemon does."""
    journal = Journal()
    journal.evaluate("ckpt-1", 100)
    made = Delivery(sink, PosixStorage(place), "mnist", log, pauses=SHORT_PAUSES)
    made.start()
    made.update(
        make_status(run="mnist", node="worker-0", state="ready", publisher=True, journal_read=True), journal.history
    )
    return made


def test_a_sink_is_loaded_and_gets_results(tmp_path):
    """With its options, the name of the run and the time limit; its progress is stored under its name."""
    sink = make(options={"path": "/x"})
    deliver(sink, tmp_path, ListLog()).close(PATIENCE_SECONDS)
    assert (sink.sink.options, sink.sink.given, sink.sink.got) == ({"path": "/x"}, ("mnist", 7.0), [1])
    assert (tmp_path / "sinks/acme.json").exists()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("unknown", "acme, bug, exits"),
        ("module", "no_such_module"),
        ("missing", "no_such_function"),
        ("none", "NoneType"),
        ("exits", "SystemExit: 3"),
        ("bug", "no such"),
        ("nothing", "make_nothing"),
        ("number", "int"),
    ],
)
def test_a_sink_that_cannot_be_made(name, shown):
    """One sentence names the table, the package and the reason."""
    with pytest.raises(SettingsError) as raised:
        make(name)
    text = str(raised.value)
    assert f"[sinks.{name}]" in text
    assert shown in text
    assert name == "unknown" or "acme-sinks" in text
    assert "\n" not in text


@pytest.mark.parametrize("form", ["acme_sinks:make", "{folder}/acme_sinks.py:make"])
def test_a_function_that_the_settings_name(tmp_path, form):
    """It needs no package. The sink gets the other options."""
    sink = make("mine", {"make": form.format(folder=tmp_path / "site"), "name": "mine", "path": "/x"})
    deliver(sink, tmp_path, ListLog()).close(PATIENCE_SECONDS)
    assert (sink.sink.options, sink.sink.got) == ({"path": "/x"}, [1])


@pytest.mark.parametrize(
    ("reference", "shown"),
    [
        ("acme_sinks", "package.module:function"),
        ("acme_sinks:", "package.module:function"),
        (5, "package.module:function"),
        ("acme_sinks.py:make", "whole path"),
        ("/nonexistent/acme.py:make", "No such file"),
        ("no_such_module:make", "no_such_module"),
        ("acme_sinks:no_such_function", "no_such_function"),
    ],
)
def test_a_function_that_cannot_be_had(reference, shown):
    """One sentence repeats what the settings say."""
    with pytest.raises(SettingsError) as raised:
        make(options={"make": reference})
    assert f"[sinks.acme], make = {reference!r}" in str(raised.value)
    assert shown in str(raised.value)


def test_a_sink_with_another_name():
    """Its progress would be stored under a name that the settings do not have."""
    with pytest.raises(SettingsError, match="'acme'"):
        make(options={"name": "../../run"})


def test_a_sink_that_hangs_while_it_is_made():
    """The start ends after the time limit."""
    with pytest.raises(SettingsError, match="hang"):
        make("hang", start_seconds=0.2)


def test_two_packages_provide_a_sink(tmp_path, monkeypatch):
    """The user says which, by uninstalling one."""
    install(tmp_path / "site2", {"acme": "acme_sinks:make"}, SOURCE, monkeypatch, distribution="other-sinks")
    with pytest.raises(SettingsError, match="other-sinks"):
        make()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SinkUnavailableError("away\x1b[31m"), SinkUnavailableError),
        (SinkRefusedError("no"), SinkRefusedError),
        (ValueError("x" * 100_000), SinkUnavailableError),
        (SystemExit(1), SinkUnavailableError),
        (KeyboardInterrupt(), SinkUnavailableError),
        (MemoryError(), SinkUnavailableError),
    ],
)
def test_whatever_a_sink_raises(error, expected):
    """It becomes an error of this program, in one short line."""
    with pytest.raises(expected) as raised:
        make(options={"raises": error}).write(None)
    assert type(error).__name__ in str(raised.value)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 500


def test_a_sink_that_exits_keeps_its_thread(tmp_path):
    """It is asked again, and the log says why."""
    log = ListLog()
    delivery = deliver(make(options={"raises": SystemExit(4)}), tmp_path, log)
    until(lambda: delivery.status.failing is not None)
    assert [(event, fields["reason"]) for event, fields in log.events] == [("sink_failed", "SystemExit: 4")]
    del delivery.sink.sink.options["raises"]
    until(lambda: delivery.status.pending == 0)
    delivery.close(PATIENCE_SECONDS)


def test_a_sink_that_changes_the_result():
    """The journal of the daemon, which the gauges and the other sinks show, keeps its numbers."""
    evaluation = evaluated()
    sink = make(options={"clears": 1})
    sink.write(evaluation)
    assert sink.sink.got == [1]
    assert evaluation.result.metrics


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12: it has threads
def test_a_sink_that_forks():
    """The child ends where it would return: else it would deliver as a second daemon, and keep the port."""
    sink, daemon = make(options={"forks": 1}), os.getpid()
    sink.write(evaluated())
    if os.getpid() != daemon:
        os._exit(0)
    _, status = os.waitpid(sink.sink.child, 0)
    assert os.waitstatus_to_exitcode(status) == 1


def test_the_sink_of_the_page(tmp_path, monkeypatch):
    """The one that docs/how-to/write-a-sink.md shows works as it is."""
    page = Path(__file__).parents[3] / "docs/how-to/write-a-sink.md"
    source = re.search(r"<!-- jsonl_sink.py -->\n```python\n(.*?)```", page.read_text(), re.DOTALL)[1]
    install(tmp_path / "page", {"jsonl": "acme_sinks:make"}, source, monkeypatch, distribution="page")
    sink = make("jsonl", {"path": str(tmp_path / "results.jsonl")})
    deliver(sink, tmp_path, ListLog()).close(PATIENCE_SECONDS)
    (line,) = (tmp_path / "results.jsonl").read_text().splitlines()
    assert json.loads(line) == {"plan": 1, "step": 100, "time": 1769860801500, "test/accuracy": 0.97}
    log = ListLog()
    failing = deliver(make("jsonl", {"path": str(tmp_path / "missing" / "file")}), tmp_path / "other", log)
    until(lambda: log.events)
    failing.close(PATIENCE_SECONDS)
    assert [event for event, fields in log.events if "missing" in fields["reason"]] == ["sink_failed"]


def test_a_sink_that_hangs(tmp_path):
    """It holds up neither the daemon's loop nor its end, nor another sink."""
    hanging, other = deliver(make(options={"hangs": 1}), tmp_path, ListLog()), make()
    until(lambda: hanging.status.pending == 1)
    deliver(other, tmp_path / "other", ListLog()).close(PATIENCE_SECONDS)
    assert other.sink.got == [1]
    began = time.monotonic()
    hanging.close(0.1)
    assert time.monotonic() - began < PATIENCE_SECONDS / 2
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "sink acme"] == [True]
