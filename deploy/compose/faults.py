"""A daemon's container is paused, cut off and killed just before a checkpoint: is each evaluated once, and right?

Says what it wants done to which service, a line each: `DO pause daemon-worker-1`, later `UNDO pause daemon-worker-1`;
whoever runs this container does it (deploy/compose/try). Computes the numbers itself and compares them with what the
journal holds. The exit code is the verdict: 0, or 1 with one sentence per failure.
"""  # noqa: INP001 - a script beside others, no package

import os
import sys
import time
from pathlib import Path
from typing import Final

import run_files
import verdict
from e2e import PATIENCE_SECONDS, START_SECONDS, Copies, group_at_work, say, step, wait

_FAULTS: Final = ("pause", "disconnect", "kill")
_VICTIM: Final = "daemon-worker-1"
_EARLY_SECONDS: Final = 3.0  # it is still counted as there when the next checkpoint is planned


def main() -> None:
    """Ask for one fault after the other, then compute and compare."""
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
    import recompute  # noqa: PLC0415 - imports TensorFlow, which takes its time: nothing was being waited for

    plans = list(run_files.plans())
    found = []
    for name in names:
        own = [plan for plan in plans if plan.checkpoint == name]
        try:
            expected = recompute.measure(copies.folder / name, copies.saves[name])
        except ValueError as error:
            sys.exit(f"FAILED: {error}")
        checkpoint = verdict.Checkpoint(name, step(name), copies.saved_at[name], expected)
        found += verdict.suffered(checkpoint, own)
    return found


def _until_shortly_before(saved_at: float, save_seconds: float) -> float:
    """Seconds until a checkpoint is about to be saved, if one follows the other by the clock."""
    due = saved_at + save_seconds - _EARLY_SECONDS
    while due < time.time():
        due += save_seconds
    return due - time.time()


if __name__ == "__main__":
    main()
