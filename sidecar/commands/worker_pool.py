"""Build the pool of worker processes, and the description of their task, from the settings."""

from collections.abc import Callable, Mapping
from pathlib import Path

from sidecar.commands.framework import backend_options
from sidecar.commands.from_settings import record_of
from sidecar.daemon.workers.command_specs import TaskSpec
from sidecar.daemon.workers.devices import check_idle, visible
from sidecar.daemon.workers.engine import LocalEngine, WorkerLaunch
from sidecar.daemon.workers.environment import thread_variables
from sidecar.daemon.workers.logs import usable_log_folder
from sidecar.daemon.workers.pool import PhaseTimeouts, WorkerPool
from sidecar.daemon.workers.ports import Ports
from sidecar.daemon.workers.process import Post
from sidecar.evaluation.framework_traits import traits_of
from sidecar.policy.node_identity import advertised_host
from sidecar.settings import Settings


def make_workers(
    settings: Settings,
    environ: Mapping[str, str],
    name: str,
    post: Post,
    *,
    warn: Callable[[str], object],
    most: int | None = None,
) -> WorkerPool:
    """Build the pool of this node's worker processes, and start none.

    `warn` is called if their logs go elsewhere. `most`: use only so many of the node's replicas.
    """
    logs, moved = usable_log_folder(settings.worker_logs)
    if moved is not None:
        warn(moved)
    devices = visible(settings.devices, settings.replicas, environ)[:most]
    check_idle(devices, share=settings.share_gpu)
    traits = traits_of(settings.framework)
    threads = thread_variables(settings.threads) if traits.threads_by_environment else {}
    launch = WorkerLaunch(
        interpreter=str(settings.worker_python),
        traits=traits,
        environment=environ,
        changes={**threads, **settings.worker_env},
        devices=devices,
        logs=logs,
        directory=str(Path.cwd()),
    )
    ports = Ports(settings.ports.start, settings.ports.stop - 1)
    return WorkerPool(
        engine=LocalEngine(launch=launch, host=advertised_host(settings, environ), ports=ports),
        bounds=record_of(PhaseTimeouts, settings),
        name=name,
        post=post,
        keep_standby=settings.standby,
    )


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
