"""Try everything that the daemon needs on this node, and name a remedy for each problem.

No daemon is started, and every file that is written is removed. Each trial is a function that returns findings. A trial
that fails does not stop the others. `trial` evaluates with the task.
"""

import queue
import secrets
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Final

from sidecar.checkpoints.catalog import Catalog
from sidecar.checkpoints.filesystem import mount_here, troubles, why_no_events
from sidecar.checkpoints.formats.format import shown
from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.checkpoints.step_sources import REMEDY, StepSources
from sidecar.checkpoints.subfolder_hint import of_several_runs, similar_folder
from sidecar.checkpoints.watch import Watch
from sidecar.commands.check.finding import Finding
from sidecar.commands.check.peers import Here, exports, group, visibility, watch
from sidecar.commands.check.sinks import hooks, sinks
from sidecar.commands.check.trial import try_task
from sidecar.commands.framework import backend_options, with_framework, workers_listen
from sidecar.commands.from_settings import export_rule
from sidecar.commands.ineffective_settings import ineffective
from sidecar.commands.observed_nodes import ObservedNodes
from sidecar.commands.port_owner import node_serving
from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.commands.task_file import find_typo
from sidecar.coordination import snapshot_store
from sidecar.coordination.journal import Journal
from sidecar.coordination.run import find_run
from sidecar.coordination.state_directory import StateDirectory
from sidecar.coordination.storage import PosixStorage
from sidecar.daemon.workers.command_specs import cannot_be_used
from sidecar.daemon.workers.pool import WorkerPool
from sidecar.daemon.workers.ports import OPEN_PORTS_REMEDY
from sidecar.daemon.workers.process import Event, Exited, Post
from sidecar.errors import SettingsError, SidecarError, StateUnavailableError, StorageError, TaskError
from sidecar.evaluation.source_digest import source_digest
from sidecar.policy.node_identity import advertised_host, node_name
from sidecar.policy.roles import NO_HINT, RoleDecision, decide_role
from sidecar.protocol.messages import Check, Checked, Failed, Ready
from sidecar.settings import Settings
from sidecar.system.addresses import own_addresses, public, public_address
from sidecar.system.clock import SystemClock
from sidecar.system.name_clash import installed_beside, replaced
from sidecar.version import version

_TIMEOUT_CHECK_SECONDS: Final = 0.25


def findings(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    catalog: Catalog,
    storage_timeout: StorageTimeout,
    make_workers: Callable[[Post], WorkerPool],
    search_path: str,
    quick: bool = False,
) -> Iterator[Finding]:
    """Run all trials one after the other, the slow ones last. `quick`: the task is only imported."""
    role = yield from _role(settings, environ)
    if (clash := replaced() or installed_beside()) is not None:
        yield Finding(what="package", ok=replaced() is None, text=clash, doubtful=True)
    for text in ineffective(settings):
        yield Finding(what="settings", ok=False, text=text)
    yield from _checkpoints(settings, catalog, storage_timeout)
    if (yield from _journal(settings, storage_timeout)):
        yield from _storage(settings, storage_timeout)
    yield from _http(settings)
    yield from sinks(settings)
    yield from hooks(settings)
    observed_nodes = yield from _nodes(settings, environ, storage_timeout)
    if role is not None and role.role == "chief":
        yield Finding(what="task", ok=True, text="not needed: this node is the chief and never evaluates")
        return
    if settings.trust_saved_graph:
        yield Finding(what="graphs", ok=True, text="trust_saved_graph is on: SavedModels are run as they were stored")
    if (typo := _typo(settings, search_path, storage_timeout)) is not None:
        yield typo
        return
    task = yield from _task(settings, make_workers, search_path, catalog, storage_timeout, quick=quick)
    if role is not None and task is not None and observed_nodes is not None:
        here = Here(
            node=node_name(settings, environ),
            version=version(),
            evaluation_code=source_digest(),
            task=task,
            replicas=settings.replicas,
            min_workers=settings.min_workers,
            lease_seconds=settings.lease_seconds,
        )
        yield from group(observed_nodes, here)


