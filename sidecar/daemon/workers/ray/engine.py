"""Place worker processes on the nodes of a Ray cluster, through a helper process that alone imports Ray (`bridge`).

The daemon's main thread places and releases; one thread per helper process reads its events and passes them on as those
of the workers. If the helper ends, or is silent, all its workers have ended: the next worker starts another helper.
"""

import json
import os
import select
import threading
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from sidecar.daemon.workers.process import Exited, Halted, Post
from sidecar.errors import RecordError
from sidecar.evaluation.source_digest import source_digest
from sidecar.protocol.messages import Command, Failed, Phase, Report, decode, encode
from sidecar.protocol.states import FailureKind, WorkerPhase
from sidecar.system.child import PIPE, ChildProcess, start

PACKAGE: Final = Path(__file__).resolve().parents[3]
_BRIDGE: Final = Path(__file__).with_name("bridge.py")
_SILENT_SECONDS: Final = 30.0  # it beats every 2 s, but the import of Ray may hold its threads up
_KILLED: Final = -9
_EXPLICIT: Final = {"RAY_ENABLE_AUTO_CONNECT": "0", "RAY_USAGE_STATS_ENABLED": "0"}
_OTHER_LOGINS: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """Describe the cluster, and the places that are asked for.

    Args:
        address: HOST:PORT of its head.
        workers: The number of machines, each with one slot.
        resources: What Ray reserves on each machine, by name.
        gpu: Whether each slot has a GPU as well.
        labels: The labels that a machine must have.
    """

    address: str
    workers: int
    resources: Mapping[str, float]
    gpu: bool
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RayLaunch:
    """Describe how worker processes are started on the nodes of the cluster. Every path is one of these nodes.

    Args:
        interpreter: The Python of the cluster, for the helper and the worker processes.
        framework: The framework that they import.
        changes: Variables to set or, if None, to remove.
        ports: The first and the last port that workers may serve on.
        logs: The folder of the logs.
        directory: The current directory of the worker processes.
        folders: Folders that must exist on each node.
        package: The folder of this package.
        code: The digest of the code that makes numbers.
    """

    interpreter: str
    framework: str
    changes: Mapping[str, str | None]
    ports: tuple[int, int]
    logs: str
    directory: str
    folders: tuple[str, ...]
    package: str = str(PACKAGE)
    code: str = field(default_factory=source_digest)


class RayWorker:
    """Stand for a worker process of the cluster: a process, and its place."""

    def __init__(self, worker: str, helper: "_Helper", post: Post) -> None:
        self.worker, self.post = worker, post
        self.address: str = ""
        self.host: str | None = None
        self.pid: int = 0
        self.phase = WorkerPhase.PLACE
        self._helper = helper

    @property
    def process(self) -> "RayWorker":
        """Return the process."""
        return self

    def waits(self) -> Mapping[int, float]:
        """Return nothing: it is not known how long a process of another machine waited for a processor."""
        return {}

    def yield_processors(self, yields: bool) -> bool:
        """Change nothing: Ray reserves processors for it."""
        return not yields

    def rename(self, worker: str, post: Post, log: Path) -> bool:
        """Raise `AssertionError`: a cluster serves one run (`starts_like`)."""
        raise AssertionError(f"{self.worker} cannot become {worker}, with the log {log}, for {post}")

    def send(self, command: Command) -> None:
        """Send a command."""
        self._helper.ask({"send": encode(command).decode(), "worker": self.worker})

    def kill(self) -> None:
        """SIGKILL the process, with its actor."""
        self._helper.ask({"kill": self.worker})

    def close(self) -> None:
        """Do nothing: the port is released with the actor."""

    def observe(self, event: Mapping[str, Any]) -> None:
        """Pass on an event of the helper process."""
        if (placed := event.get("placed")) is not None:
            self.address, self.host, self.pid = placed["address"], placed["host"], placed["pid"]
            self.post(self.worker, Phase(WorkerPhase.IMPORT))
        elif "halted" in event:
            self.post(self.worker, Halted(event["halted"]))
        elif "exited" in event:
            self.post(self.worker, Exited(**event["exited"]))
        else:
            self._report(event["report"])

    def _report(self, line: str) -> None:
        """Post a report. Kill the worker if it is invalid."""
        try:
            report = decode(line.encode())
            if isinstance(report, Report):
                self.post(self.worker, report)
                return
            message = f"{type(report).__name__} is a command"
        except RecordError as error:
            message = str(error)
        message = f"the worker process sent an invalid report: {message}"
        self.post(self.worker, Failed(kind=FailureKind.WORKER_DIED, message=message))
        self.kill()


