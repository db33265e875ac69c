"""JupyterLab's package named `sidecar` in the same environment, as a stand-in with the same files.

Both orders of installation were tried with sidecar 0.8.1 of the index: the package that comes last writes
`sidecar/__init__.py`, all other files of both stay.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import sidecar

PACKAGE = Path(sidecar.__file__).parent
THEIRS = {
    "sidecar/__init__.py": "from ._version import __version__\nfrom .sidecar import Sidecar\n",
    "sidecar/_version.py": '__version__ = "0.8.1"\n',
    "sidecar/sidecar.py": "class Sidecar:\n    pass\n",
    "sidecar-0.8.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: sidecar\nVersion: 0.8.1\n",
}
SENTENCE = "another package named sidecar, such as JupyterLab's, replaced or removed {file}: install sidecar-evaluator"
TASK = "import numpy\nfrom sidecar import Task\n\n\ndef task():\n    return Task(load=print, predict=print)\n"
DEPENDENCIES = Path(typer.__file__).parents[1]


@pytest.fixture
def site(tmp_path):
    """A folder of packages with ours and theirs, ours first; `last` says whose file both have."""

    def make(last):
        folder = tmp_path / "site"
        shutil.copytree(PACKAGE, folder / "sidecar", ignore=shutil.ignore_patterns("__pycache__"))
        for name, text in THEIRS.items():
            (folder / name).parent.mkdir(exist_ok=True)
            if name != "sidecar/__init__.py" or last == "theirs":
                (folder / name).write_text(text)
        if last == "nobody":
            (folder / "sidecar/__init__.py").unlink()
        return folder

    return make


def run(site, code, *words):
    """Run code with the packages of the folder, and those that this one needs."""
    first = f"import sys; sys.path[:0] = [{str(site)!r}, {str(DEPENDENCIES)!r}]; {code}"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SIDECAR_")}
    command = [sys.executable, "-S", "-c", first, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=site.parent, env=environ, timeout=600)


@pytest.mark.parametrize("last", ["theirs", "nobody"])
@pytest.mark.parametrize("module", ["sidecar.early_stop", "sidecar.keras"])
def test_what_training_imports_says_so(site, last, module):
    """In one sentence with the remedy; after an uninstallation of theirs nobody has the file."""
    folder = site(last)
    done = run(folder, f"import {module}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "ImportError: " + SENTENCE.format(file=folder / "sidecar" / "__init__.py")
    )


@pytest.mark.seconds
@pytest.mark.parametrize("last", ["theirs", "nobody", "ours"])
@pytest.mark.drawn(1)
def test_check_and_the_worker_say_so(site, last):
    """The worker is started by the daemon's files; if ours came last, everything works, and theirs does not."""
    folder = site(last)
    (folder.parent / "task.py").write_text(TASK)
    (folder.parent / "ckpts").mkdir()
    words = ("check", "ckpts", "--quick", "--task", "task.py:task", "--http", "127.0.0.1:0")
    done = run(folder, "from sidecar.commands.cli import main; main()", *words)
    sentence = SENTENCE.format(file=folder / "sidecar" / "__init__.py")
    found = {line[5:12].strip(): line for line in done.stdout.splitlines()}
    if last == "ours":
        assert found["package"].startswith("warn package     JupyterLab's package sidecar 0.8.1 is installed here, too")
        assert sentence not in done.stdout
    else:
        assert found["package"].startswith(f"FAIL package     {sentence}")
        assert found["task"].startswith("FAIL task")
        assert sentence in found["task"]
