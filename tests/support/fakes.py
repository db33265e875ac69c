"""Daemons without threads, processes or sleeps: real loop, real policy, real storage, and a clock moved by hand."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from catalogs import make_catalog
from rules import make_rules

from sidecar.checkpoints.catalog import Catalog
from sidecar.checkpoints.files import is_there
from sidecar.checkpoints.formats.crc32c import masked_crc32c
from sidecar.checkpoints.formats.sstable import MAGIC
from sidecar.checkpoints.scan import ScanResult
from sidecar.checkpoints.watched_catalog import WatchedCatalog
from sidecar.coordination.journal import read_history
from sidecar.coordination.journal_state import JournalState
from sidecar.coordination.state_directory import StateDirectory
from sidecar.coordination.storage import PosixStorage
from sidecar.daemon.build import build_daemon
from sidecar.daemon.events import FilesChanged, JournalChanged, Terminate
from sidecar.daemon.storage_thread import Request, Response, StorageThread
from sidecar.daemon.timing import Timing
from sidecar.daemon.worker_supervisor import WorkerSupervisor
from sidecar.daemon.workers.command_specs import EvaluateSpec, TaskSpec
from sidecar.daemon.workers.engine import LocalEngine, WorkerLaunch
from sidecar.daemon.workers.pool import WorkerPool
from sidecar.daemon.workers.process import Exited
from sidecar.daemon.workers.timeouts import PhaseTimeouts
from sidecar.errors import StorageError
from sidecar.evaluation.framework_traits import traits_of
from sidecar.policy.node_identity import Identity
from sidecar.policy.roles import RoleDecision
from sidecar.protocol.export_rule import ExportRule
from sidecar.protocol.messages import Check, Checked, Done, Failed, Join, Joined, Ready
from sidecar.protocol.records import EvalData, Result, Value
from sidecar.publishing.status import Status
from sidecar.retention.exports.exports import Exports
from sidecar.retention.pins.background import BackgroundPinner
from sidecar.retention.pins.disk_budget import DiskBudget
from sidecar.retention.pins.pin import pin
from sidecar.retention.pins.policy import PinDecision
from sidecar.retention.pins.reconciler import PinReconciler
from sidecar.retention.saves.cleanup import ArtifactCleanup
from sidecar.retention.saves.retention import Retention

TIMING = Timing(
    beat_seconds=2.0,
    lease_seconds=10.0,
    loop_timeout_seconds=10.0,
    sweep_seconds=2.0,
    storage_timeout_seconds=10.0,
    pin_wait_seconds=60.0,
    result_turn_seconds=10.0,
    drain_seconds=25.0,
)
BOUNDS = PhaseTimeouts(
    yield_seconds=300,
    join_timeout_seconds=120.0,
    restore_timeout_seconds=1800.0,
    first_batch_timeout_seconds=900.0,
    stall_seconds=60.0,
    stall_factor=5.0,
    suspended_timeout_seconds=10,
)
SIGKILL = -9
LONG_SECONDS = 40.0


class FakeClock:
    """Time that passes when a test says so, or by `step` whenever somebody reads it."""

    def __init__(self, *, step: float = 0.0) -> None:
        self.seconds = 1000.0
        self.wall_seconds = 1_800_000_000.0  # of the moment at which `seconds` is 0
        self._step = step

    def now(self) -> float:
        """Return what `Clock.now` returns."""
        self.seconds += self._step
        return self.seconds

    def wall(self) -> float:
        """Return what `Clock.wall` returns."""
        return self.wall_seconds + self.seconds


class FakeProcess:
    """A worker process that does nothing: it retains its commands and counts how often it was killed."""

    def __init__(self, worker: str = "w", pid: int = 1, environment: dict | None = None) -> None:
        self.worker = worker
        self.pid = pid
        self.environment = environment
        self.commands: list = []
        self.waited: dict[int, float] = {}
        self.yields: bool | None = None
        self.may_be_raised = True
        self.answered = 0
        self.is_ready = False
        self.kills = 0
        self.exited = False

    @property
    def killed(self) -> bool:
        """Return whether it was killed. A `Node` reports the end in its next turn."""
        return self.kills > 0

    def waits(self) -> dict[int, float]:
        """Return how long each thread could not run."""
        return self.waited

    def yield_processors(self, yields) -> bool:
        """Note the priority, and say whether it may be changed so."""
        self.yields = yields
        return yields or self.may_be_raised

    def rename(self, worker, post, log) -> bool:
        """Take another name, unless it has ended."""
        if not self.exited:
            self.worker, self.post, self.log = worker, post, log
        return not self.exited

    def send(self, command) -> None:
        """Retain a command for the test to read."""
        self.commands.append(command)

    def kill(self) -> None:
        """Count a kill of this process."""
        self.kills += 1

    def told(self, kind: type) -> list:
        """Return the commands of a kind."""
        return [command for command in self.commands if isinstance(command, kind)]


class FakePort:
    """A port that nobody binds. It notes when it is given back."""

    def __init__(self, number: int, closed: list[int]) -> None:
        self.number, self._closed = number, closed

    def close(self) -> None:
        """Note that the port was given back."""
        self._closed.append(self.number)


class FakePorts:
    """Ports that nobody binds: 9001, 9002, …; `closed` are those that were given back."""

    def __init__(self) -> None:
        self.taken, self.closed = 0, []

    def reserve(self) -> FakePort:
        """Return the next one."""
        self.taken += 1
        return FakePort(9000 + self.taken, self.closed)


class FaultyStorage:
    """Real files, until a test names the methods that fail, or `all`; with `lost_reply` they act, then fail.

    `asked` holds the paths that each method was called with, also if it failed.
    """

    def __init__(self, storage: PosixStorage) -> None:
        self.storage = storage
        self.fails: set[str] = set()
        self.lost_reply = False
        self.asked: dict[str, list[str]] = defaultdict(list)

    def __getattr__(self, method: str):
        real = getattr(self.storage, method)
        if not callable(real):
            return real

        def call(*arguments, **named):
            self.asked[method].append(arguments[0] if arguments else "")
            if self.fails & {method, "all"}:
                if self.lost_reply:
                    real(*arguments, **named)
                raise StorageError(f"cannot {method} {arguments[0]}: Input/output error")
            return real(*arguments, **named)

        return call


class ScannedCatalog:
    """A real catalog. `around`, if a test sets it, gets each scan as a function and returns what the node sees."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.around: Callable[[Callable[[], ScanResult]], ScanResult] | None = None

    def scan(self, *arguments, **named) -> ScanResult:
        """Scan, or do what the test says."""
        look = partial(self.catalog.scan, *arguments, **named)
        return look() if self.around is None else self.around(look)

    def __getattr__(self, name: str):
        return getattr(self.catalog, name)


