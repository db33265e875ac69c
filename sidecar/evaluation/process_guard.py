"""Start a small guard process that ends all children of a worker process, once the worker or the daemon is gone.

The parent-death signal ends only the worker, and SIGKILL to its process group misses children that called setsid. The
guard finds these by a variable of their environment, which every child inherits. The guard cannot adopt them as a
subreaper instead. It would have to be the worker's parent, but the kernel reports the stops and the end of the worker
to its parent only, which must be the daemon. A child is missed if it erased its environment and its parent has ended.

Standard library only.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from typing import Final

_END_SECONDS: Final = 60.0  # processes that fork faster than they are stopped cannot be ended, unless a limit does it
_AGAIN_SECONDS: Final = 0.05


def leave_guard(mark: str) -> None:
    """Fork the guard of this process. Call this before anything is imported, so that the guard stays small.

    The guard waits, without reading, until the input of this process is closed. Only the daemon has its other end.

    Args:
        mark: NAME=VALUE, a variable in the environment of this process and its children only.
    """
    worker = os.getpid()
    if os.fork() != 0:
        return
    os.setsid()  # the guard must outlive the process group that it ends
    limit = os.sysconf("SC_OPEN_MAX")
    os.closerange(1, limit if limit > 0 else 65536)
    ending = select.poll()
    ending.register(0, 0)  # waits for a hang-up, which is always reported
    with contextlib.suppress(OSError):  # without pidfd: the daemon closes the input when the worker ends
        ending.register(os.pidfd_open(worker), select.POLLIN)
    if os.getppid() == worker:
        ending.poll()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker, signal.SIGKILL)
    end_marked(mark)
    os._exit(0)


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
