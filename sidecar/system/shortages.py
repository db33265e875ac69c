"""Say what this machine or this process lacks, and the remedy, for errors that are not about the file they came with.

`storage`, `process` and `cli` would otherwise blame storage, a setting or this program. Standard library only.
"""

import errno
import resource
from collections.abc import Callable, Mapping
from typing import Final

from sidecar.errors import SettingsError, ShortageError

LEAST_DESCRIPTORS: Final = 64
"""Open files that a daemon needs: about 25 for itself, and some for worker processes, sinks and readers of the page."""

NO_MEMORY: Final = "the machine, or the limit of this process, has no memory left: end what uses it, or raise the limit"
"""The remedy if memory cannot be had."""

_REMEDIES: Final[Mapping[int, str]] = {
    errno.EMFILE: "let this process open more files (`ulimit -n 1024`; LimitNOFILE= in a unit of systemd)",
    errno.ENFILE: "this machine has too many open files: end what holds them, or raise the sysctl fs.file-max",
    errno.ENOMEM: NO_MEMORY,
}

NO_PROCESS: Final = (
    "more processes and threads are not allowed: end some, or raise the limit (`ulimit -u`, TasksMax= in a unit of "
    "systemd, --pids-limit of Docker)"
)
"""The remedy if no process or thread can be started. Other calls raise its error, EAGAIN, for other reasons."""

_NO_THREAD: Final = "can't start new thread"  # Modules/_threadmodule.c: it has no class of its own


def shortage(error: OSError) -> str | None:
    """Return the remedy for an error which means that descriptors or memory are used up; None for other errors."""
    return _REMEDIES.get(error.errno or 0)


def machine_shortage(error: BaseException) -> ShortageError | None:
    """Return an error that names what the machine lacks, and the remedy; None if that is not what `error` means."""
    if isinstance(error, MemoryError):
        return ShortageError(f"memory is used up: {NO_MEMORY}")
    if isinstance(error, OSError) and (remedy := shortage(error)) is not None:
        return ShortageError(f"{error.strerror}: {remedy}")
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return ShortageError(f"no thread can be started: {NO_PROCESS}")
    return None


def require_descriptors(
    limits: tuple[int, int] | None = None, change: Callable[[int, tuple[int, int]], None] = resource.setrlimit
) -> None:
    """Let this process open as many files as it may. Raises `SettingsError` if a daemon cannot work with that.

    `limits`: the soft and the hard one; None: those of this process. `change`: sets both limits of a resource.
    """
    soft, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= LEAST_DESCRIPTORS:
        return
    if hard != resource.RLIM_INFINITY and hard < LEAST_DESCRIPTORS:
        raise SettingsError(
            f"this process may open {hard} files, and a daemon needs {LEAST_DESCRIPTORS}: {_REMEDIES[errno.EMFILE]}"
        )
    change(resource.RLIMIT_NOFILE, (LEAST_DESCRIPTORS, hard))
