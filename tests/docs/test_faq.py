"""Try what the page of questions claims: its code, its commands and its hooks, with a real run."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/how-to/faq.md").read_text()
TASK = """
import json
import numpy as np
from sidecar import Task
from sidecar.metrics import Accuracy

random = np.random.default_rng(0)
x = random.normal(size=(120, 4))
weights = random.normal(size=4)
y = (x @ weights > 0).astype("int64")


def task():
    return Task(
        load=lambda path: np.array(json.load(open(path))["weights"]),
        predict=lambda model, x: (x @ model > 0).astype("float32"),
        eval_sets={"test": lambda: (x, y)},
        metrics=lambda: [Accuracy(labels="binary")],
        batch_size=32,
        predictions=True,
    )
"""
SETTINGS = """
checkpoint_dir = "ckpts"
task = "my_eval.py:task"
framework = "python"
checkpoint_pattern = "model-*.json"
http = "127.0.0.1:0"
quiet_seconds = 0.5
"""

pytestmark = [pytest.mark.takes_turns(3), pytest.mark.seconds, pytest.mark.timeout(900)]


def block(name):
    """Return the code that the page shows under the name of a file."""
    (code,) = re.findall(rf"<!-- {re.escape(name)} -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    return code


def shell(heading):
    """Return the shell commands of a section."""
    (section,) = re.findall(rf"^### {re.escape(heading)}$(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return [line for code in re.findall(r"```sh\n(.*?)```", section, re.DOTALL) for line in code.splitlines()]


def run(folder, *command, given=None):
    """Run a command in the folder as a reader does, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SIDECAR_", "WANDB_"))}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment["MPLBACKEND"] = "agg"
    environment["WANDB_MODE"] = "offline"
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, input=given
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def history(folder, *options):
    """Return the evaluations of a run."""
    return json.loads(run(folder, "sidecar", "history", "ckpts", "--json", *options) or "[]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with two checkpoints that were evaluated."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "ckpts").mkdir()
    for step, weights in ((10, [1, 1, 1, 1]), (30, [1, -1, 1, 1])):
        (folder / f"ckpts/model-{step}.json").write_text(json.dumps({"weights": weights}))
    (folder / "my_eval.py").write_text(TASK)
    (folder / "sidecar.toml").write_text(SETTINGS)
    run(folder, "sidecar", "run", "--once")
    return folder


@pytest.fixture
def event():
    """An event as a hook gets it."""
    numbers = {"test": {"accuracy": {"value": 0.5, "hex": "0x1.0p-1", "lower": 0.4, "upper": 0.6}}}
    return {"text": "run ckpts: a", "run": "ckpts", "checkpoint": {"name": "a", "step": 7}, "metrics": numbers}


def test_results_become_a_table_and_a_plot(folder):
    """The lines for pandas print the numbers of the history; those for matplotlib go on from there."""
    pytest.importorskip("pandas")
    plotted = importlib.util.find_spec("matplotlib") is not None
    printed = run(folder, sys.executable, "-c", block("dataframe.py") + (block("plot.py") if plotted else ""))
    expected = [row["metrics"]["test"]["accuracy"]["value"] for row in history(folder)]
    assert [round(float(line.split()[1]), 4) for line in printed.splitlines()[2:]] == [round(v, 4) for v in expected]
    assert (folder / "accuracy.png").exists() == plotted


def test_two_checkpoints_are_compared(folder):
    """Example by example: what is won and lost is the difference of the accuracies."""
    printed = run(folder, sys.executable, "-c", block("compare.py"))
    won, lost = map(int, re.findall(r"(\d+) times", printed))
    first, second = (row["metrics"]["test"]["accuracy"]["value"] * 120 for row in history(folder))
    assert won - lost == round(second - first) != 0


def test_backup_rename_and_delete(folder):
    """In this order, by the commands of the page. Results survive the first two, and are gone after the last."""
    before = history(folder)
    save, restore = shell("Backup and restore")
    (delete,) = shell("Delete results, start over")
    run(folder, *save.split())
    run(folder, *delete.split())
    assert history(folder) == []
    run(folder, *restore.split())
    assert history(folder) == before
    rename, start = shell("Rename a run")
    run(folder, *rename.split())
    run(folder, *start.split(), "--once")
    assert history(folder, "--run", "digits") == before
    run(folder, *delete.replace("/ckpts", "/digits").split())
    assert history(folder, "--run", "digits") == []
