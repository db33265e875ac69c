"""Let other programs have the processors and the disk first, or take turns with them. Standard library only.

A worker process lowers its own priority (`evaluation.main`), and its daemon raises it again if it had to wait for too
long (`daemon.workers.process`). Linux keeps priorities per thread, so those of a whole process tree are changed.
"""

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Final

NICENESS: Final = 10  # in its turns a process gets about a tenth of a processor that another program wants
_IOPRIO_WHO_PROCESS: Final = 1
_SYS_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
_MOST_THREADS: Final = 256  # that are looked at in one process tree, which takes a few milliseconds then
_AUTOGROUP_TRIES: Final = 10  # the kernel accepts one niceness of an autogroup in 0.1 s, on the whole machine
_AUTOGROUP_AGAIN_SECONDS: Final = 0.03


class Priority(Enum):
    """Name a priority: scheduling policy, niceness of the session, and I/O priority (linux/ioprio.h)."""

    IDLE = os.SCHED_IDLE, 19, 3 << 13  # the I/O class "idle"
    LOW = os.SCHED_OTHER, NICENESS, (2 << 13) | 7  # the class "best effort", and the lowest priority in it


def threads_of(pid: int) -> Iterator[Path]:
    """Yield the folders in /proc of the threads of a process and of its descendants; none of a process that ended."""
    waiting, count = [pid], 0
    while waiting and count < _MOST_THREADS:
        with contextlib.suppress(OSError):  # the process has ended
            for thread in Path(f"/proc/{waiting.pop()}/task").iterdir():
                count += 1
                yield thread
                with contextlib.suppress(OSError, ValueError):
                    waiting += map(int, (thread / "children").read_text().split())


def set_priority(pid: int, priority: Priority) -> bool:
    """Give the threads of a process and of its descendants a priority; return False if this process may not.

    Everybody may lower it. Raising it from `IDLE` takes RLIMIT_NICE 10 of that process or CAP_SYS_NICE: sched(7).
    """
    policy, session, disk = priority.value
    set_io = ctypes.CDLL(None).syscall
    number = _SYS_IOPRIO_SET.get(os.uname().machine)
    try:
        for thread in threads_of(pid):
            with contextlib.suppress(ProcessLookupError):  # the thread has ended
                os.sched_setscheduler(int(thread.name), policy, os.sched_param(0))
                if number is not None:
                    set_io(number, _IOPRIO_WHO_PROCESS, int(thread.name), disk)
    except OSError:  # it is forbidden, or a sandbox does not know the policy
        return False
    _set_session(pid, session)
    return True


def _set_session(pid: int, niceness: int) -> None:
    """Set the niceness of a session, which is what counts where the kernel groups processes by sessions.

    With `sched_autogroup_enabled`, the default of most distributions, the policy and the niceness of a process count
    only among the processes of its session, and every worker has a session of its own. Source: sched(7), "The autogroup
    feature".
    """
    for _ in range(_AUTOGROUP_TRIES):
        try:
            Path(f"/proc/{pid}/autogroup").write_text(str(niceness))
        except BlockingIOError:
            time.sleep(_AUTOGROUP_AGAIN_SECONDS)
        except OSError:  # a kernel without autogroups, a container, or the process has ended
            return
        else:
            return
