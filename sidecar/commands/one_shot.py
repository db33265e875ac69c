"""Evaluate one checkpoint now, without agreement and without a journal, for `sidecar eval`.

It starts the same worker processes as the daemon, sends the same messages, and keeps the same bounds.
"""

import contextlib
import queue
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.daemon.workers.command_specs import EvaluateSpec, TaskSpec
from sidecar.daemon.workers.pool import WorkerPool
from sidecar.daemon.workers.process import Event, Exited
from sidecar.errors import EvaluationFailedError, SidecarError, TaskError
from sidecar.protocol.messages import Done, Failed, Joined, Ready, Report
from sidecar.protocol.records import Checkpoint, Member, Result, group_id
from sidecar.protocol.saved_weights import SaveWeights
from sidecar.protocol.states import SECONDARY_KINDS, FailureKind, WorkerPhase
from sidecar.publishing.status import WorkerStatus
from sidecar.system.clock import Clock, SystemClock
from sidecar.system.confined import open_folder

_GLANCE_SECONDS: Final = 0.25  # how often bounds are judged while nothing is reported
_SECOND_THOUGHT_SECONDS: Final = 2.0  # a rank lost its peer: the peer's own report, which names the cause, may follow
_RESTORING: Final = (WorkerPhase.RESTORE, WorkerPhase.READ)  # the checkpoint is read while data are
_END_SECONDS: Final = 10.0  # from SIGKILL to the end of a process, its memory returned

Inbox = queue.SimpleQueue[tuple[str, Event]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneShot:
    """Hold the parts of one evaluation."""

    task: TaskSpec
    checkpoint: Checkpoint | None  # None: only form the group and build the task
    path: str
    save_to: Path  # worker-R-of-N is added for every rank
    plan_cap_seconds: float
    save_weights: SaveWeights = "auto"
    save_root: Path | None = None  # the part of `save_to` in which links are followed; None: all of it
    most_batches: int | None = None  # of each eval set; None: all of them


def evaluate_once(
    once: OneShot,
    workers: WorkerPool,
    inbox: Inbox,
    *,
    clock: Clock | None = None,
    show: Callable[[tuple[WorkerStatus, ...]], None] = lambda _: None,
    note: Callable[[Event], None] = lambda _: None,
) -> list[Done]:
    """Evaluate one checkpoint with all of this node's workers, and return the report of every rank, in rank order.

    Without a checkpoint the workers form a group and build the task, and there are no reports. `note` is called with
    each event of a worker. Raises `EvaluationFailedError` with the reason of the first rank that failed, or
    `TaskError`.
    """
    clock = clock or SystemClock()
    start = clock.now()
    started = workers.fill(start)
    try:
        _wait(workers, inbox, clock, start + once.plan_cap_seconds, show, note, Ready, len(started))
        now = clock.now()
        members = tuple(
            Member(rank, workers.name, worker.worker, worker.address) for rank, worker in enumerate(started)
        )
        evaluate = EvaluateSpec(save_weights=once.save_weights, progress_seconds=0.2, most_batches=once.most_batches)
        for member in members:
            join = once.task.join(group=group_id(members), members=members, rank=member.rank)
            workers.join(join, member.worker, now)
            if once.checkpoint is None:
                continue
            folder = once.save_to / f"worker-{member.rank}-of-{len(members)}"
            command = evaluate.evaluate(
                plan=1,
                checkpoint=once.checkpoint,
                path=once.path,
                save_to=str(folder),
                save_root=str(once.save_root or once.save_to),
            )
            workers.evaluate(command, member.worker, now)
        awaited: type[Report] = Joined if once.checkpoint is None else Done
        done = _wait(workers, inbox, clock, start + once.plan_cap_seconds, show, note, awaited, len(members))
        return sorted((report for report in done if isinstance(report, Done)), key=lambda report: report.rank)
    finally:
        _end(workers, inbox)
        _remove_unfinished(once)


def _remove_unfinished(once: OneShot) -> None:
    """Remove the unfinished folders of ranks that were killed."""
    trusted = once.save_root or once.save_to
    below = once.save_to.relative_to(trusted).parts
    with contextlib.suppress(OSError), open_folder(trusted) as root, contextlib.ExitStack() as opened:
        folder = opened.enter_context(root.folder("/".join(below))) if below else root
        for name in folder.names():
            if name.startswith(".worker-") and name.endswith(".part"):
                with contextlib.suppress(OSError):
                    folder.remove(name)


def result_of(done: list[Done]) -> Result:
    """Return the result, after a check that all ranks hold the same one."""
    results = {repr((report.result.metrics, report.result.examples, report.result.variables)) for report in done}
    if len(results) != 1:
        raise EvaluationFailedError("the ranks hold different results: this is a bug, please report it")
    return done[0].result


def _end(workers: WorkerPool, inbox: Inbox) -> None:
    """Kill all workers, and wait until they have ended and their memory is free."""
    workers.kill_all()
    while any(workers.all()):
        try:
            worker, report = inbox.get(timeout=_END_SECONDS)
        except queue.Empty:
            return  # a process that waits in the kernel cannot be interrupted, and ends after that wait
        workers.observe(worker, report, 0.0)


def _wait(
    workers: WorkerPool,
    inbox: Inbox,
    clock: Clock,
    deadline: float,
    show: Callable[[tuple[WorkerStatus, ...]], None],
    note: Callable[[Event], None],
    kind: type[Report],
    count: int,
) -> list[Report]:
    """Collect `count` reports of a kind. Raise at the first failure, exit or timeout."""
    found: list[Report] = []
    suspected: tuple[float, SidecarError] | None = None
    while len(found) < count:
        now = clock.now()
        show(workers.statuses())
        for overrun in workers.overruns(now):
            raise EvaluationFailedError(f"{overrun.kind}: a worker {overrun.message}")
        if now > deadline:
            raise EvaluationFailedError("deadline: the evaluation took longer than plan_cap_seconds allows")
        if suspected is not None and now > suspected[0]:
            raise suspected[1]
        try:
            worker, report = inbox.get(timeout=_GLANCE_SECONDS)
        except queue.Empty:
            continue
        known = workers.find(worker)
        phase = known.progress.phase if known else None
        workers.observe(worker, report, clock.now())
        note(report)
        if isinstance(report, kind):
            found.append(report)
        elif isinstance(report, Failed):
            error = _explained(report, alone=count == 1)
            if report.kind not in SECONDARY_KINDS:
                raise error
            suspected = suspected or (now + _SECOND_THOUGHT_SECONDS, error)
        elif isinstance(report, Exited):
            cause = FailureKind.CRASHED if report.crashed and phase in _RESTORING else FailureKind.WORKER_DIED
            raise EvaluationFailedError(f"{cause}: {report}")
    return found


def _explained(report: Failed, *, alone: bool) -> SidecarError:
    """Return the error to raise for a failure that a worker reported. `alone`: it is the only one."""
    if report.kind == FailureKind.TASK_ERROR and report.phase == WorkerPhase.IMPORT:
        return TaskError(f"the task cannot be used: {report.message}")
    where = "" if report.rank is None or alone else f" (rank {report.rank}, {report.phase})"
    return EvaluationFailedError(f"{report.kind}{where}: {report.message}")
