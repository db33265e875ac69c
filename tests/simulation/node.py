"""One node: a host that stays, and the lives of daemons on it. A life is the real daemon on a machine of fakes."""

from types import SimpleNamespace

from rules import make_rules

from sidecar.checkpoints.watched_catalog import WatchedCatalog
from sidecar.coordination.heartbeats import ReadLimits
from sidecar.daemon.build import build_daemon
from sidecar.daemon.events import Terminate
from sidecar.daemon.loop import Daemon
from sidecar.daemon.storage_thread import CreatePlan, DirectoryMissing, Request, StorageThread, Sync, Synced
from sidecar.daemon.timing import Timing
from sidecar.daemon.worker_supervisor import WorkerSupervisor
from sidecar.daemon.workers.command_specs import EvaluateSpec, TaskSpec
from sidecar.daemon.workers.engine import LocalEngine, WorkerLaunch
from sidecar.daemon.workers.pool import WorkerPool
from sidecar.daemon.workers.timeouts import PhaseTimeouts
from sidecar.evaluation.framework_traits import traits_of
from sidecar.policy.node_identity import Identity
from sidecar.policy.roles import RoleDecision
from sidecar.protocol.export_rule import ExportRule
from sidecar.retention.pins.copy_arbiter import CopyArbiter
from sidecar.retention.pins.disk_budget import DiskBudget
from sidecar.retention.pins.reconciler import PinReconciler, Reconciliation
from sidecar.retention.saves.retention import Retention
from simulation.bucket import SimulatedObjects, bucket_storage
from simulation.checkpoints import NodeCatalog, NodePins, NodeSaves
from simulation.scheduler import Waiter
from simulation.storage import NodePlace, NodeStorage
from simulation.workers import SimulatedProcess

_QUIET_FACTOR = 10 / 3.5  # of the beat, in a bucket, while nobody waits for a heartbeat: as in the product


class Host:
    """A machine: its clocks, what it has cached of the storage, and what is wrong with it."""

    def __init__(self, simulation, spec) -> None:
        self.simulation, self.spec, self.name = simulation, spec, spec.name
        self.life: Life | None = None
        self.lives = 0
        self.gone = False  # for good
        self.role = spec.role
        self.wall_offset = spec.wall_offset
        self.stopped_until = 0.0  # the daemon
        self.workers_stopped_until = 0.0
        self.cut_off_until = 0.0
        self.hangs_until = 0.0
        self.slowness = 1.0
        self.stale_for = 0.0
        self.sees_until = 0.0  # no cache hides what was saved before that
        self.loses_replies = False
        self.imports_fail = False
        self.lies = False
        self.troubled_until = 0.0
        self.daemon_troubled_until = 0.0  # by anything else than what befell its workers
        self.aimed_at_workers: list = []  # faults
        self.stop_before_create = 0.0
        self.stop_after_create = 0.0
        self.cache: dict = {}
        self.listings: dict = {}
        self.replaced: set[str] = set()
        self.wrong: dict[str, float] = {}  # errors about one entry, or one kind of operation, and until when
        self.full_with = 0  # errno
        self.run_missing_since = float("inf")  # when the newest fault `run_missing` began
        self.pins_late = 0.0

    def is_wrong(self, what: str) -> bool:
        """Return whether that is wrong with this machine now."""
        return bool(self.wrong) and self.wrong.get(what, 0.0) > self.simulation.scheduler.now

    def trouble_with(self, entry: str) -> str | None:
        """Return why this node cannot read an entry now: `pin:FOLDER` or `checkpoint:NAME`; None if it can."""
        if not self.wrong:
            return None
        name = entry.partition(":")[2].partition("@")[0]
        if self.is_wrong(entry) or self.is_wrong(f"hangs:{name}"):
            return f"{name}: Input/output error"
        return None

    # -- sidecar.system.clock.Clock --------------------------------------------------------------------------------

    def now(self) -> float:
        """CLOCK_BOOTTIME: it began at another time on each machine, and no fault touches it."""
        return self.simulation.scheduler.now + self.spec.boot_offset

    def wall(self) -> float:
        """The wall clock, which people and NTP set."""
        return 1.8e9 + self.simulation.scheduler.now + self.wall_offset

    # -- lives --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a daemon, unless one runs."""
        if not self.gone and (self.life is None or self.life.over):
            self.lives += 1
            self.life = Life(self.simulation, self, f"{self.spec.key}x{self.lives}")
            self.simulation.lives.append(self.life)

    @property
    def runs(self) -> bool:
        """Return whether a daemon runs."""
        return self.life is not None and not self.life.over

    @property
    def ended(self) -> float:
        """Return when its last daemon ended; infinity while one runs."""
        return float("-inf") if self.life is None else self.life.ended


