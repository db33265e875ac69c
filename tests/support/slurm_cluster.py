"""Run Slurm on loopback: a controller, four nodes that are all this machine, and the munge by which they authenticate.

Needs root, and Debian's slurmctld, slurmd, slurm-client and munge. A Slurm of the machine itself is left alone.
"""

import contextlib
import os
import secrets
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

import psutil

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "munged")
NODES = 4
SECONDS = 240.0  # for what takes 10 s on an idle machine

CONFIGURATION = """
ClusterName=sidecar
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=10
"""


class SlurmCluster:
    """Hold the daemons of a Slurm cluster whose files lie in `folder`. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        """Start the daemons, and wait until all nodes take jobs."""
        folder, host = self.folder, socket.gethostname()
        for name in ("state", *(f"spool-n{node}" for node in range(NODES))):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        ports = _free_ports(1 + NODES)
        lines = [CONFIGURATION.format(host=host, ports=ports, folder=folder)]
        lines += [
            f"NodeName=n{node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8\n"
            for node, port in enumerate(ports[1:])
        ]
        lines.append("PartitionName=all Nodes=ALL Default=YES PriorityTier=1\n")
        lines.append("PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF\n")
        (folder / "slurm.conf").write_text("".join(lines))
        munge = ("pid-file", "log-file", "seed-file")
        socket_path = folder / "munge.sock"
        try:
            self._start(
                *("munged", "--foreground", "--force", f"--socket={socket_path}", f"--key-file={key}"),
                *(f"--{name}={folder}/munge.{name}" for name in munge),
            )
            self._wait(socket_path.exists, "munge")
            self._start("slurmctld", "-D", "-i")
            for node in range(NODES):
                self._start("slurmd", "-D", "-N", f"n{node}")
            self._wait(lambda: self._states() == ["idle"] * NODES, "idle nodes")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End all daemons, and everything that jobs have left."""
        self.close()

    def run(self, *command: str | Path, cwd: Path | None = None, **environ: str) -> str:
        """Run one of Slurm's commands, and return what it printed."""
        done = subprocess.run(
            command,
            cwd=cwd,
            env=os.environ | self.environ | environ,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, folder: Path, *words: str | Path, **environ: str) -> str:
        """Submit a job from `folder`, and return its number. Its output goes to `out` there."""
        line = self.run("sbatch", "--parsable", f"--chdir={folder}", f"--output={folder}/out", *words, **environ)
        return line.strip()

    def field(self, job: str, name: str) -> str:
        """Return a field of a job, such as Restarts."""
        words = self.run("scontrol", "show", "job", job).split()
        return next(word.partition("=")[2] for word in words if word.startswith(f"{name}="))

    def close(self) -> None:
        """Cancel all jobs, end the daemons, and kill what is left of them."""
        if len(self._daemons) > 1 and all(daemon.poll() is None for daemon in self._daemons):
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                self.run("scancel", "--full", f"--user={os.getuid()}")
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SLURM_CONF") == self.environ["SLURM_CONF"]:
                    process.kill()
        for daemon in self._daemons:
            daemon.wait()

    def _start(self, *command: str) -> None:
        with (self.folder / "daemons.log").open("ab") as log:
            self._daemons.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | self.environ
                )
            )

    def _states(self) -> list[str]:
        done = subprocess.run(
            ["sinfo", "--Node", "--noheader", "--partition=all", "--format=%t"],
            env=os.environ | self.environ,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return done.stdout.split()

    def _wait(self, condition, what: str) -> None:
        end = time.monotonic() + SECONDS
        while not condition():
            dead = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            log = self.folder / "daemons.log"
            assert not dead, f"{what}: {log.read_text()[-3000:]}"
            assert time.monotonic() < end, f"{what}: {log.read_text()[-3000:]}"
            time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as sockets:
        made = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in made:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in made]
