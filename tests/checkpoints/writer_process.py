"""A process of a framework that writes checkpoints of every kind, and restores them, when a test asks for it."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OBJECTS, OPTIMIZERS, WARM_UP = "objects", "optimizers", ""
"""What can be asked for in addition to the kinds of kinds.py."""

TENSORFLOW_WRITER, TORCH_WRITER = "real_writer.py", "torch_writer.py"


class WriterProcess:
    """The process, and the questions that it answers."""

    def __init__(self, process: subprocess.Popen) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return self._process.pid

    def write(self, kind: str, folder: Path) -> Any:
        """Let it write a kind of checkpoint; return what it says about them, once it has."""
        return self._answer(json.dumps({"kind": kind, "folder": str(folder)}))

    def restore(self, prefix: str) -> list:
        """Return the step and the weights that TensorFlow restores from a prefix."""
        return self._answer(prefix)

    def _answer(self, question: str) -> Any:
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()  # bounded by the test's timeout
        assert line, "the writer ended; its error output is above"
        return json.loads(line)


@contextlib.contextmanager
def writer_process(program: str = TENSORFLOW_WRITER) -> Iterator[WriterProcess]:
    """Start the process, and kill it at the end."""
    environment = os.environ | {
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "KERAS_BACKEND": "tensorflow",
    }
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name(program))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        try:
            yield WriterProcess(process)
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.kill()
