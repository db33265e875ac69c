"""`sidecar settings`: what a person sees, in 80 columns."""

import tomllib

import pytest

from sidecar.commands.settings import settings_text
from sidecar.errors import SettingsError
from sidecar.settings import Settings


@pytest.fixture(autouse=True)
def columns(monkeypatch):
    """A terminal of the usual width."""
    monkeypatch.setenv("COLUMNS", "80")


def shown(word):
    """All lines, with a line end after each."""
    return "".join(f"{line}\n" for line in settings_text(word))


def test_all_settings_are_listed():
    """By topic, one in a line of the terminal."""
    out = shown(None)
    assert [name for name in Settings.model_fields if f"\n  {name} " not in out] == []
    assert max(map(len, out.splitlines())) <= 80
    assert out.startswith("Directories\n")


@pytest.mark.parametrize("word", ["replicas", "SIDECAR_REPLICAS", "replica"])
def test_a_setting_is_shown(word):
    """Whichever of its names is typed."""
    out = shown(word)
    for part in ("Worker processes on this node.", "`1`: one suits", "SIDECAR_REPLICAS", "--replicas"):
        assert part in out
    assert out.endswith("  in the file replicas = 1\n")


def test_the_line_of_each_setting_is_toml():
    """It can be written as it is; `…` stands for what only the user knows."""
    for name in Settings.model_fields:
        out = shown(name)
        line = out.partition("in the file ")[2].replace("\n" + 14 * " ", " ").replace("{ … }", "{}")
        assert tomllib.loads(line).keys() == {name}


def test_a_setting_that_is_not_there():
    """A part of a name finds several; a typo comes with the name."""
    assert shown("gpu").split()[0] == "share_gpu"
    with pytest.raises(SettingsError, match="did you mean replicas"):
        shown("replcas")
