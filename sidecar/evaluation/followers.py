"""Start the other processes of a worker, pass its commands on to them, and let the worker end with any of them.

A worker is several processes if they divide its model (`processes_per_worker`). The daemon starts and knows the first
of them, the leader. It starts the followers, which run the same program and carry out the same commands. If a follower
ends, the leader ends in the same way: the daemon then sees what it would see of a worker that is one process. The
followers end with the leader by the parent-death signal, the end of their input, and the guard of the leader.

Standard library only.
"""

import contextlib
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

from sidecar.protocol.messages import MAX_LINE_BYTES, Command, Failed, Join, Joined, Report, decode, encode
from sidecar.protocol.states import FailureKind, WorkerPhase
from sidecar.system import child
from sidecar.system.child import ChildProcess

_HOST: Final = "127.0.0.1"
_MARK: Final = "_SIDECAR_FOLLOWER_PROCESS"  # next to the mark of the leader, whose guard ends followers, too
_SETTLE_SECONDS: Final = 2.0
"""Time in which all processes of a worker notice a failure, so that the one which caused it is reported."""


class Followers:
    """Own the followers of a worker. It is made by the leader's main thread, whose end is theirs.

    `join`: the command with which the worker joins a group. `send`: sends a report of the worker to the daemon.
    """

    def __init__(self, join: Join, send: Callable[[Report], None]) -> None:
        self._count, self._send = join.processes, send
        self._changed = threading.Condition()
        self._failed: set[int] = set()  # followers that reported a failure of the present command
        self._leader_failed = False
        self._tasks: set[str] = set()  # digests of the task's code that the processes imported
        self._place = socket.socket()  # only holds the port, at which the framework of the leader listens
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._place.bind((_HOST, 0))
        self.join = replace(join, meeting=f"{_HOST}:{self._place.getsockname()[1]}")
        self._processes = [self._started(number) for number in range(1, join.processes)]
        self.pass_on(self.join)

    def pass_on(self, command: Command) -> None:
        """Let the followers carry out a command. If one is dead, its watching thread ends this process."""
        with self._changed:
            self._failed.clear()
            self._leader_failed = False
        for number, process in enumerate(self._processes, 1):
            own = replace(command, process=number) if isinstance(command, Join) else command
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(encode(own))
                process.stdin.flush()

    def report(self, message: Report) -> None:
        """Send a report of the leader to the daemon.

        A failure waits until all processes noticed it: if it follows from the end of one, this process ends instead.
        """
        with self._changed:
            if isinstance(message, Failed):
                self._leader_failed = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: len(self._failed) == len(self._processes), _SETTLE_SECONDS)
            self._send(message)
        if isinstance(message, Joined):
            self._compare_tasks(message)

    def _started(self, number: int) -> ChildProcess:
        """Start a follower, and a thread that watches it."""
        read_end, write_end = os.pipe()
        environment = {**os.environ, _MARK: secrets.token_hex(16)}
        gpus = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if len(gpus) == self._count:
            environment["CUDA_VISIBLE_DEVICES"] = gpus[number]  # the leader uses the first one that it sees
        try:
            process = child.start(
                (
                    *(sys.executable, "-P", str(Path(__file__).with_name("__main__.py")), "--follows"),
                    *("--framework", self.join.framework, "--reports", str(write_end), "--parent", str(os.getpid())),
                    *("--mark", f"{_MARK}={environment[_MARK]}"),
                ),
                guarded=None,
                stdin=child.PIPE,
                stdout=1,
                stderr=2,
                environment=environment,
                descriptors=(write_end,),
            )
        finally:
            os.close(write_end)
        watched = (number, process, os.fdopen(read_end, "rb"))
        threading.Thread(target=self._watch, args=watched, name=f"follower-{number}", daemon=True).start()
        return process

    def _watch(self, number: int, process: ChildProcess, reports: BinaryIO) -> None:
        """Read the reports of a follower until it ends, then end this process."""
        with reports:
            while line := reports.readline(MAX_LINE_BYTES):
                message = decode(line)
                if isinstance(message, Joined):
                    self._compare_tasks(message)
                elif isinstance(message, Failed):
                    self._note_failure(number, message)
        status = process.wait()
        end = f"was killed by signal {-status}" if status < 0 else f"exited with {status}"
        self._say(f"process {number + 1} of {self._count} of this worker {end}, and so does the worker")
        if status < 0:
            os.kill(os.getpid(), -status)
        os._exit(1)

    def _note_failure(self, number: int, message: Failed) -> None:
        """Report the failure of a follower, unless the leader fails, too: it may wait for the follower for ever."""
        with self._changed:
            self._failed.add(number)
            self._changed.notify_all()
            if self._changed.wait_for(lambda: self._leader_failed, _SETTLE_SECONDS):
                return
            self._send(message)
        self._say(f"process {number + 1} of {self._count} of this worker failed alone, and the worker ends")
        os._exit(1)

    def _compare_tasks(self, message: Joined) -> None:
        """Fail if the task's code changed while the processes imported it."""
        self._tasks.add(message.task)
        if len(self._tasks) > 1:
            why = "the task's code changed while the processes of a worker imported it"
            self.report(Failed(kind=FailureKind.JOIN, message=why, phase=WorkerPhase.IMPORT))
            os._exit(1)

    def _say(self, text: str) -> None:
        """Write a line into the worker's log."""
        os.write(2, f"sidecar: {text}\n".encode())
