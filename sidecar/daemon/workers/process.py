"""Start worker processes, send them commands, read their reports and kill them.

A worker has its own guard (`sidecar.system.process_guard`), which also ends processes that left its process group.
Workers must be started from the daemon's main thread, because the parent-death signal fires when the thread that
started them ends.
"""

import contextlib
import errno
import os
import secrets
import signal
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from sidecar.daemon.workers.logs import WorkerLog, remove_old_logs
from sidecar.daemon.workers.processor_waits import processor_waits
from sidecar.errors import RecordError, SettingsError, ShortageError, StorageError
from sidecar.protocol.messages import MAX_LINE_BYTES, Command, Failed, Report, decode, encode
from sidecar.protocol.states import FailureKind
from sidecar.system import child
from sidecar.system.child import ChildProcess
from sidecar.system.priority import Priority, set_priority
from sidecar.system.shortages import NO_PROCESS, shortage

_ENTRY: Final = Path(__file__).resolve().parents[2] / "evaluation" / "__main__.py"
_MARK: Final = "_SIDECAR_WORKER_PROCESS"  # this variable marks the descendants of a worker; it is not a setting
_LOG_SECONDS: Final = (1.0, 0.1)  # between two checks of a log's length: usually, and after the log was too long
_STATE_CHANGES: Final = os.WSTOPPED | os.WCONTINUED
_CRASHES: Final = frozenset(
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP}
)
_VMSTAT: Final = Path("/proc/vmstat")
_DRAIN_SECONDS: Final = 5.0  # to read the last reports after the end; a child outside the group may hold the pipe open


@dataclass(frozen=True, slots=True)
class Exited:
    """Report that a worker process ended.

    `status` is the exit code, or minus the number of the signal. `tail` is the end of the log. `memory_short`: SIGKILL
    ended it, and while it ran the kernel ended processes because memory was short. `why`: a cluster lost it, or it
    never ran there.
    """

    status: int
    tail: str
    memory_short: bool = False
    why: str = ""

    @property
    def crashed(self) -> bool:
        """Return whether a fault of its own code ended the process, such as `abort`. SIGKILL comes from outside."""
        return -self.status in _CRASHES

    def __str__(self) -> str:
        if self.why:
            return f"the worker process was lost: {self.why}"
        end = f"was killed by {_signal_name(-self.status)}" if self.status < 0 else f"exited with {self.status}"
        if self.memory_short:
            end += (
                " while the kernel ended processes for lack of memory: use a smaller batch_size or fewer replicas, or "
                "raise the limit of memory"
            )
        return f"the worker process {end}" + (f"; its log ends: {self.tail}" if self.tail else "")


