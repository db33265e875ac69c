"""Leave a small process behind that ends whatever a worker process started, once the worker or the daemon is gone.

The parent-death signal ends the worker alone, and SIGKILL of its process group misses children that called setsid. The
guard finds these by a variable of their environment, which every child inherits. It cannot adopt them as a subreaper
instead: it would have to be the worker's parent, and the kernel reports the worker's stops and its end to its parent
alone, which must be the daemon. A child is missed if it erased its environment and its parent has ended.

Standard library only.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from typing import Final

_END_SECONDS: Final = 5.0  # what starts children faster than that is not ended by killing
_AGAIN_SECONDS: Final = 0.05


def leave_guard(mark: str) -> None:
    """Fork the guard of this process. Call it before anything is imported, so that the guard stays small.

    It waits, without reading, for the closing of our input, whose other end only the daemon has.

    Args:
        mark: NAME=VALUE, a variable that is in the environment of this process and of no other one's children.
    """
    worker = os.getpid()
    if os.fork() != 0:
        return
    os.setsid()  # it outlives the process group that it ends
    limit = os.sysconf("SC_OPEN_MAX")
    os.closerange(1, limit if limit > 0 else 65536)
    ending = select.poll()
    ending.register(0, 0)  # no event but a hang-up, which is always told
    with contextlib.suppress(OSError):  # else the daemon closes our input when it learns of the end
        ending.register(os.pidfd_open(worker), select.POLLIN)
    if os.getppid() == worker:
        ending.poll()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker, signal.SIGKILL)
    end_marked(mark)
    os._exit(0)


def end_marked(mark: str) -> None:
    """Kill every process that has the mark, and their children, until only this one is left."""
    deadline = time.monotonic() + _END_SECONDS
    while (found := _marked(mark.encode())) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_AGAIN_SECONDS)


def _marked(mark: bytes) -> set[int]:
    """Return live processes of this user that have the mark, and all below them; not this one."""
    parents = dict(_processes())
    own = os.getpid()
    found = {pid for pid in parents if pid != own and mark in _read(pid, "environ").split(b"\0")}
    while more := {pid for pid, parent in parents.items() if parent in found} - found - {own}:
        found |= more
    return found


def _processes() -> Iterator[tuple[int, int]]:
    """Yield each live process of this user, and its parent: proc(5), fields 3 and 4 of stat."""
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
    """Return a file of a process; empty if it has gone or is not ours to read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 - pathlib would make the guard larger
            return file.read()
    except OSError:
        return b""
