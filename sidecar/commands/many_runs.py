"""Serve several runs in one process: one loop, one HTTP port, and turns with the worker processes of this node.

`cli` calls `serve_many` where the settings name several runs. Each run has its own daemon, storage thread, journal and
sinks, as if it was alone: a run that fails, or whose storage hangs, does not hold the others up. One thread looks for
directories and prepares runs, since that may block; the loop alone changes what `RunHost` holds.
"""

import queue
import signal
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from sidecar.commands.bootstrap import AmongRuns, return_large_blocks
from sidecar.commands.ineffective_settings import ineffective
from sidecar.commands.run_finder import Delayed, Found, Prepared, RunFinder, known_error
from sidecar.commands.serve import listen, warn_of_role, why_unscanned
from sidecar.commands.served_run import ServedRun, settings_to_serve
from sidecar.daemon.events import Message, SaveNoticed, Terminate
from sidecar.daemon.worker_supervisor import WorkerSupervisor
from sidecar.errors import RunReplacedError, SettingsError, SidecarError
from sidecar.policy.fair_shares import FairShares, RunTurn
from sidecar.policy.node_identity import node_name
from sidecar.policy.roles import RoleDecision, decide_role
from sidecar.publishing.http import AccessFile, Server
from sidecar.publishing.plain_structlog import structlog
from sidecar.publishing.prometheus import Exporter, RunsCollector
from sidecar.publishing.run_list import RunState, RunSummary, runs_path
from sidecar.publishing.systemd import Notifier
from sidecar.settings import Settings
from sidecar.settings.runs import Place, SharedSettings, why_ignored
from sidecar.system.bucket_folder import place_of
from sidecar.system.clock import Clock, SystemClock
from sidecar.system.event_log import EventLog
from sidecar.system.shortages import require_descriptors
from sidecar.version import version

MOST_RUNS: Final = 500
"""The most runs at a time. Each takes memory, threads and processor time, and others may make directories."""

_WORKERS_END_SECONDS: Final = 10.0  # for killed workers to free memory and ports
_FIRST_PAUSE_SECONDS: Final = 30.0  # before a run that failed begins again; doubled each time
_LONGEST_PAUSE_SECONDS: Final = 600.0
_CHORES_SECONDS: Final = 1.0


@dataclass(slots=True, kw_only=True)
class HostedRun:
    """Hold one run of the process, from the first look at its directory until that is gone."""

    place: Place
    name: str
    state: RunState = RunState.STARTING
    reason: str | None = None  # why it failed, or how it ended
    served: ServedRun | None = None  # while it is served, and while it ends
    outcome: SidecarError | int | None = None  # how its daemon ended
    turn_at: float = 0.0  # when its loop turns next
    until: float = float("inf")  # when its workers must have ended, or a failed run begins again
    failures: int = 0  # in a row
    missing_since: float | None = None  # since when its directory is gone
    leaves: bool = False  # it ends because its directory is gone

    def summary(self, seconds: float | None, *, has_turn: bool) -> RunSummary:
        """Return what the page and the metrics show. HTTP threads call this."""
        served = self.served
        return RunSummary(
            run=self.name,
            place=self.place.where,
            state=self.state,
            reason=self.reason,
            seconds=seconds,
            has_turn=has_turn,
            status=None if served is None else served.published.status,
            archive=None if served is None else served.archive,
        )


@dataclass(frozen=True, slots=True)
class Closed:
    """Report that the storage thread and the sinks of a run have ended."""

    place: Place


_OfRuns = Found | Prepared | Delayed | Closed


def _make(
    host: "RunHost",
    environ: Mapping[str, str],
    node: str,
    decision: RoleDecision,
    scheme: str,
    settings: Settings,
    place: Place,
) -> ServedRun:
    """Return a run with a daemon, whose messages go to the host. Raises `SidecarError` if it cannot be served.

    `RunFinder` calls this in a thread, because it may touch storage.
    """
    settings = settings_to_serve(settings, decision)
    run = ServedRun(
        settings,
        environ,
        node=node,
        decision=decision,
        clock=host.clock,
        log=structlog.get_logger().bind(run=settings.run, node=node),
        registry=None,
        notify=lambda *_: None,
        scheme=scheme,
        among=AmongRuns(
            turn=RunTurn(host.shares, place.where),
            supervisor_of=host.supervisor_of,
            processes=host.processes,
            page=runs_path(settings.run),
        ),
    )
    run.begin(lambda message: host.inbox.put((run, message)))
    if (why := why_ignored(place)) is not None:
        run.log.warning("run_settings_ignored", file=f"{place.where}/sidecar.toml", reason=why)
    return run