@dataclass
class ListLog:
    """Hold what was told."""

    events: list[tuple[str, dict]] = field(default_factory=list)
    entries: list = field(default_factory=list)
    best: dict = field(default_factory=dict)

    def info(self, event: str, **fields) -> None:
        """Keep an event with its fields."""
        self.events.append((event, fields))

    warning = info

    def entry(self, entry, best) -> None:
        """Keep a journal entry and the best evaluations at that time."""
        self.entries.append(entry)
        self.best = best

    def names(self) -> list[str]:
        """The events, without their fields."""
        return [event for event, _ in self.events]

    def of(self, event: str) -> list[dict]:
        """The fields of every such event."""
        return [fields for name, fields in self.events if name == event]


class AllAlike:
    """Every checkpoint is wanted, or none; nothing is exported."""

    exports = ()

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.before = 0

    def decide(self, found) -> PinDecision:
        """Decide to pin and retain all that was found, or nothing."""
        keys = frozenset(found) if self.wanted else frozenset()
        return PinDecision(keys, keys)

    def is_settled(self, _) -> bool:
        """Return that no checkpoint is settled."""
        return False

    def retains(self, _) -> bool:
        """Return whether checkpoints are wanted."""
        return self.wanted

    def of_the_journal(self):
        """Return the same policy, since it does not depend on the journal."""
        return self

    def exported(self):
        """Return that no checkpoint is exported."""
        return {}

    def settled_as(self, _):
        """Return that no checkpoint is settled under a folder."""
        return []


