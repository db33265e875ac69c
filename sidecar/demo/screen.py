"""Shows how a demo goes: a live picture on a terminal, plain lines elsewhere. It looks at nothing itself."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sidecar.demo.table import Evaluation, sentence, table

_BAR_COLUMNS: Final = 30


@dataclass(frozen=True, slots=True)
class Scene:
    """One moment of a demo."""

    evaluations: Sequence[Evaluation]
    training: str  # what training does
    step: int
    steps: int
    checkpoints: int  # that training will have saved in the end
    daemons: Mapping[str, tuple[str, str]]  # by task of the job: what it does, its URL


class Screen(Protocol):
    """Whoever shows scenes."""

    def show(self, scene: Scene) -> None:
        """Show this moment."""
        ...


@contextmanager
def opened(console: Console) -> Iterator[Screen]:
    """The screen that suits the console."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    # Drawn by us alone: a thread of Rich's would be alive while children are forked.
    with Live(console=console, auto_refresh=False) as live:
        yield _Picture(console, live)


def activity(status: Mapping[str, Any]) -> str:
    """What a daemon does, from its /api/status."""
    if not status:
        return "starts"
    if status["role"] == "chief":
        return f"idles: {status['role_source']}"
    states: dict[str, int] = {}
    for worker in status["workers"]:
        states[worker["state"]] = states.get(worker["state"], 0) + 1
    workers = ", ".join(f"{count} {state}" for state, count in states.items())
    return f"workers {workers or 'none'}; queue {status['pending']}"


@dataclass(slots=True)
class _Picture:
    """A terminal: the whole scene, drawn over the last one."""

    console: Console
    live: Live

    def show(self, scene: Scene) -> None:
        picture = Group(table(scene.evaluations, self.console.width), Text(), _bars(scene), Text(), _daemons(scene))
        self.live.update(picture, refresh=True)


@dataclass(slots=True)
class _Lines:
    """A file or a pipe: only what is new, one line each."""

    console: Console
    said: set[str] = field(default_factory=set)
    evaluated: int = 0

    def show(self, scene: Scene) -> None:
        for task, (does, url) in scene.daemons.items():
            if url and task not in self.said:
                self.said.add(task)
                self._say(f"{task}'s daemon: {url}, {does}")
        for each in scene.evaluations[self.evaluated :]:
            self._say(sentence(each))
        self.evaluated = len(scene.evaluations)
        if scene.step == scene.steps and "trained" not in self.said:
            self.said.add("trained")
            self._say(f"training ended after {scene.steps} steps")

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def _bars(scene: Scene) -> Table:
    done = len({each.checkpoint for each in scene.evaluations if each.succeeded})
    grid = Table.grid(padding=(0, 2))
    for name, part, whole, text in (
        ("training", scene.step, scene.steps, scene.training),
        ("evaluated", done, scene.checkpoints, f"{done} of {scene.checkpoints} checkpoints"),
    ):
        bar = ProgressBar(total=whole, completed=part, width=_BAR_COLUMNS)
        grid.add_row(Text(name, style="bold"), bar, Text(text))
    return grid


def _daemons(scene: Scene) -> Table:
    grid = Table.grid(padding=(0, 2))
    for task, (does, url) in scene.daemons.items():
        grid.add_row(Text(f"{task}'s daemon", style="bold"), Text(url, style="cyan", no_wrap=True), Text(does))
    return grid