def _signal_name(number: int) -> str:
    """Return the signal's name, or its number: most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True, slots=True)
class Halted:
    """Report that a signal such as SIGSTOP stopped a worker process, or, if `halted` is false, that it continues."""

    halted: bool


Event = Report | Exited | Halted
"""A report of a worker process, or a change of its state that the kernel reports."""

Post = Callable[[str, Event], None]
"""Receive an event of a worker: (worker id, event). Called from several threads."""


StartChild = Callable[..., ChildProcess]
"""Start a process, with the arguments of `child.start`."""


class Process(Protocol):
    """Describe a running worker process to the rest of the program."""

    @property
    def pid(self) -> int:
        """Return the process id."""

    def waits(self) -> Mapping[int, float]:
        """Return the seconds for which each of its threads has waited for a processor; empty if that is unknown."""

    def yield_processors(self, yields: bool) -> bool:
        """Let other programs have the processors first, or take turns with them; return False if that is forbidden."""

    def rename(self, worker: str, post: Post, log: Path) -> bool:
        """Post all further events under another name, to another run; move the log.

        Return False if the last event was posted before: the caller gets none any more.
        """

    def send(self, command: Command) -> None:
        """Send a command. If the worker is dead, nothing is raised here: its `Exited` event reports that."""

    def kill(self) -> None:
        """SIGKILL the process group. SIGTERM would not do: a process of MultiWorkerMirroredStrategy survives it."""


class WorkerProcess:
    """Own a worker process, and the threads that read its reports, bound its log and wait for its end."""

    def __init__(self, worker: str, process: ChildProcess, reports: BinaryIO, log: WorkerLog, post: Post) -> None:
        self._worker, self._process, self._log, self._post = worker, process, log, post
        self._reports = reports
        self._posting, self._has_exited = threading.Lock(), False
        self._kills_before = _kills_for_memory()
        self._ended = threading.Event()
        self._reader = threading.Thread(target=self._read, name=f"reports-{worker}", daemon=True)
        self._waiter = threading.Thread(target=self._wait, name=f"wait-{worker}", daemon=True)
        self._limiter = threading.Thread(target=self._limit_log, name=f"log-{worker}", daemon=True)
        try:
            self._reader.start()
            self._limiter.start()
            self._waiter.start()
        except RuntimeError:  # no thread can be started, so nothing would wait for the process
            process.close()
            self._ended.set()
            raise

    @property
    def pid(self) -> int:
        """Return the process id, which is also the id of the process group."""
        return self._process.pid

    def waits(self) -> Mapping[int, float]:
        """Return the seconds for which each of its threads has waited for a processor; empty if that is unknown."""
        return processor_waits(self._process.pid)

    def yield_processors(self, yields: bool) -> bool:
        """Let other programs have the processors first, or take turns with them; return False if that is forbidden."""
        return set_priority(self._process.pid, Priority.IDLE if yields else Priority.LOW)

    def rename(self, worker: str, post: Post, log: Path) -> bool:
        """Post all further events under another name, to another run; move the log, unless the disk forbids it."""
        with self._posting:
            if self._has_exited:
                return False
            self._worker, self._post = worker, post
        with contextlib.suppress(OSError):
            self._log.move(log)
        return True

    def send(self, command: Command) -> None:
        """Send a command. Commands are far smaller than the buffer of the pipe, so this does not block."""
        try:
            self._process.stdin.write(encode(command))
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return  # the process has ended: its `Exited` event follows

    def kill(self) -> None:
        """SIGKILL the process group."""
        self._process.kill()

    def join(self, seconds: float) -> bool:
        """Wait until the process is reaped and its reports are read; return whether that happened in time."""
        self._waiter.join(seconds)
        return not self._waiter.is_alive()

    def _read(self) -> None:
        """Post the worker's reports until its pipe closes. Kill the worker if a report is invalid."""
        with self._reports:
            while line := self._reports.readline(MAX_LINE_BYTES):
                try:
                    report = decode(line)
                    if not isinstance(report, Report):
                        raise RecordError(f"{type(report).__name__} is a command")  # noqa: TRY301 - handled like a line that cannot be decoded
                except RecordError as error:
                    message = f"the worker process sent an invalid report: {error}"
                    self._tell(Failed(kind=FailureKind.WORKER_DIED, message=message))
                    self.kill()
                    return
                self._tell(report)

    def _wait(self) -> None:
        """Post the changes of the process until it ends, kill its children, and post `Exited`."""
        while self._was_halted_or_continued():
            # Without this call the same change would be reported again. The state may have changed once more by now.
            if change := os.waitid(os.P_PID, self._process.pid, _STATE_CHANGES | os.WNOHANG):
                self._tell(Halted(change.si_code == os.CLD_STOPPED))
        status = self._process.wait()
        self._reader.join(_DRAIN_SECONDS)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._ended.set()
        self._limiter.join()
        self._shorten_log()
        memory_short = status == -signal.SIGKILL and _kills_for_memory() > self._kills_before
        self._tell(Exited(status, self._log.tail(), memory_short))
        self._log.close()

    def _tell(self, event: Event) -> None:
        """Post an event of the worker."""
        with self._posting:
            self._has_exited = isinstance(event, Exited)
            self._post(self._worker, event)

    def _limit_log(self) -> None:
        """Shorten the log whenever it is too long, until the process has ended."""
        usual, soon = _LOG_SECONDS
        pause = usual
        while not self._ended.wait(pause):
            pause = soon if self._shorten_log() else usual

    def _shorten_log(self) -> bool:
        """Shorten the log if it is too long, and return whether it was."""
        with contextlib.suppress(OSError):
            return self._log.limit()
        return False

    def _was_halted_or_continued(self) -> bool:
        """Wait for the next change of the process, and return False if it ended. The process is not reaped here."""
        change = os.waitid(os.P_PID, self._process.pid, os.WEXITED | _STATE_CHANGES | os.WNOWAIT)
        return change is not None and change.si_code in (os.CLD_STOPPED, os.CLD_CONTINUED)


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
    yields: bool = False,
    start_child: StartChild = child.start,
) -> WorkerProcess:
    """Start a worker process. Its output goes to `log`, its reports to `post`.

    `yields`: it computes only with what other programs leave. Old logs of the node's workers in the same folder are
    removed, except those of the workers in `keep_logs`. Raises `SettingsError` if the interpreter cannot be run,
    `ShortageError` if this machine lacks descriptors, processes or memory, and `StorageError` if the log cannot be
    written.
    """
    if threading.current_thread() is not threading.main_thread():
        raise AssertionError("workers must be started from the main thread: its end sends them the parent-death signal")
    try:
        worker_log = WorkerLog.create(log)
        remove_old_logs(log, keep_logs)
    except OSError as error:
        remedy = shortage(error)
        why = error.strerror if remedy is None else f"{error.strerror}; {remedy}"
        raise StorageError(f"the worker's log {log} cannot be written: {why}") from error
    try:
        return _spawn(
            worker, interpreter, framework, environment, directory, worker_log, post, start_child, yields=yields
        )
    except BaseException:
        worker_log.close()
        raise


