"""The pages of docs/reference/ say what the code says, and leave nothing out."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from record_fields import field_types

from sidecar import errors
from sidecar.commands import cli
from sidecar.commands.options import FLAGS
from sidecar.coordination.run import Run
from sidecar.coordination.state_directory import RunMarker
from sidecar.protocol import heartbeat, records
from sidecar.settings import Settings
from sidecar.settings.outputs import OutputSettings

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = DOCS / "reference"
GENERATED = ("settings.md", "cli.md", "metrics.md", "exit-codes.md", "log-events.md", "sidecar.1")
RECORDS = (
    *(Run, RunMarker, records.Plan, records.Checkpoint, records.Member, records.Settlement, records.Outcome),
    *(records.Result, records.Value, records.EvalData, records.Nonfinite),
    *(heartbeat.Heartbeat, heartbeat.Slot, heartbeat.WorkerProgress),
)


@pytest.fixture(scope="module")
def generate():
    """The program that writes the pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        import generate

        yield generate


@pytest.fixture(scope="module")
def pages(generate):
    """The pages that it would write now."""
    return generate.pages()


@pytest.fixture
def log_calls(monkeypatch):
    """The reader of log calls that the program uses."""
    monkeypatch.syspath_prepend(DOCS)
    import log_calls

    return log_calls


def test_the_generator_makes_the_pages(pages):
    """It writes each generated page, and no hand-written one."""
    assert tuple(pages) == GENERATED


@pytest.mark.parametrize("name", GENERATED)
def test_a_page_says_what_the_code_says(pages, name):
    """Run `make reference` after a change of settings, options, metrics, exit codes or log events."""
    assert (REFERENCE / name).read_text() == pages[name]


def test_the_settings_page_has_every_setting_and_option():
    """Each setting has a heading, so a link of its own, in the order of the source, and is in the row of its topic."""
    page = (REFERENCE / "settings.md").read_text()
    assert re.findall(r"^### `(\w+)`$", page, re.MULTILINE) == [
        name
        for defined in (Settings, OutputSettings)
        for name in defined.__annotations__
        if name in Settings.model_fields
    ]
    assert [flag for flag, name in FLAGS.items() if f"`SIDECAR_{name.upper()}` · `{flag}`" not in page] == []
    assert [name for name in Settings.model_fields if f" · `SIDECAR_{name.upper()}`" not in page] == []
    assert [name for name in Settings.model_fields if page.count(f"[`{name}`](#{name})") != 1] == []


def test_the_man_page_is_read_by_man(needs):
    """Without a warning; every command with its options is in it."""
    command = [needs("man"), "--warnings", "--local-file", REFERENCE / "sidecar.1"]
    environ = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=240, check=True)
    assert done.stderr == ""
    shown = re.sub(".\b", "", done.stdout)
    for command in ("run [DIR]", "history [DIR]", "requeue [[DIR] CHECKPOINT...]", "settings [NAME]"):
        assert f"sidecar {command}\n" in shown
    assert "--every-steps N" in shown


def test_no_topic_takes_the_anchor_of_a_setting():
    """A heading above `task` that is called "Task" would have `#task` for itself."""
    page = (REFERENCE / "settings.md").read_text()
    topics = {title.lower().replace(" ", "-") for title in re.findall(r"^## (.*)$", page, re.MULTILINE)}
    assert topics.isdisjoint(Settings.model_fields)


@pytest.mark.parametrize("help_", [None, "", "no end", "No end \\[env: SIDECAR_RUN]"])
def test_an_option_without_a_sentence_is_refused(generate, help_):
    """The help of an option begins with a sentence."""
    import typer

    app = typer.Typer()

    @app.command()
    def only(name: str = typer.Option("", help=help_)): ...

    with pytest.raises(generate.MissingSentenceError, match="name"):
        generate.parameters("only", typer.main.get_command(app))


def test_a_metric_without_a_sentence_is_refused(generate):
    """The help of a family is the sentence."""
    (first, *_) = generate.families()
    with pytest.raises(generate.MissingSentenceError, match=first.name):
        generate.metrics_page([first._replace(help="no end")])


def test_a_log_event_without_a_sentence_is_refused(generate):
    """A sentence about an event that nobody logs is refused as well."""
    without = {key: text for key, text in generate.EVENTS.items() if key != "draining"}
    with pytest.raises(generate.MissingSentenceError, match="draining"):
        generate.log_events_page(without)
    with pytest.raises(generate.MissingSentenceError, match="never_logged"):
        generate.log_events_page({**generate.EVENTS, "never_logged": "Never."})


def test_every_meaning_of_a_log_event_is_a_sentence(generate):
    """It begins with a capital letter or the name of a setting, and ends with a full stop."""
    assert [text for text in generate.EVENTS.values() if not re.fullmatch(r"[A-Z`].*\.", text)] == []


def test_log_calls_are_found_however_they_are_written(log_calls, tmp_path):
    """Calls may use a method that adds a field, a local variable, a mapping that is passed on, or a traceback."""
    (tmp_path / "module.py").write_text(
        """
class Part:
    def warn(self, event, worker, **fields):
        self.log.warning(event, worker=worker, **fields)

    def tell(self, bad):
        self.warn("worker_lost", "w", kind="join")
        about = {"a": 1, **({"b": 2} if bad else {})}
        say = self.log.warning if bad else self.log.info
        say("thing_told", **about, **more(), c=3)
        self.other("no_event", d=4)

def more():
    return {"e": 5}

async def serve():
    _log.exception("thing_broke")
"""
    )
    assert {(each.name, each.levels, each.fields) for each in log_calls.log_events(tmp_path).values()} == {
        ("worker_lost", ("warning",), ("worker", "kind")),
        ("thing_told", ("warning", "info"), ("a", "b", "e", "c")),
        ("thing_broke", ("error",), ()),
    }


def test_every_exit_code_has_a_sentence():
    """The codes are those of the errors and those of the command line itself."""
    used = {each.exit_code for each in vars(errors).values() if isinstance(each, type) and hasattr(each, "exit_code")}
    assert used | {0, cli._FAILED, cli._A_BUG, cli._INTERRUPTED} == errors.EXIT_CODES.keys()


def test_the_http_page_has_every_path_and_limit():
    """It has the paths that the views know and the limits of the server."""
    from prometheus_client import CollectorRegistry

    from sidecar.publishing.http import hosts, server, views

    page = (REFERENCE / "http.md").read_text()
    known = views.Views(hosts.Hosts([]), CollectorRegistry(), lambda: None, lambda: None, dict, archive=None).paths
    assert {*re.findall(r"^\| `(/\S*)` \|", page, re.MULTILINE)} == {*known}
    assert f"| {server.REQUEST_BYTES // 1024} KiB |" in page
    assert f"| connections at once | {server.CONNECTIONS} |" in page
    assert f"| connections of one client | {server.PER_CLIENT} |" in page
    assert [end for end in hosts.PRIVATE if f"`{end}`" not in page] == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_the_state_directory_page_has_every_field(record):
    """A field that is added to a record must be explained."""
    page = (REFERENCE / "state-directory.md").read_text()
    assert [name for name in field_types(record) if f"`{name}`" not in page] == []
