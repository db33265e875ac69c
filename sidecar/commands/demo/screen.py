"""Show the progress of a demo: as `sidecar status --watch` on a terminal, and by plain lines elsewhere. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sidecar.commands.status.collect import RunStatus
from sidecar.commands.status.live_view import live_view
from sidecar.commands.status.plan_progress import PlanProgress

_BAR_COLUMNS: Final = 30
_HEADER_LINES: Final = 6  # bars, daemons, and an empty line after each


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Hold the state of a demo at one moment."""

    run: str
    status: RunStatus
    rows: Sequence[Mapping[str, Any]]  # of `sidecar history`
    training: str  # what training is doing
    step: int
    steps: int
    checkpoints: int  # that training saves in all
    daemons: Mapping[str, tuple[str, str]]  # by task of the job: what the daemon is doing, its URL


class Screen(Protocol):
    """The place where a demo is shown."""

    def show(self, scene: Scene) -> None:
        """Show the demo as it is now."""


@contextmanager
def opened(console: Console) -> Iterator[Screen]:
    """Yield the screen that fits the console."""
    if not console.is_terminal:
        yield _Lines(console)
        return
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


def sentence(row: Mapping[str, Any]) -> str:
    """Return a row of `sidecar history` as a line of text: `step 120: accuracy 0.8111, …`."""
    if row["status"] != "succeeded":
        return f"step {row['step']}: {row['status']}" + (f": {row['kind']}" if row["kind"] else "")
    numbers = ", ".join(
        f"{name if len(row['metrics']) == 1 else f'{eval_set}/{name}'} {_number(value['value'])}"
        for eval_set, metrics in row["metrics"].items()
        for name, value in sorted(metrics.items())
        if not name.endswith("_stderr")
    )
    seconds = ", ".join(f"{name} {value:.2f}" for name, value in row["phases"].items())
    examples, took = sum(row["examples"].values()), sum(row["phases"].values())
    return f"step {row['step']}: {numbers}, {examples} examples, {row['workers']} workers, {took:.2f} s ({seconds})"


@dataclass(slots=True)
class _Picture:
    """A terminal: the whole scene, drawn over the previous one."""

    console: Console
    live: Live
    progress: PlanProgress = field(default_factory=PlanProgress)

    def show(self, scene: Scene) -> None:
        width, height = self.console.size
        workers = self.progress.note(scene.status)
        view = live_view(scene.run, scene.status, workers, width=width, height=height - _HEADER_LINES)
        self.live.update(Group(_bars(scene), Text(), _daemons(scene), Text(), *view), refresh=True)


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
        for row in scene.rows[self.evaluated :]:
            self._say(sentence(row))
        self.evaluated = len(scene.rows)
        if scene.step == scene.steps and "trained" not in self.said:
            self.said.add("trained")
            self._say(f"training ended after {scene.steps} steps")

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def _bars(scene: Scene) -> Table:
    done = len(scene.status.history.verdicts.succeeded)
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


def _number(value: float | str | None) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
