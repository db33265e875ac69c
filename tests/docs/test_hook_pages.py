"""The programs on the pages about hooks and the early stop do what the pages say."""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.commands.hooks import read_secret
from sidecar.publishing.sinks.hook_command import HookCommand
from sidecar.publishing.sinks.webhook import signed_headers

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
EVENT = {"time": "2026-01-31T12:00:00.000Z", "text": "run ckpts: best"}


def block(page, name):
    """A Python block of a page, by its file name."""
    return re.search(rf"<!-- {name} -->\n```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)[1]


def test_the_command(tmp_path, monkeypatch):
    """It writes a line for each event."""
    monkeypatch.chdir(tmp_path)
    Path("my_hook.py").write_text(block("hooks.md", "my_hook.py"))
    for _ in range(2):
        HookCommand((sys.executable, "my_hook.py"), 60.0).send(json.dumps(EVENT).encode(), "id")
    assert Path("results.log").read_text() == 2 * "2026-01-31T12:00:00.000Z run ckpts: best\n"


def test_the_key(tmp_path):
    """The command makes one that the daemon takes."""
    command = next(line for line in (PAGES / "hooks.md").read_text().splitlines() if line.startswith("(umask"))
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    assert len(read_secret("best", tmp_path / "hook.key")) == 32


def test_the_receiver(tmp_path, monkeypatch):
    """It takes what the daemon sends, and nothing else."""
    standardwebhooks = pytest.importorskip("standardwebhooks")
    import time

    monkeypatch.chdir(tmp_path)
    key = os.urandom(32)
    Path("hook.key").write_text("whsec_" + base64.b64encode(key).decode() + "\n")
    names = {}
    exec(block("hooks.md", "my_receiver.py"), names)
    body = json.dumps(EVENT).encode()
    assert names["event_of"](body, signed_headers(body, "id", round(time.time()), key)) == EVENT
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        names["event_of"](body, signed_headers(body, "id", round(time.time()), key[::-1]))


def test_the_loop(tmp_path, monkeypatch, capsys):
    """It stops at once, or runs to its end."""
    monkeypatch.chdir(tmp_path)
    code = block("early-stop.md", "stop_loop.py")
    exec(code, {})
    assert capsys.readouterr().out == ""
    folder = Path("ckpts/.sidecar/ckpts")
    folder.mkdir(parents=True)
    texts = dict.fromkeys(("metric", "best_checkpoint", "checkpoint", "run", "created_at"), "x")
    signal = texts | {"reason": "enough", "best": 0.5, "best_step": 1, "step": 2, "patience": 3, "schema": 1}
    (folder / "early_stop.json").write_text(json.dumps(signal))
    exec(code, {})
    assert capsys.readouterr().out.startswith("stopped after step 1: enough; ")
