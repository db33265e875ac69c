"""From settings to running parts: what the commands put together. Imported by the command line alone."""

import queue
import secrets
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry

from sidecar.addresses import own_addresses, public
from sidecar.agreement.dormant import DORMANT_SECONDS
from sidecar.agreement.place import Place
from sidecar.agreement.run import JOURNAL_FOLDERS
from sidecar.agreement.storage import TEMPORARY, PosixStorage
from sidecar.bounded_calls import BoundedCalls, Calls, call_directly
from sidecar.checkpoints.catalog import Catalog
from sidecar.checkpoints.checkpoint_glob import CheckpointGlob
from sidecar.checkpoints.files import is_there
from sidecar.checkpoints.pin import pin
from sidecar.checkpoints.room import Room, free_bytes
from sidecar.checkpoints.watch import Watch
from sidecar.clock import Clock, SystemClock
from sidecar.commands.serving import node_serving
from sidecar.commands.task_file import check_before_import
from sidecar.config import Settings
from sidecar.daemon.best import BestBy
from sidecar.daemon.courier import Courier
from sidecar.daemon.crew import Crew
from sidecar.daemon.keeper import Keeper
from sidecar.daemon.loop import Daemon, Heard, Message, Terminate, Timing, Woke
from sidecar.daemon.pinner import Pinner
from sidecar.daemon.retention import Retention
from sidecar.daemon.saves import Saves
from sidecar.daemon.scribe import Scribe
from sidecar.daemon.sightings import Sightings
from sidecar.daemon.turns import Turns
from sidecar.daemon.world import Identity, World
from sidecar.errors import NodeNameTakenError, RunReplacedError, SettingsError
from sidecar.group.devices import check_idle, describe, visible
from sidecar.group.logs import usable_log_folder
from sidecar.group.member import Bounds, Launch, Workers
from sidecar.group.messages import Evaluate, Join
from sidecar.group.ports import Ports
from sidecar.group.process import Post
from sidecar.history import Closed, Entry, History
from sidecar.http import Server
from sidecar.mounts import why_no_events
from sidecar.observers.log import entry_logged
from sidecar.observers.prometheus import Exporter
from sidecar.observers.report import status_json
from sidecar.observers.systemd import Notifier
from sidecar.policy import Rules
from sidecar.records import Checkpoint, Plan
from sidecar.roles import (
    EVAL_PORTS_REMEDY,
    RoleDecision,
    advertised_host,
    decide_role,
    node_name,
    public_address,
)
from sidecar.status import Status
from sidecar.totals import Best
from sidecar.version import __version__

_CLOSE_SECONDS: Final = 2.0  # for the last request to storage, and for the HTTP server


def serve(settings: Settings, environ: Mapping[str, str], *, settings_file: Path | None = None) -> int:
    """Run a daemon until it ends; returns its exit code. Where its run is replaced, another daemon follows it.

    /healthz is served before anything else is done, so that a slow disk is not mistaken for a dead daemon.
    """
    node = node_name(settings, environ)
    decision = decide_role(settings, node, environ)
    if decision.role == "worker":
        settings.require_task()
        check_before_import(settings)
    if not settings.wait and not settings.checkpoint_dir.is_dir():
        raise SettingsError(
            f"checkpoint_dir {str(settings.checkpoint_dir)!r} does not exist; without --once it would be waited for"
        )
    log = structlog.get_logger().bind(run=settings.run, node=node)
    shown = Shown({})
    registry = CollectorRegistry()
    exporter = Exporter(registry)
    clock, showing = SystemClock(), Showing(shown, exporter, Notifier(environ))

    def begin() -> _Life:
        inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        daemon = make_daemon(settings, environ, node, decision, inbox, clock, Log(log), showing)
        return _Life(daemon, inbox)

    life = begin()
    shown.status = status_json(life.daemon.status(), life.daemon.world.history)  # there is none without its fields
    server = Server(
        settings.http_host,
        settings.http_port,
        names=(*settings.http_hosts, *([] if settings.host is None else [settings.host])),
        registry=registry,
        health=lambda: life.daemon.healthy(),  # noqa: PLW0108 - another daemon may live by then
        ready=lambda: shown.unready,
        status=lambda: shown.status,
    )
    _listen(server, settings, node)
    if settings_file is not None:
        log.info("settings_read", file=str(settings_file))
    _announce(log, settings, decision, server.url)
    if decision.role == "worker":
        _warn_of_public_ports(log, settings, advertised_host(settings, environ))
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, lambda number, _: life.inbox.put(Terminate(signal.Signals(number).name)))
    try:
        while True:
            try:
                return life.run()
            except RunReplacedError as error:
                log.warning("run_begun_anew", reason=str(error))
                life.end_workers(clock, settings.lease_seconds)
                before, life = life, begin()
                before.hand_over(life)
    finally:
        server.close()


