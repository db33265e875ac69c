"""Run a daemon for `sidecar run`: the HTTP port first, then the loop, signals, and the daemon of the next run.

Called by the command line. `bootstrap` builds the parts.
"""

import queue
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from sidecar.checkpoints.subfolder_hint import similar_folder
from sidecar.commands.bootstrap import return_large_blocks
from sidecar.commands.framework import workers_listen
from sidecar.commands.ineffective_settings import ineffective
from sidecar.commands.port_owner import node_serving
from sidecar.commands.served_run import ServedRun, settings_to_serve
from sidecar.daemon.events import Message, SaveNoticed, Terminate
from sidecar.daemon.loop import Daemon
from sidecar.daemon.workers.ports import OPEN_PORTS_REMEDY
from sidecar.errors import NodeNameTakenError, RunReplacedError, SettingsError
from sidecar.policy.node_identity import advertised_host, node_name
from sidecar.policy.roles import RoleDecision, decide_role
from sidecar.publishing.http import AccessFile, Server
from sidecar.publishing.plain_structlog import structlog
from sidecar.publishing.systemd import Notifier
from sidecar.settings import Settings
from sidecar.system.addresses import own_addresses, public, public_address
from sidecar.system.bucket_folder import BucketFolder, place_of
from sidecar.system.clock import Clock, SystemClock
from sidecar.system.event_log import EventLog
from sidecar.system.shortages import require_descriptors
from sidecar.version import version

_WORKERS_END_SECONDS: Final = 10.0  # for killed workers to free memory and ports before the next run begins


def serve(settings: Settings, environ: Mapping[str, str], *, settings_file: Path | None = None) -> int:
    """Run a daemon until it ends, and return its exit code. If its run is replaced, another daemon follows it.

    /healthz is served before anything else is done, so that a slow disk does not look like a dead daemon.
    """
    require_descriptors()
    return_large_blocks()
    node = node_name(settings, environ)
    decision = decide_role(settings, node, environ)
    settings = settings_to_serve(settings, decision)
    folder = settings.checkpoint_dir
    if not settings.wait and not isinstance(folder, BucketFolder) and not folder.is_dir():
        similar = similar_folder(folder) or "without --once it would be waited for"
        raise SettingsError(f"checkpoint_dir {str(folder)!r} does not exist: {similar}")
    access = AccessFile(settings.http_access)
    log = structlog.get_logger().bind(run=settings.run, node=node)
    clock, registry = SystemClock(), CollectorRegistry()
    run = ServedRun(
        settings,
        environ,
        node=node,
        decision=decision,
        clock=clock,
        log=log,
        registry=registry,
        notify=Notifier(environ),
        scheme=access.access.scheme,
    )
    life = _Life.of(run)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # before anybody can see that the daemon runs
        signal.signal(number, lambda number, _: life.inbox.put(Terminate(signal.Signals(number).name)))

    def notice(_: str) -> str | None:
        life.inbox.put(SaveNoticed())
        return why_unscanned(decision)

    server = Server(
        settings.http_host,
        settings.http_port,
        names=(*settings.http_hosts, *([] if settings.host is None else [settings.host])),
        registry=registry,
        health=lambda: life.daemon.healthy(),  # noqa: PLW0108 - the daemon may be another one by then
        ready=lambda: run.published.unready,
        status=lambda: run.published.status,
        archive=run.archive,
        notice=notice if settings.http_notices else None,
        access=access,
    )
    listen(server, settings, node)
    if settings_file is not None:
        log.info("settings_read", file=str(settings_file))
    _announce(log, settings, decision, server.url)
    warn_of_role(log, settings, decision, environ)
    try:
        while True:
            try:
                return life.run()
            except RunReplacedError as error:
                log.warning("run_begun_anew", reason=str(error))
                life.end_workers(clock, _WORKERS_END_SECONDS)
                before, life = life, _Life.of(run)
                before.hand_over(life)
    finally:
        run.close_sinks()
        server.close()