def _role(settings: Settings, environ: Mapping[str, str]) -> Generator[Finding, None, RoleDecision | None]:
    try:
        node = node_name(settings, environ)
        decision = decide_role(settings, node, environ)
        host = advertised_host(settings, environ)
    except SidecarError as error:
        yield Finding(what="role", ok=False, text=str(error))
        return None
    yield Finding(what="node", ok=True, text=f"{node} in run {settings.run}, reached by others at {host}")
    yield Finding(what="role", ok=True, text=_describe(decision))
    if decision.role == "worker" and workers_listen(settings):
        yield from _network(host)
    return decision


def _describe(decision: RoleDecision) -> str:
    text = f"{decision.role} ({decision.source})"
    if decision.warning is not None:
        return f"{text}; {decision.warning}: {decision.remedy}"
    if decision.role == "chief":
        return f"{text}: this node evaluates nothing, the daemons on the worker nodes do; {decision.remedy}"
    if decision.source == NO_HINT:
        return f"{text}: this node evaluates; a job of several nodes names its chief's node in chief_nodes"
    return text


def _network(host: str) -> Iterator[Finding]:
    """Report whether the internet can reach worker processes, whose ports are open on every address of the machine."""
    if (address := public_address(host)) is not None:
        yield Finding(what="network", ok=False, text=f"{host} is a public address ({address}): {OPEN_PORTS_REMEDY}")
    elif others := public(own_addresses()):
        # This is not a failure, because a firewall may protect the address.
        text = f"this machine also has a public address ({', '.join(others)}): {OPEN_PORTS_REMEDY}"
        yield Finding(what="network", ok=True, text=text)


def _unmatched(settings: Settings) -> str | None:
    """Return a hint if there is something in the directory, but no name that matches `checkpoint_pattern`."""
    pattern, place = settings.checkpoint_pattern, settings.checkpoint_dir
    if pattern is None or not place.is_dir():
        return None
    names = sorted(entry.name for entry in place.iterdir() if not entry.name.startswith("."))
    if not names or any(fnmatchcase(name, pattern) for name in names):
        return None
    return f"no name there matches checkpoint_pattern ({pattern}): there are {', '.join(map(shown, names[:3]))}"


def _checkpoints(settings: Settings, catalog: Catalog, storage_timeout: StorageTimeout) -> Iterator[Finding]:
    try:
        scan = storage_timeout.call(catalog.scan)
        detection = storage_timeout.call(lambda: _detection(settings))
        unmatched = None if scan.found else storage_timeout.call(lambda: _unmatched(settings))
        similar = storage_timeout.call(lambda: similar_folder(settings.checkpoint_dir)) if scan.missing else ""
    except SidecarError as error:
        yield Finding(what="checkpoints", ok=False, text=str(error))
        return
    if scan.missing:
        why = similar or "is it shared with the chief?"
        text = f"{settings.checkpoint_dir} does not exist yet, and the daemon would wait: {why}"
        yield Finding(what="checkpoints", ok=True, text=text, doubtful=bool(similar))
        return
    newest = f", the newest is {scan.found[-1].checkpoint.name}" if scan.found else ""
    yield Finding(what="checkpoints", ok=True, text=f"{len(scan.found)} complete in {settings.checkpoint_dir}{newest}")
    for hint in (unmatched, scan.below, _several_runs(settings, scan)):
        if hint is not None:
            yield Finding(what="checkpoints", ok=True, text=hint, doubtful=True)
    if scan.found:
        steps = StepSources()
        steps.add(discovered.checkpoint for discovered in scan.found)
        text = f"{steps.summary()}: {REMEDY}" if steps.are_doubtful else steps.summary()
        yield Finding(what="checkpoints", ok=True, text=text)
    yield Finding(what="checkpoints", ok=True, text=detection)
    for name, reason in scan.waiting:
        yield Finding(what="checkpoints", ok=True, text=f"{name} is not complete: {reason}")
    for name, why in scan.left_out:
        yield Finding(what="checkpoints", ok=True, text=f"{name} is not evaluated: {why}")


