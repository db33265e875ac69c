"""The sinks of the settings are made, and a sink that is missing is one sentence."""

import sys

import pytest
from installed_sinks import install

from sidecar.commands.check.command import sinks as check_sinks
from sidecar.commands.sinks import make_sinks
from sidecar.errors import SettingsError
from sidecar.settings import Settings

SOURCE = """
class Sink:
    name = "acme"
    def write(self, evaluation): ...

def make(options, run, timeout_seconds):
    return Sink()
"""


@pytest.fixture
def settings(tmp_path):
    """Make settings of a daemon."""
    return lambda **given: Settings(checkpoint_dir=tmp_path, **given)


def test_none_is_made_unasked(settings):
    """Also where training logs to MLflow."""
    assert make_sinks(settings(), {"MLFLOW_TRACKING_URI": "http://mlflow:5000"}) == []
    assert list(check_sinks(settings())) == []


def test_all_that_are_asked_for_are_made(settings, tmp_path, monkeypatch):
    """Each with its name, and `sidecar check` lists them. The large libraries are not imported here."""
    install(tmp_path / "site", {"acme": "acme_sinks:make"}, SOURCE, monkeypatch)
    before = {"mlflow", "wandb"} & set(sys.modules)
    asked = settings(
        remote_write="http://a/b",
        tensorboard_dir=tmp_path,
        mlflow_tracking_uri="http://m:5000",
        wandb_project="digits",
        sinks={"acme": {}},
    )
    assert [sink.name for sink in make_sinks(asked, {})] == ["remote_write", "tensorboard", "mlflow", "wandb", "acme"]
    (finding,) = check_sinks(asked)
    assert (finding.ok, "acme" in finding.text) == (True, True)
    assert {"mlflow", "wandb"} & set(sys.modules) == before


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        ({"mlflow": True}, "http://of-the-environment:5000"),
        ({"mlflow_tracking_uri": "http://of-the-settings"}, "http://of-the-settings"),
        ({"mlflow": True, "mlflow_tracking_uri": "https://me:pw@of-the-settings/x"}, "https://…@of-the-settings/x"),
        ({"mlflow_tracking_uri": "databricks://profile"}, "databricks://profile"),
    ],
)
def test_the_server_of_mlflow(settings, given, uri):
    """The settings' own one wins; a password is kept out of messages."""
    (sink,) = make_sinks(settings(**given), {"MLFLOW_TRACKING_URI": "http://of-the-environment:5000"})
    assert sink.uri == uri


@pytest.mark.parametrize(
    ("environ", "shown"),
    [
        ({}, "mlflow_tracking_uri"),
        ({"MLFLOW_TRACKING_URI": "./mlruns"}, "'./mlruns'"),
        ({"MLFLOW_TRACKING_URI": "ftp://me:secret@host"}, "ftp://"),
    ],
)
def test_no_server_of_mlflow(settings, environ, shown):
    """Name the setting and the value to set."""
    with pytest.raises(SettingsError) as raised:
        make_sinks(settings(mlflow=True), environ)
    assert shown in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("library", "given"), [("mlflow", {"mlflow_tracking_uri": "http://mlflow:5000"}), ("wandb", {"wandb_project": "p"})]
)
def test_a_library_is_missing(settings, monkeypatch, library, given):
    """The extra is named, by the start and by `sidecar check`."""
    monkeypatch.setitem(sys.modules, library, None)
    asked = settings(**given)
    with pytest.raises(SettingsError, match=library):
        make_sinks(asked, {})
    (finding,) = check_sinks(asked)
    assert (finding.ok, "pip install" in finding.text) == (False, True)
