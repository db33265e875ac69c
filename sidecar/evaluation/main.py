"""Run a worker process: import the framework, report ready, then carry out one command of the daemon at a time.

The process never outlives its daemon (parent-death signal, and end of input). It writes only lines of
`protocol.messages` to the daemon's pipe; the output of the user's code goes to the log of the worker.
"""

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from sidecar.errors import RecordError
from sidecar.evaluation.framework_traits import OURS, traits_of
from sidecar.protocol.messages import MAX_LINE_BYTES, Failed, Join, Ready, Report, decode, encode
from sidecar.protocol.states import FailureKind, WorkerPhase
from sidecar.system.name_clash import replaced
from sidecar.system.priority import NICENESS, Priority, set_priority
from sidecar.system.process_guard import end_with_parent, leave_guard
from sidecar.system.training_python import line_to_write

_OOM_SCORE: Final = "1000"  # killed first if memory is short: a worker is replaced, a trainer is not


def main(arguments: Sequence[str]) -> None:
    """Run until the daemon closes the input of this process."""
    parser = argparse.ArgumentParser(prog="sidecar worker process")
    parser.add_argument("--framework", required=True)
    parser.add_argument("--reports", type=int, required=True, help="file descriptor to write reports to")
    parser.add_argument("--parent", type=int, required=True, help="process id of the daemon")
    parser.add_argument("--mark", required=True, help="NAME=VALUE in the environment of this process alone")
    parser.add_argument("--follows", action="store_true", help="a worker process started it: see followers.py")
    parser.add_argument("--yields", action="store_true", help="compute only with what other programs leave")
    options = parser.parse_args(arguments)
    end_with_parent(options.parent)
    leave_guard(options.mark)
    if not options.follows:  # else it has the priority of the process that started it
        _be_gentle(Priority.IDLE if options.yields else Priority.LOW)
    commands = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - for its descriptor
        os.dup2(nothing.fileno(), 0)  # the user's code must not read commands
    os.set_inheritable(options.reports, False)  # processes that it starts must not keep the daemon's pipe open
    reports = os.fdopen(options.reports, "wb", buffering=0)

    def report(message: Report) -> None:
        _write_all(reports, encode(message))

    status = 0
    try:
        _serve(options.framework, commands, report)
    except BaseException:  # noqa: BLE001 - every error goes to the log and ends this process
        traceback.print_exc()
        status = 1
    # A normal exit would run TensorFlow's shutdown, which may wait for peers that are gone.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _serve(framework: str, commands: BinaryIO, report: Callable[[Report], None]) -> None:
    """Carry out commands until there are no more."""
    if (why := replaced()) is not None:
        report(Failed(kind=FailureKind.JOIN, message=why, phase=WorkerPhase.IMPORT))
        return
    try:
        from sidecar.evaluation.backend import backend
        from sidecar.evaluation.data.opened_files import OpenedFiles
        from sidecar.evaluation.dispatcher import Dispatcher
        from sidecar.evaluation.failures import as_failed
        from sidecar.evaluation.followers import Followers
        from sidecar.evaluation.source_digest import source_digest
    except ModuleNotFoundError as error:
        report(Failed(kind=FailureKind.JOIN, message=_cannot_import(error, framework), phase=WorkerPhase.IMPORT))
        return
    source_digest()  # keeps the digest of the files as they are now
    try:
        loaded = backend(framework)
    except ModuleNotFoundError as error:
        report(Failed(kind=FailureKind.JOIN, message=_cannot_import(error, framework), phase=WorkerPhase.IMPORT))
        return
    except Exception as error:  # noqa: BLE001 - the daemon decides
        report(as_failed(error, phase=WorkerPhase.JOIN, plan=None, rank=None))
        return
    report(Ready(framework, loaded.version))
    files = OpenedFiles()
    files.install()
    followers: Followers | None = None

    def report_of_all(message: Report) -> None:
        (report if followers is None else followers.report)(message)

    worker = Dispatcher(loaded, report_of_all, files)
    while line := commands.readline(MAX_LINE_BYTES):
        try:
            command = decode(line)
        except RecordError as error:
            message = f"the worker process received an invalid command: {error}"
            report(Failed(kind=FailureKind.WORKER_DIED, message=message))
            return
        if isinstance(command, Join) and command.processes > 1 and command.process == 0:
            followers = Followers(command, report)
            command = followers.join
        elif followers is not None and not isinstance(command, Report):
            followers.pass_on(command)
        worker.run(command)


def _cannot_import(error: ModuleNotFoundError, framework: str) -> str:
    package = traits_of(framework).detected_alone if framework in OURS else None
    needed = [name for name in (error.name, package) if name]
    return f"{sys.executable} has no module {error.name!r}: {line_to_write(*needed)}"


def _write_all(stream: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]


def _be_gentle(priority: Priority) -> None:
    """Let the training on this node go first: with the processor, with the disk, and when memory is short."""
    os.nice(NICENESS)
    set_priority(os.getpid(), priority)
    with contextlib.suppress(OSError):  # a container may forbid it, and the score is not essential
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
