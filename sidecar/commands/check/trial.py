"""Try the task with the newest checkpoint in a worker process, and report what a daemon would meet.

`command` calls this. The worker process carries out the commands of a daemon: it builds the task, restores the
checkpoint and evaluates with all checks, but only the first batch of each eval set. The checkpoint is loaded from a
folder of its own, as from a pin. That folder and the saves are temporary, and no journal is written. With `--quick` the
worker process only imports the task.
"""

import contextlib
import queue
import tempfile
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from sidecar.checkpoints.inspect import check, verify
from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.checkpoints.several_models import remedy_for_several_models
from sidecar.checkpoints.subfolder_hint import names_in
from sidecar.commands.check.finding import Finding
from sidecar.commands.check.metric_settings import unsupported
from sidecar.commands.one_shot import Inbox, OneShot, evaluate_once
from sidecar.commands.own_folder import in_own_folder
from sidecar.commands.worker_pool import make_task_spec
from sidecar.coordination.journal_records import too_large
from sidecar.daemon.workers.command_specs import cannot_be_used
from sidecar.daemon.workers.pool import WorkerPool
from sidecar.daemon.workers.process import Event, Exited, Post
from sidecar.errors import CheckpointError, SidecarError, StorageError, TaskError
from sidecar.protocol.column_names import PREDICTIONS, file_name
from sidecar.protocol.messages import Checked, Done, Failed, Joined, Ready
from sidecar.protocol.records import Checkpoint, Result
from sidecar.protocol.saved_weights import saving_ranks
from sidecar.protocol.states import FailureKind, WorkerPhase
from sidecar.settings import Settings
from sidecar.system.clock import SystemClock

_PAUSE_SECONDS: Final = 0.25  # between two looks at the time limits of a worker process
_UNITS: Final = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
_TRIES: Final = 3  # training may delete the newest checkpoint, or overwrite it, while it is restored
_NO_FAILURE: Final = "That is no failure: run `sidecar check` again"
_UNTRIED: Final = (
    "Not tried: to restore a checkpoint and to evaluate a batch, since there is no complete checkpoint yet. "
    f"{_NO_FAILURE} when there is one"
)

_SMALLER: Final = (
    "Measure less: write fewer metrics into Task(metrics=…), compile() or test_step, or fewer names into "
    "Task(eval_sets=…). Task(predictions=True) saves what needs no curve"
)


@dataclass(slots=True)
class _Seen:
    """Hold what the worker process has reported about the task."""

    version: str = ""  # of the framework
    joined: Joined | None = None
    failed: Failed | None = None
    done: Done | None = None
    columns: Mapping[str, Collection[str]] = field(default_factory=dict)  # that it saved, by eval set
    saved_bytes: int = 0  # of everything that it saved

    def note(self, event: Event) -> None:
        """Note an event of the worker process."""
        if isinstance(event, Ready):
            self.version = event.version
        elif isinstance(event, Joined):
            self.joined = event
        elif isinstance(event, Failed):
            self.failed = event
        elif isinstance(event, Done):
            self.done = event


def try_task(
    settings: Settings,
    make_workers: Callable[[Post], WorkerPool],
    newest: Callable[[], DiscoveredCheckpoint | None],
) -> Generator[Finding, None, str | None]:
    """Report whether the task can evaluate the newest checkpoint, or if there is none, whether it can be built.

    `newest`: scans for the newest checkpoint that is complete. Return the digest of the task's code, or None if it
    could not be built.
    """
    assert settings.task is not None
    seen, checkpoint, folder = _Seen(), None, Path()
    try:
        for _ in range(_TRIES):
            found = newest()
            if found is None:
                _evaluate(settings, None, None, make_workers, seen)
                text = f"{_about(settings, seen)}; its data and its model were tried out. {_UNTRIED}"
                yield Finding(what="task", ok=True, text=text, tried=False)
                break
            checkpoint, folder = found.checkpoint, found.folder
            try:
                if settings.verify == "full":
                    check(found.folder / Path(checkpoint.name).name, checkpoint.format)
                result = _evaluate(settings, checkpoint, found.folder / Path(checkpoint.name).name, make_workers, seen)
                assert result is not None
            except SidecarError:
                if _is_unchanged(found):
                    raise
                continue
            if why := too_large(result):
                text = f"no result of {settings.task} would fit into a record of the journal: {why}. {_SMALLER}"
                yield Finding(what="task", ok=False, text=text)
            yield from _succeeded(checkpoint, _about(settings, seen), result)
            sets = () if seen.joined is None else seen.joined.eval_sets
            yield from unsupported(settings, result, sets, seen.columns)
            yield from _costs(settings, seen)
            break
        else:
            assert checkpoint is not None
            text = (
                f"{_about(settings, seen)}. Not tried: to restore a checkpoint, since training deleted or replaced "
                f"{checkpoint.name} and the ones before it meanwhile. {_NO_FAILURE}; a daemon pins what it evaluates"
            )
            yield Finding(what="task", ok=True, text=text, tried=False)
    except SidecarError as error:
        yield Finding(what="task", ok=False, text=_explained(settings.task, checkpoint, folder, seen.failed, error))
    return None if seen.joined is None else seen.joined.task


