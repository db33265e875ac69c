"""How a daemon is put together, before its loop turns."""

import json
import signal
from urllib.request import urlopen

import pytest
from structlog.testing import capture_logs

from sidecar.commands.serve import serve
from sidecar.daemon.loop import Daemon
from sidecar.settings import Settings


@pytest.fixture
def signals():
    kept = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for each, handler in kept.items():
        signal.signal(each, handler)


@pytest.mark.usefixtures("signals")
def test_the_first_status_has_all_of_its_fields(tmp_path, monkeypatch):
    """Whoever asks as soon as the port is known asks before the loop has turned."""
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
