"""Place worker processes: what the pool asks for, and the engine that starts them on the daemon's own machine.

An engine decides where a worker process runs, with which devices and under which address. The pool decides when.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from sidecar.daemon.workers.devices import NO_GPU, describe
from sidecar.daemon.workers.environment import worker_environment
from sidecar.daemon.workers.ports import Ports
from sidecar.daemon.workers.process import Post, Process, start
from sidecar.evaluation.framework_traits import FrameworkTraits
from sidecar.protocol.states import WorkerPhase
from sidecar.system.addresses import host_and_port

PROBE: Final = None
"""The slot of the process that checks the task, which belongs to no slot."""


class Placed(Protocol):
    """Describe where a worker process runs."""

    @property
    def process(self) -> Process:
        """Return the process."""

    @property
    def address(self) -> str:
        """Return HOST:PORT, at which the worker's group reaches it; empty until there is a place."""

    @property
    def host(self) -> str | None:
        """Return the machine of a cluster; None for the node itself, and until there is a place."""

    @property
    def phase(self) -> WorkerPhase:
        """Return the phase in which the worker begins."""

    def close(self) -> None:
        """Release what was reserved for the process, which has ended."""


class Engine(Protocol):
    """Start worker processes. One thread uses it, and nothing here waits."""

    @property
    def slots(self) -> int:
        """Return the number of worker processes that evaluate together."""

    @property
    def granted(self) -> bool:
        """Return whether each slot has its machine for good. A cluster grants machines, and takes them back."""

    def place(
        self, worker: str, slot: int | None, *, running: Collection[str], post: Post, yields: bool = False
    ) -> Placed:
        """Start a worker process of a slot, whose processes share a device.

        `slot`: its number from 0, or `PROBE`. `running`: the ids of the workers that have not ended. `post` receives
        the events of the worker, from any thread. `yields`: it computes only with what other programs of its machine
        leave.

        Raises `SidecarError`, or `OSError` and `RuntimeError` if this machine lacks something.
        """

    def log_of(self, worker: str) -> Path:
        """Return the path of a worker's log."""

    def gpus(self) -> str:
        """Return the models of the GPUs, such as "2 x NVIDIA H200"; empty if there are none or they are not known."""

    def release(self) -> None:
        """Give back what is reserved for the slots, whose processes were killed."""

    def starts_like(self, other: object) -> bool:
        """Return whether another engine starts equal processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLaunch:
    """Describe how worker processes are started on this node."""

    interpreter: str  # the Python of the worker processes
    traits: FrameworkTraits  # those of the framework that they import
    environment: Mapping[str, str]  # the environment of the daemon, which is adapted for each worker
    changes: Mapping[str, str | None]  # variables to set or, if None, to remove
    devices: Sequence[str]  # CUDA_VISIBLE_DEVICES of each replica's workers, with a GPU for each of their processes
    logs: Path  # the folder of the logs
    directory: str  # the current directory of the worker processes


@dataclass(frozen=True, slots=True)
class LocalPlaced:
    """Hold a process of this machine, with its address and the end of its port's reservation."""

    process: Process
    address: str
    close: Callable[[], None]
    phase: WorkerPhase = WorkerPhase.IMPORT
    host: None = None


@dataclass(slots=True, kw_only=True)
class LocalEngine:
    """Start worker processes on this machine, each with a port of its own."""

    launch: WorkerLaunch
    host: str
    ports: Ports
    start: Callable[..., Process] = start  # as `process.start`
    granted: bool = True

    @property
    def slots(self) -> int:
        """Return the number of replicas."""
        return len(self.launch.devices)

    def place(
        self, worker: str, slot: int | None, *, running: Collection[str], post: Post, yields: bool = False
    ) -> LocalPlaced:
        """Start a worker process. Its port is released if the start fails."""
        port = self.ports.reserve()
        environment = worker_environment(
            self.launch.environment,
            traits=self.launch.traits,
            devices=NO_GPU if slot is PROBE else self.launch.devices[slot],
            hosts=[self.host],
            changes=self.launch.changes,
        )
        try:
            process = self.start(
                worker,
                interpreter=self.launch.interpreter,
                framework=self.launch.traits.name,
                environment=environment,
                directory=self.launch.directory,
                log=self.log_of(worker),
                keep_logs=running,
                post=post,
                yields=yields,
            )
        except BaseException:
            port.close()
            raise
        return LocalPlaced(process, host_and_port(self.host, port.number), port.close)

    def log_of(self, worker: str) -> Path:
        """Return the path of a worker's log."""
        return self.launch.logs / f"{worker}.log"

    def gpus(self) -> str:
        """Return the models of the GPUs; empty if there are none."""
        return describe([name for names in self.launch.devices for name in names.split(",")])

    def starts_like(self, other: object) -> bool:
        """Return whether another engine starts equal processes, whose logs may lie elsewhere."""
        return (
            isinstance(other, LocalEngine)
            and self.host == other.host
            and self.launch == replace(other.launch, logs=self.launch.logs)
        )

    def release(self) -> None:
        """Do nothing: this machine's devices are free once its processes have ended."""