def _explained(
    task: str, checkpoint: Checkpoint | None, folder: Path, failed: Failed | None, error: SidecarError
) -> str:
    """Return the sentence that a daemon would log about a failure."""
    if failed is not None and failed.phase == WorkerPhase.IMPORT:
        return cannot_be_used(task, failed.message)
    remedy = ""
    if checkpoint is not None and failed is not None and failed.kind == FailureKind.MISMATCH:
        with contextlib.suppress(OSError):
            remedy = remedy_for_several_models(Path(checkpoint.name).name, names_in(folder))
    return f"{task if checkpoint is None else checkpoint.name}: {error}{f'. {remedy}' if remedy else ''}"


def _about(settings: Settings, seen: _Seen) -> str:
    """Return a sentence about what the task evaluates, as far as it was built."""
    if seen.joined is None:
        return str(settings.task)
    sets = ", ".join(seen.joined.eval_sets)
    return f"{settings.task} evaluates {sets} with {settings.framework} {seen.version}"


def _columns(folder: Path, eval_sets: Iterable[str]) -> dict[str, set[str]]:
    """Return the names of the columns that the workers saved, by eval set."""
    found: dict[str, set[str]] = {}
    for name in eval_sets:
        files = folder.glob(f"worker-*/{PREDICTIONS}/{escape(file_name(name))}/*.npy")
        found[name] = {unquote(file.stem, errors="surrogatepass") for file in files}
    return found


def _succeeded(checkpoint: Checkpoint, about: str, result: Result) -> Iterator[Finding]:
    """Report what was evaluated, with the notes and warnings that a daemon would publish with the numbers."""
    step = f" (step {checkpoint.shown_step})" if checkpoint.shown_step else ""
    first = ", ".join(f"{examples} examples of {name}" for name, examples in result.counted().items())
    evaluated = f"the first batch of each set evaluated ({first})" if first else "Task(evaluate=…) was not called"
    text = f"{about}: {checkpoint.name}{step} was restored, and {evaluated}"
    yield Finding(what="task", ok=True, text=text)
    for note in (
        *(f"warning: {warning}" for warning in result.warnings()),
        *(f"note: {note}" for note in result.notes),
    ):
        yield Finding(what="task", ok=True, text=note)


def _costs(settings: Settings, seen: _Seen) -> Iterator[Finding]:
    """Report how much each worker writes for an evaluation, and how much memory it needs."""
    done = seen.done
    assert done is not None, "a batch was evaluated"
    of_two = len(saving_ranks(settings.save_weights, 2, done.weights_bytes, divided=settings.processes_per_worker > 1))
    who = ("no worker", "one worker", "each worker")[of_two]
    text = (
        f"{who} writes the weights of each checkpoint, {_size(done.weights_bytes)} (save_weights = "
        f"{settings.save_weights!r}); each worker writes metric states and predictions, {_size(seen.saved_bytes)} for "
        f"the examples above. keep_saves = {settings.keep_saves} and saves_max_bytes = {settings.saves_max_bytes} say "
        f"what stays"
    )
    yield Finding(what="saves", ok=True, text=text)
    gpu = f" and {_size(done.gpu_bytes)} of the GPU's" if done.gpu_bytes else ""
    text = (
        f"a worker process had {_size(done.memory_bytes)} of memory{gpu} at most, with these batches alone; prepared "
        f"data may take {_size(settings.cache_bytes)} more (cache_bytes)"
    )
    yield Finding(what="memory", ok=True, text=text)


