"""A backend is one folder: one from outside is found, described and run without an edit of this program."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.checkpoints.formats import FORMATS
from sidecar.commands.framework import formats_looked_for, with_framework
from sidecar.errors import SettingsError
from sidecar.evaluation.framework_traits import OURS, FrameworkTraits, traits_of
from sidecar.settings import Settings

PAGE = Path(__file__).parents[2] / "docs/how-to/write-a-backend.md"
TASK = """
import json
import os

import my_framework
import numpy as np

from sidecar import Task
from sidecar.metrics import Accuracy


def task():
    assert os.environ["MY_FRAMEWORK_LOG"] == "error"
    x = np.arange(8.0)[:, None]
    return Task(
        load=lambda path: json.load(open(path)),
        predict=lambda model, x: (x[:, 0] > model["threshold"]).astype(float),
        eval_sets={"test": lambda: (x, np.array([0, 0, 0, 0, 1, 1, 1, 0]))},
        metrics=lambda: [Accuracy(labels="binary")],
        batch_size=4,
    )
"""


@pytest.fixture
def outside(tmp_path):
    """A folder with the backend of the page, its library, a task that uses it, and a checkpoint."""
    package = tmp_path / "my_package/backend"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package.parent / "__init__.py").touch()
    for name, text in re.findall(r"<!-- (\w+\.py) -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (package / name).write_text(text)
    (tmp_path / "my_framework.py").touch()
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "ckpts").mkdir()
    (tmp_path / "sidecar.toml").write_text('checkpoint_pattern = "*.json"\n')
    (tmp_path / "ckpts/model-5.json").write_text(json.dumps({"threshold": 3.5}))
    return tmp_path


def entry_point(folder):
    """Return what an installed distribution would bring."""
    (folder / "my-1.0.dist-info").mkdir()
    (folder / "my-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: my\nVersion: 1.0\n")
    (folder / "my-1.0.dist-info/entry_points.txt").write_text("[sidecar.backends]\nmine = my_package.backend\n")


def evaluated(folder, quiet_environment, **variables):
    """Run `sidecar eval` with two workers, and return what it ended with and printed."""
    words = ("eval", "ckpts/model-5.json", "-t", "task.py:task", "-r", "2", "--json")
    return subprocess.run(
        [Path(sys.executable).with_name("sidecar"), *words],
        cwd=folder,
        env=quiet_environment | {"PYTHONPATH": str(folder)} | variables,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize(
    "by", ["package", *(pytest.param(by, marks=pytest.mark.seconds) for by in ("entry point", "imports of the task"))]
)
@pytest.mark.drawn(1)
def test_a_backend_from_outside_evaluates(by, outside, quiet_environment):
    """By the name of its package, by that of its entry point, and found by what the task imports."""
    if by != "package":
        entry_point(outside)
    variables = {
        "package": {"SIDECAR_FRAMEWORK": "my_package.backend"},
        "entry point": {"SIDECAR_FRAMEWORK": "mine"},
    }.get(by, {})
    done = evaluated(outside, quiet_environment, **variables)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["test"]["accuracy"]["value"] == 7 / 8


def test_the_traits_of_ours_say_what_exists():
    """Each format exists, has at most one framework, and each framework's options are settings."""
    named = [name for framework in OURS for name in traits_of(framework).formats or ()]
    assert sorted(named) == sorted(set(FORMATS) - {"matching_file", "matching_folder"})
    for framework in OURS:
        assert traits_of(framework).name == framework
        assert set(traits_of(framework).options) <= Settings.model_fields.keys()


def test_the_traits_import_no_framework():
    """The daemon reads them."""
    code = "; ".join(f"import sidecar.evaluation.backends.{name}.traits" for name in OURS)
    code += "; import sys; print({'tensorflow', 'torch', 'keras', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("caffe", "tensorflow, torch, python"),
        ("nowhere.at.all", "no module 'nowhere'"),
        ("json.decoder", "json.decoder.traits"),
        ("sidecar.evaluation", "sidecar.evaluation.traits"),
    ],
)
def test_a_framework_that_is_none_is_refused(framework, words, tmp_path):
    """With the names that can be written."""
    settings = Settings(checkpoint_dir=tmp_path, run="r", task="t.py:task", framework=framework)
    with pytest.raises(SettingsError, match=re.escape(words)):
        formats_looked_for(with_framework(settings, tmp_path))


def test_traits_that_are_none_are_refused(tmp_path, monkeypatch):
    """A module of that name may be another's."""
    (tmp_path / "lines_of_another").mkdir()
    (tmp_path / "lines_of_another/__init__.py").touch()
    (tmp_path / "lines_of_another/inner").mkdir()
    (tmp_path / "lines_of_another/inner/__init__.py").touch()
    (tmp_path / "lines_of_another/inner/traits.py").write_text("TRAITS = {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match="must define TRAITS"):
        traits_of("lines_of_another.inner")


def test_a_backend_needs_only_a_name():
    """All else has a default that suits a library which knows nothing of groups."""
    made = FrameworkTraits(name="my_package.backend")
    made.require(Path)  # any task is for it
    assert (made.formats, made.options, made.template) == (None, (), None)
