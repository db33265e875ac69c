"""Hooks are written in a file or in a variable, and every mistake is one clear sentence."""

import json
from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from sidecar.settings import load
from sidecar.settings.hook_values import DEADLINE_SECONDS, TIMEOUT_SECONDS, HookSetting

MINIMAL = {"SIDECAR_CHECKPOINT_DIR": "/data/run-7"}


def hooks_of(hooks):
    return load({}, environ=MINIMAL | {"SIDECAR_HOOKS": json.dumps(hooks)}).hooks


def test_hooks_are_commands_or_urls(tmp_path):
    """As texts, lists or tables; a file and a variable say the same."""
    path = tmp_path / "sidecar.toml"
    path.write_text(
        "[hooks]\n"
        "best = \"mail -s 'new best' me\"\n"
        'failure = ["mail", "me"]\n'
        'result = "https://user:pass@example.com:8443/x?y=z"\n'
        'end = { url = "http://[::1]:9/", secret_file = "~/key", deadline_seconds = 60, timeout_seconds = 0.5 }\n'
    )
    expected = {
        "best": HookSetting(command=("mail", "-s", "new best", "me")),
        "failure": HookSetting(command=("mail", "me")),
        "result": HookSetting(url="https://user:pass@example.com:8443/x?y=z"),
        "end": HookSetting(
            url="http://[::1]:9/", secret_file=Path.home() / "key", deadline_seconds=60.0, timeout_seconds=0.5
        ),
    }
    assert load({"config": str(path)}, environ=MINIMAL).hooks == expected
    variable = {
        "best": "mail -s 'new best' me",
        "failure": ["mail", "me"],
        "result": {"url": "https://user:pass@example.com:8443/x?y=z"},
        "end": {"url": "http://[::1]:9/", "secret_file": "~/key", "deadline_seconds": 60, "timeout_seconds": 0.5},
    }
    assert hooks_of(variable) == expected


def test_limits_have_defaults():
    """A hook without limits gets the documented default limits."""
    hook = hooks_of({"best": "true"})["best"]
    assert (hook.deadline_seconds, hook.timeout_seconds) == (DEADLINE_SECONDS, TIMEOUT_SECONDS) == (3600.0, 30.0)


@pytest.mark.parametrize(
    ("hooks", "shown"),
    [
        ([], "table of hooks"),
        ("x", "table of hooks"),
        ({"sometimes": "true"}, "sometimes"),
        ({"best": {"url": "https://example.com", "form": "irc"}}, "event, slack, discord, teams"),
        ({"best": {"command": "true", "form": "slack"}}, "form is for what is posted to a URL"),
        ({"best": ""}, "hook best"),
        ({"best": []}, "hook best"),
        ({"best": [""]}, "hook best"),
        ({"best": ["a", 3]}, "hook best"),
        ({"best": 3}, "hook best"),
        ({"best": True}, "hook best"),
        ({"best": None}, "hook best"),
        ({"best": "mail 'x"}, "close all quotes"),
        ({"best": ["a\0b"]}, "hook best"),
        ({"best": {}}, "either command or url"),
        ({"best": {"command": "a", "url": "http://a/"}}, "either command or url"),
        ({"best": {"comand": "a"}}, "comand"),
        ({"best": {"url": "ftp://a/"}}, "https://example.com"),
        ({"best": {"url": "http://"}}, "https://example.com"),
        ({"best": "http://[::1/"}, "https://example.com"),
        ({"best": "http://a:port/"}, "https://example.com"),
        ({"best": "http://a/\r\nX: y"}, "https://example.com"),
        ({"best": "http://ü/"}, "https://example.com"),
        ({"best": {"url": ["http://a/"]}}, "https://example.com"),
        ({"best": {"command": "a", "secret_file": "k"}}, "secret_file"),
        ({"best": {"url": "http://a/", "secret_file": 3}}, "secret_file"),
        ({"best": {"url": "http://a/", "secret_file": "~nobody-here/k"}}, "path in full"),
        *[
            ({"best": {"command": "a", key: bad}}, key)
            for key in ("deadline_seconds", "timeout_seconds")
            for bad in (0, -1, "5", True)
        ],
    ],
)
def test_a_mistake_is_one_sentence(hooks, shown):
    """With the hook, and what to write."""
    with pytest.raises(SettingsError) as caught:
        hooks_of(hooks)
    (line,) = str(caught.value).splitlines()
    assert line.startswith("environment SIDECAR_HOOKS")
    assert shown in line


@pytest.mark.parametrize("user", ["me:secret", "me:" + 40 * "secret"])
def test_a_hook_with_a_mistake_is_not_shown(user):
    """Not even a part of it: a password, a path or an argument may be a key."""
    wrong = ({"url": f"http://{user}@a/secret"}, {"command": ["notify", "--key", "secret"]})
    for hook in wrong:
        with pytest.raises(SettingsError) as caught:
            hooks_of({"best": hook | {"timeout_seconds": 0}})
        assert "secret" not in str(caught.value).replace("secret_file", "")
        assert "timeout_seconds" in str(caught.value)


def test_a_password_is_not_shown():
    """In an error about another part of the hook."""
    with pytest.raises(SettingsError) as caught:
        hooks_of({"best": {"url": "http://me:secret@a/", "timeout_seconds": 0}})
    assert "secret@" not in str(caught.value)
    with pytest.raises(SettingsError) as caught:
        load({}, environ=MINIMAL | {"SIDECAR_HOOKS": '{"best": "http://me:secret@a/"'})
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("early_stop_patience", "3", 3),
        ("early_stop_metric", "test/loss", "test/loss"),
        ("early_stop_min_delta", "0", 0.0),
    ],
)
def test_the_settings_of_the_early_stop(name, text, expected):
    """As text in variables."""
    assert getattr(load({}, environ=MINIMAL | {f"SIDECAR_{name.upper()}": text}), name) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [("patience", "0"), ("patience", "1.5"), ("metric", "loss"), ("min_delta", "-1"), ("min_delta", "nan")],
)
def test_bad_settings_of_the_early_stop(name, text):
    """One line with the name and the value."""
    with pytest.raises(SettingsError) as caught:
        load({}, environ=MINIMAL | {f"SIDECAR_EARLY_STOP_{name.upper()}": text})
    (line,) = str(caught.value).splitlines()
    assert f"SIDECAR_EARLY_STOP_{name.upper()}" in line
    assert text in line