class Node:
    """One node: a daemon, its storage thread and its worker processes, all of them turned by hand.

    Worker processes do at once what they are told, but for what `silent` names: start, Check, Join, Evaluate.
    """

    def __init__(
        self,
        root: Path,
        clock: FakeClock,
        node: str = "worker-1",
        incarnation: str = "i1",
        *,
        role: str = "worker",
        replicas: int = 1,
        start_new: bool = False,
        keep_standby: bool = True,
        pin_max_bytes: int | None = None,
        keep_free_bytes: int = 0,
        state_dir: Path | None = None,
        checkpoint_glob: Iterable[str] = ("*",),
        exports: ExportRule | None = None,
        **rules,
    ) -> None:
        self.clock, self.node = clock, node
        self.checkpoint_dir = root / "checkpoints"
        self.run_dir = (state_dir or self.checkpoint_dir / ".sidecar") / "run"
        self.storage = FaultyStorage(PosixStorage(self.run_dir))
        self.log = ListLog()
        self.statuses: list[Status] = []
        self.processes: dict[str, FakeProcess] = {}
        self.silent: set[str] = set()
        self.task = "t1"  # digest of the code that workers import
        self.hangs = False  # storage does not answer
        self.numbers: dict[str, Value] = {}  # what workers find for test/accuracy, by checkpoint
        self.data: str | None = None  # fingerprint of the data that workers read
        self.requests: list[Request] = []
        self.carried: list[Request] = []
        self.answers: list[Response] = []
        self.next_turn = 0.0
        self.catalog = ScannedCatalog(
            make_catalog(
                self.checkpoint_dir,
                self.run_dir / "pins",
                quiet_seconds=3.0,
                corrupt_after_seconds=60.0,
                checkpoint_glob=tuple(checkpoint_glob),
                clock=clock,
            )
        )
        self.free: int | None = None  # bytes on the storage; None: nobody looks
        saves = ArtifactCleanup(self.run_dir)
        room = DiskBudget(pin_max_bytes, keep_free_bytes, lambda: self.free)
        self.exports = Exports(self.run_dir, self.storage, exports, room=room)
        pinner = BackgroundPinner(
            pins=self.run_dir / "pins",
            owner=node,
            make=partial(pin, room=room),
            exports=self.exports,
        )
        marker = partial(is_there, self.checkpoint_dir / "DONE")
        checkpoints = WatchedCatalog(self.catalog, None, clock)
        reconciler = PinReconciler(
            root=self.run_dir,
            checkpoints=checkpoints,
            pinner=pinner,
            saves=saves,
            clock=clock,
            room=room,
            is_done=marker,
        )
        place = StateDirectory(self.checkpoint_dir, self.run_dir, TIMING.lease_seconds, clock)
        self.storage_thread = StorageThread(
            storage=self.storage, reconciler=reconciler, clock=clock, post=self.answers.append, place=place
        )
        identity = Identity(
            run="run",
            node=node,
            incarnation=incarnation,
            version="1.0",
            role=RoleDecision(role, "setting"),
            exports=exports,
        )
        nonces = iter(range(10**6))
        self.daemon = build_daemon(
            identity=identity,
            rules=make_rules(**rules),
            timing=TIMING,
            start_new=start_new,
            vanished_after_seconds=TIMING.pin_wait_seconds,
            evaluate=EvaluateSpec(save_weights="all", progress_seconds=1.0),
            run_dir=self.run_dir,
            retention=Retention(keep=2),
            storage_thread=self,
            supervisor=self._supervisor(root, identity, replicas, keep_standby=keep_standby)
            if role == "worker"
            else None,
            clock=clock,
            log=self.log,
            publish=lambda status, _: self.statuses.append(status),
            new_nonce=lambda: f"{node}.{incarnation}-{next(nonces)}",
        )
        self.state = self.daemon.state

    def _supervisor(self, root: Path, identity: Identity, replicas: int, *, keep_standby: bool) -> WorkerSupervisor:
        launch = WorkerLaunch(
            interpreter="python",
            traits=traits_of("tensorflow"),
            environment={},
            changes={},
            devices=("-1",) * replicas,
            logs=root / "logs",
            directory=str(root),
        )
        workers = WorkerPool(
            engine=LocalEngine(launch=launch, host=f"{self.node}.local", ports=FakePorts(), start=self._start),
            bounds=BOUNDS,
            name=identity.workers,
            post=lambda *_: None,
            keep_standby=keep_standby,
        )
        return WorkerSupervisor(
            workers=workers,
            spec=TaskSpec(task="task.py:task", framework="tensorflow", search_path=str(root), threads=2),
            backoff_first_seconds=1.0,
            backoff_last_seconds=300.0,
            release_idle=None,
            gpus="",
            log=self.log,
        )

    def _start(self, worker: str, **_) -> FakeProcess:
        self.processes[worker] = FakeProcess(worker, 100 + len(self.processes))
        return self.processes[worker]

    # -- the carrier of requests ---------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Take a request; it is answered when the node turns, unless storage hangs."""
        assert not self.requests, "the loop asks for one thing at a time"
        self.requests.append(request)
        self.carried.append(request)

    # -- turning -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Turn until nothing happens without time passing."""
        for _ in range(100):
            if self.exited is not None or not self.turn():
                return
        raise AssertionError(f"the loop does not come to rest; it asks for {self.carried[-3:]}")

    def turn(self) -> bool:
        """Turn once; returns whether anything happened."""
        self.next_turn = self.daemon.tick()
        return self.answer() | self.let_workers_work()

    def answer(self) -> bool:
        """Let storage answer what is asked for; return whether anything was."""
        if self.hangs or not self.requests:
            return False
        self.daemon.observe(self.storage_thread.answer(self.requests.pop()))
        return True

    def let_workers_work(self) -> bool:
        """Let each worker process answer one command; return whether any did."""
        worked = False
        for process in list(self.processes.values()):
            if process.exited:
                continue
            if process.killed:
                self.end(process, SIGKILL)
            elif not process.is_ready and "start" not in self.silent:
                process.is_ready = True
                self.report(process, Ready("tensorflow", "2.21"))
            elif process.answered < len(process.commands):
                command = process.commands[process.answered]
                if type(command).__name__ in self.silent:
                    continue
                process.answered += 1
                self.report(process, self.reply(process, command))
            else:
                continue
            worked = True
        return worked

    def reply(self, process: FakeProcess, command):
        """Return what a worker that finds nothing wrong answers."""
        if isinstance(command, Check):
            return Checked(self.task, ("test",), {})
        if isinstance(command, Join):
            return Joined(command.group, self.task, {})
        join = process.told(Join)[-1]
        plan = self.state.history.open
        number = None if plan is None else self.numbers.get(plan.checkpoint.name)
        found = done(command.plan, join, number=number)
        data = {} if self.data is None else {"test": EvalData(self.data, 1, "batches")}
        return replace(found, result=replace(found.result, data=data))

    def report(self, process: FakeProcess, report) -> None:
        """A worker says something."""
        self.daemon.observe((process.worker, report))

    def end(self, process: FakeProcess, status: int) -> None:
        """A worker process ends."""
        process.exited = True
        self.report(process, Exited(status, ""))

    def terminate(self) -> None:
        """Send SIGTERM to the daemon."""
        self.daemon.observe(Terminate("SIGTERM"))

    def wake(self) -> None:
        """A file event arrives."""
        self.daemon.observe(FilesChanged())

    def hear(self) -> None:
        """A file event arrives from the journal."""
        self.daemon.observe(JournalChanged())

    # -- looking -------------------------------------------------------------------------------------------------

    @property
    def exited(self):
        """How the daemon ended: an exit code, an error, or None while it lives."""
        return self.daemon.exit

    @property
    def status(self) -> Status:
        """Return what it showed last."""
        return self.statuses[-1]

    @property
    def history(self) -> JournalState:
        """The journal as it stands in storage."""
        return read_history(self.storage.storage)

    @property
    def standby(self) -> FakeProcess:
        """The process that stands by in the first slot."""
        return self.processes[self.daemon.supervisor.workers.slots()[0].standby]

    @property
    def active(self) -> FakeProcess:
        """The process that joined in the first slot."""
        return self.processes[self.daemon.supervisor.workers.slots()[0].worker]

    def alive(self) -> list[FakeProcess]:
        """Return the processes that were not killed and have not ended."""
        return [process for process in self.processes.values() if not process.killed and not process.exited]

    def of(self, kind: type) -> list[Request]:
        """The requests of a kind so far."""
        return [request for request in self.carried if isinstance(request, kind)]


