"""Trainers that are signalled to stop."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]

SIGNAL = dict.fromkeys(("metric", "best_checkpoint", "checkpoint", "run", "created_at"), "x") | {
    "reason": "no improvement",
    "best": 0.5,
    "best_step": 1,
    "step": 2,
    "patience": 3,
    "schema": 1,
}


def train(*command, folder):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SIDECAR_", "TF_CONFIG"))}
    environment |= {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