def listen(server: Server, settings: Settings, node: str) -> None:
    """Start the HTTP server. A second daemon of a node learns of the first one by the port that both use."""
    try:
        server.start()
    except SettingsError as error:
        if node_serving(settings) == node:
            raise NodeNameTakenError(
                f"the daemon of run {settings.run!r} on node {node!r} runs already, at {settings.http}; a "
                "second one on this machine needs another --node and another --http"
            ) from error
        raise


@dataclass(slots=True)
class _Life:
    """Hold a daemon and its inbox for one run. The daemon of the next run shares nothing with it."""

    served: ServedRun
    daemon: Daemon
    inbox: "queue.SimpleQueue[Message]"

    @classmethod
    def of(cls, run: ServedRun) -> "_Life":
        """Return the life of a new daemon of a run."""
        inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        return cls(run, run.begin(inbox.put), inbox)

    def run(self) -> int:
        """Run the daemon and its storage thread. Raise the error that ended it, if one did."""
        self.served.start_storage()
        try:
            return self.daemon.run(self.inbox)
        finally:
            self.served.close_storage()

    def end_workers(self, clock: Clock, seconds: float) -> None:
        """Wait until the killed workers have ended and freed their memory and ports, for `seconds` at most."""
        end, signals = clock.now() + seconds, []
        workers = self.daemon.supervisor.workers if self.daemon.supervisor is not None else None
        while workers is not None and any(workers.all()) and (left := end - clock.now()) > 0:
            try:
                message = self.inbox.get(timeout=left)
            except queue.Empty:
                break
            if isinstance(message, tuple):
                workers.observe(*message, clock.now())
            elif isinstance(message, Terminate):
                signals.append(message)
        for terminate in signals:
            self.inbox.put(terminate)

    def hand_over(self, successor: "_Life") -> None:
        """Pass signals that came in the meantime to the next daemon, which receives all later ones."""
        while not self.inbox.empty():
            if isinstance(message := self.inbox.get_nowait(), Terminate):
                successor.inbox.put(message)


def _announce(log: EventLog, settings: Settings, decision: RoleDecision, url: str) -> None:
    """Log the start of the daemon, and settings without effect."""
    log.info(
        "daemon_started",
        version=version(),
        role=decision.role,
        role_source=decision.source,
        checkpoint_dir=place_of(settings.checkpoint_dir),
        state_dir=place_of(settings.state_dir),
        http=url,
    )
    for message in ineffective(settings):
        log.warning("setting_ineffective", message=message)


def why_unscanned(decision: RoleDecision) -> str | None:
    """Return why a notice of a checkpoint has no effect on this node; None if it has."""
    return None if decision.role == "worker" else "this node is the chief, which scans nothing: notify another node"


def warn_of_role(log: EventLog, settings: Settings, decision: RoleDecision, environ: Mapping[str, str]) -> None:
    """Log a doubtful or idle role, and ports of workers that can be reached publicly."""
    if decision.role == "worker" and workers_listen(settings):
        warn_of_public_ports(log, settings, advertised_host(settings, environ))
    if decision.warning is not None:
        log.warning("role_uncertain", warning=decision.warning, remedy=decision.remedy)
    elif decision.role == "chief":
        log.info("chief_idles", source=decision.source, remedy=decision.remedy)


def warn_of_public_ports(log: EventLog, settings: Settings, host: str) -> None:
    """Warn if workers' ports, which are open on every address of the machine, can be reached publicly."""
    advertised = public_address(host, resolve=False)
    addresses = dict.fromkeys((*([] if advertised is None else [advertised]), *public(own_addresses())))
    if addresses:
        log.warning(
            "eval_ports_public",
            host=host,
            addresses=", ".join(addresses),
            ports=settings.port_range,
            remedy=OPEN_PORTS_REMEDY,
        )
