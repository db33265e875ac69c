"""A worker process's life: import the framework, say ready, then do what the daemon commands, one thing at a time.

It never outlives its daemon (parent-death signal, and end of input), never writes to the daemon's pipes but in lines of
`group.messages`, and answers every failure with a `Failed` report; whatever the user's code prints goes to its log.
"""

import argparse
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import BinaryIO, Final

from sidecar.group.messages import (
    MAX_LINE_BYTES,
    Check,
    Checked,
    Command,
    Evaluate,
    Failed,
    Join,
    Joined,
    Phase,
    Ready,
    Report,
    decode,
    encode,
)
from sidecar.worker import task as tasks
from sidecar.worker.backend import Backend, Collective, Evaluator, backend
from sidecar.worker.failures import EvaluationError, as_failed
from sidecar.worker.flow import evaluate
from sidecar.worker.shard import Shard

_PR_SET_PDEATHSIG: Final = 1
_IOPRIO_WHO_PROCESS: Final = 1
_IOPRIO_BEST_EFFORT_LAST: Final = (2 << 13) | 7  # linux/ioprio.h: class best effort, lowest priority in it
_SYS_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
_NICENESS: Final = 10  # half way: training on the same node wins, the machine stays usable for both
_OOM_SCORE: Final = "1000"  # the first to go when memory is short: a worker is replaced, a trainer is not


class Worker:
    """Carries out commands; holds what stays warm between checkpoints."""

    def __init__(self, framework: Backend, report: Callable[[Report], None]) -> None:
        self._backend = framework
        self._report = report
        self._join: Join | None = None
        self._collective: Collective | None = None
        self._evaluator: Evaluator | None = None
        self._task_digest = ""
        self._phase = "import"

    def run(self, command: Command | Report) -> None:
        """Do one command; a failure is reported, never raised."""
        plan = command.plan if isinstance(command, Evaluate) else None
        try:
            if isinstance(command, Check):
                self._check(command)
            elif isinstance(command, Join):
                self._form(command)
            elif isinstance(command, Evaluate):
                self._evaluate(command)
            else:
                raise EvaluationError("join", f"{type(command).__name__} is no command")  # noqa: TRY301 - told like any other
        except Exception as error:  # noqa: BLE001 - the daemon is told, and decides
            rank = self._join.rank if self._join else None
            self._report(as_failed(error, phase=self._phase, plan=plan, rank=rank))

    def _enter(self, phase: str, plan: int | None = None) -> None:
        self._phase = phase
        self._report(Phase(phase, plan))

    def _check(self, command: Check) -> None:
        self._enter("import")
        loaded = tasks.load(command.task, command.search_path)
        self._report(Checked(loaded.digest, tuple(loaded.task.eval_sets)))

    def _form(self, command: Join) -> None:
        self._enter("join")
        self._join = command
        self._collective = self._backend.join(command)
        self._enter("import")  # only now: TensorFlow refuses a cluster after any operation of the task's module
        loaded = tasks.load(command.task, command.search_path)
        self._task_digest = loaded.digest
        self._enter("build")
        shard = Shard(command.rank, len(command.members))
        self._evaluator = self._backend.build(loaded.task, shard, command)
        self._report(Joined(command.group, loaded.digest, self._backend.profile()))

    def _evaluate(self, command: Evaluate) -> None:
        if self._join is None or self._collective is None or self._evaluator is None:
            raise EvaluationError("join", "asked to evaluate before joining a group")
        done = evaluate(
            command,
            join=self._join,
            collective=self._collective,
            evaluator=self._evaluator,
            task_digest=self._task_digest,
            profile=self._backend.profile(),
            enter=lambda phase: self._enter(phase, command.plan),
            report=self._report,
        )
        self._report(done)
        gc.collect()  # between evaluations, where nobody waits for it


def main(arguments: Sequence[str]) -> None:
    """Run until the daemon closes our input."""
    parser = argparse.ArgumentParser(prog="sidecar worker process")
    parser.add_argument("--framework", required=True)
    parser.add_argument("--reports", type=int, required=True, help="file descriptor to write reports to")
    parser.add_argument("--parent", type=int, required=True, help="process id of the daemon")
    options = parser.parse_args(arguments)
    _never_outlive(options.parent)
    _be_gentle()
    commands = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor is wanted
        os.dup2(nothing.fileno(), 0)  # the user's code must not read commands
    reports = os.fdopen(options.reports, "wb", buffering=0)

    def report(message: Report) -> None:
        _write_all(reports, encode(message))

    try:
        framework = backend(options.framework)
    except Exception as error:  # noqa: BLE001 - the daemon is told, and decides
        report(as_failed(error, phase="import", plan=None, rank=None))
        return
    report(Ready(options.framework, framework.version))
    worker = Worker(framework, report)
    while line := commands.readline(MAX_LINE_BYTES):
        worker.run(decode(line))
    # Not a normal exit: TensorFlow's own shutdown may wait for peers that are gone.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _write_all(stream: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]


def _never_outlive(parent: int) -> None:
    """Be killed when the daemon's main thread ends; it may have ended before this took effect."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _be_gentle() -> None:
    os.nice(_NICENESS)
    number = _SYS_IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_BEST_EFFORT_LAST)
    try:
        with open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123 - procfs
            score.write(_OOM_SCORE)
    except OSError:  # a container may forbid it; being polite is no reason to fail
        return


__all__ = ["Failed", "Worker", "main"]
