"""Build a daemon from its settings. Only `commands.serve` calls it, so that no other command imports the daemon."""

import ctypes
import os
import secrets
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from sidecar.checkpoints.checkpoint_glob import CheckpointGlob
from sidecar.checkpoints.files import is_there
from sidecar.checkpoints.filesystem import why_no_events
from sidecar.checkpoints.watch import Watch
from sidecar.checkpoints.watched_catalog import WatchedCatalog
from sidecar.commands.from_settings import export_rule, make_catalog, make_rules, record_of
from sidecar.commands.state_storage import state_objects, state_storage
from sidecar.commands.worker_pool import make_task_spec, make_workers
from sidecar.coordination.dormant_heartbeats import DORMANT_SECONDS
from sidecar.coordination.heartbeats import ReadLimits
from sidecar.coordination.run import JOURNAL_FOLDERS
from sidecar.coordination.state_directory import StateDirectory
from sidecar.coordination.storage import TEMPORARY
from sidecar.daemon.build import build_daemon
from sidecar.daemon.events import FilesChanged, JournalChanged, Message
from sidecar.daemon.loop import Daemon
from sidecar.daemon.storage_thread import StorageThread
from sidecar.daemon.timing import Timing
from sidecar.daemon.worker_supervisor import WorkerSupervisor
from sidecar.daemon.worker_turn import Turn
from sidecar.daemon.workers.command_specs import EvaluateSpec
from sidecar.daemon.workers.pool import WorkerPool
from sidecar.evaluation.source_digest import source_digest
from sidecar.policy.node_identity import Identity, page_url
from sidecar.policy.roles import RoleDecision
from sidecar.publishing.publisher import DaemonLog, Publisher
from sidecar.retention.exports.exports import Exports
from sidecar.retention.pins.background import BackgroundPinner
from sidecar.retention.pins.copy_arbiter import CopyArbiter
from sidecar.retention.pins.disk_budget import DiskBudget, free_bytes
from sidecar.retention.pins.pin import pin
from sidecar.retention.pins.reconciler import PinReconciler
from sidecar.retention.saves.best import BestBy
from sidecar.retention.saves.cleanup import ArtifactCleanup
from sidecar.retention.saves.old_evaluations import OldEvaluations
from sidecar.retention.saves.retention import Retention, StatesRule
from sidecar.settings import Settings
from sidecar.system.bounded_calls import BoundedCalls
from sidecar.system.bucket_folder import BucketState
from sidecar.system.clock import Clock
from sidecar.system.event_log import EventLog
from sidecar.version import version

if TYPE_CHECKING:
    from sidecar.retention.saves.bucket_saves import BucketSaves

_LONG_SECONDS: Final = 0.01
"""How long a scan waits for files that take long to read. Their thread rests as long after each part of its work."""

_M_MMAP_THRESHOLD: Final = -3  # of mallopt(3)
_M_ARENA_MAX: Final = -8
_QUIET_FACTOR: Final = 10 / 3.5  # of `beat_seconds`, if each request for the state costs money; a lease has three beats
_LARGE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AmongRuns:
    """Hold what a daemon needs to know of the other runs in its process."""

    turn: Turn  # when it may have worker processes
    supervisor_of: Callable[[str], WorkerSupervisor | None]  # of another run, which may take over warm ones
    processes: Callable[[], Collection[int]]  # the worker processes of all runs, which may use the GPUs one by one
    page: str  # the path of its page, such as `/runs/exp-1/`


