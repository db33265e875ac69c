"""Run a daemon as a child process of a program, such as a notebook or a training script.

`sidecar.Daemon` is the class here. The demo starts its daemons in the same way.
"""

import contextlib
import json
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from sidecar.errors import SidecarError
from sidecar.settings import load
from sidecar.system.child import ChildProcess, start

SIDECAR: Final = (sys.executable, "-P", "-c", "from sidecar.commands.cli import main; main()")
"""The words of the command `sidecar`, which need no PATH."""

_START_BYTES: Final = 8000
_TAIL_BYTES: Final = 4000
_ANSWER_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.05
_STOP_SECONDS: Final = 30.0  # as long as service managers wait after SIGTERM
_ENDED_WELL: Final = (0, 1)  # 1: some checkpoint could not be evaluated, which the results tell

_open_url = build_opener(ProxyHandler({})).open  # a daemon on this machine is not behind a proxy


@dataclass(slots=True)
class DaemonPort:
    """Ask a daemon through its HTTP port, whose address its log of JSON lines tells."""

    log: Path
    _url: str | None = field(default=None, init=False)

    @property
    def url(self) -> str | None:
        """Return the address of its HTTP port, or None until its log names it."""
        if self._url is None:
            started = (line for line in _records(self.log) if line.get("event") == "daemon_started")
            self._url = next((line["http"] for line in started), None)
        return self._url

    def status(self) -> Mapping[str, Any]:
        """Return its /api/status; empty while the daemon cannot be reached."""
        answer = self.ask("/api/status")
        return json.loads(answer) if answer else {}

    def ask(self, path: str) -> str:
        """Return the body of a page of its HTTP port; empty while the daemon cannot be reached."""
        if self.url is None:
            return ""
        try:
            with _open_url(self.url.rstrip("/") + path, timeout=_ANSWER_SECONDS) as answer:
                text: str = answer.read().decode()
                return text
        except (URLError, TimeoutError, ConnectionError):
            return ""


class Daemon:
    """Evaluate the checkpoints of a directory while a program runs, and until all are evaluated.

    It is `sidecar run` as a child process: training in this program does not wait for it, and it ends with this
    program, however that ends. For example, next to training in a notebook:

        with sidecar.Daemon("ckpts", "my_eval.py:task", replicas=2) as daemon:
            print(daemon.url)  # the status page
            train(save_in="ckpts")
        results = [*sidecar.results.history("ckpts")]

    At the end of the block the daemon evaluates what is left, and ends. If the block raises an error, it ends at once;
    what is left is evaluated by the next one.

    Args:
        checkpoint_dir: The directory, on this machine, in which training saves.
        task: The task, as `path/file.py:attr` or `module:attr`. Default: that of the settings.
        finish_seconds: The time for what is left at the end of the block.
        start_seconds: The time for the start; it imports no framework.
        log: A file for the log of the daemon, in JSON lines. Default: one that is removed at the end.
        settings: Any other settings, such as `replicas` or `every_steps`. Others come from the environment, and from
            `sidecar.toml` in the current directory. The port of the page is a free one unless `http` says which.

    Raises:
        SettingsError: A setting is wrong.
        SidecarError: The daemon does not start, or ends early, or does not finish in time; at the end of the block.
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        task: str | None = None,
        *,
        finish_seconds: float = 3600.0,
        start_seconds: float = 60.0,
        log: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> None:
        self._directory = Path(checkpoint_dir).absolute()
        self._finish_seconds, self._start_seconds = finish_seconds, start_seconds
        self._log = None if log is None else Path(log)
        self._marker = self._directory / f".sidecar-done-{secrets.token_hex(8)}"
        given = {"http": "127.0.0.1:0"} | settings | {"task": task, "log_format": "json"}
        given |= {"checkpoint_dir": self._directory, "done_marker": self._marker.name}
        load({name: value for name, value in given.items() if value is not None})  # its errors are in a program's words
        self._environment = os.environ | {
            f"SIDECAR_{name.upper()}": _written(value) for name, value in given.items() if value is not None
        }
        self._closing = contextlib.ExitStack()
        self._running: tuple[ChildProcess, DaemonPort] | None = None

    @property
    def url(self) -> str:
        """Return the address of the status page, within the block."""
        return self._port.url or ""

    def status(self) -> Mapping[str, Any]:
        """Return the document of `/api/v1/status`; empty while the daemon does not answer."""
        return self._port.status()

    @property
    def _port(self) -> DaemonPort:
        if self._running is None:
            raise SidecarError("the daemon does not run: use it within its with block")
        return self._running[1]

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as closing:
            log = self._log
            if log is None:
                log = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="sidecar-"))) / "daemon.log"
            with log.open("wb") as output:
                words = (*SIDECAR, "run")
                child = start(words, guarded="descendants", stdout=output, stderr=output, environment=self._environment)
            closing.callback(child.close)
            closing.callback(self._marker.unlink, missing_ok=True)
            port = DaemonPort(log)
            self._await_start(child, port)
            self._closing, self._running = closing.pop_all(), (child, port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._running is not None
        (child, port), self._running = self._running, None
        with self._closing:
            if kind is not None:
                child.send_signal(signal.SIGTERM)
                child.wait_at_most(_STOP_SECONDS)
                return
            self._directory.mkdir(parents=True, exist_ok=True)  # training may have saved nothing
            self._marker.touch()
            if (code := child.wait_at_most(self._finish_seconds)) is None:
                raise SidecarError(_why(port.log, f"what is left was not evaluated within {self._finish_seconds:g} s"))
            if code not in _ENDED_WELL:
                raise SidecarError(_why(port.log, f"the daemon ended with exit code {code}"))

    def _await_start(self, child: ChildProcess, port: DaemonPort) -> None:
        deadline = time.monotonic() + self._start_seconds
        while port.url is None:
            if (code := child.wait_at_most(_LOOK_SECONDS)) is not None:
                raise SidecarError(_why(port.log, f"the daemon did not start (exit code {code})"))
            if time.monotonic() > deadline:
                raise SidecarError(_why(port.log, f"the daemon did not start within {self._start_seconds:g} s"))


def _written(value: Any) -> str:
    """Return the value of a setting as a variable holds it."""
    if isinstance(value, bool | list | tuple | dict):
        return json.dumps(value, default=os.fspath)
    return str(value)


def _why(log: Path, what: str) -> str:
    """Return what happened, with the last line of the log that says why."""
    lines = [line for line in read_end(log, _TAIL_BYTES).splitlines() if line.strip()]
    return f"{what}: {lines[-1]}" if lines else what


def read_end(path: Path, size: int) -> str:
    """Return the last bytes of a file as text; empty if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _records(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the records in the first lines of a JSON log."""
    try:
        with log.open("rb") as file:
            lines = file.read(_START_BYTES).splitlines(keepends=True)
    except FileNotFoundError:
        return
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if line.endswith(b"\n") and isinstance(record, dict):
            yield record
