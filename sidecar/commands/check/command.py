"""Try everything that the daemon needs on this node, and name a remedy for each problem.

No daemon is started, and every file that is written is removed. Each trial is a function that returns findings. A trial
that fails does not stop the others. This module has the order of all trials, and the short ones: about this node, its
sinks and its hooks.
"""

import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Final

from sidecar.checkpoints.catalog import Catalog
from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.commands.check.checkpoints import checkpoints
from sidecar.commands.check.finding import Finding
from sidecar.commands.check.peers import exports, group, visibility, watch
from sidecar.commands.check.power import power
from sidecar.commands.check.state import journal, storage
from sidecar.commands.check.trial import import_task, try_task
from sidecar.commands.framework import with_framework, workers_listen
from sidecar.commands.from_settings import export_rule, record_of
from sidecar.commands.hooks import make_hooks
from sidecar.commands.ineffective_settings import ineffective
from sidecar.commands.observed_nodes import ObservedNodes
from sidecar.commands.port_owner import UNNAMED, node_serving
from sidecar.commands.sinks import make_sinks
from sidecar.commands.state_storage import state_storage
from sidecar.commands.storage_timeout import StorageTimeout
from sidecar.commands.task_file import find_typo
from sidecar.daemon.workers.pool import WorkerPool
from sidecar.daemon.workers.ports import OPEN_PORTS_REMEDY
from sidecar.daemon.workers.process import Post
from sidecar.errors import SettingsError, SidecarError, StorageError, TaskError
from sidecar.evaluation.source_digest import source_digest
from sidecar.policy.node_identity import advertised_host, node_name
from sidecar.policy.roles import NO_HINT, RoleDecision, decide_role
from sidecar.protocol.heartbeat import AboutNode, Heartbeat, JournalPosition, Slot
from sidecar.protocol.states import NodeState
from sidecar.settings import Settings
from sidecar.settings.language_model import AUTO
from sidecar.system.addresses import own_addresses, public, public_address
from sidecar.system.clock import SystemClock
from sidecar.system.name_clash import installed_beside, replaced
from sidecar.version import version

_NO_LOGIN: Final = (
    "without a login, everybody who reaches the Ray cluster can run code in it: start its head and its nodes with "
    "RAY_AUTH_MODE=token, and set ray_token_file to the file with the token"
)
_NO_MODEL_YET: Final = '[lm] model = "auto" is that of the first checkpoint, for which a daemon waits'


def findings(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    catalog: Catalog,
    storage_timeout: StorageTimeout,
    make_workers: Callable[[Post], WorkerPool],
    quick: bool = False,
) -> Iterator[Finding]:
    """Run all trials one after the other, the slow ones last. `quick`: the task is only imported."""
    role = yield from _role(settings, environ)
    if (clash := replaced() or installed_beside()) is not None:
        yield Finding(what="package", ok=replaced() is None, text=clash, doubtful=True)
    for text in ineffective(settings):
        yield Finding(what="settings", ok=False, text=text)
    yield from checkpoints(settings, catalog, storage_timeout)
    if (yield from journal(settings, storage_timeout)):
        yield from storage(settings, storage_timeout)
    yield from power(settings, storage_timeout)
    yield from http(settings)
    if settings.engine == "ray" and settings.ray_token_file is None:
        yield Finding(what="ray", ok=True, text=_NO_LOGIN, doubtful=True)
    yield from sinks(settings)
    if settings.state_backup is not None:
        yield backup(settings)
    yield from hooks(settings)
    observed_nodes = yield from _nodes(settings, environ, storage_timeout)
    if role is not None and role.role == "chief":
        yield Finding(what="task", ok=True, text="not needed: this node is the chief and never evaluates")
        return
    if settings.trust_saved_graph:
        yield Finding(what="graphs", ok=True, text="trust_saved_graph is on: SavedModels are run as they were stored")
    if (typo := _typo(settings, storage_timeout)) is not None:
        yield typo
        return
    task = yield from _task(settings, make_workers, catalog, storage_timeout, quick=quick)
    if role is not None and task is not None and observed_nodes is not None:
        this_node = Heartbeat(
            run=settings.run,
            node=node_name(settings, environ),
            incarnation="",
            beat=0,
            role="worker",
            about=AboutNode(role_source=role.source, version=version()),
            state=NodeState.READY,
            task=task,
            journal=JournalPosition(plan=0, outcome=0),
            slots=(Slot(worker=None, group=None, address=None, standby=None, standby_address=None),)
            * settings.replicas,
            evaluation_code=source_digest(),
        )
        yield from group(
            observed_nodes, this_node, lease_seconds=settings.lease_seconds, min_workers=settings.min_workers
        )


