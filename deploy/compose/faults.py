"""Test that each checkpoint is evaluated once and right if a daemon is paused, cut off or killed just before it.

The script prints a line for each fault, such as `DO pause daemon-worker-1` and later `UNDO pause daemon-worker-1`, and
deploy/compose/try, which runs this container, obeys. The script computes the numbers itself and compares them with the
journal. It exits with 0, or with 1 and one sentence per failure.
"""  # noqa: INP001 - a script next to others, not a package

import os
import sys
import time
from pathlib import Path
from typing import Final

import run_files
import verdict
from e2e import PATIENCE_SECONDS, START_SECONDS, Copies, group_at_work, import_recompute, say, wait
from run_files import step

_FAULTS: Final = ("pause", "disconnect", "kill")
_VICTIM: Final = f"{run_files.DAEMONS}-worker-1"
_EARLY_SECONDS: Final = 3.0  # so short that the node still counts as alive when the next checkpoint is planned


def main() -> None:
    """Request one fault after the other, then compute and compare."""
    started, save_seconds = time.time(), float(os.environ["SAVE_SECONDS"])
    copies = Copies(Path("/tmp/faults"))  # noqa: S108 - a file system of this container's own
    suffered = []
    for fault in _FAULTS:
        wait("a checkpoint was evaluated by both workers", lambda: copies.look() and group_at_work(), START_SECONDS)
        time.sleep(_until_shortly_before(copies.saved_at[copies.names[-1]], save_seconds))
        count = copies.look()
        say(f"DO {fault} {_VICTIM}")
        wait("a checkpoint was saved", lambda count=count: copies.look() > count, PATIENCE_SECONDS)
        name = copies.names[count]
        wait(f"{name} was evaluated", lambda name=name: copies.look() and name in copies.saves, PATIENCE_SECONDS)
        say(f"UNDO {fault} {_VICTIM}")
        tried = [plan.kind or "succeeded" for plan in run_files.plans() if plan.checkpoint == name]
        say(f"{fault}: {name} was evaluated {time.time() - copies.saved_at[name]:.0f} s after it was saved: {tried}")
        suffered.append(name)
    problems = _problems(copies, suffered)
    for problem in problems:
        say(f"FAILED: {problem}")
    if problems:
        sys.exit(1)
    say(f"PASSED in {time.time() - started:.0f} s: {' and '.join(suffered)} were each evaluated once, and right")


def _problems(copies: Copies, names: list[str]) -> list[str]:
    """Return a sentence for each failure with the checkpoints of these names."""
    recompute = import_recompute()
    plans = list(run_files.plans())
    found = []
    for name in names:
        attempts = [plan for plan in plans if plan.checkpoint == name]
        try:
            expected = recompute.measure(copies.folder / name, copies.saves[name])
        except ValueError as error:
            sys.exit(f"FAILED: {error}")
        checkpoint = verdict.Checkpoint(name, step(name), copies.saved_at[name], expected)
        found += verdict.suffered(checkpoint, attempts)
    return found


def _until_shortly_before(saved_at: float, save_seconds: float) -> float:
    """Return the seconds until shortly before the next save, if checkpoints are saved at regular times."""
    due = saved_at + save_seconds - _EARLY_SECONDS
    while due < time.time():
        due += save_seconds
    return due - time.time()


if __name__ == "__main__":
    main()
