"""Copy the programs of examples/, and run them as their headers say."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SIDECAR = str(Path(sys.executable).with_name("sidecar"))
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "SIDECAR_STANDBY": "false",
    "SIDECAR_YIELD_SECONDS": "0",  # this machine may be busy
    "SIDECAR_QUIET_SECONDS": "0.1",  # nobody writes any more when these commands begin
}


def run(folder, *command):
    """Run a command in the folder and return what it prints; it must succeed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SIDECAR_", "TF_CONFIG"))}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment | QUIET,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copied(folder):
    """Return a copy of the examples, to run them in."""
    return shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("ckpts*", "__pycache__"))