def pass_time(seconds: float, *nodes: Node, step: float | None = None) -> None:
    """Let time pass for nodes that share a clock; each turns at every step: each second, or every two if it is long."""
    step = step or (1.0 if seconds < LONG_SECONDS else 2.0)
    for node in nodes:
        node.settle()
    for _ in range(round(seconds / step)):
        nodes[0].clock.seconds += step
        for node in nodes:
            node.settle()


def failed(kind: str, message: str = "because", plan: int | None = None, rank: int | None = None) -> Failed:
    """Return what a worker says that met a problem."""
    return Failed(kind=kind, message=message, plan=plan, rank=rank)


def done(plan: int, join: Join, accuracy: float = 0.75, examples: int = 1003, number: Value | None = None) -> Done:
    """Return what a rank says that found the result."""
    values = {"test": {"accuracy": number or Value(value=accuracy, hex=accuracy.hex())}}
    phases = {"restore": 0.1, "evaluate": 0.5, "reduce": 0.01, "save": 0.05}
    result = Result(
        group=join.group,
        workers=len(join.members),
        examples={"test": examples},
        metrics=values,
        phases=phases,
        variables="v",
        task="t1",
        profile={},
        saves=(),
    )
    return Done(plan=plan, rank=join.rank, result=result, traces=1, builds=1)


