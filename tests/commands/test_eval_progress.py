"""Show the progress of one evaluation on terminals and in files."""

import io

import pytest
from fakes import FakeClock
from rich.console import Console

from sidecar.commands.eval_progress import ProgressLines, shown_progress
from sidecar.publishing.status import WorkerStatus


@pytest.fixture
def clock():
    return FakeClock()


def worker(name, state, batches=0, total=None):
    return WorkerStatus(worker=name, pid=1, state=state, batches=batches, total_batches=total)


def test_a_line_every_ten_seconds(clock):
    """About the slowest worker, with the time that is left once it is known. Silence would look like a hang."""
    written = []
    lines = ProgressLines("tensor\x1bflow", clock, written.append)
    lines.show(())
    for state in (
        "import",
        "import",
        "standby",
        "join",
        "join",
        "import",
        "build",
        "read",
        "restore",
        "restore",
        "hello",
    ):
        clock.seconds += 2
        lines.show((worker("a", "evaluate", 1, 40), worker("b", state)))
    for batches in range(1, 12):
        clock.seconds += 2
        lines.show((worker("a", "evaluate", 39, 40), worker("b", "evaluate", batches, 40)))
    assert written == [
        "progress: join, the slowest of 2 workers",
        "progress: restore, the slowest of 2 workers",
        "progress: evaluate 4/40 0.5/s 1 min 12 s left, the slowest of 2 workers",
        "progress: evaluate 9/40 0.5/s 1 min 2 s left, the slowest of 2 workers",
    ]


def test_a_quick_evaluation_is_silent(clock):
    """Scripts get the result alone."""
    written = []
    lines = ProgressLines("torch", clock, written.append)
    for state in ("import", "restore", "evaluate"):
        lines.show((worker("a", state),))
        clock.seconds += 3
    assert written == []


def test_bars_fit_a_terminal(clock):
    """Eighty columns, with the rate and the time that is left."""

    class Terminal(io.StringIO):
        """A stream in memory that pretends to be a terminal."""

        def isatty(self):
            """Return True, so that bars are drawn on this stream."""
            return True

    file = Terminal()
    console = Console(file=file, width=80, force_terminal=True, color_system=None, legacy_windows=False, _environ={})
    with shown_progress("tensorflow", console=console, clock=clock, busy=str) as show:
        for batches in (0, 1, 11, 21):
            show((worker("a", "evaluate", batches, 1000), worker("b", "import")))
            clock.seconds += 2
        show((worker("a", "evaluate", 31, 1000), worker("b", "import")))
        file.truncate(0)
    last = file.getvalue()
    assert "worker 0 evaluate " in last
    assert "31/1000 5/s 3 min 14 s left" in last
    assert "worker 1 imports tensorflow" in last
    assert last.endswith("\x1b[2K") or "\x1b[?25h" in last


def test_what_is_no_terminal_gets_lines(clock, capsys):
    """A log file cannot be drawn over, whatever FORCE_COLOR says."""
    console = Console(file=io.StringIO(), force_terminal=True)
    with shown_progress("torch", console=console, clock=clock, busy=lambda: "busy") as show:
        clock.seconds += 11
        show((worker("a", "import"),))
        clock.seconds += 11
        show((worker("a", "build"),))
    assert capsys.readouterr().err == "progress: imports torch; busy\nprogress: build\n"
