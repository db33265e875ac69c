"""Run a module of this package in a process of its own, and exchange lines of JSON with it, within a time limit.

For sinks whose library is large, or has no time limits of its own: the process is killed if it does not answer, and it
ends when it has nothing to do, so that its memory is free between two results. It also ends with the daemon.
"""

import contextlib
import json
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from sidecar.errors import SidecarError
from sidecar.system.child import PIPE, ChildProcess, start
from sidecar.system.plain_text import one_line, without_password

_ROOT: Final = Path(__file__).resolve().parents[3]  # in which the package is
_LONGEST_ANSWER: Final = 1 << 16
IDLE_SECONDS: Final = 60.0
"""Time without a request after which a process ends."""
_MOST_CHARACTERS: Final = 400
_NICE: Final = 10  # as the worker processes


class NoAnswerError(SidecarError):
    """A process ended, or did not answer in time."""

    retryable = True


class LineProcess:
    """Ask a process that answers each line of JSON with one line. One thread uses it.

    `module`: the module that the process runs. It reads from standard input, and ends when that ends. `variables`:
    variables that the process gets in addition to those of the daemon.
    """

    def __init__(self, module: str, variables: Mapping[str, str]) -> None:
        self._module, self._variables = module, variables
        self._process: ChildProcess | None = None

    def ask(self, question: Mapping[str, Any], seconds: float, *, descriptors: tuple[int, ...] = ()) -> Any:
        """Return the answer to a question, a JSON object. The process is started if it does not run.

        The process may get it a second time: one that had nothing to do may just end. It is killed if the whole answer
        takes longer than `seconds`. `descriptors`: open files that the process needs; a new process is started for them
        and ended afterwards. Raises `NoAnswerError`.
        """
        line = json.dumps(question).encode() + b"\n"
        if descriptors:
            self.close()
        reused = self._process is not None
        try:
            answer = self._answer(line, seconds, descriptors)
            if not answer and reused:
                answer = self._answer(line, seconds, descriptors)
        except BaseException:
            self.close()
            raise
        if descriptors:
            self.close()
        if not answer:
            raise NoAnswerError(f"the process {self._module} ended without an answer")
        return json.loads(answer)

    def close(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _answer(self, line: bytes, seconds: float, descriptors: tuple[int, ...]) -> bytes:
        """Send a line, and return the answer; nothing if the process has ended."""
        if self._process is None:
            self._process = self._start(descriptors)
        process = self._process
        end = time.monotonic() + seconds
        try:
            _send(process.stdin.fileno(), line, end)
            answer = _receive(process.stdout.fileno(), end)
        except TimeoutError:
            raise NoAnswerError(f"no answer within {seconds:g} s") from None
        except BrokenPipeError:
            answer = b""
        if not answer:
            self.close()
        return answer

    def _start(self, descriptors: tuple[int, ...]) -> ChildProcess:
        """Start the process in a session of its own: Ctrl-C in a terminal must not interrupt the last results."""
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        process = start(
            (sys.executable, "-P", "-m", self._module),
            guarded="group",
            stdin=PIPE,
            stdout=PIPE,
            environment={**os.environ, **self._variables, "PYTHONPATH": path},
            descriptors=descriptors,
        )
        os.set_blocking(process.stdin.fileno(), False)
        return process


def _send(descriptor: int, data: bytes, end: float) -> None:
    """Write all data to a pipe that does not block. Raises `TimeoutError`, or `BrokenPipeError` if nobody reads."""
    while data:
        _, ready, _ = select.select([], [descriptor], [], max(0.0, end - time.monotonic()))
        if not ready:
            raise TimeoutError
        with contextlib.suppress(BlockingIOError):
            data = data[os.write(descriptor, data) :]


def _receive(descriptor: int, end: float) -> bytes:
    """Return one line from a pipe; nothing if the writer ends before that. Raises `TimeoutError`."""
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            raise TimeoutError
        part = os.read(descriptor, _LONGEST_ANSWER)
        if not part or len(line) > _LONGEST_ANSWER:
            return b""
        line += part
    return line


def answer_lines(answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Answer requests, in such a process, until standard input ends, or until none comes for a while."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # libraries print links for people
    os.nice(_NICE)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    while True:
        try:
            request = json.loads(lines.get(timeout=IDLE_SECONDS))
        except queue.Empty:
            return
        print(json.dumps(answer(request)), file=answers, flush=True)


def _read(lines: "queue.SimpleQueue[str]") -> None:
    """Pass on the lines. The end of standard input is that of the daemon: end at once, whatever is under way."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


def error_sentence(error: Exception) -> str:
    """Return one line. Answers of servers may be whole pages."""
    text = one_line(without_password(" ".join(str(error).split()))) or type(error).__name__
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