def outcomes(history: JournalState) -> list[tuple[str, str | None]]:
    """Every entry of a journal as a word and a kind or reason."""
    found = []
    for entry in history.entries:
        if hasattr(entry, "settlement"):
            found.append((entry.settlement.verdict, entry.settlement.name))
        else:
            found.append((entry.outcome.status, entry.outcome.kind or entry.plan.checkpoint.name))
    return found


# -- checkpoints as TensorFlow writes them, without TensorFlow -----------------------------------------------------


def save(folder: Path, step: int, keep: Iterable[int] = ()) -> None:
    """Save `ckpt-<step>`, and name it and those of the steps in `keep` in the state file; others are deleted."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"ckpt-{step}"
    value = step.to_bytes(8, "little")
    (folder / f"{name}.data-00000-of-00001").write_bytes(value)
    (folder / f"{name}.index").write_bytes(_index(value))
    names = [*(f"ckpt-{other}" for other in sorted(keep)), name]
    for path in folder.glob("ckpt-*"):
        if path.name.split(".")[0] not in names:
            path.unlink()
    lines = [f'model_checkpoint_path: "{name}"', *(f'all_model_checkpoint_paths: "{each}"' for each in names)]
    (folder / "checkpoint").write_text("\n".join(lines))


def put(folder, step: int):
    """Save one more checkpoint in a folder."""
    there = [int(each.stem.removeprefix("ckpt-")) for each in folder.glob("ckpt-*.index")]
    save(folder, step, keep=there)
    return folder


def _index(step: bytes) -> bytes:
    """A table of two entries: the header of a bundle with one shard, and an int64 scalar `step`."""
    entry = b"\x08\x09\x12\x00\x28\x08\x35" + masked_crc32c(step).to_bytes(4, "little")
    key = b"step/.ATTRIBUTES/VARIABLE_VALUE"
    table = b""

    def add(content: bytes) -> bytes:
        nonlocal table
        content += b"\0\0\0\0\1\0\0\0"
        handle = _varint(len(table)) + _varint(len(content))
        table += content + b"\0" + masked_crc32c(content + b"\0").to_bytes(4, "little")
        return handle

    data = add(b"\0\0\2\x08\1" + bytes([0, len(key), len(entry)]) + key + entry)
    metaindex = add(b"")
    index = add(bytes([0, 1, len(data)]) + b"z" + data)
    return table + (metaindex + index).ljust(40, b"\0") + MAGIC.to_bytes(8, "little")


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80, value >> 7])


def restarted(node: Node, incarnation: str, **settings) -> Node:
    """The same node's next daemon; the one before was killed."""
    fresh = Node(node.checkpoint_dir.parent, node.clock, node.node, incarnation, **settings)
    fresh.task = node.task
    return fresh
