"""A real terminal without a window, and its screen as a picture. docs/screenshots.py uses both."""

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 100, 32
PATIENCE_SECONDS: Final = 60.0
"""Time for a program to start, or to show what it got."""

_POLL_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Terminal:
    """A shell in a terminal of 100 columns and 32 rows, which nobody has configured."""

    socket: Path

    def type(self, command: str) -> None:
        """Type a command and press Enter."""
        self._tmux("send-keys", command, "Enter")

    def read(self) -> str:
        """Return the screen with its colours as ANSI codes."""
        return self._tmux("capture-pane", "-p", "-e")

    def start(self, folder: Path) -> None:
        """Start the shell in a folder, with `sidecar` on its PATH."""
        self._tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), "-c", str(folder), shell())

    def end(self) -> None:
        """End the shell and what runs in it."""
        self._tmux("kill-server")

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-u", "-f", os.devnull, "-S", str(self.socket), *words]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS)  # noqa: S603 - constants
        return done.stdout


def shell() -> str:
    """Return the command of a shell without anybody's configuration."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    variables = {"PATH": path, "PS1": "$ ", "LANG": "C.UTF-8", "COLORTERM": "truecolor"}
    words = [*(f"{name}={value}" for name, value in variables.items()), "bash", "--noprofile", "--norc"]
    return shlex.join(["env", *words])


@contextmanager
def terminal(folder: Path) -> Iterator[Terminal]:
    """Yield a terminal in a folder, and end what runs in it."""
    with tempfile.TemporaryDirectory() as private:
        screen = Terminal(Path(private) / "tmux")
        screen.start(folder)
        try:
            yield screen
        finally:
            screen.end()


def svg(screen: str, *, title: str, name: str) -> str:
    """Return a screen with ANSI codes as an SVG, which uses a font of whoever looks at it.

    Args:
        screen: The screen, as `Terminal.read` returns it.
        title: A title above it.
        name: The beginning of all ids in the SVG.
    """
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    for line in screen.rstrip().splitlines():
        console.print(Text.from_ansi(line), soft_wrap=True)
    drawn = console.export_svg(title=title, unique_id=name)
    without_fonts = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # they are on the Web
    local = without_fonts.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
    # Without a width, a picture in a table of a page is as small as a thumb.
    sized = re.sub(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', r'width="\1" height="\2" \g<0>', local, count=1)
    return "\n".join(line.rstrip() for line in sized.splitlines()) + "\n"


def until(ask: Callable[[], str], is_wanted: Callable[[str], bool]) -> str:
    """Ask until an answer is wanted, and return it; raises `TimeoutError`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_wanted(answer := ask()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {PATIENCE_SECONDS:.0f} s: {answer}")
        time.sleep(_POLL_SECONDS)
    return answer
