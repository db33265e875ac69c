"""`framework = "auto"`: the text of the task's file tells the framework, and nothing is imported."""

import sys
from pathlib import Path

import pytest

from sidecar.commands.framework import with_framework
from sidecar.errors import SettingsError
from sidecar.settings import Settings

TASK = "from sidecar import Task\n"


def found(folder, *, task="my_eval.py:task", installed=("torch", "tensorflow"), **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".py").write_text(text)
    settings = Settings(checkpoint_dir=folder, run="r", task=task)
    return with_framework(settings, folder, is_installed=lambda package: package in installed).framework


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch", "torch"),
        ("from torch import nn", "torch"),
        ("import torchvision.transforms as T", "torch"),
        ("from transformers import AutoModel", "torch"),
        ("import lightning as L", "torch"),
        ("from sidecar import Task\nfrom sidecar.lm import harness", "torch"),
        ("from sidecar import Task, lm", "torch"),
        ("import keras", "tensorflow"),
        ("def task():\n    import tensorflow as tf", "tensorflow"),
        ("import tf_keras", "tensorflow"),
        ("import torch\nfrom sidecar import Task\ntask = Task(load=torch.load, predict=None)", "python"),
        ("import joblib, sidecar\ntask = sidecar.Task(load=joblib.load)", "python"),
    ],
)
def test_imports_tell_the_framework(tmp_path, text, expected):
    assert found(tmp_path, my_eval=text) == expected


def test_modules_next_to_the_task_count_if_it_imports_no_framework(tmp_path):
    """They do not if it does: a helper may read data with another library."""
    assert found(tmp_path, my_eval="from helpers.net import build", helpers__net="import torch") == "torch"
    assert found(tmp_path, my_eval="import keras\nimport data", data="import torch") == "tensorflow"


def test_modules_next_to_the_task_that_need_different_frameworks_do_not_tell(tmp_path):
    with pytest.raises(SettingsError, match="torch"):
        found(tmp_path, my_eval="import a, b", a="import torch", b="from sidecar import Task\ntask = Task(load=len)")


def test_a_module_of_a_package_can_be_the_task(tmp_path):
    named = {"jobs__digits": "import torch", "jobs__other": "import keras"}
    assert found(tmp_path, task="jobs.digits:task", **named) == "torch"


def test_modules_that_import_each_other_are_read_once(tmp_path):
    with pytest.raises(SettingsError, match="no framework"):
        found(tmp_path, my_eval="import a", a="import b", b="import a")


@pytest.mark.parametrize(
    ("text", "named"), [("import torch, keras", "keras and torch"), (TASK, "no framework"), ("def (", "no framework")]
)
def test_a_task_that_does_not_tell_is_refused(tmp_path, text, named):
    with pytest.raises(SettingsError) as refused:
        found(tmp_path, my_eval=text)
    assert named in str(refused.value)
    assert "SIDECAR_FRAMEWORK" in str(refused.value)


def test_the_only_installed_framework_evaluates_a_task_without_imports(tmp_path):
    assert found(tmp_path, my_eval=TASK, installed=("torch",)) == "torch"


def test_a_setting_needs_no_reading(tmp_path):
    given = Settings(checkpoint_dir=tmp_path, run="r", task="missing.py:task", framework="python")
    assert with_framework(given, Path("/nowhere")) is given


def test_no_framework_is_imported(tmp_path):
    """The daemon reads the file as text; another test of this process may have imported torch."""
    before = set(sys.modules)
    found(tmp_path, my_eval="import torch, another_package_of_this_test")
    assert {name for name in set(sys.modules) - before if name.startswith(("torch", "another"))} == set()
