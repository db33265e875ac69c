"""Runs the program that trains with `keras.callbacks.OrbaxCheckpoint`."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

has_orbax = bool(importlib.util.find_spec("orbax") and importlib.util.find_spec("tensorstore"))

needs_orbax = pytest.mark.skipif(
    not has_orbax, reason="orbax-checkpoint is not installed: pip install '.[dev]' brings it"
)

WRITER = Path(__file__).parents[1] / "checkpoints" / "orbax_writer.py"


def trained_once(made_once) -> Path:
    """Return a folder: `saves` has the checkpoints of the epochs 0 to 2, `weights.json` the weights of the last one."""

    def make(folder: Path) -> None:
        (folder / "saves").mkdir()
        weights = train(folder / "saves", 3, max_to_keep=None)
        (folder / "weights.json").write_text(json.dumps(weights))

    return made_once("orbax", make)


def train(folder: Path, epochs: int, **settings) -> dict[str, list]:
    """Train, saving into a folder; return the weights after the last epoch, by name."""
    given = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(WRITER), str(folder.absolute()), str(epochs), *given],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