def _listen(server: Server, settings: Settings, node: str) -> None:
    """Start the HTTP server; a second daemon of a node hears of the first by the port that both use."""
    try:
        server.start()
    except SettingsError as error:
        if node_serving(settings) == node:
            raise NodeNameTakenError(
                f"the daemon of run {settings.run!r} on node {node!r} runs already, see http://{settings.http}; a "
                "second one on this machine needs another --node and another --http"
            ) from error
        raise


@dataclass(slots=True)
class _Life:
    """A daemon and what is told to it: one run's. Nothing of it is left for the daemon of the next run."""

    daemon: Daemon
    inbox: "queue.SimpleQueue[Message]"

    def run(self) -> int:
        """Run the daemon and its courier; raises what ended it."""
        courier = self.daemon.courier
        assert isinstance(courier, Courier)
        courier.start()
        try:
            return self.daemon.run(self.inbox)
        finally:
            courier.close(_CLOSE_SECONDS)

    def end_workers(self, clock: Clock, seconds: float) -> None:
        """Wait until the workers, which are killed, have given back their memory and ports, but not for longer."""
        end, signals = clock.now() + seconds, []
        workers = self.daemon.crew.workers if self.daemon.crew is not None else None
        while workers is not None and any(workers.all()) and (left := end - clock.now()) > 0:
            try:
                message = self.inbox.get(timeout=left)
            except queue.Empty:
                break
            if isinstance(message, tuple):
                workers.observe(*message, clock.now())
            elif isinstance(message, Terminate):
                signals.append(message)
        for each in signals:
            self.inbox.put(each)

    def hand_over(self, successor: "_Life") -> None:
        """Give the signals that came meanwhile to the next daemon, once new ones arrive there."""
        while not self.inbox.empty():
            if isinstance(message := self.inbox.get_nowait(), Terminate):
                successor.inbox.put(message)


def make_daemon(
    settings: Settings,
    environ: Mapping[str, str],
    node: str,
    decision: RoleDecision,
    inbox: "queue.SimpleQueue[Message]",
    clock: Clock,
    log: "Log",
    showing: "Showing",
) -> Daemon:
    """A daemon and its courier, neither of them running yet."""
    identity = Identity(settings.run, node, secrets.token_hex(4), __version__, decision)
    evaluates = decision.role == "worker"
    room = Room(settings.pin_max_bytes, settings.keep_free_bytes, partial(free_bytes, settings.run_dir))
    entries, views = BoundedCalls(now=clock.now), BoundedCalls(now=clock.now)
    make_pin = partial(pin, check=settings.verify == "full", room=room)
    keeper = Keeper(
        settings.run_dir,
        make_catalog(settings, clock, calls=entries),
        _watch(settings, inbox) if evaluates else None,
        Pinner(settings.run_dir / "pins", node, make=make_pin, calls=entries),
        Saves(settings.run_dir, views),
        clock,
        room,
        _marker(settings),
        settings.sweep_seconds,
        settings.visibility_seconds,
        Turns(settings.proposal_patience_seconds),
    )
    courier = Courier(
        PosixStorage(settings.run_dir),
        keeper,
        clock,
        inbox.put,
        dormant_seconds=max(DORMANT_SECONDS, 10 * settings.lease_seconds),
        place=Place(settings.checkpoint_dir, settings.run_dir, settings.lease_seconds, clock),
        visibility_seconds=settings.visibility_seconds,
        calls=BoundedCalls(now=clock.now),
        views=views,
        scans=BoundedCalls(most_hanging=1, waits_again=True, now=clock.now),
    )
    rules = make_rules(settings)
    sightings = Sightings(rules.selection, settings.start == "new", settings.visibility_seconds)
    world = World(identity, settings.lease_seconds, sightings, settings.min_workers)
    crew = _crew(settings, environ, identity, lambda *report: inbox.put(report), log) if evaluates else None
    log.best = lambda: world.history.totals.best
    if crew is not None:
        log.worker_log = crew.workers.log_of
    return Daemon(
        world,
        rules,
        _timing(settings),
        Retention(settings.keep_saves, BestBy(settings.best_metric), settings.saves_max_bytes),
        courier,
        crew,
        Evaluate(0, Checkpoint("", "", None, ""), "", "", settings.save_weights, settings.progress_seconds),
        settings.run_dir,
        clock,
        log,
        showing,
        Scribe(world, clock, new_nonce=lambda: secrets.token_hex(16)),
    )