def serve_many(shared: SharedSettings, environ: Mapping[str, str], *, settings_file: Path | None = None) -> int:
    """Serve all runs of the settings until a signal, or with `--once` until all of them have ended.

    Return 0, or with `--once` the largest exit code of a run.
    """
    require_descriptors()
    return_large_blocks()
    settings, clock = shared.node, SystemClock()
    node = node_name(settings, environ)
    decision = decide_role(settings, node, environ)
    access, registry = AccessFile(settings.http_access), CollectorRegistry()
    log = structlog.get_logger().bind(node=node)
    host = RunHost(settings=settings, clock=clock, log=log, notify=Notifier(environ))
    finder = RunFinder(
        shared=shared,
        make=partial(_make, host, environ, node, decision, access.access.scheme),
        clock=clock,
        post=lambda message: host.inbox.put((None, message)),
    )
    host.prepare = finder.prepare
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: host.inbox.put((None, Terminate(signal.Signals(number).name))))
    RunsCollector(registry, host.exporters, host.summaries)
    server = Server(
        settings.http_host,
        settings.http_port,
        names=(*settings.http_hosts, *([] if settings.host is None else [settings.host])),
        registry=registry,
        health=host.healthy,
        ready=host.unready,
        runs=host.summaries,
        notice=(lambda path: why_unscanned(decision) or host.notice(path)) if settings.http_notices else None,
        access=access,
    )
    listen(server, settings, node)
    if settings_file is not None:
        log.info("settings_read", file=str(settings_file))
    log.info(
        "daemon_started",
        version=version(),
        role=decision.role,
        role_source=decision.source,
        runs=list(settings.runs),
        http=server.url,
    )
    warn_of_role(log, settings, decision, environ)
    finder.start()
    try:
        return host.serve()
    finally:
        server.close()


