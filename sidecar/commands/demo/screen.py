"""Show the progress of a demo: live tables on a terminal, plain lines elsewhere. Reads nothing itself."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sidecar.commands.demo.table import Evaluation, sentence, table

_BAR_COLUMNS: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The state of a demo at one moment."""

    evaluations: Sequence[Evaluation]
    training: str  # what training is doing
    step: int
    steps: int
    checkpoints: int  # that training saves in all
    daemons: Mapping[str, tuple[str, str]]  # by task of the job: what the daemon is doing, its URL


class Screen(Protocol):
    """The place where a demo is shown."""

    def show(self, scene: Scene) -> None:
        """Show the demo as it is now."""
        ...


@contextmanager
def opened(console: Console) -> Iterator[Screen]:
    """Yield the screen that fits the console."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    # Without Rich's own refresh thread, which would be running while children are forked.
    with Live(console=console, auto_refresh=False) as live:
        yield _Picture(console, live)


def activity(status: Mapping[str, Any]) -> str:
    """Describe what a daemon is doing, from its /api/status."""
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
    """A terminal: the whole scene, drawn over the previous one."""

    console: Console
    live: Live

    def show(self, scene: Scene) -> None:
        picture = Group(table(scene.evaluations, self.console.width), Text(), _bars(scene), Text(), _daemons(scene))
        self.live.update(picture, refresh=True)


@dataclass(slots=True)
class _Lines:
    """A file or a pipe: one line for each new evaluation or event."""

    console: Console
    said: set[str] = field(default_factory=set)
    evaluated: int = 0

    def show(self, scene: Scene) -> None:
        for task, (activity_text, url) in scene.daemons.items():
            if url and task not in self.said:
                self.said.add(task)
                self._say(f"{task}'s daemon: {url}, {activity_text}")
        for evaluation in scene.evaluations[self.evaluated :]:
            self._say(sentence(evaluation))
        self.evaluated = len(scene.evaluations)
        if scene.step == scene.steps and "trained" not in self.said:
            self.said.add("trained")
            self._say(f"training ended after {scene.steps} steps")

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def _bars(scene: Scene) -> Table:
    done = len({evaluation.checkpoint for evaluation in scene.evaluations if evaluation.succeeded})
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
    for task, (activity_text, url) in scene.daemons.items():
        grid.add_row(Text(f"{task}'s daemon", style="bold"), Text(url, style="cyan", no_wrap=True), Text(activity_text))
    return grid
