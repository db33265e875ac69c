"""Check a file in a separate process, because a library may loop for ever or crash on a damaged file.

The child is forked, so it shares all imported modules, and it runs only the check. h5py supports this: it takes its
lock around forks. The limit is processor time, so that slow storage does not use it up.
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
    """Run `check` in a child process, and raise the `EvaluationError` that it raises.

    Raises:
        EvaluationError: Also `corrupt` if a signal ends the child, and `out_of_memory` if there is no memory
            for the child, or if the child is killed.
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
        os.set_blocking(receiving, False)  # a process that the task started may have inherited the other end
        answer = b""
        with contextlib.suppress(BlockingIOError):
            answer = os.read(receiving, _PIPE_BYTES)
    finally:
        os.close(receiving)
        os.close(sending)
    if answer:
        if failure := json.loads(answer):
            raise EvaluationError(*failure)
        return
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        raise EvaluationError("out_of_memory", f"the process that checked {path} was killed, as by lack of memory")
    end = signal.strsignal(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else "without an answer"
    raise EvaluationError("corrupt", f"{path} is damaged: the process that checked it ended ({end})")


def _fork(path: str) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads, which the child does not need
        try:
            return os.fork()
        except OSError as error:
            raise EvaluationError("out_of_memory", f"no process could be started to check {path}: {error}") from error


def _answer(path: str, check: Callable[[], None], cpu_seconds: int) -> tuple[str, str] | None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    try:
        check()
    except EvaluationError as error:
        return error.kind, str(error)[:_LONGEST]
    except MemoryError:
        return "out_of_memory", f"there is not enough memory to check {path}"
    return None
