"""`sidecar hooks test` as a person uses it, and the file of the key."""

import base64
import json
import os
import sys
from pathlib import Path

import jsonschema
import pytest
from receivers import receiver

from sidecar.commands.hooks import directory_and_event, make_hooks, read_secret, try_hooks
from sidecar.errors import SettingsError
from sidecar.publishing.sinks.hook import HOOKS
from sidecar.settings import Settings

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/reference/hook-event.schema.json").read_text())
KEY = b"k" * 32


@pytest.fixture
def settings(tmp_path):
    return lambda hooks: Settings(checkpoint_dir=tmp_path / "ckpts", hooks=hooks)


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key"
    path.write_text("whsec_" + base64.b64encode(KEY).decode() + "\n")
    path.chmod(0o600)
    return path


def said_of(settings, event=None):
    lines = []
    return try_hooks(settings, event, lines.append), lines


def test_each_hook_gets_a_sample(settings, tmp_path):
    """As the schema says, and marked, so that nobody takes it for a result."""
    program = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
    command = [sys.executable, "-I", "-S", "-c", program]
    assert said_of(settings({hook: [*command, str(tmp_path / hook)] for hook in HOOKS}))[0]
    for hook in HOOKS:
        sample = json.loads((tmp_path / hook).read_text())
        jsonschema.validate(sample, SCHEMA)
        assert (sample["event"], sample["test"]) == (hook, True)
        assert sample["text"].startswith("TEST")
    assert not (tmp_path / "ckpts").exists()


def test_the_directory_comes_first(tmp_path):
    """As in all other commands; either of both may be left out, and a typo of a hook is named."""
    place = str(tmp_path)
    assert directory_and_event([]) == (None, None)
    assert directory_and_event(["best"]) == (None, "best")
    assert directory_and_event([place]) == (tmp_path, None)
    assert directory_and_event([place, "best"]) == directory_and_event(["best", place]) == (tmp_path, "best")
    for words, said in (
        ([place, "bset"], "did you mean best?"),
        (["best", "nan"], "one hook"),
        ([place, place], "one dir"),
    ):
        with pytest.raises(SettingsError, match=said.replace("?", "[?]")):
            directory_and_event(words)


def test_each_hook_has_its_line(settings):
    """Print the words of each hook or why it failed, and try the others nevertheless."""
    with receiver() as server:
        server.answers = [503, 204]
        hooks = {
            "best": server.url,
            "nan": ["sh", "-c", "echo no; exit 4"],
            "end": server.url,
            "failure": "/no/program",
        }
        well, lines = said_of(settings(hooks))
    assert not well
    assert [line.split()[0] for line in lines] == ["best:", "failure:", "nan:", "end:"]
    assert ["failed" in line for line in lines] == [True, True, True, False]
    assert ["503" in lines[0], "/no/program" in lines[1], "exited with 4" in lines[2]] == [True] * 3


def test_one_hook_can_be_named(settings):
    """The others are left alone."""
    well, lines = said_of(settings({"best": "true", "end": "false"}), "best")
    assert (well, len(lines)) == (True, 1)


@pytest.mark.parametrize(("hooks", "event"), [({}, None), ({"best": "true"}, "end"), ({"best": "true"}, "nonsense")])
def test_a_hook_that_is_not_set(settings, hooks, event):
    """One sentence says how to set one."""
    with pytest.raises(SettingsError, match="hooks"):
        said_of(settings(hooks), event)


def test_the_hooks_of_a_daemon(settings, key):
    """In a fixed order, each with its limits, and one that cannot be called is refused at the start."""
    hook = {"url": "https://example.com/", "secret_file": str(key), "deadline_seconds": 5, "timeout_seconds": 2}
    made = list(make_hooks(settings({"end": "true", "best": hook})))
    assert [each.name for each in made] == ["hook_best", "hook_end"]
    assert (made[0].deadline_seconds, made[0].target.timeout_seconds, made[0].target.secret) == (5.0, 2.0, KEY)
    chats = {"best": "https://hooks.slack.com/x", "end": {"url": "https://chat.example.com/x", "form": "discord"}}
    assert [each.target.form for each in make_hooks(settings(chats))] == ["slack", "discord"]
    with pytest.raises(SettingsError, match="/no/program"):
        list(make_hooks(settings({"best": "/no/program x"})))


def test_the_key_is_read(key):
    """With and without its prefix."""
    assert read_secret("best", key) == KEY
    key.write_text(base64.b64encode(KEY).decode())
    assert read_secret("best", key) == KEY


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o622, 0o601])
def test_a_key_that_others_can_read_is_refused(key, mode):
    """The remedy can be pasted."""
    key.chmod(mode)
    with pytest.raises(SettingsError, match=f"chmod 600 {key}"):
        read_secret("best", key)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_a_key_of_root_may_be_the_groups(key):
    """As Kubernetes mounts a Secret; here another user's file stands for root's."""
    os.chown(key, 12345, -1)
    key.chmod(0o440)
    assert read_secret("best", key) == KEY
    key.chmod(0o444)
    with pytest.raises(SettingsError):
        read_secret("best", key)


@pytest.mark.parametrize(
    "content", ["", "short", "whsec_", "whsec_!!!", "whsec_" + "A" * 8, "A" * 2000, "\xff", "whsec_" + "ü" * 40]
)
def test_a_file_without_a_key_is_refused(key, content):
    """And a command says how to make one."""
    key.write_text(content, encoding="latin-1")
    with pytest.raises(SettingsError, match="urandom") as caught:
        read_secret("best", key)
    assert "best" in str(caught.value)


def test_a_key_is_read_from_a_file_only(tmp_path):
    """A pipe would never end."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "missing"):
        with pytest.raises(SettingsError):
            read_secret("best", path)


def test_check_looks_at_hooks(settings):
    """The check finds a program that does not exist, and calls no hook."""
    from sidecar.commands.check.command import hooks

    assert list(hooks(settings({}))) == []
    assert [(finding.ok, "best" in finding.text) for finding in hooks(settings({"best": "false"}))] == [(True, True)]
    (finding,) = hooks(settings({"best": "/no/program"}))
    assert not finding.ok
    assert "/no/program" in finding.text
