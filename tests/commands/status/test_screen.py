"""The live view on a terminal: a real one, that of tmux, and one in memory for what storage may do meanwhile."""

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from sidecar.commands.status.screen import watch
from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.errors import StorageError, StorageLostError
from sidecar.protocol.heartbeat import WorkerProgress

BOUND_SECONDS = 240.0


class StopWatching(Exception):  # noqa: N818 - it ends the test's wait
    """The person has seen enough."""


class Tmux:
    """A terminal of its own server, with a shell."""

    def __init__(self, program, folder):
        self._command = [program, "-S", str(folder / "tmux"), "-f", os.devnull]
        self("new-session", "-d", "-x", "80", "-y", "24", "env PS1='$ ' NO_COLOR=1 COLUMNS=200 LINES=60 sh")

    def __call__(self, *words):
        """Return what tmux answers."""
        return subprocess.run([*self._command, *words], capture_output=True, text=True, timeout=240, check=True).stdout

    def type(self, line):
        """Type a line into the terminal, and press Enter."""
        self("send-keys", "-l", line)
        self("send-keys", "Enter")

    @property
    def text(self):
        """Return what the terminal shows."""
        return self("capture-pane", "-p")

    @property
    def state(self):
        """Return whether the cursor is visible, and whether the alternate screen is shown."""
        return self("display", "-p", "#{cursor_flag}#{alternate_on}").strip()

    def shows(self, words, *, is_shown=True):
        """Return whether it shows these words."""
        return (words in self.text) == is_shown

    def has_line(self, line):
        """Return whether it shows this line."""
        return line in self.text.splitlines()

    def wait(self, condition):
        """Wait until a condition holds."""
        until = time.monotonic() + BOUND_SECONDS
        while not condition():
            assert time.monotonic() < until, (self.state, self.text)
            time.sleep(0.05)


@pytest.fixture
def tmux(needs, tmp_path):
    """A terminal of 24 lines of 80 columns."""
    made = Tmux(needs("tmux"), tmp_path)
    yield made
    made("kill-server")


@pytest.fixture
def command(tmp_path, tmp_path_factory, writers, checkpoint):
    """The command that watches a run whose first checkpoint is evaluated."""
    writers.propose(checkpoint=checkpoint(600))
    writers.beat("node-0", 1, plan=1, doing=(WorkerProgress("node-0.a.1", "evaluate", 0, 33),))
    program = Path(sys.executable).with_name("sidecar")
    words = (
        "status",
        "--watch",
        "--every",
        "0.2",
        "-d",
        tmp_path_factory.mktemp("ckpts"),
        "--state-dir",
        tmp_path,
        "--run",
        "state",
    )
    return shlex.join(map(str, (program, *words)))


@pytest.mark.seconds
def test_a_terminal_is_drawn_over_and_given_back(tmux, command, writers):
    """It follows the run and the terminal's size; after Ctrl-C the last state is text, and the terminal as before."""
    tmux.type(command)
    tmux.wait(lambda: "plan 1: ckpt-600 (step 600)" in tmux.text)
    assert tmux.state == "01"
    for beat, batches in ((2, 1), (3, 5), (4, 9)):
        writers.beat("node-0", beat, plan=1, doing=(WorkerProgress("node-0.a.1", "evaluate", batches, 33),))
        tmux.wait(partial(tmux.shows, f" {batches}/33"))
    assert re.search(r"0 node-0 evaluate ━+ +9/33 [\d.]+/s \d+ s left", tmux.text)
    for columns, rows in ((50, 15), (120, 40)):
        tmux("resize-window", "-x", str(columns), "-y", str(rows))
        tmux.wait(partial(tmux.shows, "last change  role", is_shown=columns > 64))
        tmux.wait(lambda: tmux.text.startswith("run state"))
        assert tmux.text.count("run state") == 1
    tmux("send-keys", "C-z")
    tmux.wait(lambda: tmux.state == "10" and "Stopped" in tmux.text)
    tmux.type("fg")
    tmux.wait(lambda: tmux.state == "01" and tmux.text.startswith("run state"))
    tmux("send-keys", "C-c")
    tmux.wait(lambda: tmux.state == "10" and tmux.text.rstrip().endswith("$"))
    assert "plan 1: ckpt-600 (step 600), attempt 1" in tmux.text
    tmux.type("echo code $?; stty -a | grep -ow '[-]*echo'")
    tmux.wait(lambda: re.search(r"^code 130\necho$", tmux.text, re.MULTILINE) is not None)


@pytest.mark.seconds
def test_a_signal_ends_it_as_any_program(tmux, command, tmp_path):
    """The terminal is given back first. The shell sees that a signal ended it."""
    pid = tmp_path / "pid"
    tmux.type(f"sh -c 'echo $$ > {pid}; exec {command}'; echo code $?")
    tmux.wait(lambda: tmux.state == "01" and "plan 1" in tmux.text)
    os.kill(int(pid.read_text()), signal.SIGTERM)
    tmux.wait(lambda: tmux.state == "10" and "code 143" in tmux.text)
    assert "Traceback" not in tmux.text


@pytest.mark.nightly
def test_ctrl_c_at_any_moment(tmux, command):
    """While it takes the terminal, reads, draws or gives it back: the cursor comes back, and no traceback is shown."""
    for moment in range(6):
        tmux("clear-history")
        tmux.type(f"clear; (trap : INT; {command}; echo ended-{moment}-$?)")
        tmux.wait(lambda: tmux.state.endswith("1"))
        time.sleep(0.05 * moment)  # no condition: any moment is meant
        tmux("send-keys", "C-c")
        tmux.wait(lambda: tmux.state == "10" and tmux.text.rstrip().endswith("$"))
        assert tmux.has_line(f"ended-{moment}-130"), tmux.text
        assert "Traceback" not in tmux.text


class Terminal(io.StringIO):
    """A terminal in memory."""

    def isatty(self):
        """Return that this stream is a terminal."""
        return True


@pytest.fixture
def seen(observer, writers):
    """Watch a run; `collects` are what each reading raises, and None stands for a reading that succeeds."""
    writers.beat("node-0", 1)
    collect = observer.collect

    def run(*collects):
        raised = iter(collects)

        def next_one():
            error = next(raised, StopWatching())
            if error is not None:
                raise error
            return collect()

        observer.collect = next_one
        file = Terminal()
        console = Console(file=file, force_terminal=True, width=80, height=24, color_system=None, legacy_windows=False)
        timeout = StorageTimeout(5.0, "the run")
        with pytest.raises((StopWatching, StorageError)) as ended:
            watch(console, "mnist", observer, timeout, every_seconds=0.2, pause=lambda _: None)
        return file.getvalue(), ended.type

    return run


def test_a_storage_that_fails_for_a_while_is_no_end(seen):
    """The reason is shown with the last state, and the next round reads again."""
    text, ended = seen(None, StorageError("no answer\x1b[2J"), None)
    assert ended is StopWatching
    assert "no answer\\x1b[2J" in text
    assert text.count("node-0 ") >= 4
    left = text.rindex("\x1b[?1049l")
    assert "\x1b[?25h" in text
    assert "run mnist" in text[left:]


def test_an_error_that_stays_ends_it(seen):
    """After the terminal has been given back."""
    text, ended = seen(StorageLostError("of another directory"))
    assert ended is StorageLostError
    assert "reading …" in text
    assert "\x1b[?1049l" in text
    assert "of another directory" not in text