@dataclass(slots=True, kw_only=True)
class RunHost:
    """Hold all runs, and turn their loops. One thread owns it; others call `summaries`, `healthy` and `unready`.

    `prepare` is called with the place of a run, does not wait, and answers with a message.
    """

    settings: Settings
    clock: Clock
    log: EventLog
    notify: Notifier
    prepare: Callable[[Place], None] = lambda _: None
    inbox: "queue.SimpleQueue[tuple[ServedRun | None, Message | _OfRuns]]" = field(default_factory=queue.SimpleQueue)
    runs: dict[str, HostedRun] = field(default_factory=dict)  # by place
    shares: FairShares = field(init=False)
    _has_looked: bool = False
    _left_out: int = 0  # runs that wait until another one ends
    _stopping: Terminate | None = None
    _turned_at: float = field(init=False)
    _chores_at: float = 0.0

    def __post_init__(self) -> None:
        self._turned_at = self.clock.now()
        self.shares = FairShares(
            at_once=self.settings.runs_at_once,
            turn_seconds=self.settings.run_turn_seconds,
            patience_seconds=self.settings.join_timeout_seconds,
            wake=self._wake,
        )

    # -- for other threads -------------------------------------------------------------------------------------------

    def summaries(self) -> list[RunSummary]:
        """Return what is known of each run, by name."""
        found = [
            hosted.summary(self.shares.seconds(where), has_turn=self.shares.has_turn(where))
            for where, hosted in list(self.runs.items())
        ]
        return sorted(found, key=attrgetter("run"))

    def exporters(self) -> list[Exporter]:
        """Return the exporter of each run that is served."""
        return [hosted.served.exporter for hosted in list(self.runs.values()) if hosted.served is not None]

    def notice(self, path: str) -> str | None:
        """Have the run scanned that has this checkpoint, or this directory. Return why there is none."""
        served = [
            hosted.served
            for hosted in list(self.runs.values())
            if hosted.served is not None and f"{path}/".startswith(f"{hosted.place.where.rstrip('/')}/")
        ]
        for run in served:
            self.inbox.put((run, SaveNoticed()))
        return None if served else f"no run here has its checkpoints at {path!r}"

    def healthy(self) -> str | None:
        """Return why the loop is not turning, for /healthz; None if it is turning."""
        silent = self.clock.now() - self._turned_at
        limit = self.settings.loop_timeout_seconds
        return f"the loop has not turned for {silent:.0f} s" if silent > limit else None

    def unready(self) -> str | None:
        """Return why this process does not serve its runs, for /readyz. A run that fails does not count."""
        if self._stopping is not None:
            return "the daemon is draining"
        return None if self._has_looked else "the directories of the runs are not listed yet"

    def processes(self) -> Collection[int]:
        """Return the ids of the worker processes of all runs."""
        supervisors = [
            hosted.served.daemon.supervisor for hosted in list(self.runs.values()) if hosted.served is not None
        ]
        return [worker.process.pid for each in supervisors if each is not None for worker in each.workers.all()]

    def supervisor_of(self, where: str) -> WorkerSupervisor | None:
        """Return the supervisor of a run that is served; None if there is none. The loop alone calls this."""
        hosted = self.runs.get(where)
        if hosted is None or hosted.served is None or hosted.state != RunState.SERVING:
            return None
        return hosted.served.daemon.supervisor

    # -- the loop ----------------------------------------------------------------------------------------------------

    def serve(self) -> int:
        """Turn the loops of all runs until the end, and return the exit code. No worker process outlives this."""
        try:
            while (code := self._code()) is None:
                self.turn(wait=True)
        finally:
            for hosted in self.runs.values():
                self._kill(hosted)
        return code

    def turn(self, *, wait: bool = False) -> None:
        """Take all messages, and turn the loop of each run that has something to do."""
        now = self.clock.now()
        due = min([self._chores_at, *(hosted.turn_at for hosted in self.runs.values())])
        try:
            self._take(*self.inbox.get(timeout=max(0.0, due - now) if wait else 0.0))
            while not self.inbox.empty():
                self._take(*self.inbox.get_nowait())
        except queue.Empty:
            pass
        self._turned_at = now = self.clock.now()
        for hosted in list(self.runs.values()):
            if now >= hosted.turn_at:
                self._turn(hosted)
        if now >= self._chores_at:
            self._chores(now)

    def _wake(self, where: str) -> None:
        """Turn the loop of a run at once: its turn began, or may have to end."""
        if where in self.runs and self.runs[where].served is not None:
            self.runs[where].turn_at = 0.0

    def _take(self, run: ServedRun | None, message: "Message | _OfRuns") -> None:
        """Apply a message of a run's daemon, or one about runs."""
        if isinstance(message, Found):
            self._note_places(message.places)
        elif isinstance(message, Prepared):
            self._begin(message)
        elif isinstance(message, Delayed):
            self._note_delay(message)
        elif isinstance(message, Closed):
            self._forget(self.runs[message.place.where])
        elif run is None and isinstance(message, Terminate):
            self._terminate(message)
        else:
            hosted = next((hosted for hosted in self.runs.values() if hosted.served is run), None)
            if hosted is not None:
                self._observe(hosted, message)

    def _observe(self, hosted: HostedRun, message: Message) -> None:
        """Let the daemon of a run apply a message. An error ends the daemon of this run alone."""
        assert hosted.served is not None
        daemon = hosted.served.daemon
        if hosted.state == RunState.ENDING:
            if isinstance(message, tuple) and daemon.supervisor is not None:
                daemon.supervisor.workers.observe(*message, self.clock.now())
        else:
            try:
                daemon.observe(message)
            except Exception as error:  # noqa: BLE001 - the other runs go on
                self._end(hosted, known_error(error))
        hosted.turn_at = 0.0

    def _turn(self, hosted: HostedRun) -> None:
        """Turn the loop of a run, or go on with its end."""
        now, served = self.clock.now(), hosted.served
        hosted.turn_at = float("inf")
        if served is None:
            if now >= hosted.until and self._stopping is None and self.settings.wait:
                hosted.until = float("inf")
                self.prepare(hosted.place)
            hosted.turn_at = hosted.until
        elif hosted.state == RunState.ENDING:
            workers = served.daemon.supervisor.workers if served.daemon.supervisor is not None else None
            if now >= hosted.until or workers is None or not any(workers.all()):
                if hosted.until < float("inf"):
                    self.shares.leave(hosted.place.where, now)
                    self._close(hosted, served)
                hosted.until = float("inf")
            hosted.turn_at = hosted.until
        else:
            self._adopt_task(served)
            try:
                hosted.turn_at = served.daemon.tick()
                if served.published.unready is None:
                    hosted.failures = 0
                ended = served.daemon.exit
            except Exception as error:  # noqa: BLE001 - the other runs go on
                ended = known_error(error)
            if ended is not None:
                self._end(hosted, ended)

    def _adopt_task(self, run: ServedRun) -> None:
        """Let a run take over what another one found out about the same task, so that it need not be checked again."""
        supervisor = run.daemon.supervisor
        if supervisor is None or supervisor.task is not None:
            return
        for other in self.runs.values():
            found = other.served.daemon.supervisor if other.served is not None else None
            if found is not None and found.task is not None and found.evaluates_like(supervisor):
                supervisor.adopt(found)
                return

    # -- runs begin and end ------------------------------------------------------------------------------------------

    def _note_places(self, places: Collection[Place]) -> None:
        """Begin the runs of new directories, and end those whose directories are gone."""
        now, there = self.clock.now(), {place.where for place in places}
        if not self._has_looked and not places:
            self.log.warning("no_runs_found", runs=list(self.settings.runs))
        self._has_looked = True
        new = [place for place in places if place.where not in self.runs] if self._stopping is None else []
        new.sort(key=attrgetter("found"))  # those that the settings name come first
        room = max(0, MOST_RUNS - sum(map(self._takes_room, self.runs.values())))
        if (left_out := len(new[room:])) > self._left_out:
            self.log.warning("runs_left_out", count=left_out, most=MOST_RUNS, first=new[room].where)
        self._left_out = left_out
        for place in new[:room]:
            self.runs[place.where] = HostedRun(place=place, name=place.name, turn_at=float("inf"))
            self.prepare(place)
        for where, hosted in list(self.runs.items()):
            if where in there or not hosted.place.found:
                hosted.missing_since = None
            elif hosted.missing_since is None:
                hosted.missing_since = now
            elif now >= hosted.missing_since + self.settings.vanished_after_seconds and not hosted.leaves:
                self._leave(hosted)

    def _takes_room(self, hosted: HostedRun) -> bool:
        """Return whether a run is served, or begins by itself."""
        begins = (RunState.STARTING, RunState.FAILED) if self.settings.wait else (RunState.STARTING,)
        return hosted.served is not None or hosted.state in begins

    def _note_delay(self, delayed: Delayed) -> None:
        """Show why a run has not begun, and log it once."""
        hosted = self.runs.get(delayed.place.where)
        if hosted is not None and hosted.served is None:
            if hosted.reason is None:
                self.log.warning("run_delayed", run=hosted.name, reason=delayed.reason)
            hosted.reason = delayed.reason

    def _leave(self, hosted: HostedRun) -> None:
        """End a run whose directory is gone."""
        hosted.leaves = True
        self.log.info("run_gone", run=hosted.name, place=hosted.place.where)
        if hosted.served is None:
            del self.runs[hosted.place.where]
        elif hosted.state == RunState.SERVING:
            self._observe(hosted, Terminate("SIGTERM"))

    def _begin(self, prepared: Prepared) -> None:
        """Serve a run that is prepared, or note why it cannot be served."""
        hosted = self.runs.get(prepared.place.where)
        if hosted is None or self._stopping is not None:
            if not isinstance(prepared.run, SidecarError):
                self._close(None, prepared.run)
            return
        if isinstance(prepared.run, SidecarError):
            self._fail(hosted, prepared.run)
            return
        run, settings = prepared.run, prepared.run.settings
        other = next((o for o in self.runs.values() if o.served is not None and o.name == settings.run), None)
        if other is not None:
            self._close(None, run)
            self._fail(
                hosted,
                SettingsError(
                    f"{other.place.where} is named {settings.run!r}, too, and only the name tells runs apart: write "
                    f'run = "…" into {hosted.place.where}/sidecar.toml'
                ),
            )
            return
        hosted.name, hosted.served, hosted.state, hosted.reason = settings.run, run, RunState.SERVING, None
        hosted.turn_at, hosted.until, hosted.outcome = 0.0, float("inf"), None
        self.shares.join(hosted.place.where, settings.priority)
        run.start_storage()
        run.log.info("run_begun", checkpoint_dir=hosted.place.where, state_dir=place_of(settings.state_dir))
        for message in ineffective(settings):
            run.log.warning("setting_ineffective", message=message)

    def _end(self, hosted: HostedRun, outcome: SidecarError | int) -> None:
        """End the daemon of a run; the rest follows once its workers have ended."""
        hosted.state, hosted.outcome = RunState.ENDING, outcome
        hosted.turn_at, hosted.until = 0.0, self.clock.now() + _WORKERS_END_SECONDS
        self._kill(hosted)

    def _kill(self, hosted: HostedRun) -> None:
        served = hosted.served
        if served is not None and served.daemon.supervisor is not None:
            served.daemon.supervisor.workers.kill_all()

    def _close(self, hosted: HostedRun | None, run: ServedRun) -> None:
        """Close the storage thread and the sinks of a run in a thread of its own, since that may take seconds."""

        def close() -> None:
            try:
                run.close_storage()
                run.close_sinks()
            finally:
                if hosted is not None:
                    self.inbox.put((None, Closed(hosted.place)))

        threading.Thread(target=close, name="run-close", daemon=True).start()

    def _forget(self, hosted: HostedRun) -> None:
        """Note that nothing of a run's daemon is left, and what comes next."""
        outcome, hosted.served = hosted.outcome, None
        if hosted.leaves:
            del self.runs[hosted.place.where]
        elif isinstance(outcome, RunReplacedError):
            self.log.warning("run_begun_anew", run=hosted.name, reason=str(outcome))
            hosted.state, hosted.until, hosted.turn_at = RunState.STARTING, 0.0, 0.0
        elif isinstance(outcome, SidecarError):
            self._fail(hosted, outcome)
        else:
            hosted.state, hosted.turn_at = RunState.ENDED, float("inf")
            hosted.reason = "all is evaluated" if outcome == 0 else "checkpoints failed; `sidecar history` lists them"

    def _fail(self, hosted: HostedRun, error: SidecarError) -> None:
        """Note why a run cannot be served, and try again after a pause: people correct settings and tasks."""
        pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0**hosted.failures)
        if str(error) != hosted.reason:
            self.log.warning("run_failed", run=hosted.name, reason=str(error), again_seconds=pause)
        hosted.state, hosted.reason, hosted.outcome = RunState.FAILED, str(error), error
        hosted.failures = min(hosted.failures + 1, 16)
        hosted.until = hosted.turn_at = self.clock.now() + pause

    def _terminate(self, message: Terminate) -> None:
        """Drain every run at the first signal, and end at the second."""
        self._stopping = message
        for hosted in list(self.runs.values()):
            if hosted.state == RunState.SERVING:
                self._observe(hosted, message)

    def _code(self) -> int | None:
        """Return the exit code once all is over; None while a run is served, or may come."""
        runs = self.runs.values()
        if any(hosted.served is not None for hosted in runs):
            return None
        if self._stopping is not None:
            return 0
        is_incomplete = self._left_out > 0 or any(run.state == RunState.STARTING for run in runs)
        if self.settings.wait or not self._has_looked or is_incomplete:
            return None
        codes = [run.outcome.exit_code if isinstance(run.outcome, SidecarError) else run.outcome for run in runs]
        return max((code for code in codes if code is not None), default=0)

    def _chores(self, now: float) -> None:
        """Tell systemd that the loop turns."""
        self._chores_at = now + _CHORES_SECONDS
        serving = sum(hosted.state == RunState.SERVING for hosted in self.runs.values())
        failed = sum(hosted.state == RunState.FAILED for hosted in self.runs.values())
        line = f"{serving} runs" + (f", {failed} failed" if failed else "")
        self.notify.tell(line, started=self._has_looked, stopping=self._stopping is not None)
