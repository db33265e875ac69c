"""How a daemon is put together, before its loop turns."""

import json
import signal
import time
from urllib.request import urlopen

import pytest
from served_run import ServedRun, value
from structlog.testing import capture_logs

from sidecar.commands.serve import serve
from sidecar.daemon.loop import Daemon
from sidecar.publishing.http.server import Server
from sidecar.settings import Settings


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Serve with `loop` in place of the daemon's, given the daemon, its inbox and the log; return the log."""

    def serving(loop, directory="ckpts"):
        settings = Settings(checkpoint_dir=tmp_path / directory, role="chief", node="a", http="127.0.0.1:0")
        with capture_logs() as logs:
            monkeypatch.setattr(Daemon, "run", lambda daemon, inbox: loop(daemon, inbox, logs) or 0)
            assert serve(settings, {}) == 0
        return logs

    return serving


def test_the_first_status_has_all_of_its_fields(served):
    """A client that asks as soon as the port is known asks before the loop has turned."""
    answers = []

    def ask(daemon, _, logs):
        (started,) = [each for each in logs if each["event"] == "daemon_started"]
        for turns in (False, True):
            if turns:
                daemon.tick()
            with urlopen(f"{started['http'].rstrip('/')}/api/status") as answer:
                answers.append(json.load(answer))

    served(ask)
    before, after = answers
    assert before.keys() == after.keys()
    assert (before["role"], before["node"], before["workers"]) == ("chief", "a", [])


def test_a_signal_as_soon_as_the_port_is_open_ends_the_daemon_in_order(served, monkeypatch):
    """A person who sees that it runs may stop it at once; a signal without a handler would kill it."""
    start = Server.start

    def start_and_stop(server):
        start(server)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Server, "start", start_and_stop)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    messages = []
    served(lambda _, inbox, __: messages.append(inbox.get(timeout=1)))
    assert [message.signal for message in messages] == ["SIGTERM"]


def test_the_page_knows_the_state_directory_and_the_checkpoints(tmp_path, served):
    """Its curves are read from the run's own journal, and its remedies name the directory of the settings."""
    written = ServedRun(Settings(checkpoint_dir=tmp_path / "ckpts").run_dir)
    written.plan("ckpt-1", 100)
    written.succeed({"test": {"accuracy": value(0.5)}})
    answers = {}

    def ask(daemon, _, logs):
        (started,) = [each for each in logs if each["event"] == "daemon_started"]
        end = time.monotonic() + 60
        while answers.get("/api/curves", {}).get("progress", {}).get("state") != "read":
            assert time.monotonic() < end
            daemon.tick()
            for path in ("/api/status", "/api/curves"):
                with urlopen(started["http"].rstrip("/") + path) as answer:
                    answers[path] = json.load(answer)

    served(ask)
    assert answers["/api/status"]["checkpoint_dir"] == str(tmp_path / "ckpts")
    assert [series["metric"] for series in answers["/api/curves"]["series"]] == ["accuracy"]


def test_a_directory_with_a_similar_name_is_named_at_once(tmp_path, served):
    """One warning says so. The daemon waits for the directory all the same, which may come later."""
    (tmp_path / "ckpts").mkdir()

    def turn(daemon, inbox, logs):
        while not any(each["event"] == "checkpoint_dir_missing" for each in logs):
            daemon.tick()
            daemon.observe(inbox.get(timeout=30))

    (told,) = [each for each in served(turn, "ckpt") if each["event"] == "checkpoint_dir_missing"]
    assert "waiting" in told["remedy"]
    assert "did you mean ckpts?" in told["remedy"]