class _Helper:
    """Own a helper process and the thread that reads its events."""

    def __init__(self, process: ChildProcess, cluster: RayCluster) -> None:
        self._process = process
        self._workers: dict[str, RayWorker] = {}
        self._changing = threading.Lock()
        self._has_ended = False
        self._reason = ""
        os.set_blocking(process.stdin.fileno(), False)
        self.ask(asdict(cluster))
        threading.Thread(target=self._read, name="ray-helper", daemon=True).start()

    def place(self, worker: RayWorker, request: Mapping[str, Any]) -> bool:
        """Ask for a worker; return False if the helper process has ended."""
        with self._changing:
            if self._has_ended:
                return False
            self._workers[worker.worker] = worker
        self.ask(request)
        return True

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send a request. A helper process that does not read is killed; its end is an event of its workers."""
        line = json.dumps(request).encode() + b"\n"
        with self._changing:
            if self._has_ended:
                return
            try:
                written = os.write(self._process.stdin.fileno(), line)
            except (BlockingIOError, BrokenPipeError):
                written = 0
            if written < len(line):
                self._process.kill()

    def _read(self) -> None:
        """Pass on events until the process ends or is silent, and then report the end of all its workers."""
        stdout, rest = self._process.stdout.fileno(), b""
        while select.select([stdout], [], [], _SILENT_SECONDS)[0] and (part := os.read(stdout, 1 << 16)):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                self._observe(json.loads(line))
        self._process.kill()
        status = self._process.wait()
        with self._changing:
            self._has_ended, workers = True, list(self._workers.values())
            self._process.close()
        reason = self._reason or f"its process ended with {status}, as Ray lets it when it has lost the cluster's head"
        for worker in workers:
            why = f"the connection to the Ray cluster was lost: {reason}"
            worker.post(worker.worker, Exited(_KILLED, "", why=why))

    def _observe(self, event: Mapping[str, Any]) -> None:
        """Pass on one event."""
        self._reason = event.get("fatal", self._reason)
        name = event.get("worker")
        if name is None:
            return
        with self._changing:
            worker = self._workers.pop(name, None) if "exited" in event else self._workers.get(name)
        if worker is not None:
            worker.observe(event)


@dataclass(slots=True, kw_only=True)
class RayEngine:
    """Start worker processes on the nodes of a Ray cluster."""

    cluster: RayCluster
    launch: RayLaunch
    token: Path | None  # the file with the token of the cluster's login; None: the cluster has none
    environment: Mapping[str, str]
    granted: bool = False
    _helper: _Helper | None = None

    @property
    def slots(self) -> int:
        """Return the number of machines that are asked for."""
        return self.cluster.workers

    def place(
        self, worker: str, slot: int | None, *, running: Collection[str], post: Post, yields: bool = False
    ) -> RayWorker:
        """Ask the cluster for a worker process. It has no address until the cluster has the resources."""
        assert not yields, "Ray reserves processors for it"
        place = {**asdict(self.launch), "worker": worker, "running": sorted(running)}
        request = {"place": place, "slot": slot}
        if self._helper is not None:
            placed = RayWorker(worker, self._helper, post)
            if self._helper.place(placed, request):
                return placed
        self._helper = self._start()
        placed = RayWorker(worker, self._helper, post)
        self._helper.place(placed, request)
        return placed

    def starts_like(self, other: object) -> bool:
        """Return whether that is this engine: no two runs share a cluster's machines."""
        return self is other

    def release(self) -> None:
        """Give all places back to the cluster, so that others, or nobody, have its machines."""
        if self._helper is not None:
            self._helper.ask({"release": True})

    def log_of(self, worker: str) -> Path:
        """Return the path of a worker's log, on the machine that it ran on."""
        return Path(self.launch.logs) / f"{worker}.log"

    def gpus(self) -> str:
        """Return nothing: workers report the GPU that they got, with their numeric profile, when they join a group."""
        return ""

    def _start(self) -> _Helper:
        """Start the helper process. Raises `OSError` if this machine lacks something."""
        login = {"RAY_AUTH_MODE": "disabled"}
        if self.token is not None:
            login = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token)}
        inherited = {name: value for name, value in self.environment.items() if name not in _OTHER_LOGINS}
        process = start(
            (self.launch.interpreter, "-P", str(_BRIDGE)),
            guarded="group",
            stdin=PIPE,
            stdout=PIPE,
            environment={**inherited, **_EXPLICIT, **login},
        )
        return _Helper(process, self.cluster)