def _role(settings: Settings, environ: Mapping[str, str]) -> Generator[Finding, None, RoleDecision | None]:
    """Report the name, the address and the role of this node. Return the role; None if it cannot be decided."""
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
    """Return a sentence about a role: its source, and a remedy if it is probably not what the user wants."""
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


def _nodes(
    settings: Settings, environ: Mapping[str, str], storage_timeout: StorageTimeout
) -> Generator[Finding, None, ObservedNodes | None]:
    """Report which other nodes are alive, and how late their heartbeats are seen here. Return None if that fails."""
    storage = state_storage(settings, storage_timeout.answered)
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


def http(settings: Settings) -> Iterator[Finding]:
    """Report whether a daemon could serve its page at the address of the settings, by the access that they give."""
    if settings.http_access is not None:
        from sidecar.publishing.http.access import read_access  # noqa: PLC0415 - TLS takes 3 MB

        try:
            read_access(settings.http_access)
        except SettingsError as error:
            yield Finding(what="http", ok=False, text=str(error))
    family = socket.AF_INET6 if ":" in settings.http_host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((settings.http_host, settings.http_port))
        except OSError as error:
            if (node := node_serving(settings)) is not None:
                whose = f"this run's daemon on node {node}"
                if node == UNNAMED:
                    whose = "a daemon that asks for a login, most likely the one of this run"
                yield Finding(what="http", ok=True, text=f"{settings.http} is served by {whose}")
                return
            text = f"{settings.http}: {error.strerror}; --http chooses another address"
            yield Finding(what="http", ok=False, text=text)
            return
    yield Finding(what="http", ok=True, text=f"{settings.http} is free")


def _typo(settings: Settings, storage_timeout: StorageTimeout) -> Finding | None:
    """Find mistakes in the text of the task, without importing it."""
    if settings.task is None:
        return Finding(what="task", ok=False, text="none is set: give --task path/file.py:attr or module:attr")
    try:
        storage_timeout.call(lambda: find_typo(settings, Path.cwd()))
        with_framework(settings, Path.cwd())
    except (SettingsError, TaskError) as error:
        return Finding(what="task", ok=False, text=str(error))
    except StorageError:
        return None  # the worker process will report the problem
    return None


def _task(
    settings: Settings,
    make_workers: Callable[[Post], WorkerPool],
    catalog: Catalog,
    storage_timeout: StorageTimeout,
    *,
    quick: bool,
) -> Generator[Finding, None, str | None]:
    """Evaluate with the task in a worker process, or only import it. Return the digest of its code."""

    def newest() -> DiscoveredCheckpoint | None:
        scan = storage_timeout.call(catalog.scan)
        return scan.found[-1] if scan.found else None

    if quick:
        return (yield from import_task(settings, make_workers, "--quick"))
    if settings.lm.get("model") == AUTO and newest() is None:
        return (yield from import_task(settings, make_workers, _NO_MODEL_YET))
    return (yield from try_task(settings, make_workers, newest))


def backup(settings: Settings) -> Finding:
    """Try what the backup of the state needs, and say whose credentials are used, and which run it holds."""
    from sidecar.commands.restore_state import backup_of  # noqa: PLC0415 - likewise
    from sidecar.publishing.state_backup.backup_objects import why  # noqa: PLC0415 - likewise
    from sidecar.publishing.state_backup.ownership import newest_owner, try_out  # noqa: PLC0415 - likewise
    from sidecar.system.object_store import BucketError, ObjectStoreRules, credential_source  # noqa: PLC0415 - only with a backup

    try:
        store = backup_of(settings)
        source = credential_source(store.scheme, record_of(ObjectStoreRules, settings))
        try_out(store)
        owner, _ = newest_owner(store)
    except (BucketError, SidecarError) as error:
        return Finding(what="backup", ok=False, text=why(error))
    held = "holds no backup yet" if owner is None else f"holds the backup of run {owner.run}, begun on {owner.node}"
    return Finding(what="backup", ok=True, text=f"{settings.state_backup} {held}; credentials: {source}")


def sinks(settings: Settings) -> Iterator[Finding]:
    """Report the sinks, if there are any. None of them is asked to take anything."""
    try:
        names = [sink.name for sink in make_sinks(settings)]
    except SettingsError as error:
        yield Finding(what="sinks", ok=False, text=str(error))
        return
    if names:
        yield Finding(what="sinks", ok=True, text=f"{', '.join(names)}: every result is sent there")


def hooks(settings: Settings) -> Iterator[Finding]:
    """Report the hooks, if there are any. None of them is called."""
    if settings.hooks:
        try:
            names = ", ".join(hook.hook for hook in make_hooks(settings))
            yield Finding(what="hooks", ok=True, text=f"{names} can be called: `sidecar hooks test` tries them")
        except SettingsError as error:
            yield Finding(what="hooks", ok=False, text=str(error))
