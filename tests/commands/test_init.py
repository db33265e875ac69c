"""Write settings and a task for a directory of checkpoints."""

import ast
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from fakes import save

from sidecar.commands.framework import with_framework
from sidecar.commands.init import propose, write
from sidecar.commands.task_file import check_task
from sidecar.errors import SettingsError
from sidecar.settings import load

RECORDED = Path(__file__).parents[1] / "checkpoints" / "recorded" / "kinds"
MODEL = "import keras\n\n\ndef build_model():\n    return keras.Sequential([])\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current directory, and no environment that is active beside this one."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_directory_with_checkpoints_is_found(here):
    """Without any argument; the settings that were written are found and hold, the task is Python."""
    (here / "data").mkdir()
    (here / "out").mkdir()
    save(here / "out", 100)
    save(here / "out", 200, keep=(100, 200))
    told = []
    write(here, propose(here, None), told.append)
    settings = load({}, environ={})
    assert (settings.checkpoint_dir, settings.task) == (here / "out", "sidecar_task.py:task")
    check_task("sidecar_task.py:task", here, same_python=True)
    assert told[:2] == ["wrote sidecar.toml", "wrote sidecar_task.py"]
    assert "checkpoints: out (complete checkpoints: 2)" in told
    assert "build_model() and test_set()" in told[-1]


def test_checkpoints_next_to_the_script_are_found(here):
    """The current directory is meant, unless a directory in it holds checkpoints."""
    save(here, 100)
    (here / "ckpts").mkdir()
    assert (propose(here, None).directory, propose(here, None).checkpoints) == (here, 1)
    (here / "out").mkdir()
    save(here / "out", 200)
    assert propose(here, None).directory == here / "out"


def test_a_model_that_can_be_imported_is_used(here):
    """A script that trains when it is imported is not."""
    (here / "ckpts").mkdir()
    (here / "train.py").write_text(MODEL + "build_model().fit()\n")
    (here / "model.py").write_text('"""Mine."""\n' + MODEL + "if __name__ == '__main__':\n    build_model()\n")
    found = propose(here, None)
    assert (found.directory, found.checkpoints, found.builder) == (here / "ckpts", 0, "model")
    write(here, found, lambda _: None)
    text = (here / "sidecar_task.py").read_text()
    assert "from model import build_model\n" in text
    assert "def build_model" not in text
    ast.parse(text)


def test_runs_in_subfolders_are_named(here):
    """The directory that a person gives may hold a folder for each run."""
    for name in ("exp1", "exp2"):
        (here / "runs" / name).mkdir(parents=True)
        save(here / "runs" / name, 1)
        save(here / "runs" / name, 2, keep=(1, 2))
    told = []
    write(here, propose(here, here / "runs"), told.append)
    (line,) = [
        each for each in told if each.startswith("checkpoints: runs (no checkpoint yet; exp1, exp2 look like 2 runs")
    ]
    assert "sidecar run" in line


def test_two_models_are_none(here):
    """Which one is meant is for the user to say."""
    for name in ("a.py", "b.py"):
        (here / name).write_text(MODEL)
    assert propose(here, here / "ckpts").builder is None


def test_nothing_is_overwritten(here):
    """Not even a dangling link is followed."""
    (here / "sidecar.toml").write_text("mine")
    (here / "sidecar_task.py").symlink_to(here / "elsewhere.py")
    told = []
    write(here, propose(here, here / "ckpts"), told.append)
    assert (here / "sidecar.toml").read_text() == "mine"
    assert not (here / "elsewhere.py").exists()
    assert told[:2] == ["kept sidecar.toml, which existed already", "kept sidecar_task.py, which existed already"]


def a_python(folder, *modules):
    """Make an environment that has these modules beside the standard library, and return its interpreter."""
    venv.create(folder, symlinks=True, with_pip=False)
    for name in modules:
        Path(sysconfig.get_path("purelib", vars={"base": str(folder)}), f"{name}.py").touch()
    return folder / "bin" / "python"


