"""`framework = "python"` with JAX and Flax, where they are installed: here, or for the interpreter JAX_PYTHON.

They are not among the test requirements: another 150 MB, for a library that this program does not know about.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = os.environ.get("JAX_PYTHON") or (sys.executable if importlib.util.find_spec("flax") else None)
FOLDER = Path(__file__).parent

pytestmark = pytest.mark.skipif(PYTHON is None, reason="needs JAX and Flax, or JAX_PYTHON that has them")


def test_flax_checkpoints_are_evaluated_by_two_ranks(sidecar, tmp_path):
    """By a daemon that has no JAX, in worker processes that do."""
    folder = tmp_path / "ckpts"
    written = subprocess.run([PYTHON, FOLDER / "flax_writer.py", folder], capture_output=True, text=True, check=True)
    saved = [json.loads(line) for line in written.stdout.splitlines()]
    daemon = sidecar.run(
        folder,
        *("--replicas", "2"),
        task="flax_digits.py",
        DIGITS=str(tmp_path / "digits.npz"),
        SIDECAR_FRAMEWORK="python",
        SIDECAR_CHECKPOINT_PATTERN="flax-*.msgpack",
        SIDECAR_WORKER_PYTHON=PYTHON,
    )
    found = daemon.evaluated(*saved)
    for each in saved:
        row = found[each["name"]]
        assert row["metrics"]["test"]["accuracy"]["value"] == each["accuracy"] > 0.5
        assert (row["workers"], row["step"]) == (2, int(each["name"].split("-")[1].split(".")[0]))
