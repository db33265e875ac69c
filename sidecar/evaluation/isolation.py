"""Check a file in a process of its own, since a library may loop for ever or crash on one that is damaged.

The child is forked, so it shares what is imported, and runs nothing but the check; h5py is made for that: it takes its
own lock around forks.
Its time is that of the processor, which slow storage does not use up.
"""

import contextlib
import json
import os
import resource
import signal
import warnings
from collections.abc import Callable
from typing import Final

from sidecar.evaluation.failures import EvaluationError

_LONGEST: Final = 8000  # characters of a message; all of it fits into a pipe
_PIPE_BYTES: Final = 65536


def check_isolated(path: str, check: Callable[[], None], *, cpu_seconds: int) -> None:
    """Run `check`, and raise the `EvaluationError` that it raises; its end by a signal is `corrupt`.

    Raises:
        EvaluationError: also `out_of_memory`, if there is none for the child, or somebody kills it.
    """
    receiving, sending = os.pipe()
    try:
        child = _fork(path)
        if child == 0:
            try:
                os.write(sending, json.dumps(_answer(path, check, cpu_seconds)).encode())
            finally:
                os._exit(0)
        status = 0
        with contextlib.suppress(ChildProcessError):  # the task's code ignores SIGCHLD
            _, status = os.waitpid(child, 0)
        os.set_blocking(receiving, False)  # a process of the task's may have inherited the other end
        said = b""
        with contextlib.suppress(BlockingIOError):
            said = os.read(receiving, _PIPE_BYTES)
    finally:
        os.close(receiving)
        os.close(sending)
    if said:
        if failure := json.loads(said):
            raise EvaluationError(*failure)
        return
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        raise EvaluationError("out_of_memory", f"the process that looked at {path} was killed, as for want of memory")
    how = signal.strsignal(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else "without an answer"
    raise EvaluationError("corrupt", f"{path} is damaged: the process that looked at it ended ({how})")


def _fork(path: str) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads are left behind; the child needs none
        try:
            return os.fork()
        except OSError as error:
            raise EvaluationError("out_of_memory", f"no process can be had to look at {path}: {error}") from error


def _answer(path: str, check: Callable[[], None], cpu_seconds: int) -> tuple[str, str] | None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    try:
        check()
    except EvaluationError as error:
        return error.kind, str(error)[:_LONGEST]
    except MemoryError:
        return "out_of_memory", f"there is no memory to look at {path}"
    return None
