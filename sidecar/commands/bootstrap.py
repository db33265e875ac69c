"""Build the parts of a program from its settings. Called by the commands alone."""

import queue
import secrets
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TypeVar

from sidecar.artifacts.best import BestBy
from sidecar.artifacts.cleanup import ArtifactCleanup
from sidecar.artifacts.retention import Retention
from sidecar.bounded_calls import BoundedCalls, Calls, call_directly
from sidecar.checkpoints.catalog import Catalog
from sidecar.checkpoints.checkpoint_glob import CheckpointGlob
from sidecar.checkpoints.files import is_there
from sidecar.checkpoints.filesystem import why_no_events
from sidecar.checkpoints.watch import Watch
from sidecar.checkpoints.watched_catalog import WatchedCatalog
from sidecar.clock import Clock, SystemClock
from sidecar.commands.backend_options import backend_options
from sidecar.coordination.dormant_heartbeats import DORMANT_SECONDS
from sidecar.coordination.run import JOURNAL_FOLDERS
from sidecar.coordination.state_directory import StateDirectory
from sidecar.coordination.storage import TEMPORARY, PosixStorage
from sidecar.daemon.build import build_daemon
from sidecar.daemon.events import FilesChanged, JournalChanged, Message
from sidecar.daemon.loop import Daemon
from sidecar.daemon.storage_thread import StorageThread
from sidecar.daemon.timing import Timing
from sidecar.daemon.worker_supervisor import WorkerSupervisor
from sidecar.observability.publisher import DaemonLog, Publisher
from sidecar.pins.background import BackgroundPinner
from sidecar.pins.copy_arbiter import CopyArbiter
from sidecar.pins.disk_budget import DiskBudget, free_bytes
from sidecar.pins.index import PinIndex
from sidecar.pins.pin import pin
from sidecar.pins.reconciler import PinReconciler
from sidecar.policy.node_identity import Identity, advertised_host
from sidecar.policy.roles import RoleDecision
from sidecar.policy.rules import EndRules, GroupRules, PlanRules, RetryRules, Rules
from sidecar.policy.selection import Selection
from sidecar.settings import Settings
from sidecar.version import __version__
from sidecar.workers.command_specs import EvaluateSpec, TaskSpec
from sidecar.workers.devices import check_idle, describe, visible
from sidecar.workers.environment import thread_variables
from sidecar.workers.logs import usable_log_folder
from sidecar.workers.pool import PhaseTimeouts, WorkerLaunch, WorkerPool
from sidecar.workers.ports import Ports
from sidecar.workers.process import Post

_Record = TypeVar("_Record", Timing, Selection, RetryRules, GroupRules, PlanRules, EndRules, PhaseTimeouts)


def daemon_from_settings(
    settings: Settings,
    environ: Mapping[str, str],
    node: str,
    decision: RoleDecision,
    inbox: "queue.SimpleQueue[Message]",
    clock: Clock,
    log: DaemonLog,
    publisher: Publisher,
) -> Daemon:
    """Build a daemon and its storage thread from the settings. Neither runs yet."""
    identity = Identity(
        run=settings.run, node=node, incarnation=secrets.token_hex(4), version=__version__, role=decision
    )
    evaluates = decision.role == "worker"
    room = DiskBudget(settings.pin_max_bytes, settings.keep_free_bytes, partial(free_bytes, settings.run_dir))
    entries, views = BoundedCalls(now=clock.now), BoundedCalls(now=clock.now)
    make_pin = partial(pin, check=settings.verify == "full", room=room)
    reconciler = PinReconciler(
        settings.run_dir,
        WatchedCatalog(
            make_catalog(settings, clock, calls=entries),
            _watch(settings, inbox) if evaluates else None,
            clock,
            settings.sweep_seconds,
        ),
        BackgroundPinner(settings.run_dir / "pins", node, make=make_pin, calls=entries),
        ArtifactCleanup(settings.run_dir, views),
        clock,
        room,
        _marker(settings),
        settings.corrupt_after_seconds,
        CopyArbiter(settings.copy_turn_seconds),
    )
    storage_thread = StorageThread(
        PosixStorage(settings.run_dir),
        reconciler,
        clock,
        inbox.put,
        dormant_seconds=max(DORMANT_SECONDS, 10 * settings.lease_seconds),
        place=StateDirectory(settings.checkpoint_dir, settings.run_dir, settings.run_lost_seconds, clock),
        visibility_seconds=settings.visibility_seconds,
        calls=BoundedCalls(now=clock.now),
        views=views,
        scans=BoundedCalls(most_hanging=1, waits_again=True, now=clock.now),
    )
    rules = make_rules(settings)
    supervisor = _supervisor(settings, environ, identity, lambda *report: inbox.put(report), log) if evaluates else None
    daemon = build_daemon(
        identity=identity,
        rules=rules,
        timing=_record(Timing, settings),
        start_new=settings.start == "new",
        vanished_after_seconds=settings.vanished_after_seconds,
        evaluate=EvaluateSpec(save_weights=settings.save_weights, progress_seconds=settings.progress_seconds),
        run_dir=settings.run_dir,
        retention=Retention(settings.keep_saves, BestBy(settings.best_metric), settings.saves_max_bytes),
        storage_thread=storage_thread,
        supervisor=supervisor,
        clock=clock,
        log=log,
        publish=publisher,
    )
    log.best = lambda: daemon.state.history.totals.best
    if supervisor is not None:
        log.worker_log = supervisor.workers.log_of
    return daemon


