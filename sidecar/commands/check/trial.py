"""Try the task with the newest checkpoint in a worker process, and report what a daemon would meet.

`command` calls this after the task was imported. The worker process carries out the commands of a daemon: it builds
the task, restores the checkpoint and evaluates with all checks, but only the first batch of each eval set. The
checkpoint is not pinned, no journal is written, and the saves go to a temporary folder, which is removed.
"""

import queue
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sidecar.checkpoints.inspect import check, restore_path, verify
from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.commands.check.finding import Finding
from sidecar.commands.one_shot import Inbox, OneShot, evaluate_once
from sidecar.commands.worker_pool import make_task_spec
from sidecar.errors import CheckpointError, SidecarError, StorageError
from sidecar.records import Checkpoint, Result
from sidecar.settings import Settings
from sidecar.workers.pool import WorkerPool
from sidecar.workers.process import Post

_TRIES: Final = 3  # training may delete the newest checkpoint, or overwrite it, while it is restored
_NO_FAILURE: Final = "That is no failure: run `sidecar check` again"


def try_task(
    settings: Settings,
    about: str,
    make_workers: Callable[[Post], WorkerPool],
    newest: Callable[[], DiscoveredCheckpoint | None],
) -> Iterator[Finding]:
    """Report whether the task can evaluate the newest checkpoint, or if there is none, whether it can be built.

    `about`: the eval sets and the framework of the task, as a sentence. `newest`: scans for the newest checkpoint that
    is complete.
    """
    tried = settings.task
    try:
        for _ in range(_TRIES):
            found = newest()
            if found is None:
                _evaluate(settings, None, "", make_workers)
                text = f"{about}; its data and its model were tried out. {_untried()}"
                yield Finding("task", ok=True, text=text, tried=False)
                return
            checkpoint = found.checkpoint
            tried = checkpoint.name
            try:
                if settings.verify == "full":
                    check(found.folder / Path(checkpoint.name).name, checkpoint.format)
                result = _evaluate(settings, checkpoint, restore_path(found, found.folder), make_workers)
            except SidecarError:
                if _is_unchanged(found):
                    raise
                continue
            yield from _succeeded(checkpoint, about, result)
            return
    except SidecarError as error:
        yield Finding("task", ok=False, text=f"{tried}: {error}")
        return
    text = (
        f"{about}. Not tried: to restore a checkpoint, since training deleted or replaced {checkpoint.name} and the "
        f"ones before it meanwhile. {_NO_FAILURE}; a daemon pins what it evaluates"
    )
    yield Finding("task", ok=True, text=text, tried=False)


def _untried() -> str:
    return (
        "Not tried: to restore a checkpoint and to evaluate a batch, since there is no complete checkpoint yet. "
        f"{_NO_FAILURE} when there is one"
    )


def _succeeded(checkpoint: Checkpoint, about: str, result: Result | None) -> Iterator[Finding]:
    """Report what was evaluated, with the notes and warnings that a daemon would publish with the numbers."""
    assert result is not None
    step = f" (step {checkpoint.shown_step})" if checkpoint.shown_step else ""
    first = ", ".join(f"{examples} examples of {name}" for name, examples in result.examples.items())
    text = f"{about}: {checkpoint.name}{step} was restored, and the first batch of each set evaluated ({first})"
    yield Finding("task", ok=True, text=text)
    for note in (
        *(f"warning: {warning}" for warning in result.warnings()),
        *(f"note: {note}" for note in result.notes),
    ):
        yield Finding("task", ok=True, text=note)


def _evaluate(
    settings: Settings, checkpoint: Checkpoint | None, path: str, make_workers: Callable[[Post], WorkerPool]
) -> Result | None:
    """Return the result of the first batch of each eval set; None without a checkpoint.

    Raises `SidecarError` with the reason that a daemon would log.
    """
    inbox: Inbox = queue.SimpleQueue()
    workers = make_workers(lambda *report: inbox.put(report))
    with tempfile.TemporaryDirectory(prefix="sidecar-check-", ignore_cleanup_errors=True) as folder:
        once = OneShot(
            task=make_task_spec(settings),
            checkpoint=checkpoint,
            path=path,
            save_to=Path(folder).resolve(),
            plan_cap_seconds=settings.plan_cap_seconds,
            save_weights="none",
            most_batches=1,
        )
        done = evaluate_once(once, workers, inbox)
    return done[0].result if done else None


def _is_unchanged(found: DiscoveredCheckpoint) -> bool:
    """Return whether a checkpoint is the one that was found, so that a failure is its own, or the task's."""
    checkpoint = found.checkpoint
    try:
        return verify(found.folder, checkpoint.name, checkpoint.format) == checkpoint.digest
    except StorageError:
        return True  # it is unknown: the first failure is reported
    except CheckpointError:
        return False
