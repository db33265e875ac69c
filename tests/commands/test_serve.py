"""How a daemon is put together, before its loop turns."""

import json
import signal
import time
from urllib.request import urlopen

from served_run import ServedRun, value
from structlog.testing import capture_logs

from sidecar.commands.serve import serve
from sidecar.daemon.loop import Daemon
from sidecar.publishing.http.server import Server
from sidecar.settings import Settings


def test_the_first_status_has_all_of_its_fields(tmp_path, monkeypatch):
    """A client that asks as soon as the port is known asks before the loop has turned."""
    answers = []

    def ask(daemon, _):
        (started,) = [each for each in logs if each["event"] == "daemon_started"]
        for turns in (False, True):
            if turns:
                daemon.tick()
            with urlopen(f"{started['http'].rstrip('/')}/api/status") as answer:
                answers.append(json.load(answer))
        return 0

    monkeypatch.setattr(Daemon, "run", ask)
    settings = Settings(checkpoint_dir=tmp_path / "ckpts", role="chief", node="a", http="127.0.0.1:0")
    with capture_logs() as logs:
        assert serve(settings, {}) == 0
    before, after = answers
    assert before.keys() == after.keys()
    assert (before["role"], before["node"], before["workers"]) == ("chief", "a", [])


def test_a_signal_as_soon_as_the_port_is_open_ends_the_daemon_in_order(tmp_path, monkeypatch):
    """A person who sees that it runs may stop it at once; a signal without a handler would kill it."""
    start = Server.start

    def start_and_stop(server):
        start(server)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Server, "start", start_and_stop)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    messages = []
    monkeypatch.setattr(Daemon, "run", lambda _, inbox: messages.append(inbox.get(timeout=1)) or 0)
    assert serve(Settings(checkpoint_dir=tmp_path / "ckpts", role="chief", node="a", http="127.0.0.1:0"), {}) == 0
    assert [message.signal for message in messages] == ["SIGTERM"]


def test_the_page_knows_the_state_directory_and_the_checkpoints(tmp_path, monkeypatch):
    """Its curves are read from the run's own journal, and its remedies name the directory of the settings."""
    settings = Settings(checkpoint_dir=tmp_path / "ckpts", role="chief", node="a", http="127.0.0.1:0")
    written = ServedRun(settings.run_dir)
    written.plan("ckpt-1", 100)
    written.succeed({"test": {"accuracy": value(0.5)}})
    answers = {}

    def ask(daemon, _):
        (started,) = [each for each in logs if each["event"] == "daemon_started"]
        end = time.monotonic() + 60
        while answers.get("/api/curves", {}).get("progress", {}).get("state") != "read":
            assert time.monotonic() < end
            daemon.tick()
            for path in ("/api/status", "/api/curves"):
                with urlopen(started["http"].rstrip("/") + path) as answer:
                    answers[path] = json.load(answer)
        return 0

    monkeypatch.setattr(Daemon, "run", ask)
    with capture_logs() as logs:
        assert serve(settings, {}) == 0
    assert answers["/api/status"]["checkpoint_dir"] == str(tmp_path / "ckpts")
    assert [series["metric"] for series in answers["/api/curves"]["series"]] == ["accuracy"]


def test_a_directory_with_a_similar_name_is_named_at_once(tmp_path, monkeypatch):
    """The daemon waits for the directory all the same, which may come later."""
    (tmp_path / "ckpts").mkdir()
    monkeypatch.setattr(Daemon, "run", lambda *_: 0)
    with capture_logs() as logs:
        assert serve(Settings(checkpoint_dir=tmp_path / "ckpt", role="chief", node="a", http="127.0.0.1:0"), {}) == 0
    (told,) = [each for each in logs if each["event"] == "checkpoint_dir_missing"]
    assert told["remedy"] == "did you mean ckpts?"
