"""Start child processes that never outlive this one, wait for them with a deadline, and kill them with their children.

Every child leads a session and a process group of its own: Ctrl-C in a terminal reaches only this process, and a signal
to the group also reaches the child's own children. No other module imports subprocess: worker processes, the commands
of hooks, libraries of sinks and the processes of the demo are started here.
"""

import contextlib
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import IO, Final, Literal

from sidecar.system import process_guard

__all__ = ["DEVNULL", "PIPE", "STDOUT", "ChildProcess", "Starter", "output_of", "start"]

_PAUSE_SECONDS: Final = 0.02  # between two checks whether a child has ended
_END_SECONDS: Final = 1.0
_MOST_OUTPUT_BYTES: Final = 1 << 20

Starter = Callable[..., Popen[bytes]]
"""Start a program, with the arguments of `subprocess.Popen`."""

Stream = IO[bytes] | int
Guarded = Literal["group", "descendants"]


class ChildProcess:
    """Own a child process, its process group and its guard. Any thread may call any method.

    A group is signalled only while its leader has not been reaped: its id may belong to other processes afterwards.
    """

    def __init__(
        self,
        popen: Popen[bytes],
        guard: "_Guard | None",
        *,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._popen, self._guard, self._now, self._pause = popen, guard, now, pause
        self._reaping = threading.Lock()

    @property
    def pid(self) -> int:
        """Return the process id, which is also the id of the process group."""
        return self._popen.pid

    @property
    def stdin(self) -> IO[bytes]:
        """Return the pipe to its standard input."""
        assert self._popen.stdin is not None
        return self._popen.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """Return the pipe from its standard output."""
        assert self._popen.stdout is not None
        return self._popen.stdout

    def has_ended(self) -> bool:
        """Return whether the child has ended."""
        with self._reaping:
            return self._popen.returncode is not None or _has_ended(self.pid)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group, unless the child was reaped."""
        with self._reaping:
            if self._popen.returncode is None:
                self._signal_group(number)

    def kill(self) -> None:
        """SIGKILL the process group, unless the child was reaped. SIGTERM would not do: a child may ignore it."""
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        """Wait until the child ends, kill what is left of its group, and reap it.

        Return the exit code, or minus the number of the signal that ended it.
        """
        with contextlib.suppress(ChildProcessError):  # another thread reaped it
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        return self._reap()

    def wait_at_most(self, seconds: float) -> int | None:
        """Do as `wait`, but return None if the child still runs after so many seconds."""
        end = self._now() + seconds
        while not self.has_ended():
            if (left := end - self._now()) <= 0:
                return None
            self._pause(min(left, _PAUSE_SECONDS))
        return self._reap()

    def close(self) -> None:
        """Kill the process group, reap the child, and close its pipes."""
        self.kill()
        self.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def renew_guard(self) -> None:
        """Start another guard if somebody ended the one of this child, as the kernel may do when memory is short."""
        with self._reaping, contextlib.suppress(OSError):  # there may be room for a process later
            if self._guard is not None and self._popen.returncode is None:
                self._guard.renew(self.pid)

    def _reap(self) -> int:
        with self._reaping:
            if self._popen.returncode is None:
                self._signal_group(signal.SIGKILL)  # its children, as long as the id cannot belong to another process
                self._popen.wait()
                if self._guard is not None:
                    self._guard.end()
            return self._popen.returncode

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # PermissionError: a program with other rights
            os.killpg(self.pid, number)


def start(
    command: Sequence[str],
    *,
    guarded: Guarded | None,
    stdin: Stream = DEVNULL,
    stdout: Stream = DEVNULL,
    stderr: Stream = DEVNULL,
    environment: Mapping[str, str] | None = None,
    directory: str | None = None,
    descriptors: Sequence[int] = (),
    starter: Starter = Popen,
) -> ChildProcess:
    """Start a program, without a shell. `stdin`, `stdout`, `stderr`: as of `subprocess.Popen`.

    `guarded`: which processes end with the child, and with this process, however that ends: the process group of the
    child, or all its descendants, whichever sessions they begin. None: only the child's group ends with the child,
    which itself makes sure that it ends with this process. `environment`, `directory`: by default, those of this
    process. `descriptors`: open files that the child inherits under the same numbers.

    Raises `OSError` if the program or its guard cannot be started, `ValueError` if an argument contains a null
    character.
    """
    variables = dict(os.environ if environment is None else environment)
    guard = None
    if guarded is not None:
        mark = f"_SIDECAR_CHILD_{secrets.token_hex(8)}"  # a name of its own, so that a child of a child keeps both
        guard = _Guard(f"{mark}=1" if guarded == "descendants" else None)
        guard.start()
        variables |= {mark: "1"} if guarded == "descendants" else {}
    try:
        popen = starter(
            command if guard is None else guard.announced(command),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=variables,
            cwd=directory,
            pass_fds=descriptors,
            start_new_session=True,
        )
    except BaseException:
        if guard is not None:
            guard.end()
        raise
    if guard is not None:
        guard.watch(popen.pid)
    return ChildProcess(popen, guard)


def output_of(command: Sequence[str], *, seconds: float, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the output of a program; None if it does not exist, fails, or takes longer than `seconds`."""
    with os.fdopen(os.memfd_create("output"), "w+b") as output:  # in memory: nobody has to read while it runs
        try:
            child = start(command, guarded=None, stdout=output, environment=environment)
        except OSError:
            return None
        if child.wait_at_most(seconds) != 0:
            child.kill()
            child.wait_at_most(_END_SECONDS)  # with a bound: a program that waits in the kernel does not end
            return None
        output.seek(0)
        return output.read(_MOST_OUTPUT_BYTES).decode(errors="replace")


class _Guard:
    """Own a small process that ends a process group once this process is gone: also after SIGKILL.

    It waits on a pipe of which only this process has the other end.
    """

    def __init__(self, mark: str | None) -> None:
        self._mark = mark
        self._process: tuple[int, int] | None = None  # the process id and the pipe

    def start(self) -> None:
        """Start the process. Raises `OSError` if that is not possible."""
        read_end, pipe = os.pipe()
        words = [sys.executable, "-I", "-S", process_guard.__file__, *([] if self._mark is None else [self._mark])]
        try:
            actions = [(os.POSIX_SPAWN_DUP2, read_end, 0)]
            # Its own session, so that Ctrl-C in a terminal does not end it before the child.
            pid = os.posix_spawn(sys.executable, words, os.environ, file_actions=actions, setsid=True)
        except BaseException:
            os.close(pipe)
            raise
        finally:
            os.close(read_end)
        self._process = pid, pipe

    def announced(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return words that tell the guard their process id and become the command: no moment is without a guard."""
        assert self._process is not None
        pid, _ = self._process
        return ("/bin/sh", "-c", f'echo $$ 2>/dev/null >/proc/{pid}/fd/0; exec "$@"', "sh", *command)

    def watch(self, group: int) -> None:
        """Tell the guard which process group it ends."""
        assert self._process is not None
        with contextlib.suppress(BrokenPipeError):  # somebody killed the guard
            os.write(self._process[1], f"{group}\n".encode())

    def renew(self, group: int) -> None:
        """Start another guard for the group if somebody ended this one. Raises `OSError` if that is not possible."""
        if self._process is None or _has_ended(self._process[0]):
            self.end()
            self.start()
            self.watch(group)

    def end(self) -> None:
        """End the guard, and the descendants if it has a mark for them. The group must have ended before."""
        if self._process is None:
            return
        (pid, pipe), self._process = self._process, None
        with contextlib.suppress(ProcessLookupError, BrokenPipeError):
            if self._mark is None:
                os.kill(pid, signal.SIGKILL)
            else:
                os.write(pipe, f"{process_guard.NO_GROUP}\n".encode())  # its id may belong to other processes soon
        os.close(pipe)
        os.waitpid(pid, 0)


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended. It is not reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
