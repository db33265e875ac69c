"""The wheel in an environment that has nothing else: version, page, evaluation. Needs the package index."""

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 120
TASK = """
import numpy as np
from sidecar import Task
from sidecar.metrics import Accuracy

X = np.arange(20.0).reshape(10, 2)
task = Task(
    load=np.load,
    predict=lambda model, x: x @ model,
    eval_sets={"test": lambda: (X, np.arange(10) % 2)},
    batch_size=4,
    metrics=lambda: [Accuracy()],
)
"""

pytestmark = [pytest.mark.seconds, pytest.mark.nightly]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, what the wheel asks for, and numpy, which worker processes need."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "--directory", folder / "dist", "--target", "wheel"]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = (folder / "dist").iterdir()
    venv.create(folder / "environment", with_pip=True)
    pip = [folder / "environment/bin/pip", "install", "--quiet", "--constraint", ROOT / "tests/constraints.txt"]
    done = subprocess.run([*pip, wheel, "numpy"], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return folder / "environment"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A directory with one checkpoint, its task and the settings."""
    (tmp_path / "ckpts").mkdir()
    np.save(tmp_path / "ckpts/model-1.npy", np.array([[0.0, 1.0], [1.0, 0.0]]))
    (tmp_path / "my_eval.py").write_text(TASK)
    settings = 'framework = "python"\ncheckpoint_pattern = "model-*.npy"\nhttp = "127.0.0.1:0"\nrole = "worker"\n'
    (tmp_path / "sidecar.toml").write_text(f'{settings}task = "my_eval.py:task"\ncheckpoint_dir = "ckpts"\n')
    return tmp_path


@pytest.fixture
def daemon(environment: Path, run: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start the daemon as a person would: without the variables of this process."""
    with (run / "log").open("w") as log:
        process = subprocess.Popen(
            [environment / "bin/sidecar", "run"],
            cwd=run,
            env={"PATH": "/usr/bin:/bin"},
            stdout=log,
            stderr=log,
            text=True,
        )
    yield process
    process.terminate()
    assert process.wait(SECONDS) == 0, (run / "log").read_text()


def test_it_tells_the_version_of_its_build(environment: Path, tmp_path: Path) -> None:
    """The file name of the wheel and the program agree, without git and away from the clone."""
    told = subprocess.run(
        [environment / "bin/sidecar", "--version"], cwd=tmp_path, env={}, check=True, capture_output=True, text=True
    ).stdout.split()
    (wheel,) = (environment.parent / "dist").iterdir()
    assert wheel.name == f"sidecar_evaluator-{told[1]}-py3-none-any.whl"
    shutil.rmtree(tmp_path)


def wait_for(found: Callable[[], bool]) -> None:
    """Wait until something is so, with a bound."""
    end = time.monotonic() + SECONDS
    while not found():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_it_evaluates_and_shows_the_page(environment: Path, run: Path, daemon: "subprocess.Popen[str]") -> None:
    """A daemon with `framework = "python"` evaluates the checkpoint, and its page shows the number."""

    def text(path: str) -> str:
        assert daemon.poll() is None, (run / "log").read_text()
        found = re.search(r"http://127\.0\.0\.1:\d+", (run / "log").read_text())
        return "" if found is None else urllib.request.urlopen(found[0] + path, timeout=60).read().decode()

    wait_for(lambda: "sidecar_eval_metric{" in text("/metrics"))
    history = [environment / "bin/sidecar", "history", "ckpts", "--json"]
    listed = subprocess.run(history, cwd=run, env={}, check=True, capture_output=True, text=True).stdout
    assert json.loads(listed)[0]["status"] == "succeeded"
    page = text("/")
    assert "<!doctype html>" in page.lower()
    assert "model-1" in page
