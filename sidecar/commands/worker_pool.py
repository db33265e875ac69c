"""Build the pool of worker processes, and the description of their task, from the settings."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from sidecar.commands.framework import backend_options
from sidecar.commands.from_settings import record_of
from sidecar.daemon.workers.command_specs import TaskSpec
from sidecar.daemon.workers.devices import check_idle, for_workers, visible
from sidecar.daemon.workers.engine import LocalEngine, WorkerLaunch
from sidecar.daemon.workers.environment import thread_variables
from sidecar.daemon.workers.logs import usable_log_folder
from sidecar.daemon.workers.pool import WorkerPool
from sidecar.daemon.workers.ports import Ports
from sidecar.daemon.workers.process import Post
from sidecar.daemon.workers.ray.engine import RayCluster, RayEngine, RayLaunch
from sidecar.daemon.workers.timeouts import PhaseTimeouts
from sidecar.errors import SettingsError
from sidecar.evaluation.framework_traits import FrameworkTraits, traits_of
from sidecar.policy.node_identity import advertised_host
from sidecar.settings import Settings
from sidecar.system.bucket_folder import BucketFolder

_PLACE_SECONDS: Final = 60.0  # a person waits for a command


def make_workers(
    settings: Settings,
    environ: Mapping[str, str],
    name: str,
    post: Post,
    *,
    warn: Callable[[str], object],
    most: int | None = None,
    granted: bool = True,
    own: Callable[[], Collection[int]] = tuple,
    daemon: bool = False,
) -> WorkerPool:
    """Build the pool of this node's worker processes, and start none.

    `name`: the name of this node and its incarnation, with which the names of its workers begin. `post` receives their
    events, from any thread. `warn` is called with the reason if their logs go elsewhere. `most`: use only so many of
    the node's replicas. `granted`: as in `Engine`. `own` returns the processes that may use the GPUs: workers of other
    runs in this process, which take turns. `daemon`: the workers give way to training, and wait for machines without a
    bound.
    """
    _require_division(settings)
    bounds = record_of(PhaseTimeouts, settings)
    if settings.engine == "ray":
        engine: LocalEngine | RayEngine = _ray(settings, environ, most)
        if not daemon:
            bounds = replace(bounds, place_seconds=_PLACE_SECONDS)
    else:
        engine = _local(settings, environ, warn, most, own)
        engine.granted = granted
    yields = daemon and settings.engine == "local" and settings.yield_seconds > 0
    return WorkerPool(engine=engine, bounds=bounds, name=name, post=post, keep_standby=settings.standby, yields=yields)


def _require_division(settings: Settings) -> None:
    """Raise `SettingsError` if the workers cannot be several processes each, as the settings want."""
    processes = settings.processes_per_worker
    if processes > 1 and not traits_of(settings.framework).divides_models:
        raise SettingsError(
            f"processes_per_worker = {processes} needs framework = 'torch', found {settings.framework!r}: leave it out"
        )
    if processes > 1 and settings.engine == "ray":
        raise SettingsError(
            f"processes_per_worker = {processes} needs engine = 'local': on a Ray cluster a worker is one process"
        )


def _local(
    settings: Settings,
    environ: Mapping[str, str],
    warn: Callable[[str], object],
    most: int | None,
    own: Callable[[], Collection[int]],
) -> LocalEngine:
    """Build the engine of this machine."""
    logs, moved = usable_log_folder(settings.worker_logs)
    if moved is not None:
        warn(moved)
    names = visible(settings.devices, settings.replicas, environ)
    devices = for_workers(names, settings.processes_per_worker)[:most]
    check_idle(",".join(devices).split(","), share=settings.share_gpu, own=own())
    traits = traits_of(settings.framework)
    launch = WorkerLaunch(
        interpreter=str(settings.worker_python),
        traits=traits,
        environment=environ,
        changes=_changes(settings, traits),
        devices=devices,
        logs=logs,
        directory=str(Path.cwd()),
    )
    ports = Ports(settings.ports.start, settings.ports.stop - 1)
    return LocalEngine(launch=launch, host=advertised_host(settings, environ), ports=ports)


def _changes(settings: Settings, traits: FrameworkTraits) -> dict[str, str | None]:
    """Return the variables that worker processes get, or lose if None."""
    threads = thread_variables(settings.threads) if traits.threads_by_environment else {}
    return {**threads, **settings.worker_env}


def _ray(settings: Settings, environ: Mapping[str, str], most: int | None) -> RayEngine:
    """Build the engine of a Ray cluster. Raises `SettingsError` if it is not clear which machines may evaluate."""
    if settings.ray_address is None:
        raise SettingsError(
            "engine = 'ray' needs the address of the cluster's head: write ray_address = \"10.0.0.5:6379\" into "
            "sidecar.toml, or set SIDECAR_RAY_ADDRESS"
        )
    if not settings.ray_labels and not settings.ray_any_node:
        raise SettingsError(
            "engine = 'ray' could use the machines of the chief and of trainers: start the machines that may evaluate "
            'with `ray start --labels=role=eval`, and write ray_labels = {role = "eval"} into sidecar.toml, or '
            "ray_any_node = true if none of them trains"
        )
    if settings.devices not in ("cpu", "gpu"):
        raise SettingsError(
            f"devices = {list(settings.devices)!r} names GPUs of this machine, but engine = 'ray' takes those that the "
            "cluster grants: write devices = 'gpu'"
        )
    cluster = RayCluster(
        address=settings.ray_address,
        workers=min(settings.ray_workers, most or settings.ray_workers),
        resources=settings.ray_resources or {"CPU": float(settings.threads)},
        gpu=settings.devices == "gpu",
        labels=settings.ray_labels,
    )
    launch = RayLaunch(
        interpreter=str(settings.worker_python),
        framework=settings.framework,
        changes=_changes(settings, traits_of(settings.framework)),
        ports=(settings.ports.start, settings.ports.stop - 1),
        logs=str(settings.worker_logs),
        directory=str(Path.cwd()),
        # Checkpoints of a bucket are read from their pins, in the state directory.
        folders=(
            *(() if isinstance(settings.checkpoint_dir, BucketFolder) else (str(settings.checkpoint_dir),)),
            str(settings.state_dir),
            str(Path.cwd()),
        ),
    )
    return RayEngine(cluster=cluster, launch=launch, token=settings.ray_token_file, environment=environ)


def make_task_spec(settings: Settings) -> TaskSpec:
    """Build the description of the task for every worker of this node."""
    return TaskSpec(
        task=settings.task or "",
        framework=settings.framework,
        search_path=str(Path.cwd()),
        threads=settings.threads,
        cache_bytes=settings.cache_bytes,
        options=backend_options(settings),
        processes=settings.processes_per_worker,
    )
