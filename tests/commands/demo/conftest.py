"""Trainers that are signalled to stop."""

import json
import os
import subprocess
import sys
import uuid

import pytest
from commands.demo.running import (
    BOUND_SECONDS,
    MARK,
    SIDECAR,
    Running,
)
from commands.demo.trainers import SIGNAL


@pytest.fixture
def told(tmp_path):
    """A checkpoint directory in which the signal is there."""
    folder = tmp_path / "ckpts" / ".sidecar" / "ckpts"
    folder.mkdir(parents=True)
    (folder / "early_stop.json").write_text(json.dumps(SIGNAL))
    return tmp_path / "ckpts"


@pytest.fixture
def start(tmp_path):
    """Start demos; none survives the test."""
    running = []

    def start(*arguments: str, python: str = sys.executable, **variables: str) -> Running:
        folder, mark = tmp_path / f"demo{len(running)}", uuid.uuid4().hex
        with folder.with_suffix(".out").open("wb") as output:
            process = subprocess.Popen(
                [python, *SIDECAR[1:], "demo", "--directory", str(folder), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | variables | {MARK: mark},
                cwd=tmp_path,
                start_new_session=True,
            )
        running.append(Running(process, folder, mark))
        return running[-1]

    yield start
    for each in running:
        for process in each.alive():
            process.kill()
        each.process.wait(BOUND_SECONDS)
