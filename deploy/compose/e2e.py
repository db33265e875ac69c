"""Test the whole system from outside: whether every checkpoint's values arrive in Prometheus, and are right.

The script waits for new checkpoints of the training job, computes their numbers itself, and compares. It prints a table
and exits with 0, or with 1 and one sentence per failure. CHECKPOINTS is the number of checkpoints, RUN the name of the
run.
"""  # noqa: INP001 - a script next to others, not a package

import importlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

import promql
import run_files
import verdict
from run_files import step

_RUN: Final = f'{{run="{run_files.RUN}"}}'
_CHIEF: Final = f'{{run="{run_files.RUN}",instance="{run_files.DAEMONS}-chief:19108"}}'
START_SECONDS: Final = 600.0  # seven processes import TensorFlow, on a small machine one after the other
PATIENCE_SECONDS: Final = 300.0  # for events that take a few seconds, and longer on a busy machine
_PAUSE_SECONDS: Final = 0.5


def main() -> None:
    """Wait for the checkpoints, compute their numbers, and compare."""
    started, count, save_seconds = time.time(), int(os.environ["CHECKPOINTS"]), float(os.environ["SAVE_SECONDS"])
    nodes = " and ".join(verdict.WORKERS)
    wait(f"a checkpoint was evaluated on {nodes} together", group_at_work, START_SECONDS)
    say(f"{nodes} evaluate together after {time.time() - started:.0f} s; waiting for {count} checkpoints")

    copies = Copies(Path("/tmp/e2e"))  # noqa: S108 - a file system of this container's own
    bound = 3 * count * save_seconds + PATIENCE_SECONDS
    wait(f"{count} checkpoints were saved", lambda: copies.look() >= count, bound)
    names = copies.names[:count]
    wait(
        f"{' and '.join(names)} were evaluated",
        lambda: copies.look() and set(names) <= copies.saves.keys(),
        PATIENCE_SECONDS,
    )
    last = step(names[-1])
    wait(f"Prometheus recorded {names[-1]}", lambda: (last, "loss") in _recorded(started), PATIENCE_SECONDS)

    evidence = _gather(copies, names, started)
    _show(evidence)
    problems = list(verdict.failures(evidence))
    for problem in problems:
        say(f"FAILED: {problem}")
    if problems:
        sys.exit(1)
    say(f"PASSED in {time.time() - started:.0f} s: {count} checkpoints, each evaluated once, by both workers, right")


class Copies:
    """Copy checkpoints and saves as soon as they exist, for the comparison at the end.

    Training retains only a few checkpoints, and daemons retain the saves of only a few evaluations. The number of
    checkpoints that come and go until the end depends on the load of the machine.
    """

    def __init__(self, folder: Path, checkpoints: Path = run_files.CHECKPOINTS, state: Path = run_files.STATE) -> None:
        self.folder = folder
        self.names: list[str] = []  # names of new checkpoints
        self.saved_at: dict[str, float] = {}
        self.saves: dict[str, tuple[Path, ...]] = {}  # by evaluated checkpoint: copies of each worker's saves
        self._checkpoints, self._state = checkpoints, state
        self._old = set(run_files.checkpoints(checkpoints))
        folder.mkdir()

    def look(self) -> int:
        """Copy new checkpoints, and the saves of those that were copied; return the number of copied checkpoints."""
        for name in run_files.checkpoints(self._checkpoints):
            if name not in self._old and name not in self.saved_at:
                written_at = run_files.saved_at(name, self._checkpoints)
                for path in run_files.files(name, self._checkpoints):
                    shutil.copy(path, self.folder)
                self.saved_at[name] = written_at
                self.names.append(name)
        for plan in run_files.plans(self._state):
            if plan.checkpoint in self.saved_at and plan.checkpoint not in self.saves and plan.status == "succeeded":
                self.saves[plan.checkpoint] = tuple(
                    shutil.copytree(save, self.folder / f"{plan.checkpoint}-saves" / save.name, dirs_exist_ok=True)
                    for save in plan.saves
                )
        return len(self.names)


def _gather(copies: Copies, names: list[str], started: float) -> verdict.Evidence:
    """Return everything that the verdict needs, from the copies, the journal and Prometheus."""
    recompute = import_recompute()
    since = time.time() - started
    plans = list(run_files.plans())
    checkpoints = []
    for name in names:
        try:
            expected = recompute.measure(copies.folder / name, copies.saves[name])
        except ValueError as error:
            sys.exit(f"FAILED: {error}")
        checkpoints.append(verdict.Checkpoint(name, step(name), copies.saved_at[name], expected))
    steps = promql.samples(f"sidecar_eval_checkpoint_step{_RUN}", since)
    sizes = verdict.join(steps, promql.samples(f"sidecar_group_size{_RUN}", since), by="instance")
    roles = promql.samples(f"sidecar_node_info{_CHIEF}", since)
    processes = promql.samples(f"sidecar_worker_processes{_CHIEF}", since)
    return verdict.Evidence(
        checkpoints,
        plans,
        scraped=verdict.join(steps, promql.samples(f"sidecar_eval_metric{_RUN}", since), by="instance"),
        recorded=_recorded(started),
        group_sizes={step: values for (step, _), values in sizes.items()},
        chief_roles=[series.labels["role"] for series in roles],
        chief_processes=[value for series in processes for value in series.values.values()],
    )


def group_at_work() -> bool:
    """Return whether both workers made the evaluation that succeeded last."""
    succeeded = [plan for plan in run_files.plans() if plan.status == "succeeded"]
    return bool(succeeded) and sorted(succeeded[-1].nodes) == sorted(verdict.WORKERS)


def _recorded(started: float) -> verdict.Seen:
    """Return the values of the recording rules since the start."""
    since = time.time() - started
    steps = promql.samples(f"sidecar:eval_checkpoint_step:latest{_RUN}", since)
    return verdict.join(steps, promql.samples(f"sidecar:eval_metric:latest{_RUN}", since), by=None)


def import_recompute() -> ModuleType:
    """Return the module that computes the numbers of this run. It imports a framework, which is slow."""
    return importlib.import_module("recompute_torch" if run_files.RUN == run_files.TORCH_RUN else "recompute")


def wait(what: str, condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition holds, or exit with a sentence if that takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"FAILED: within {seconds:.0f} s it did not happen that {what}")
        time.sleep(_PAUSE_SECONDS)


def _show(evidence: verdict.Evidence) -> None:
    """Print a table of the computed and the stored values."""
    row = "{:<12} {:<9} {:>20} {:>20}  {}"
    say(row.format("checkpoint", "metric", "computed here", "seen in Prometheus", ""))
    for checkpoint in evidence.checkpoints:
        for metric, expected in checkpoint.expected.items():
            values = evidence.scraped.get((checkpoint.step, metric), set())
            seen = " ".join(repr(value) for value in sorted(values)) or "nothing"
            word = (
                "equal" if values == {expected} else "close" if verdict.matches(metric, expected, values) else "WRONG"
            )
            say(row.format(checkpoint.name, metric, repr(expected), seen, word))


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
