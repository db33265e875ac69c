"""Demos that run, and their processes."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

SIDECAR = (sys.executable, "-P", "-c", "from sidecar.commands.cli import main; main()")

MARK = "TEST_OF_DEMO"  # in the environment of whatever a demo starts

BOUND_SECONDS = 600.0


@dataclass
class Running:
    """A demo and what it has said so far."""

    process: subprocess.Popen
    folder: Path
    mark: str

    @property
    def output(self) -> str:
        """Standard output and error together."""
        return self.folder.with_suffix(".out").read_text()

    def children(self, word: str) -> list[psutil.Process]:
        """Live processes of this demo whose command line holds the word."""
        return [each for each in self.alive() if any(word in part for part in _command(each))]

    def alive(self) -> list[psutil.Process]:
        """Every live process of this demo, wherever it hangs in the tree."""
        return [each for each in psutil.process_iter() if _is_marked(each, self.mark)]

    def wait(self) -> int:
        """Wait for the end of the demo, and return its exit code."""
        return self.process.wait(BOUND_SECONDS)

    def interrupt(self) -> None:
        """Return what Ctrl-C sends: SIGINT to the terminal's foreground process group."""
        os.killpg(self.process.pid, signal.SIGINT)


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def wait_until(condition, seconds=BOUND_SECONDS):
    """The condition's first true value; fails if there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def history(demo: Running) -> list[dict]:
    """Return what `sidecar history --json` prints, with the arguments that the demo printed."""
    printed = re.search(r"^Look again: \S+ (history .*)$", demo.output, re.MULTILINE)
    done = subprocess.run(
        [*SIDECAR, *printed[1].split(), "--json"], cwd=demo.folder.parent, capture_output=True, check=True, timeout=240
    )
    return json.loads(done.stdout)


def events(log: Path) -> list[str]:
    """Return what a daemon's log tells."""
    return [json.loads(line)["event"] for line in log.read_text().splitlines()]


def _task(process: psutil.Process) -> str | None:
    with contextlib.suppress(psutil.Error, KeyError):
        return json.loads(process.environ()["TF_CONFIG"])["task"]["type"]
    return None


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):  # it may have ended since it was listed
        return process.cmdline()
    return []
