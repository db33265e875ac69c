"""Commands read a long run as cheaply as a short one, apart from the rows that they print for each checkpoint."""

import signal
import subprocess
import sys

import pytest
from command_costs import costs
from long_journal import write_long_journal

from sidecar.coordination.storage import PosixStorage

SHORT, LONG = 1_500, 6_000
MOST_MB = 8  # more than for the short run; `make bench ARGS=long_run` measures 100,000 evaluations
pytestmark = [pytest.mark.nightly]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The checkpoint directories of a short and a long run."""
    folders = []
    for plans in (SHORT, LONG):
        folders.append(tmp_path_factory.mktemp("run") / "ckpts")
        write_long_journal(PosixStorage(folders[-1] / ".sidecar" / "ckpts"), plans)
    return folders


def used(folder, *arguments):
    """The processor seconds of a command, the most MiB that were resident, and the lines it wrote."""
    return costs(*arguments, "--checkpoint-dir", folder)


@pytest.mark.parametrize("command", [("status", "--no-observe"), ("history", "--last", "50")])
def test_what_is_newest_costs_the_same_after_a_long_run(runs, command):
    """It comes from the snapshot and the records behind it. Four times the journal is not half as much again."""
    short, long = (min(used(folder, *command) for _ in range(3)) for folder in runs)
    assert long[0] < 1.5 * short[0]
    assert long[1] < short[1] + MOST_MB


COMMANDS = [
    ("history",),
    ("history", "--json"),
    ("history", "--plot"),
    ("requeue", "--again", "--all", "--dry-run"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_whole_history_is_not_held(runs, command):
    """It is printed while it is read. A plot holds plain numbers, and a requeue the checkpoints that it may mean."""
    short, long = (used(folder, *command) for folder in runs)
    assert long[1] < short[1] + MOST_MB


@pytest.mark.parametrize("form", ["csv", "jsonl", "openmetrics"])
def test_an_export_holds_no_run(runs, form):
    """It has each of the ten numbers of every evaluation."""
    short, long = (used(folder, "export", "--format", form) for folder in runs)
    assert long[2] - short[2] == (LONG - SHORT) * (32 if form == "openmetrics" else 10)
    assert long[1] < short[1] + MOST_MB


def test_ctrl_c_ends_an_export_that_is_read_slowly(runs):
    """At once, and without a traceback. It writes while it reads, so that the pipe is full long before the end."""
    arguments = [sys.executable, "-m", "sidecar", "export", "--checkpoint-dir", str(runs[1])]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline().startswith(b"plan,")
        process.send_signal(signal.SIGINT)
        assert process.wait(240) == 130
        assert process.stderr.read() == b""