def return_large_blocks() -> None:
    """Let glibc return large blocks to the system when they are freed, such as the text of an index of 16 MiB.

    Otherwise it begins to retain them after the first one, and a daemon that has read a few needs 50 MB more for ever.
    All threads share what is free: each would retain holes of its own, and only one of them runs at a time. A thread
    that began before the call would do so all the same, and those that follow it would share its heap.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_ARENA_MAX, 1)


def daemon_from_settings(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    node: str,
    decision: RoleDecision,
    post: Callable[[Message], None],
    clock: Clock,
    log: EventLog,
    publisher: Publisher,
    scheme: str = "http",
    among: AmongRuns | None = None,
) -> Daemon:
    """Build a daemon and its storage thread from the settings. Neither runs yet.

    `post` receives the daemon's messages from any thread. `scheme`: of this node's page. `among`: the other runs of
    this process; None: it serves this one alone.
    """
    url = page_url(settings, environ, scheme)
    identity = Identity(
        run=settings.run,
        node=node,
        incarnation=secrets.token_hex(4),
        version=version(),
        evaluation_code=source_digest(),
        role=decision,
        exports=export_rule(settings),
        page_url=url if url is None or among is None else f"{url.rstrip('/')}{among.page}",
    )
    evaluates = decision.role == "worker"
    storage = state_storage(settings)
    room = DiskBudget(settings.pin_max_bytes, settings.keep_free_bytes, partial(free_bytes, settings.run_dir))
    entries, views = BoundedCalls(now=clock.now), BoundedCalls(now=clock.now)
    make_pin = partial(pin, check=settings.verify == "full", room=room)
    saves = ArtifactCleanup(settings.run_dir, views, OldEvaluations(settings.run_dir, clock.now))
    bucket = _bucket(settings, node, saves, clock)
    reconciler = PinReconciler(
        root=settings.run_dir,
        checkpoints=WatchedCatalog(
            make_catalog(
                settings,
                clock,
                calls=entries,
                longer=BoundedCalls(patience_seconds=_LONG_SECONDS, most_hanging=1, now=clock.now),
                rest=partial(threading.Event().wait, _LONG_SECONDS),
            ),
            _watch(settings, post, journal=among is None) if evaluates else None,
            clock,
            settings.sweep_seconds,
        ),
        pinner=BackgroundPinner(
            pins=settings.run_dir / "pins",
            owner=node,
            make=make_pin,
            calls=entries,
            exports=Exports(
                settings.run_dir,
                storage,
                identity.exports,
                # An upload takes long, and must not stop the scans.
                entries if bucket is None else BoundedCalls(most_hanging=2, now=clock.now),
                room,
            ),
        ),
        saves=saves if bucket is None else bucket,
        clock=clock,
        room=room,
        is_done=_marker(settings),
        corrupt_after_seconds=settings.corrupt_after_seconds,
        turns=CopyArbiter(settings.copy_turn_seconds, shares_pins=bucket is None),
    )
    storage_thread = StorageThread(
        storage=storage,
        reconciler=reconciler,
        clock=clock,
        post=post,
        reads=ReadLimits(
            dormant_seconds=max(DORMANT_SECONDS, 10 * settings.lease_seconds), heard_seconds=settings.lease_seconds / 2
        ),
        place=StateDirectory(settings.checkpoint_dir, settings.run_dir, settings.run_lost_seconds, clock, storage),
        visibility_seconds=settings.visibility_seconds,
        calls=BoundedCalls(now=clock.now),
        views=views,
        scans=BoundedCalls(most_hanging=1, waits_again=True, now=clock.now),
    )
    rules = make_rules(settings)
    own, turn = (tuple, None) if among is None else (among.processes, among.turn)
    workers = (
        make_workers(
            settings,
            environ,
            identity.workers,
            lambda *report: post(report),
            warn=lambda text: log.warning("worker_logs_moved", reason=text),
            granted=among is None,
            own=own,
            daemon=True,
        )
        if evaluates
        else None
    )
    daemon_log = DaemonLog(log) if workers is None else DaemonLog(log, workers.log_of)
    return build_daemon(
        identity=identity,
        rules=rules,
        timing=replace(
            record_of(Timing, settings),
            transfer_seconds=None if bucket is None else settings.restore_timeout_seconds,
            quiet_factor=1.0 if bucket is None else _QUIET_FACTOR,
        ),
        start_new=settings.start == "new",
        vanished_after_seconds=settings.vanished_after_seconds,
        evaluate=EvaluateSpec(
            save_weights=settings.save_weights,
            progress_seconds=settings.progress_seconds,
            keep_batches_seconds=settings.keep_batches_seconds,
        ),
        run_dir=settings.run_dir,
        retention=Retention(
            keep=settings.keep_saves,
            best=BestBy(settings.best_metric),
            max_bytes=settings.saves_max_bytes,
            retains_linked=settings.export_best > 0,
            states=StatesRule(settings.keep_states or None, settings.keep_states_every),
        ),
        storage_thread=storage_thread,
        supervisor=None if workers is None else _supervisor(settings, workers, daemon_log),
        clock=clock,
        log=daemon_log,
        publish=publisher,
        delivered=publisher.delivered,
        load=_load,
        turn=turn,
        supervisor_of=(lambda _: None) if among is None else among.supervisor_of,
    )


def _load() -> float:
    """Return the processes that want to run for each processor of this machine, on average over the last minute."""
    return round(os.getloadavg()[0] / (os.cpu_count() or 1), 1)


def _marker(settings: Settings) -> Callable[[], bool]:
    """Return a function that returns whether training has created its marker, as a file of any kind."""
    name = settings.done_marker
    return (lambda: False) if name is None else partial(is_there, settings.checkpoint_dir / name)


def _watch(settings: Settings, post: Callable[[Message], None], *, journal: bool) -> Watch:
    """Watch the checkpoints and, if `journal`, the journal: plans of other nodes are seen at once if events arrive.

    Each watch takes one of the 128 instances of inotify that a user has, so many runs watch their checkpoints only.
    """
    why_not = partial(why_no_events, file_events=settings.file_events, sweep_seconds=settings.sweep_seconds)
    also = [
        Watch(settings.run_dir / folder, lambda: post(JournalChanged()), unless=TEMPORARY, why_not=why_not)
        for folder in (JOURNAL_FOLDERS if journal and not isinstance(settings.run_dir, BucketState) else ())
    ]
    depth = CheckpointGlob.of(settings.checkpoint_glob).depth
    return Watch(
        settings.checkpoint_dir,
        lambda: post(FilesChanged()),
        also=also,
        folders=True,
        depth=depth,
        why_not=why_not,
    )


def _bucket(settings: Settings, node: str, local: ArtifactCleanup, clock: Clock) -> "BucketSaves | None":
    """Return what keeps saves in the bucket that holds the state, and make the local folder; None: it is in none."""
    if not isinstance(settings.run_dir, BucketState):
        return None
    from sidecar.retention.saves.bucket_saves import BucketSaves  # noqa: PLC0415 - only where the state is in a bucket

    settings.run_dir.mkdir(parents=True, exist_ok=True)
    return BucketSaves(
        objects=state_objects(settings, settings.bucket_timeout_seconds),
        root=settings.run_dir,
        node=node,
        local=local,
        now=clock.now,
        calls=BoundedCalls(most_hanging=1, now=clock.now),
        deletions=BoundedCalls(now=clock.now),
    )


def _supervisor(settings: Settings, workers: WorkerPool, log: EventLog) -> WorkerSupervisor:
    on_ray = settings.engine == "ray"
    return WorkerSupervisor(
        workers=workers,
        spec=make_task_spec(settings),
        backoff_first_seconds=settings.backoff_first_seconds,
        backoff_last_seconds=settings.backoff_last_seconds,
        release_idle=None if settings.devices == "cpu" or on_ray else settings.release_idle_seconds,
        release_all=settings.ray_idle_seconds if on_ray else None,
        gpus=workers.engine.gpus(),
        log=log,
    )
