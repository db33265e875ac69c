"""Hold all settings together: defaults, and values that depend on each other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from settings.conftest import MINIMAL, problems

from sidecar.errors import SettingsError
from sidecar.settings import load


def test_defaults_need_only_a_checkpoint_directory():
    """Everything else has a default, and what is derived follows from the directory."""
    settings = load({"checkpoint_dir": Path("/data/run-7")}, environ={})
    assert settings.state_dir == Path("/data/run-7/.sidecar")
    assert settings.run == "run-7"
    assert settings.run_dir == Path("/data/run-7/.sidecar/run-7")
    assert (settings.http_host, settings.http_port) == ("127.0.0.1", 19108)
    assert settings.ports == range(21000, 22000)
    assert settings.worker_python == Path(sys.executable)
    assert settings.threads == 2


def test_settings_do_not_change():
    """The settings of a daemon hold for its life."""
    settings = load({}, environ=MINIMAL)
    with pytest.raises(ValidationError, match="frozen"):
        settings.replicas = 2


def test_a_pattern_replaces_the_formats():
    """Only one of the two says what a checkpoint is."""
    environ = MINIMAL | {"SIDECAR_CHECKPOINT_PATTERN": "m-*"}
    assert load({}, environ=environ).checkpoint_pattern == "m-*"
    (problem,) = problems(environ=environ | {"SIDECAR_FORMATS": "keras"})
    assert "checkpoint_pattern" in problem.lower()


def test_a_group_may_not_be_smaller_than_the_smallest():
    """Else none could form."""
    with pytest.raises(SettingsError, match=r"min_workers = 3"):
        load({"min_workers": 3, "max_workers": 2}, environ=MINIMAL)
    assert load({"min_workers": 64}, environ=MINIMAL).max_workers == 64


def test_durations_follow_the_one_that_they_are_derived_from():
    """A longer lease, beat or visibility gives longer turns, groups and pins, unless these are given."""
    defaults = load({}, environ=MINIMAL)
    assert (defaults.group_settle_seconds, defaults.copy_turn_seconds, defaults.pin_wait_seconds) == (3.0, 10.0, 60.0)
    given = {"LEASE_SECONDS": "20", "VISIBILITY_SECONDS": "5", "BEAT_SECONDS": "4", "COPY_TURN_SECONDS": "7"}
    settings = load({}, environ=MINIMAL | {f"SIDECAR_{name}": value for name, value in given.items()})
    of_the_lease = ("proposal_turn", "result_turn", "run_lost", "suspended_timeout", "loop_timeout")
    assert {getattr(settings, f"{name}_seconds") for name in of_the_lease} == {20.0}
    of_the_storage = ("corrupt_after", "vanished_after", "pin_wait")
    assert {getattr(settings, f"{name}_seconds") for name in of_the_storage} == {5.0}
    assert (settings.group_settle_seconds, settings.copy_turn_seconds) == (6.0, 7.0)
    assert settings.quiet_seconds == defaults.quiet_seconds


def test_a_default_that_another_setting_contradicts_is_named_as_one():
    """Nobody gave the lease, so the line says that it is the default, and names the beat."""
    (line,) = problems(environ=MINIMAL | {"SIDECAR_BEAT_SECONDS": "5"})
    assert line.startswith("default of lease_seconds: must be at least 3 x beat_seconds (5): raise it to 15")


def test_a_bad_setting_raises_no_second_complaint():
    """A setting that depends on a bad one is not judged by a guess of it."""
    (line,) = problems(environ=MINIMAL | {"SIDECAR_BEAT_SECONDS": "-1", "SIDECAR_LEASE_SECONDS": "1"})
    assert line.startswith("environment SIDECAR_BEAT_SECONDS: ")


def test_a_directory_that_names_no_run_asks_for_one(tmp_path):
    """The default run name obeys the same rule as a given one."""
    (line,) = problems({"checkpoint_dir": tmp_path / "my run"})
    assert line.startswith("default of run: 'my run': ")


def test_the_task_is_asked_for_where_it_is_needed():
    """A chief runs without one; a command that needs it gets the remedy."""
    settings = load({}, environ=MINIMAL)
    with pytest.raises(SettingsError, match=r"--task\b.*SIDECAR_TASK.*sidecar\.toml"):
        settings.require_task()
    assert load({"task": "a.b:task"}, environ=MINIMAL).require_task() == "a.b:task"


def test_importing_the_settings_imports_no_framework():
    """The daemon's start-up pays for neither a framework nor numpy."""
    code = "import sidecar.settings, sys; print(*{'tensorflow', 'keras', 'torch', 'numpy', 'typer'} & set(sys.modules))"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    found = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