def _marker(settings: Settings) -> Callable[[], bool]:
    """Return a function that says whether training has created its marker, whatever kind of file that is."""
    name = settings.done_marker
    return (lambda: False) if name is None else partial(is_there, settings.checkpoint_dir / name)


def _watch(settings: Settings, inbox: "queue.SimpleQueue[Message]") -> Watch:
    """Watch the checkpoints, and the journal: a plan is seen at once where file events of other nodes arrive."""
    why_not = partial(why_no_events, file_events=settings.file_events, sweep_seconds=settings.sweep_seconds)
    journal = [
        Watch(settings.run_dir / folder, lambda: inbox.put(JournalChanged()), unless=TEMPORARY, why_not=why_not)
        for folder in JOURNAL_FOLDERS
    ]
    depth = CheckpointGlob.of(settings.checkpoint_glob).depth
    return Watch(
        settings.checkpoint_dir,
        lambda: inbox.put(FilesChanged()),
        beside=journal,
        folders=True,
        depth=depth,
        why_not=why_not,
    )


def make_catalog(
    settings: Settings,
    clock: Clock | None = None,
    *,
    once: bool = False,
    calls: Calls = call_directly,
    progress: Callable[[], None] = lambda: None,
) -> Catalog:
    """Build the catalog of the checkpoint directory. With `once` it does not wait until files are quiet."""
    pins_dir = settings.run_dir / "pins"
    pins = PinIndex(
        pins_dir,
        corrupt_after_seconds=settings.corrupt_after_seconds,
        step_key=settings.step_key,
        step_pattern=settings.step_pattern,
        checkpoint_pattern=settings.checkpoint_pattern,
        calls=calls,
        progress=progress,
    )
    return Catalog(
        settings.checkpoint_dir,
        pins_dir,
        pins,
        quiet_seconds=0.0 if once else settings.quiet_seconds,
        corrupt_after_seconds=settings.corrupt_after_seconds,
        full_sweep_seconds=settings.full_sweep_seconds,
        step_key=settings.step_key,
        step_pattern=settings.step_pattern,
        complete_marker=settings.complete_marker,
        formats=settings.formats,
        checkpoint_pattern=settings.checkpoint_pattern,
        glob=CheckpointGlob.of(settings.checkpoint_glob),
        clock=clock or SystemClock(),
        calls=calls,
        progress=progress,
    )


def make_workers(
    settings: Settings, environ: Mapping[str, str], name: str, post: Post, *, warn: Callable[[str], None]
) -> WorkerPool:
    """Build the pool of this node's worker processes, and start none. `warn` is called if their logs go elsewhere."""
    logs, moved = usable_log_folder(settings.worker_logs)
    if moved is not None:
        warn(moved)
    devices = visible(settings.devices, settings.replicas, environ)
    check_idle(devices, share=settings.share_gpu)
    return WorkerPool(
        WorkerLaunch(
            interpreter=str(settings.worker_python),
            framework=settings.framework,
            environment=environ,
            changes=_library_threads(settings) | settings.worker_env,
            devices=devices,
            logs=logs,
            directory=str(Path.cwd()),
        ),
        _record(PhaseTimeouts, settings),
        name,
        advertised_host(settings, environ),
        Ports(settings.ports.start, settings.ports.stop - 1),
        post,
        keep_standby=settings.standby,
    )


def _library_threads(settings: Settings) -> dict[str, str | None]:
    """TensorFlow is told by its own functions how many threads it may use; other libraries read the environment."""
    return dict(thread_variables(settings.threads)) if settings.framework == "python" else {}


def make_task_spec(settings: Settings) -> TaskSpec:
    """Build the description of the task for every worker of this node."""
    return TaskSpec(
        task=settings.task or "",
        framework=settings.framework,
        search_path=str(Path.cwd()),
        threads=settings.threads,
        cache_bytes=settings.cache_bytes,
        options=backend_options(settings),
    )


def _supervisor(
    settings: Settings, environ: Mapping[str, str], identity: Identity, post: Post, log: DaemonLog
) -> WorkerSupervisor:
    workers = make_workers(
        settings, environ, identity.workers, post, warn=lambda text: log.warning("worker_logs_moved", reason=text)
    )
    return WorkerSupervisor(
        workers=workers,
        spec=make_task_spec(settings),
        backoff_first_seconds=settings.backoff_first_seconds,
        backoff_last_seconds=settings.backoff_last_seconds,
        release_idle=settings.release_idle_seconds if settings.devices != "cpu" else None,
        gpus=describe(workers.launch.devices),
        log=log,
    )


def make_rules(settings: Settings) -> Rules:
    """Build the rules of the policy from the settings."""
    return Rules(
        selection=_record(Selection, settings),
        retries=_record(RetryRules, settings),
        groups=_record(GroupRules, settings),
        plans=_record(PlanRules, settings),
        ending=_record(EndRules, settings),
    )


def _record(kind: type[_Record], settings: Settings) -> _Record:
    """Build a record of settings, whose fields have the names of the settings; other fields keep their defaults."""
    names = [field.name for field in fields(kind) if field.name in Settings.model_fields]
    return kind(**{name: getattr(settings, name) for name in names})
