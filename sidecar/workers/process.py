"""Start, talk to and kill a worker process; ask another program. The only importer of subprocess.

A worker leads its own session and process group, so that SIGKILL reaches what it started. The worker's guard
(`sidecar.evaluation.process_guard`) ends processes that left the group. A worker must be started from the daemon's main
thread: its parent-death signal fires when the thread that started it ends.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from sidecar.errors import RecordError, SettingsError, StorageError
from sidecar.states import FailureKind
from sidecar.workers.logs import WorkerLog, remove_old_logs
from sidecar.workers.messages import MAX_LINE_BYTES, Command, Failed, Report, decode, encode

_ENTRY: Final = Path(__file__).resolve().parents[1] / "evaluation" / "__main__.py"
_MARK: Final = "_SIDECAR_WORKER_PROCESS"  # a variable by which a worker's descendants are known; it is not a setting
_LOG_SECONDS: Final = (1.0, 0.1)  # between two looks at a log's length: usually, and after it was too long
_HALTS: Final = os.WSTOPPED | os.WCONTINUED
_CRASHES: Final = frozenset(
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP}
)
_DRAIN_SECONDS: Final = 5.0  # for the last reports, after the end; a child that left the group may hold the pipe open


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker process ended. `status` is its exit code, or minus the signal; `tail` the end of its log."""

    status: int
    tail: str

    @property
    def crashed(self) -> bool:
        """Return whether its own code ended it, as `abort` does; SIGKILL comes from outside, or for want of memory."""
        return -self.status in _CRASHES

    def __str__(self) -> str:
        how = f"was killed by {_signal_name(-self.status)}" if self.status < 0 else f"exited with {self.status}"
        return f"the worker process {how}" + (f"; its log ends: {self.tail}" if self.tail else "")


def _signal_name(number: int) -> str:
    """Return the signal's name; most real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True, slots=True)
class Halted:
    """A worker process was stopped by a signal such as SIGSTOP, or (not `halted`) continues after that."""

    halted: bool


Event = Report | Exited | Halted
"""Something that happened to a worker process: its own report, or a change that the kernel reports."""

Post = Callable[[str, Event], None]
"""Where a worker's events go: (worker id, event). Called from threads."""


class Process(Protocol):
    """A running worker, as the rest of the program sees it."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    def send(self, command: Command) -> None:
        """Send a command; if the worker is dead, `Exited` says so, not this call."""
        ...

    def kill(self) -> None:
        """SIGKILL its process group. An MWMS process survives SIGTERM."""
        ...


class WorkerProcess:
    """A worker process and the threads that read its reports and wait for its end."""

    def __init__(
        self, worker: str, popen: "subprocess.Popen[bytes]", reports: BinaryIO, log: WorkerLog, post: Post
    ) -> None:
        self._worker, self._popen, self._log, self._post = worker, popen, log, post
        self._reports = reports
        self._reaping = threading.Lock()
        self._ended = threading.Event()
        self._reader = threading.Thread(target=self._read, name=f"reports-{worker}", daemon=True)
        self._waiter = threading.Thread(target=self._wait, name=f"wait-{worker}", daemon=True)
        self._limiter = threading.Thread(target=self._limit_log, name=f"log-{worker}", daemon=True)
        try:
            self._reader.start()
            self._limiter.start()
            self._waiter.start()
        except RuntimeError:  # no more threads can be had: nobody would know of it
            _kill_group(popen.pid)
            popen.wait()
            self._ended.set()
            raise

    @property
    def pid(self) -> int:
        """Its process id, which is its process group's too."""
        return self._popen.pid

    def send(self, command: Command) -> None:
        """Write a command. Commands are far smaller than a pipe's buffer, so this does not wait."""
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(encode(command))
            self._popen.stdin.flush()
        except (BrokenPipeError, ValueError):
            return  # it is gone: Exited is on its way

    def kill(self) -> None:
        """SIGKILL the process group, unless the leader was reaped: another process may have its number by then."""
        with self._reaping:
            if self._popen.returncode is None:
                _kill_group(self._popen.pid)

    def join(self, seconds: float) -> bool:
        """Wait until it is reaped and its reports are read; return whether that happened in time."""
        self._waiter.join(seconds)
        return not self._waiter.is_alive()

    def _read(self) -> None:
        with self._reports:
            while line := self._reports.readline(MAX_LINE_BYTES):
                try:
                    message = decode(line)
                    if not isinstance(message, Report):
                        raise RecordError(f"{type(message).__name__} is a command")  # noqa: TRY301 - as bad as any other
                except RecordError as error:
                    self._post(
                        self._worker,
                        Failed(kind=FailureKind.WORKER_DIED, message=f"the worker process sent nonsense: {error}"),
                    )
                    self.kill()
                    return
                self._post(self._worker, message)

    def _wait(self) -> None:
        while self._is_halted_or_goes_on():
            # Without this call the same change would be reported again. The state may have changed once more by now.
            if taken := os.waitid(os.P_PID, self._popen.pid, _HALTS | os.WNOHANG):
                self._post(self._worker, Halted(taken.si_code == os.CLD_STOPPED))
        with self._reaping:
            _kill_group(self._popen.pid)  # what it started, while its number still is its own
            status = self._popen.wait()
        self._reader.join(_DRAIN_SECONDS)
        if self._popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._popen.stdin.close()
        self._ended.set()
        self._limiter.join()
        self._limited()
        self._post(self._worker, Exited(status, self._log.tail()))
        self._log.close()

    def _limit_log(self) -> None:
        usual, soon = _LOG_SECONDS
        pause = usual
        while not self._ended.wait(pause):
            pause = soon if self._limited() else usual

    def _limited(self) -> bool:
        with contextlib.suppress(OSError):
            return self._log.limit()
        return False

    def _is_halted_or_goes_on(self) -> bool:
        """Wait for the next change of the process; return False if it ended. It is not reaped here."""
        found = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | _HALTS | os.WNOWAIT)
        return found is not None and found.si_code in (os.CLD_STOPPED, os.CLD_CONTINUED)