def _marker(settings: Settings) -> Callable[[], bool]:
    """Whether training said that it is done; it need not be a word that this program understands."""
    name = settings.done_marker
    return (lambda: False) if name is None else partial(is_there, settings.checkpoint_dir / name)


def _watch(settings: Settings, inbox: "queue.SimpleQueue[Message]") -> Watch:
    """Of the checkpoints, and of the journal: a plan is seen at once where file events of other nodes arrive."""
    why_not = partial(why_no_events, file_events=settings.file_events, sweep_seconds=settings.sweep_seconds)
    journal = [
        Watch(settings.run_dir / folder, lambda: inbox.put(Heard()), unless=TEMPORARY, why_not=why_not)
        for folder in JOURNAL_FOLDERS
    ]
    depth = CheckpointGlob.of(settings.checkpoint_glob).depth
    return Watch(
        settings.checkpoint_dir,
        lambda: inbox.put(Woke()),
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
    looked: Callable[[], None] = lambda: None,
) -> Catalog:
    """What lies in the checkpoint directory. Who looks `once` cannot wait until what is whole has settled."""
    return Catalog(
        settings.checkpoint_dir,
        settings.run_dir / "pins",
        settle_seconds=0.0 if once else settings.settle_seconds,
        corrupt_after_seconds=settings.visibility_seconds,
        full_sweep_seconds=settings.full_sweep_seconds,
        step_key=settings.step_key,
        step_pattern=settings.step_pattern,
        complete_marker=settings.complete_marker,
        formats=settings.formats,
        glob=CheckpointGlob.of(settings.checkpoint_glob),
        clock=clock or SystemClock(),
        calls=calls,
        looked=looked,
    )


def make_workers(
    settings: Settings, environ: Mapping[str, str], name: str, post: Post, *, warn: Callable[[str], None]
) -> Workers:
    """This node's worker processes; none is started yet. `warn` is called if their logs go to another folder."""
    logs, moved = usable_log_folder(settings.worker_logs)
    if moved is not None:
        warn(moved)
    devices = visible(settings.devices, settings.replicas, environ)
    check_idle(devices, share=settings.share_gpu)
    return Workers(
        Launch(
            interpreter=str(settings.worker_python),
            framework=settings.framework,
            environment=environ,
            changes=settings.worker_env,
            devices=devices,
            logs=logs,
            directory=str(Path.cwd()),
        ),
        Bounds(
            join=settings.join_timeout_seconds,
            restore=settings.restore_timeout_seconds,
            first_batch=settings.first_batch_timeout_seconds,
            stall=settings.stall_seconds,
            stall_factor=settings.stall_factor,
            halt=settings.lease_seconds,
        ),
        name,
        advertised_host(settings, environ),
        Ports(settings.ports.start, settings.ports.stop - 1),
        post,
        keep_standby=settings.standby,
    )


def make_join(settings: Settings) -> Join:
    """What every worker is told when it joins; members and rank are filled in by the plan."""
    return Join(
        group="",
        members=(),
        rank=0,
        task=settings.task or "",
        framework=settings.framework,
        search_path=str(Path.cwd()),
        threads=settings.threads,
        collectives=settings.collectives,
        always_cluster=settings.always_cluster,
        cache_bytes=settings.cache_bytes,
        trust_saved_graph=settings.trust_saved_graph,
        gpu_memory_mb=settings.gpu_memory_mb,
    )


@dataclass(slots=True)
class Shown:
    """What request threads show: replaced as a whole by the loop, never changed."""

    status: dict[str, Any]
    unready: str | None = "starting"