class _Nothing:
    """A port that nobody binds, and whoever hands it out."""

    number = 1

    def reserve(self) -> "_Nothing":
        """Return this port, in place of `Ports.reserve`."""
        return self

    def close(self) -> None:
        """Close the port, which nobody bound."""


class _Log:
    """Turns what a daemon logs into lines of the history, if there is one."""

    def __init__(self, life) -> None:
        self._life = life

    def info(self, event: str, **fields) -> None:
        """Note an event in the history, and the state of the journal when the run ended."""
        if event == "run_ended":
            history = self._life.daemon.state.history
            self._life.ended_after = history.through, history.open is None
            self._life.ended_run_at = self._life.simulation.scheduler.now
            self._life.left = self._life.simulation.referee.readable(self._life)
            self._life.saw_until = self._life.simulation.referee.saw_until(self._life)
        self._life.simulation.note(lambda: f"{self._life.name} logs {event} {fields}")

    warning = info

    def entry(self, entry, best) -> None:
        """The journal is told by whoever writes it."""


class Life:
    """One daemon from its start to its end: the loop, its storage thread, its worker processes."""

    def __init__(self, simulation, host: Host, incarnation: str) -> None:
        self.simulation, self.host, self.incarnation = simulation, host, incarnation
        self.name = f"{host.spec.name} ({incarnation})"
        self.over = False
        self.leaves_writes = False
        self.role = host.role
        self.began = simulation.scheduler.now
        self.ended = float("inf")
        self.terminated = False
        self.looked_at = float("inf")  # when it asked for its newest look
        self.asked_at = float("inf")  # when it asked its storage thread for something last
        self.left: dict = {}  # what it could read of checkpoints when it said that the run is over
        self.ended_run_at = float("-inf")  # when it said that the run is over
        self.saw_until = float("inf")  # until when it had had the time to see what lay there, when it said so
        self.ended_after: tuple[int, bool] | None = None  # the plan, and whether it was closed, when it said so
        self.open_plan: tuple[int, float] | None = None  # the one it sees, since when
        self.processes: dict[str, SimulatedProcess] = {}
        simulation.roles[f"{host.name}.{incarnation}"] = self.role
        self.waiter: Waiter | None = None
        self.told_history = -1
        self.first_look_at = float("inf")  # when the first look at checkpoints was over
        self.began_first = False  # it found no checkpoint directory yet
        self.moved_at = self.began  # when it was told of anything new last
        self._found: set = set()
        self._inbox: list = []
        self._turn_at = float("inf")
        self._turns = 0
        self._nonces = 0
        spec = host.spec
        self.storage = NodeStorage(simulation, self)
        self.objects = SimulatedObjects(simulation, self.storage)
        self.catalog = NodeCatalog(simulation, self, spec.settings.visibility)
        place = SimpleNamespace(is_dir=lambda: simulation.disk.exists)
        pins, saves = NodePins(simulation, self), NodeSaves(simulation, self)
        room = DiskBudget(spec.settings.pin_max)
        done = self.storage.is_done
        patience = spec.settings.visibility
        turns = CopyArbiter(spec.settings.patience, shares_pins=not simulation.scenario.bucket)
        checkpoints = WatchedCatalog(self.catalog, None, host)  # type: ignore[arg-type]
        reconciler = PinReconciler(
            root=place,
            checkpoints=checkpoints,
            pinner=pins,
            saves=saves,
            clock=host,
            room=room,
            is_done=done,
            corrupt_after_seconds=patience,
            turns=turns,
        )  # type: ignore[arg-type]
        self.storage_thread = StorageThread(
            storage=bucket_storage(self.objects) if simulation.scenario.bucket else self.storage,
            reconciler=reconciler,
            clock=host,
            post=self.receive,
            new_id=self._nonce,
            place=NodePlace(simulation, self),  # type: ignore[arg-type]
            visibility_seconds=patience,
            reads=ReadLimits(
                per_second=spec.settings.reads, heard_seconds=spec.settings.lease / 2 if spec.settings.hears else 0.0
            ),
        )
        self.daemon = self._daemon(spec)
        self.wake(simulation.scheduler.now + 0.01)

    def _daemon(self, spec) -> Daemon:
        settings = spec.settings
        identity = Identity(
            run="run",
            node=spec.name,
            incarnation=self.incarnation,
            version=spec.version,
            evaluation_code=spec.evaluation_code,
            role=RoleDecision(self.role, "setting"),
            exports=ExportRule(metric="test/quality", count=settings.export_best) if settings.export_best else None,
        )
        return build_daemon(
            identity=identity,
            rules=make_rules(**settings.rules()),
            timing=Timing(
                beat_seconds=settings.beat,
                lease_seconds=settings.lease,
                loop_timeout_seconds=settings.lease,
                sweep_seconds=settings.sweep,
                storage_timeout_seconds=settings.storage,
                pin_wait_seconds=settings.visibility,
                result_turn_seconds=settings.patience,
                drain_seconds=settings.drain,
                transfer_seconds=settings.restore if self.simulation.scenario.bucket else None,
                quiet_factor=_QUIET_FACTOR if self.simulation.scenario.bucket else 1.0,
            ),
            start_new=settings.start_new,
            vanished_after_seconds=settings.visibility,
            evaluate=EvaluateSpec(save_weights="all", progress_seconds=1.0),
            run_dir=self.simulation.run_dir,
            retention=Retention(keep=2),
            storage_thread=self,
            supervisor=self._supervisor(identity) if self.role == "worker" or spec.chief_has_workers else None,
            clock=self.host,
            log=_Log(self),
            publish=self._show,
            new_nonce=self._nonce,
            snapshot_plans=2,  # so that most who start again begin with a snapshot
        )

    def _supervisor(self, identity: Identity) -> WorkerSupervisor:
        settings, spec = self.host.spec.settings, self.host.spec
        bounds = PhaseTimeouts(
            yield_seconds=300,
            join_timeout_seconds=settings.join,
            restore_timeout_seconds=settings.restore,
            first_batch_timeout_seconds=settings.first_batch,
            stall_seconds=settings.stall,
            stall_factor=settings.stall_factor,
            suspended_timeout_seconds=settings.lease,
        )
        run_dir = self.simulation.run_dir
        launch = WorkerLaunch(
            interpreter="python",
            traits=traits_of("tensorflow"),
            environment={},
            changes={},
            devices=("-1",) * spec.replicas,
            logs=run_dir,
            directory="",
        )
        workers = WorkerPool(
            engine=LocalEngine(launch=launch, host=spec.name, ports=_Nothing(), start=self._start),
            bounds=bounds,
            name=identity.workers,
            post=lambda *_: None,
            keep_standby=spec.standby,
        )
        return WorkerSupervisor(
            workers=workers,
            spec=TaskSpec(task="task.py:task", framework="tensorflow", search_path="", threads=2),
            backoff_first_seconds=settings.backoff_first,
            backoff_last_seconds=settings.backoff_last,
            release_idle=None,
            gpus="",
            log=_Log(self),
        )

    def _start(self, worker: str, **_) -> SimulatedProcess:
        process = SimulatedProcess(self.simulation, self, worker, len(self.processes) + 1)
        self.processes[worker] = self.simulation.processes[worker] = process
        return process

    def _nonce(self) -> str:
        self._nonces += 1
        return f"{self.host.spec.key}.{self.incarnation}.{self._nonces}"

    # -- what happens to it -------------------------------------------------------------------------------------------

    def resumes_at(self) -> float:
        """As lives do: until when it is stopped."""
        return self.host.stopped_until

    def end(self, *, leaves_writes: bool = False) -> None:
        """The daemon is gone, and its worker processes with it."""
        self.simulation.referee.promises.note()
        self.over, self.leaves_writes, self.ended = True, leaves_writes, self.simulation.scheduler.now
        for process in self.processes.values():
            process.end(-9)

    def terminate(self) -> None:
        """Send SIGTERM to the daemon."""
        self.terminated = True
        self.receive(Terminate("SIGTERM"))

    # -- the loop -----------------------------------------------------------------------------------------------------

    def receive(self, message) -> None:
        """A message arrives; the loop turns a moment later."""
        if not self.over:
            self._inbox.append(message)
            self.wake(self.simulation.scheduler.now + 0.0005)

    def wake(self, when: float) -> None:
        """Turn then, or sooner."""
        if when >= self._turn_at:
            return
        self._turn_at = when
        self._turns += 1
        turn = self._turns
        self.simulation.scheduler.at(when, lambda: self._turn(turn), self)

    def _turn(self, turn: int) -> None:
        if turn != self._turns:
            return
        self._turn_at = float("inf")
        inbox, self._inbox = self._inbox, []
        daemon, simulation = self.daemon, self.simulation
        try:
            for message in inbox:
                daemon.observe(message)
            wake = daemon.tick() if daemon.exit is None else 0.0
        except Exception as error:  # noqa: BLE001 - whatever the daemon raises is a finding
            simulation.crashed(self, error)
            return
        if daemon.exit is not None:
            self.end()
            simulation.exited(self, daemon.exit)
            return
        simulation.turned(self)
        self.wake(max(wake - self.host.spec.boot_offset, simulation.scheduler.now + 0.0001))

    def _show(self, status, history) -> None:
        self.simulation.shown(self, status, history)

    # -- the carrier of requests --------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """As `StorageThread.submit`: the storage thread carries it out while others go on."""
        if isinstance(request, CreatePlan):
            self.simulation.proposes(self, request.plan)
        elif isinstance(request, Sync):
            self.simulation.counts["visits"] += 1
            self.looked_at = self.simulation.scheduler.now if request.scan else self.looked_at

        self.asked_at = self.simulation.scheduler.now

        def carry() -> None:
            answer = self.storage_thread.answer(request)
            self.began_first |= isinstance(answer, DirectoryMissing)
            if not self.over:
                found = self._found
                if isinstance(answer, Synced) and isinstance(answer.reconciliation, Reconciliation):
                    found = set(answer.reconciliation.scan.by_key)
                    self.first_look_at = min(self.first_look_at, self.simulation.scheduler.now)
                if (getattr(answer, "records", ()) or found - self._found) and self.ended_after is None:
                    self.moved_at = self.simulation.scheduler.now
                self._found = found
                self.receive(answer)

        self.waiter = Waiter(carry)
        self.simulation.waiters.append(self.waiter)
        self.simulation.scheduler.at(self.simulation.scheduler.now + 0.0005, self.waiter.resume, self)

    def rest(self, seconds: float) -> None:
        """Called from inside the storage thread: give others time, and be stopped here if the daemon is."""
        waiter, scheduler = self.waiter, self.simulation.scheduler
        assert waiter is not None
        scheduler.at(scheduler.now + seconds, waiter.resume, self)
        waiter.wait()