def _several_runs(settings: Settings, scan: ScanResult) -> str | None:
    """Return a hint if `checkpoint_glob` makes one run of several, with one curve and one best checkpoint of all."""
    names_by_folder: dict[str, list[str]] = {}
    for found in scan.found:
        folder, _, name = found.checkpoint.name.rpartition("/")
        names_by_folder.setdefault(folder, []).append(name)
    runs = of_several_runs(settings.checkpoint_dir, names_by_folder)
    return None if runs is None else f"{runs}; checkpoint_glob makes one run of them"


def _detection(settings: Settings) -> str:
    """Return a sentence about how new checkpoints are detected, and on which type of filesystem."""
    why_not = partial(why_no_events, file_events=settings.file_events, sweep_seconds=settings.sweep_seconds)
    watch = Watch(settings.checkpoint_dir, lambda: None, why_not=why_not)
    watch.start()
    problem = watch.problem
    watch.stop()
    mount = mount_here(settings.checkpoint_dir)
    where = "" if mount is None else f" on {mount.filesystem}"
    scans = f"a scan every {settings.sweep_seconds:g} s"
    means = f"file events and {scans}" if problem is None else f"{scans} only ({problem})"
    return f"new ones{where} are detected by {means}"


def _journal(settings: Settings, storage_timeout: StorageTimeout) -> Generator[Finding, None, bool]:
    """Read the run's state as a daemon does at its start, and return whether the state directory may be written to.

    It may not while the state is unavailable: the files would be written below the mount point of its storage.
    """
    try:
        text = storage_timeout.call(lambda: _read_journal(settings, storage_timeout))
    except SidecarError as error:
        yield Finding(what="journal", ok=False, text=str(error))
        return not isinstance(error, StateUnavailableError)
    yield Finding(what="journal", ok=True, text=text)
    return True


def _read_journal(settings: Settings, storage_timeout: StorageTimeout) -> str:
    storage = PosixStorage(settings.run_dir, storage_timeout.answered)
    place, run = StateDirectory(settings.checkpoint_dir, settings.run_dir), find_run(storage)
    if run is None:
        place.check_beginning()
        return f"{settings.run_dir} holds no run yet: the first daemon begins one"
    place.check(run)
    journal = Journal(storage, run.run)
    snapshot_store.resume(storage, journal)
    for _ in journal.read_to_end():
        pass
    return f"run {run.run} has {journal.through} plans, and no record is missing behind the newest snapshot"


def _storage(settings: Settings, storage_timeout: StorageTimeout) -> Iterator[Finding]:
    """Try create-if-absent with a file that is removed again, and report problems of the mount."""
    inside = settings.state_dir.is_relative_to(settings.checkpoint_dir)
    try:
        if inside and not storage_timeout.call(settings.checkpoint_dir.is_dir):
            text = f"{settings.run_dir} is not tried, because that would create the checkpoint directory"
            yield Finding(what="state", ok=True, text=text)
            return
        content = storage_timeout.call(lambda: _content_after_two_creations(settings))
        mount = storage_timeout.call(lambda: mount_here(settings.run_dir))
    except SidecarError as error:
        yield Finding(what="state", ok=False, text=str(error))
        return
    where = f"{settings.run_dir}" if mount is None else f"{settings.run_dir} on {mount.filesystem}"
    if content != b"first":
        text = f"{where}: an existing name was overwritten; name a state_dir on a POSIX filesystem"
        yield Finding(what="state", ok=False, text=text)
        return
    yield Finding(what="state", ok=True, text=f"{where} is writable, and create-if-absent works")
    for trouble in troubles(mount, settings.visibility_seconds) if mount is not None else ():
        yield Finding(what="state", ok=not trouble.fatal, text=f"{mount.point if mount else ''}: {trouble.text}")


def _content_after_two_creations(settings: Settings) -> bytes | None:
    storage = PosixStorage(settings.run_dir)
    name = f".check-{secrets.token_hex(8)}"
    try:
        storage.create(name, b"first")
        storage.create(name, b"second")
        return storage.read(name)
    finally:
        storage.remove(name)


