"""Checkpoints of the real writer, made once per session, and the collaborators that tests move by hand."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints.kinds import KINDS

from sidecar.checkpoints.catalog import Catalog


class Tally:
    """What tests tried, summed up at the end of the run: a number that nobody sees may as well be zero."""

    def __init__(self) -> None:
        self.cases: dict[str, list[int]] = {}
        self.costs: list[tuple[float, int, str]] = []

    def add(self, what: str, tried: int, caught: int) -> None:
        """So many cases more of a kind."""
        total = self.cases.setdefault(what, [0, 0])
        total[0] += tried
        total[1] += caught

    def measured(self, what: str, answer: dict) -> None:
        """What bounded.py measured of one file."""
        self.costs.append((answer["seconds"], answer["memory"], what.replace("_", " ")))

    def lines(self) -> Iterator[str]:
        """As people read it."""
        for what, (tried, caught) in self.cases.items():
            yield f"{what}: {tried:,} tried, {caught:,} caught"
        if self.costs:
            seconds, _, slowest = max(self.costs)
            memory, largest = max((memory, what) for _, memory, what in self.costs)
            yield (
                f"files as bad as can be: {len(self.costs)} tried, at most {seconds:.1f} s ({slowest}) and "
                f"{memory / 2**20:.0f} MiB ({largest})"
            )


_TALLY = pytest.StashKey[Tally]()


@pytest.fixture(scope="session")
def tally(pytestconfig) -> Tally:
    return pytestconfig.stash.setdefault(_TALLY, Tally())


def pytest_terminal_summary(terminalreporter, config) -> None:
    if _TALLY in config.stash:
        terminalreporter.section("damaged and hostile checkpoints")
        for line in config.stash[_TALLY].lines():
            terminalreporter.line(line)


class FakeClock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.wall_seconds = 1_800_000_000.0

    def now(self) -> float:
        """As `Clock.now`."""
        return self.seconds

    def wall(self) -> float:
        """As `Clock.wall`."""
        return self.wall_seconds


class RealWriter:
    """The folder that a TensorFlow process wrote into, what it says it wrote, and the process, for restoring."""

    def __init__(self, folder: Path, process: subprocess.Popen) -> None:
        self.folder = folder
        self._process = process
        self.wrote = self._answer()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def write(self, kind: str, folder: Path) -> None:
        """Let it write one of the kinds of keras_writers.py, and wait until it has."""
        self._process.stdin.write(json.dumps({"kind": kind, "folder": str(folder)}) + "\n")
        self._process.stdin.flush()
        assert self._answer() == "written"

    def restore(self, prefix: str) -> list:
        """The step and the weights that TensorFlow restores from a prefix."""
        self._process.stdin.write(prefix + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self):
        line = self._process.stdout.readline()  # bounded by the test's timeout
        assert line, "the TensorFlow process ended; its error output is above"
        return json.loads(line)


@pytest.fixture(scope="session")
def real_writer(tmp_path_factory) -> Iterator[RealWriter]:
    folder = tmp_path_factory.mktemp("real")
    script = Path(__file__).with_name("real_writer.py")
    environment = os.environ | {
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "KERAS_BACKEND": "tensorflow",
    }
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        try:
            yield RealWriter(folder, process)
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.kill()


@pytest.fixture(scope="session")
def written(real_writer, tmp_path_factory) -> Path:
    """A folder for each of KINDS, with one checkpoint named `m-5` in it."""
    folder = tmp_path_factory.mktemp("written")
    for kind in KINDS:
        real_writer.write(kind, folder / kind)
    return folder


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def root(tmp_path) -> Path:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder


@pytest.fixture
def pins(root) -> Path:
    return root / ".sidecar" / "run" / "pins"


@pytest.fixture
def new_catalog(root, pins, clock):
    def new(**settings) -> Catalog:
        return Catalog(root, pins, **({"quiet_seconds": 3.0, "clock": clock} | settings))

    return new


@pytest.fixture
def put(real_writer, root):
    """Copy what the real writer wrote in one of its folders, or some of it, into the checkpoint directory."""

    def copy(kind: str, pattern: str = "*") -> Path:
        for source in sorted((real_writer.folder / kind).glob(pattern)):
            shutil.copy2(source, root / source.name)
        return root

    return copy
