"""Guard processes end other processes once the daemon is gone, also after SIGKILL. Standard library only.

A guard waits until a pipe closes of which only the daemon has the other end. The guard of a worker process also ends it
if its task forks without end. A guard is forked by a worker process (`leave_guard`), or started by
`sidecar.system.child`, for which this file is the program: it gets the process group on its standard input, and as its
argument the mark, if there is one.

The parent-death signal ends only one process, and SIGKILL to its process group misses children that called setsid. A
guard finds these by their mark: a variable of their environment, which every child inherits. A guard cannot adopt them
as a subreaper instead. It would have to be the parent of the process that it guards, but the kernel reports the stops
and the end of a worker to its parent only, which must be the daemon. A child is missed if it erased its environment and
its parent has ended.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from typing import Final

NO_GROUP: Final = 0
"""Told to a guard in place of a process group: that one has ended, and only processes with the mark may be left."""

_PR_SET_PDEATHSIG: Final = 1
_END_SECONDS: Final = 60.0  # processes that fork faster than they are stopped cannot be ended, unless a limit does it
_AGAIN_SECONDS: Final = 0.05

MOST_PROCESSES: Final = 1000
"""The most processes that a worker may have started and that live. Loaders of data start some for each GPU."""

_LOOK_SECONDS: Final = 0.5
_TOO_MANY: Final = "sidecar: the task has started {} processes, more than {}: this worker process and they are ended\n"


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process when the thread that started it ends; exit if `parent` has already ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def leave_guard(mark: str) -> None:
    """Fork the guard of this process. Call this before anything is imported, so that the guard stays small.

    The guard waits, without reading, until the input of this process is closed. Only the daemon has its other end.

    `mark`: NAME=VALUE, a variable in the environment of this process and its children only.
    """
    worker = os.getpid()
    if os.fork() != 0:
        return
    os.setsid()  # the guard must outlive the process group that it ends
    _close_all_but_input()
    ending = select.poll()
    ending.register(0, 0)  # waits for a hang-up, which is always reported
    with contextlib.suppress(OSError):  # without pidfd: the daemon closes the input when the worker ends
        ending.register(os.pidfd_open(worker), select.POLLIN)
    if os.getppid() == worker:
        _wait(ending, worker, mark)
    _end(worker, mark)
    os._exit(0)


def _wait(ending: select.poll, worker: int, mark: str) -> None:
    """Wait until the worker ends, or has more than `MOST_PROCESSES` descendants, which is said in its log.

    Counting them reads a file of each process of the machine. So they are counted only after the number of all threads
    of the machine has grown, which one file tells.
    """
    known = _threads()
    while not ending.poll(_LOOK_SECONDS * 1000):
        threads = _threads()
        if threads > known + MOST_PROCESSES // 2:
            if (count := len(_marked(mark.encode()))) > MOST_PROCESSES:
                with contextlib.suppress(OSError):  # the worker's own log, which this process does not hold open
                    log = os.open(f"/proc/{worker}/fd/2", os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND)
                    os.write(log, _TOO_MANY.format(count, MOST_PROCESSES).encode())
                    os.close(log)
                return
            known = threads
        known = min(known, threads)


def _threads() -> int:
    """Return the number of threads of the machine; 0 if it is unknown. Source: proc(5), fourth field of loadavg."""
    try:
        with open("/proc/loadavg", "rb") as file:  # noqa: PTH123 - as in `_read`
            return int(file.read().split()[3].partition(b"/")[2])
    except (OSError, ValueError, IndexError):
        return 0


def guard(mark: str | None) -> None:
    """Read the group from standard input, wait for the end of the input, and end the group and all with the mark."""
    _close_all_but_input()
    told = b""
    while part := os.read(0, 64):
        told += part
    if told.strip():
        _end(int(told.split()[-1]), mark)


def _close_all_but_input() -> None:
    """Close what the guard inherited: other processes wait for the end of pipes that it would hold open."""
    limit = os.sysconf("SC_OPEN_MAX")
    os.closerange(1, limit if limit > 0 else 65536)


def _end(group: int, mark: str | None) -> None:
    """Kill a process group, and every process with the mark."""
    if group != NO_GROUP:  # killpg would take it for the guard's own group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    if mark is not None:
        end_marked(mark)


def end_marked(mark: str) -> None:
    """Kill every process with the mark, and its children, until only this process is left.

    All are stopped first. Processes that fork without end would otherwise take the place of each one that was killed:
    a stopped process does not fork, and holds its place where the number of processes is limited.
    """
    deadline = time.monotonic() + _END_SECONDS
    stopped = set[int]()
    while (remaining := _marked(mark.encode())) and time.monotonic() < deadline:
        new = remaining - stopped
        for pid in new or remaining:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGSTOP if new else signal.SIGKILL)
        if new:
            stopped |= new
        else:
            stopped.clear()  # an id may belong to another process soon
            time.sleep(_AGAIN_SECONDS)
    for pid in remaining:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _marked(mark: bytes) -> set[int]:
    """Return the live processes of this user with the mark, and their descendants, without this process."""
    parents = dict(_processes())
    this = os.getpid()
    marked = {pid for pid in parents if pid != this and mark in _read(pid, "environ").split(b"\0")}
    while more := {pid for pid, parent in parents.items() if parent in marked} - marked - {this}:
        marked |= more
    return marked


def _processes() -> Iterator[tuple[int, int]]:
    """Yield each live process of this user, and its parent. Source: proc(5), fields 3 and 4 of stat."""
    user = os.geteuid()
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdecimal() and _owner(entry) == user:
                state, parent, *_ = _read(int(entry.name), "stat").rpartition(b")")[2].split() or (b"Z", b"0")
                if state not in (b"Z", b"X"):
                    yield int(entry.name), int(parent)


def _owner(entry: "os.DirEntry[str]") -> int | None:
    with contextlib.suppress(OSError):
        return entry.stat().st_uid
    return None


def _read(pid: int, name: str) -> bytes:
    """Return a file of a process; empty if the process is gone or the file cannot be read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 - pathlib would make the guard larger
            return file.read()
    except OSError:
        return b""


if __name__ == "__main__":
    guard(sys.argv[1] if len(sys.argv) > 1 else None)
