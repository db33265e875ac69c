"""The processes of a demo: a training job of two, and one daemon beside each, started as they are deployed.

Each daemon has the environment of the training process beside it, such as TF_CONFIG: its role follows from that.
"""

import os
import random
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.commands.daemon_process import SIDECAR, DaemonPort, read_end
from sidecar.commands.demo.children import Child, Children
from sidecar.commands.demo.folder import Folder
from sidecar.commands.demo.frameworks import LOCAL, TASKS, Framework

_PORTS: Final = range(22000, 23000)  # below the ephemeral ones, which any program may be using
_PAUSE_SECONDS: Final = 0.03  # per training step: the network is so small that it would save ten checkpoints a second
_START_BYTES: Final = 8000


@dataclass(slots=True)
class Daemon(DaemonPort):
    """Observe a daemon of the demo through its log and its HTTP port."""

    child: Child


@dataclass(slots=True, kw_only=True)
class Job:
    """Hold the processes of the demo: the training job and its daemons."""

    children: Children
    folder: Folder
    framework: Framework
    steps: int
    save_every: int
    environments: Mapping[str, Mapping[str, str]]  # by task: the same for a training process and the daemon beside it
    pause_seconds: float = _PAUSE_SECONDS
    daemons: tuple[Daemon, ...] = ()  # the chief's first
    training: tuple[Child, ...] = ()

    def start_daemons(self) -> None:
        """Start a daemon beside each process of the job; each finds its own role."""
        self.daemons = tuple(
            self._daemon(task, self.folder.logs / f"daemon-{task}.log", environment)
            for task, environment in self.environments.items()
        )

    def _daemon(self, task: str, log: Path, environment: Mapping[str, str]) -> Daemon:
        name, command = f"the daemon beside the {task}", (*SIDECAR, *daemon_arguments(self.folder, self.framework))
        child = self.children.start(name, command, environment=environment, log=log, takes_sigterm=True)
        return Daemon(log, child=child)

    def start_training(self) -> None:
        """Start the training processes."""
        self.training = tuple(
            self.children.start(
                f"training, its {task},",
                (
                    *(*self.framework.train, "--checkpoints", str(self.folder.checkpoints)),
                    *(
                        "--steps",
                        str(self.steps),
                        "--save-every",
                        str(self.save_every),
                        "--pause",
                        str(self.pause_seconds),
                    ),
                ),
                environment=environment,
                log=self.folder.logs / f"train-{task}.log",
                takes_sigterm=self.framework.takes_sigterm,
            )
            for task, environment in self.environments.items()
        )

    def trained(self) -> bool:
        """Return whether training ended well; raises `ChildFailedError` if a process of it failed."""
        ended = [child.ended() for child in self.training]  # all of them are asked: any may have failed
        return bool(ended) and all(ended)

    def activity(self, step: int) -> str:
        """Describe what training is doing, for people."""
        if not self.training:
            return "starts when the daemons are ready"
        return f"{step} of {self.steps} steps" if step else f"imports {self.framework.title}"

    def progress(self) -> int:
        """Return the number of steps that training has printed so far."""
        if not self.training:
            return 0
        words = [line.split() for line in read_end(self.training[0].log, _START_BYTES).splitlines()]
        steps = [int(line[1]) for line in words if line[:1] == ["step"] and len(line) > 1 and line[1].isdecimal()]
        return max(steps, default=0)


def make(children: Children, folder: Folder, framework: Framework, *, steps: int, save_every: int) -> Job:
    """Return a job whose processes are not started yet."""
    own = framework.environments(list(_free_ports(len(TASKS))))
    environments = {task: _environment(folder, own[task]) for task in TASKS}
    return Job(
        children=children,
        folder=folder,
        framework=framework,
        steps=steps,
        save_every=save_every,
        environments=environments,
    )


def daemon_arguments(folder: Folder, framework: Framework) -> tuple[str, ...]:
    """Return the arguments of `sidecar run`, which are the same for each daemon."""
    own: tuple[str, ...] = ("--config", str(folder.settings))
    if framework.task_file is not None:
        # Without a file, a sidecar.toml in the current directory would change the demo.
        own = ("--config", os.devnull, "--task", f"{framework.task_file}:task")
    return (
        *("run", "--checkpoint-dir", str(folder.checkpoints), *own),
        *("--replicas", "2", "--http", f"{LOCAL}:0", "--log-format", "json"),
    )


def _environment(folder: Folder, own: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment with the variables of a task, without settings that would change the demo."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SIDECAR_")}
    local = {name: ",".join(filter(None, (os.environ.get(name), LOCAL))) for name in ("no_proxy", "NO_PROXY")}
    return inherited | {
        **own,
        "SIDECAR_WORKER_LOGS": str(folder.logs / "worker-processes"),
        "SIDECAR_STANDBY": "false",  # no worker is lost here, and two more imports would slow down training
        "SIDECAR_YIELD_SECONDS": "0",  # somebody watches, and training may use all processors
        "CUDA_VISIBLE_DEVICES": "-1",  # two training processes would fight for one GPU's memory
        **local,  # gRPC asks proxies too
    }


def _free_ports(count: int) -> Iterator[int]:
    candidates = random.sample(_PORTS, len(_PORTS))  # so that two demos at once rarely ask for the same
    for port in candidates:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOCAL, port))
            except OSError:
                continue
        yield port
        count -= 1
        if count == 0:
            return