def test_the_active_environment_evaluates(here, monkeypatch):
    """The settings name its Python, so that another terminal needs no variable; a file that exists stays as it is."""
    python = a_python(here / "train", "torch")
    monkeypatch.setenv("VIRTUAL_ENV", str(here / "train"))
    (here / "ckpts").mkdir()
    told = []
    write(here, propose(here, here / "ckpts", "torch"), told.append)
    assert load({}, environ={}).worker_python == python
    assert f"Python that evaluates: {python} (VIRTUAL_ENV)" in told
    for text, expected in (("", True), (f'worker_python = "{python}"', False), ('worker_python = "/other"', True)):
        (here / "sidecar.toml").write_text(text)
        told.clear()
        write(here, propose(here, here / "ckpts", "torch"), told.append)
        assert (here / "sidecar.toml").read_text() == text
        assert any(line.endswith(f'sidecar.toml: worker_python = "{python}"') for line in told) == expected


def test_an_environment_without_the_framework_does_not_evaluate(here, monkeypatch):
    """The settings have the line as a comment."""
    a_python(here / "other", "numpy")
    monkeypatch.setenv("VIRTUAL_ENV", str(here / "other"))
    write(here, propose(here, here, "torch"), lambda _: None)
    assert "\n# worker_python = " in (here / "sidecar.toml").read_text()
    assert load({}, environ={}).worker_python == Path(sys.executable)


def test_no_python_with_the_framework_at_all(here, monkeypatch):
    """That is said at once, with the line to write, and not only by the first evaluation."""
    monkeypatch.setitem(sys.modules, "torch", None)
    told = []
    write(here, propose(here, here, "torch"), told.append)
    (line,) = [each for each in told if each.startswith("no Python with torch was found")]
    assert 'worker_python = "/' in line


def test_no_directory_at_all_is_told(here):
    """Guessing what to watch helps nobody."""
    (here / "src").mkdir()
    with pytest.raises(SettingsError, match="sidecar init ckpts"):
        propose(here, None)


@pytest.mark.parametrize(
    ("kind", "imports", "given", "expected"),
    [
        ("torch_state", "", None, "torch"),
        ("trainer", "import keras", None, "torch"),
        ("keras", "import torch", None, "tensorflow"),
        (None, "import torch", None, "torch"),
        (None, "from lightning import Trainer", None, "torch"),
        (None, "import torch, tensorflow", None, "tensorflow"),
        (None, "", None, "tensorflow"),
        ("keras", "", "torch", "torch"),
    ],
)
def test_the_framework(here, kind, imports, given, expected):
    """The checkpoints tell, else the Python files; an option decides."""
    (here / "ckpts").mkdir()
    if kind is not None:
        shutil.copytree(RECORDED / kind, here / "ckpts", dirs_exist_ok=True)
    (here / "train.py").write_text(f"{imports}\n")
    proposal = propose(here, here / "ckpts", given)
    assert proposal.framework == expected
    write(here, proposal, lambda _: None)
    text = (here / "sidecar_task.py").read_text()
    assert ("from torch import nn" in text) == (expected == "torch")
    settings = load({}, environ={})
    assert with_framework(settings, here).framework == expected


def test_a_folder_of_transformers_comes_with_an_example(here):
    """The model is built from the description in the folder, and the dataset has to give tensors."""
    shutil.copytree(RECORDED / "pretrained", here / "ckpts")
    write(here, propose(here, here / "ckpts"), lambda _: None)
    text = (here / "sidecar_task.py").read_text()
    assert "AutoConfig.from_pretrained" in text
    assert '.with_format("torch")' in text
    ast.parse(text)


def test_a_framework_without_a_template(here):
    """Its models are loaded by the user's own code."""
    with pytest.raises(SettingsError, match="tensorflow and torch"):
        propose(here, here / "ckpts", "python")


@pytest.mark.torch
@pytest.mark.seconds
def test_the_task_for_torch_needs_only_a_model_and_data(here):
    """Filled in as its comments say, it evaluates a checkpoint."""
    code = "import torch; torch.save(torch.nn.Linear(4, 3).state_dict(), 'ckpts/m-5.pt')"
    (here / "ckpts").mkdir()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
    write(here, propose(here, None), lambda _: None)
    path = here / "sidecar_task.py"
    text = re.sub(r"raise NotImplementedError\(.*build_model\(\).*\)", "return nn.Linear(4, 3)", path.read_text())
    made = "import torch; torch.manual_seed(0); return torch.randn(50, 4), torch.zeros(50, dtype=torch.long)"
    path.write_text(re.sub(r"raise NotImplementedError\(.*test_set\(\).*\)", made, text))
    command = [str(Path(sys.executable).with_name("sidecar")), "eval", "ckpts/m-5.pt", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["examples"] == {"test": 50}