def _size(size: int) -> str:
    unit, name = next((each for each in _UNITS if size >= each[0]), _UNITS[-1])
    return f"{size / unit:,.1f} {name}"


def _evaluate(
    settings: Settings,
    checkpoint: Checkpoint | None,
    path: Path | None,
    make_workers: Callable[[Post], WorkerPool],
    seen: _Seen,
) -> Result | None:
    """Return the result of the first batch of each eval set; None without a checkpoint.

    Raises `SidecarError` with the reason that a daemon would log.
    """
    inbox: Inbox = queue.SimpleQueue()
    workers = make_workers(lambda *report: inbox.put(report))
    with contextlib.ExitStack() as stack:
        shared = settings.state_dir if settings.engine == "ray" else None  # all machines have it at the same path
        if shared is not None:
            shared.mkdir(parents=True, exist_ok=True)
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="sidecar-check-", dir=shared, ignore_cleanup_errors=True)
        )
        own = stack.enter_context(in_own_folder(path, checkpoint, Path(folder))) if path and checkpoint else ""
        once = OneShot(
            task=make_task_spec(settings),
            checkpoint=checkpoint,
            path=str(own),
            save_to=Path(folder).resolve(),
            plan_cap_seconds=settings.plan_cap_seconds,
            save_weights="none",
            most_batches=1,
        )
        done = evaluate_once(once, workers, inbox, note=seen.note)
        seen.saved_bytes = sum(file.stat().st_size for file in Path(folder).glob("worker-*/**/*") if file.is_file())
        seen.columns = _columns(Path(folder), () if seen.joined is None else seen.joined.eval_sets)
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


def import_task(
    settings: Settings, make_workers: Callable[[Post], WorkerPool], why: str
) -> Generator[Finding, None, str | None]:
    """Only import the task in a worker process, and return the digest of its code. `why` tells why not more."""
    try:
        imported = _imported(settings, make_workers)
    except SidecarError as error:
        yield Finding(what="task", ok=False, text=str(error))
        return None
    about = f"{settings.task} evaluates {', '.join(imported.eval_sets)} with {settings.framework} {imported.version}"
    text = f"{about}. Not tried ({why}): to build its model, to restore a checkpoint and to evaluate a batch"
    yield Finding(what="task", ok=True, text=text, tried=False)
    return imported.digest


@dataclass(frozen=True, slots=True)
class _Imported:
    """Describe a task that a worker process imported."""

    digest: str  # of its code
    eval_sets: tuple[str, ...]
    version: str  # of the framework


def _imported(settings: Settings, make_workers: Callable[[Post], WorkerPool]) -> _Imported:
    """Import the task in a worker process, as the daemon does at its start. Raises `TaskError`."""
    assert settings.task is not None
    inbox: queue.SimpleQueue[tuple[str, Event]] = queue.SimpleQueue()
    clock = SystemClock()
    workers = make_workers(lambda *report: inbox.put(report))
    version = ""
    try:
        workers.probe(clock.now())
        while True:
            for overrun in workers.overruns(clock.now()):
                raise TaskError(f"task {settings.task!r} cannot be checked: the process {overrun.message}")
            try:
                name, report = inbox.get(timeout=_PAUSE_SECONDS)
            except queue.Empty:
                continue
            worker = workers.find(name)
            workers.observe(name, report, clock.now())
            if isinstance(report, Ready) and worker is not None:
                version = report.version
                worker.process.send(make_task_spec(settings).check())
            elif isinstance(report, Checked):
                if not (report.builds_model or settings.trust_saved_graph):
                    raise TaskError(
                        f"{settings.task} has no build_model, so trust_saved_graph must be true; or give build_model"
                    )
                return _Imported(report.task, report.eval_sets, version)
            elif isinstance(report, Failed):
                raise TaskError(cannot_be_used(settings.task, report.message))
            elif isinstance(report, Exited):
                raise TaskError(f"task {settings.task!r} cannot be checked: {report}")
    finally:
        workers.kill_all()
