"""`sidecar demo`: start a training job with its daemons, show the evaluations, end.

It imports no framework. It reads the files of the run, as `sidecar status` does.
"""

import importlib.util
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from sidecar.commands.demo import job
from sidecar.commands.demo.children import ChildFailedError, Children, stop
from sidecar.commands.demo.folder import Folder, claimed
from sidecar.commands.demo.frameworks import TASKS, Framework
from sidecar.commands.demo.screen import Scene, activity, opened
from sidecar.commands.from_settings import make_catalog
from sidecar.commands.hints import program, short
from sidecar.commands.state_storage import state_storage
from sidecar.commands.status.collect import RunObserver, RunStatus
from sidecar.errors import SettingsError, StorageError
from sidecar.publishing.report import rows
from sidecar.settings import Settings
from sidecar.system.clock import SystemClock

_SAVE_EVERY: Final = 120  # steps
_POLL_SECONDS: Final = 0.25
_PROGRESS_TIMEOUT_SECONDS: Final = 180.0  # the longest normal silence is a cold start on a slow disk
_STOP_SECONDS: Final = 30.0  # a daemon drains for at most 25
_SHOW_SECONDS: Final = 20.0  # from the last entry of the journal to its gauge: the daemon needs a fraction of one
_SAMPLE: Final = ("sidecar_eval_metric{", "sidecar_eval_examples{", "sidecar_eval_checkpoint_step{", "sidecar_group_")


@dataclass(slots=True)
class Demo:
    """Observe a running demo from outside: its state directory, its log files, its HTTP ports."""

    folder: Folder
    job: job.Job
    observer: RunObserver
    now: Callable[[], float] = time.monotonic
    _began_at: float | None = None
    _status: RunStatus = field(default_factory=lambda: RunStatus(run_id=None))
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _states: list[Mapping[str, Any]] = field(default_factory=list)
    _progress: tuple[Any, float] = (None, 0.0)  # signs of progress, and since when they are the same

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of `sidecar history` so far."""
        return self._rows

    @property
    def checkpoints(self) -> int:
        """Return the number of checkpoints that training will have saved in the end."""
        return self.job.steps // self.job.save_every

    def observe(self) -> Scene:
        """Read the state of all processes; raises `ChildFailedError` if one failed or makes no progress."""
        trained = self.job.trained()
        for daemon in self.job.daemons:
            if daemon.child.ended():
                raise daemon.child.failure("ended early")
        self._read_run()
        self._states = [daemon.status() for daemon in self.job.daemons]
        step = self.job.steps if trained else self.job.progress()
        self._require_progress(step)
        shown = {
            task: (activity(state), daemon.url or "")
            for task, daemon, state in zip(TASKS, self.job.daemons, self._states, strict=True)
        }
        self._began_at = self.now() if self._began_at is None else self._began_at
        waited = "" if step else f" ({self.now() - self._began_at:.0f} s)"  # importing a framework looks like a hang
        return Scene(
            run=self.folder.checkpoints.name,
            status=self._status,
            rows=self._rows,
            training=self.job.activity(step) + waited,
            step=step,
            steps=self.job.steps,
            checkpoints=self.checkpoints,
            daemons=shown,
        )

    def is_ready(self) -> bool:
        """Return whether the daemons are ready. Training waits for that: four imports of a framework need two cores."""
        return all(state.get("ready") for state in self._states)

    def is_over(self) -> bool:
        """Return whether training has ended and the journal holds an evaluation of every checkpoint."""
        done = {row["step"] for row in self._rows if row["status"] == "succeeded"}
        wanted = set(range(self.job.save_every, self.job.steps + 1, self.job.save_every))
        return wanted <= done and self.job.trained()

    def sample(self) -> list[str]:
        """Return lines of the worker daemon's /metrics, as soon as they show the last checkpoint."""
        daemon = self.job.daemons[-1]
        last = str(float(self.job.steps))
        deadline = self.now() + _SHOW_SECONDS
        while self.now() < deadline:
            lines = [line for line in daemon.ask("/metrics").splitlines() if line.startswith(_SAMPLE)]
            if any(line.startswith("sidecar_eval_checkpoint_step") and line.endswith(last) for line in lines):
                return lines
            time.sleep(_POLL_SECONDS)
        raise daemon.child.failure(f"does not show step {self.job.steps} at {daemon.url}/metrics")

    def _read_run(self) -> None:
        try:
            self._status = self.observer.collect()
        except StorageError:  # the daemons are creating it
            return
        self._rows = rows(self._status.history)
        for row in self._rows:
            if row["final"] and row["status"] != "succeeded":
                raise ChildFailedError(f"checkpoint {row['checkpoint']} {row['status']}: {row['message']}")

    def _require_progress(self, step: int) -> None:
        signs = (step, len(self._rows), [state.get("workers") for state in self._states])
        if signs != self._progress[0]:
            self._progress = signs, self.now()
        elif self.now() - self._progress[1] > _PROGRESS_TIMEOUT_SECONDS:
            trains = self.job.training and step < self.job.steps
            silent = self.job.training[0] if trains else self.job.daemons[-1].child
            raise silent.failure(f"has made no progress for {_PROGRESS_TIMEOUT_SECONDS:.0f} s")