def _nodes(
    settings: Settings, environ: Mapping[str, str], storage_timeout: StorageTimeout
) -> Generator[Finding, None, ObservedNodes | None]:
    """Report which other nodes are alive, and how late their heartbeats are seen here. Return None if that fails."""
    storage = PosixStorage(settings.run_dir, storage_timeout.answered)
    beat, lease = settings.beat_seconds, settings.lease_seconds
    try:
        node = node_name(settings, environ)
        observed_nodes = storage_timeout.call(lambda: watch(storage, SystemClock(), beat, time.sleep))
    except SettingsError:
        return None  # `_role` has reported it
    except SidecarError as error:
        yield Finding(what="nodes", ok=False, text=str(error))
        return None
    yield from visibility(observed_nodes, node, beat_seconds=beat, lease_seconds=lease)
    yield from exports(observed_nodes, node, export_rule(settings), lease_seconds=lease)
    return observed_nodes


def _http(settings: Settings) -> Iterator[Finding]:
    family = socket.AF_INET6 if ":" in settings.http_host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((settings.http_host, settings.http_port))
        except OSError as error:
            if (node := node_serving(settings)) is not None:
                yield Finding(
                    what="http", ok=True, text=f"{settings.http} is served by this run's daemon on node {node}"
                )
                return
            text = f"{settings.http}: {error.strerror}; --http chooses another address"
            yield Finding(what="http", ok=False, text=text)
            return
    yield Finding(what="http", ok=True, text=f"{settings.http} is free")


def _typo(settings: Settings, search_path: str, storage_timeout: StorageTimeout) -> Finding | None:
    """Find mistakes in the text of the task, without importing it."""
    if settings.task is None:
        return Finding(what="task", ok=False, text="none is set: give --task path/file.py:attr or module:attr")
    try:
        storage_timeout.call(lambda: find_typo(settings, Path(search_path)))
        with_framework(settings, Path(search_path))
    except (SettingsError, TaskError) as error:
        return Finding(what="task", ok=False, text=str(error))
    except StorageError:
        return None  # the worker process will report the problem
    return None


def _task(
    settings: Settings,
    make_workers: Callable[[Post], WorkerPool],
    search_path: str,
    catalog: Catalog,
    storage_timeout: StorageTimeout,
    *,
    quick: bool,
) -> Generator[Finding, None, str | None]:
    """Evaluate with the task in a worker process, or if `quick` only import it. Return the digest of its code."""
    if quick:
        return (yield from _import(settings, make_workers, search_path))

    def newest() -> DiscoveredCheckpoint | None:
        scan = storage_timeout.call(catalog.scan)
        return scan.found[-1] if scan.found else None

    return (yield from try_task(settings, make_workers, newest))


def _import(
    settings: Settings, make_workers: Callable[[Post], WorkerPool], search_path: str
) -> Generator[Finding, None, str | None]:
    """Import the task in a worker process, and return the digest of its code."""
    try:
        imported = _imported(settings, make_workers, search_path)
    except SidecarError as error:
        yield Finding(what="task", ok=False, text=str(error))
        return None
    about = f"{settings.task} evaluates {', '.join(imported.eval_sets)} with {settings.framework} {imported.version}"
    text = f"{about}. Not tried (--quick): to build its model, to restore a checkpoint and to evaluate a batch"
    yield Finding(what="task", ok=True, text=text, tried=False)
    return imported.digest


@dataclass(frozen=True, slots=True)
class _Imported:
    """Describe a task that a worker process imported."""

    digest: str  # of its code
    eval_sets: tuple[str, ...]
    version: str  # of the framework


def _imported(settings: Settings, make_workers: Callable[[Post], WorkerPool], search_path: str) -> _Imported:
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
                name, report = inbox.get(timeout=_TIMEOUT_CHECK_SECONDS)
            except queue.Empty:
                continue
            worker = workers.find(name)
            workers.observe(name, report, clock.now())
            if isinstance(report, Ready) and worker is not None:
                version = report.version
                options = backend_options(settings)
                check = Check(
                    task=settings.task,
                    framework=settings.framework,
                    search_path=search_path,
                    threads=settings.threads,
                    options=options,
                )
                worker.process.send(check)
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
