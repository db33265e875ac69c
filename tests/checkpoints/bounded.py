"""Runs one parser after the other, each in a process of its own with little memory, and measures it.

Every line of input is {"folder", "format", "name"}; without a format the whole folder is searched for candidates. Every
line of output tells how it ended, and the most seconds of CPU time, bytes of memory and bytes read of one of its steps.
"""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sidecar.checkpoints.files import list_files
from sidecar.checkpoints.formats import FORMATS

CAP_BYTES = 64 << 20
MOST_SECONDS = 60


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)  # what takes more CPU time than that is killed
            say(measured(asked))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            say({"ended": f"died: {status}", "seconds": 0.0, "memory": 0, "read": 0})


def say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def measured(asked: dict[str, Any]) -> dict[str, Any]:
    folder = Path(asked["folder"])
    steps: list[Callable[[], Any]]
    if asked["format"] is None:
        steps = [lambda: [list(each.candidates(folder, list_files(folder))) for each in FORMATS.values()]]
    else:
        format_ = FORMATS[asked["format"]]
        steps = [lambda: format_.inspect(folder, asked["name"]), lambda: format_.check(folder, asked["name"])]
    before = of_memory("VmRSS")
    resource.setrlimit(resource.RLIMIT_AS, (of_memory("VmSize") + CAP_BYTES,) * 2)
    seconds, read, ended = 0.0, 0, []
    for step in steps:
        start, at = time.process_time(), bytes_read()
        try:
            step()
            ended.append("whole")
        except Exception as error:  # noqa: BLE001 - what it is, is judged by the test
            ended.append(f"{type(error).__name__}: {error}")
        seconds, read = max(seconds, time.process_time() - start), max(read, bytes_read() - at)
    return {"ended": ended, "seconds": seconds, "memory": of_memory("VmHWM") - before, "read": read}


def of_memory(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def bytes_read() -> int:
    """Return what this process asked the kernel for."""
    return int(Path("/proc/self/io").read_text().splitlines()[0].split()[1])


if __name__ == "__main__":
    main()