def run(directory: Path, *, keep: bool, checkpoints: int, framework: Framework) -> int:
    """Run the demo to its end and return 0.

    Raises `SettingsError` if the directory cannot be used or a package is missing, and `ChildFailedError`, whose
    message ends with the end of the log, if a process failed.
    """
    _require_packages(framework)
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM cleans up as Ctrl-C does
    with claimed(directory, framework.run) as folder, Children() as children:
        if framework.prepare is not None:
            framework.prepare(folder)
        running = job.make(children, folder, framework, steps=checkpoints * _SAVE_EVERY, save_every=_SAVE_EVERY)
        demo = Demo(folder, running, observer_of(folder))
        task = f"--task {framework.task_file}:task" if framework.task_file else f"--config {short(folder.settings)}"
        _say(
            console,
            f"{framework.story} Beside each runs:",
            f"  sidecar run --checkpoint-dir {short(folder.checkpoints)} --replicas 2 \\",
            f"    {task}",
            "",
        )
        running.start_daemons()
        with opened(console) as screen:
            while not demo.is_over():
                screen.show(demo.observe())
                if not running.training and demo.is_ready():
                    running.start_training()
                time.sleep(_POLL_SECONDS)
        _conclude(console, demo)
        if keep:
            _serve(console, demo)
        stop([daemon.child for daemon in running.daemons], _STOP_SECONDS)
    return 0


def observer_of(folder: Folder) -> RunObserver:
    """Return the observer of the demo's run."""
    settings = Settings(checkpoint_dir=folder.checkpoints)
    return RunObserver(
        state_storage(settings),
        make_catalog(settings, once=True),
        SystemClock(),
        lease_seconds=settings.lease_seconds,
        beat_seconds=settings.beat_seconds,
        place=str(folder.checkpoints),
    )


def _conclude(console: Console, demo: Demo) -> None:
    """Print the best result, and where to find everything."""
    checkpoints = demo.folder.checkpoints
    eval_set, metric, choose = demo.job.framework.best
    numbers = {
        row["checkpoint"]: row["metrics"][eval_set][metric]["value"]
        for row in demo.rows
        if row["status"] == "succeeded"
    }
    best, last = choose(numbers, key=lambda name: numbers[name]), list(numbers)[-1]
    _say(
        console,
        "",
        f"Each of the {len(numbers)} checkpoints was evaluated while training went on. The best one is {best}, with "
        f"{metric} {numbers[best]:.4f}; the last one has {numbers[last]:.4f}.",
        "",
        f"From {demo.job.daemons[-1].url}/metrics, as Prometheus would see it:",
        *(f"  {line}" for line in demo.sample()),
        "",
        f"Saves:      {short(checkpoints / '.sidecar' / checkpoints.name / 'evaluations')}",
        f"Logs:       {short(demo.folder.logs)}",
        f"Look again: {program()} history --checkpoint-dir {shlex.quote(short(checkpoints))}",
        f"Status page and metrics: {program()} demo --keep leaves them there until Ctrl-C",
        f"Your own model: {program()} init DIR, where DIR is what your training saves checkpoints in",
    )


def _serve(console: Console, demo: Demo) -> None:
    """Keep the daemons running until Ctrl-C, which is a normal end here."""
    urls = [f"  {task}'s daemon: {daemon.url}" for task, daemon in zip(TASKS, demo.job.daemons, strict=True)]
    _say(console, "", "The daemons keep serving until you press Ctrl-C:", *urls)
    try:
        while True:
            for daemon in demo.job.daemons:
                if daemon.child.ended():
                    raise daemon.child.failure("ended early")
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        return


def _require_packages(framework: Framework) -> None:
    missing = [name for name, module in framework.packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise SettingsError(
            f"the demo needs {' and '.join(missing)}, which {sys.executable} does not have: "
            f"pip install '.[{framework.extra}]', in a clone of the repository"
        )


def _say(console: Console, *lines: str) -> None:
    console.print("\n".join(lines), markup=False, soft_wrap=True)