def _spawn(
    worker: str,
    interpreter: str,
    framework: str,
    environment: Mapping[str, str],
    directory: str,
    log: WorkerLog,
    post: Post,
    start_child: StartChild,
    *,
    yields: bool,
) -> WorkerProcess:
    """Start the process with a pipe for its reports, and its output into the log."""
    mark = secrets.token_hex(16)
    output = log.appending()
    read_end, write_end = os.pipe()
    try:
        process = start_child(
            (
                *(interpreter, "-P", str(_ENTRY)),
                *("--framework", framework, "--reports", str(write_end), "--parent", str(os.getpid())),
                *("--mark", f"{_MARK}={mark}"),
                *(("--yields",) if yields else ()),
            ),
            guarded=None,
            stdin=child.PIPE,
            stdout=output,
            stderr=output,
            environment={**environment, _MARK: mark},
            directory=directory,
            descriptors=(write_end,),
        )
    except OSError as error:
        os.close(read_end)
        if error.filename == directory:
            raise SettingsError(
                f"workers cannot be started in {directory}: {error.strerror}; start it where it may enter"
            ) from error
        remedy = NO_PROCESS if error.errno == errno.EAGAIN else shortage(error)
        if remedy is not None:
            raise ShortageError(f"a worker process cannot be started: {error.strerror}; {remedy}") from error
        raise SettingsError(
            f"worker_python {interpreter!r} cannot be run: {error.strerror}; name the Python of the training job"
        ) from error
    finally:
        os.close(output)
        os.close(write_end)
    return WorkerProcess(worker, process, os.fdopen(read_end, "rb"), log, post)


def _kills_for_memory() -> int:
    """Return how many processes the kernel has ended because memory was short, in all control groups; 0 if unknown.

    Source: `oom_kill` of /proc/vmstat, which Linux has since 4.13.
    """
    try:
        counts = _VMSTAT.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in counts if line.startswith("oom_kill ")), 0)