def start(
    worker: str,
    *,
    interpreter: str,
    framework: str,
    environment: Mapping[str, str],
    directory: str,
    log: Path,
    keep_logs: Collection[str],
    post: Post,
) -> WorkerProcess:
    """Start a worker process. Its output goes to `log`, its reports to `post`.

    Old logs of the node's workers in the same folder are removed, except those of the workers in `keep_logs`.

    Raises:
        SettingsError: the interpreter cannot be run.
    """
    if threading.current_thread() is not threading.main_thread():
        raise AssertionError("workers are started from the main thread: their parent-death signal is its end")
    try:
        kept = WorkerLog.create(log)
        remove_old_logs(log, keep_logs)
    except OSError as error:
        raise StorageError(f"the worker's log {log} cannot be written: {error.strerror}") from error
    try:
        return _spawn(worker, interpreter, framework, environment, directory, kept, post)
    except BaseException:
        kept.close()
        raise


def _spawn(
    worker: str,
    interpreter: str,
    framework: str,
    environment: Mapping[str, str],
    directory: str,
    log: WorkerLog,
    post: Post,
) -> WorkerProcess:
    mark = secrets.token_hex(16)
    output = log.appending()
    ours, theirs = os.pipe()
    try:
        popen = subprocess.Popen(  # noqa: S603 - the interpreter is a setting of the user's
            [
                *(interpreter, "-P", str(_ENTRY)),
                *("--framework", framework, "--reports", str(theirs), "--parent", str(os.getpid())),
                *("--mark", f"{_MARK}={mark}"),
            ],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**environment, _MARK: mark},
            cwd=directory,
            pass_fds=(theirs,),
            start_new_session=True,
        )
    except OSError as error:
        os.close(ours)
        if error.filename == directory:
            raise SettingsError(f"workers cannot be started in {directory}: {error.strerror}") from error
        raise SettingsError(
            f"worker_python {interpreter!r} cannot be run: {error.strerror}; name the Python of the training job"
        ) from error
    finally:
        os.close(output)
        os.close(theirs)
    return WorkerProcess(worker, popen, os.fdopen(ours, "rb"), log, post)


def query(arguments: Sequence[str], *, seconds: float) -> str | None:
    """Return what a program prints; None if it does not exist, fails, or takes longer than `seconds`."""
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=seconds, check=True)  # noqa: S603 - fixed ones
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