@dataclass(slots=True)
class Showing:
    """Takes what the loop says of itself, at each turn, to whoever shows it."""

    shown: Shown
    exporter: Exporter
    notify: Notifier
    last: tuple[Status, int] | None = None

    def __call__(self, status: Status, history: History) -> None:
        """Tell systemd that the loop turned; renew gauges and status page, if anything changed."""
        self.notify(status, history)
        if self.last == (status, history.count):
            return
        self.last = status, history.count
        self.exporter.update(status, history)
        self.shown.unready = status.unready
        self.shown.status = status_json(status, history)


@dataclass(slots=True)
class Log:
    """The loop's log: named events, and entries of the journal in their canonical lines."""

    log: Any
    best: Callable[[], Mapping[tuple[str, str], Best]] = dict  # which evaluation is the best so far, by metric
    worker_log: Callable[[str], Path | None] = lambda _: None  # where a worker process of this node writes

    def info(self, event: str, **fields: Any) -> None:
        """Something happened."""
        self.log.info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something that a person may have to look at."""
        self.log.warning(event, **fields)

    def entry(self, entry: Entry | Plan) -> None:
        """A record of the journal."""
        entry_logged(self.log, entry, self.best(), self._log_of)

    def _log_of(self, closed: Closed) -> str | None:
        """The log of the worker that failed, if it is one of this node's, else of any of them that took part."""
        members = closed.plan.members or ()
        ranks = sorted(members, key=lambda member: member.rank != closed.outcome.rank)
        logs = (self.worker_log(member.worker) for member in ranks)
        return next((str(path) for path in logs if path is not None), None)


def _announce(log: Any, settings: Settings, decision: RoleDecision, url: str) -> None:
    log.info(
        "daemon_started",
        version=__version__,
        role=decision.role,
        role_source=decision.source,
        checkpoint_dir=str(settings.checkpoint_dir),
        state_dir=str(settings.state_dir),
        http=url,
    )
    if decision.warning is not None:
        log.warning("role_uncertain", warning=decision.warning, remedy=decision.remedy)
    elif decision.role == "chief":
        log.info("chief_idles", source=decision.source, remedy=decision.remedy)


def _warn_of_public_ports(log: Any, settings: Settings, host: str) -> None:
    """Workers' ports are open on every address of the machine, not on the advertised one alone."""
    advertised = public_address(host, resolve=False)
    addresses = dict.fromkeys((*([] if advertised is None else [advertised]), *public(own_addresses())))
    if addresses:
        log.warning(
            "eval_ports_public",
            host=host,
            addresses=", ".join(addresses),
            ports=settings.port_range,
            remedy=EVAL_PORTS_REMEDY,
        )


def _crew(settings: Settings, environ: Mapping[str, str], identity: Identity, post: Post, log: "Log") -> Crew:
    workers = make_workers(
        settings, environ, identity.workers, post, warn=lambda text: log.warning("worker_logs_moved", reason=text)
    )
    return Crew(
        workers,
        make_join(settings),
        settings.backoff_first_seconds,
        settings.backoff_last_seconds,
        settings.release_idle_seconds if settings.devices != "cpu" else None,
        describe(workers.launch.devices),
        log,
    )


def _timing(settings: Settings) -> Timing:
    return Timing(
        beat=settings.beat_seconds,
        lease=settings.lease_seconds,
        sweep=settings.sweep_seconds,
        storage=settings.storage_timeout_seconds,
        visibility=settings.visibility_seconds,
        drain=settings.drain_seconds,
        nothing_seen=settings.nothing_seen_seconds,
    )


def make_rules(settings: Settings) -> Rules:
    """What decisions depend on."""
    return Rules(
        queue=settings.queue,
        every_steps=settings.every_steps,
        min_workers=settings.min_workers,
        max_attempts=settings.max_attempts,
        max_losses=settings.max_losses,
        backoff_first=settings.backoff_first_seconds,
        backoff_last=settings.backoff_last_seconds,
        settle=settings.settle_seconds,
        join=settings.join_timeout_seconds,
        patience=settings.proposal_patience_seconds,
        plan_cap=settings.plan_cap_seconds,
        collective=settings.collective_timeout_seconds,
        visibility=settings.visibility_seconds,
        stop_after_step=settings.stop_after_step,
        stop_idle=settings.stop_idle_seconds,
        wait=settings.wait,
    )
