"""Start one worker process on a node of a Ray cluster, and relay its commands and its reports.

`bridge` sends this module to the nodes as it is, so at its head it may import the standard library only. Ray creates an
actor on the main thread of its process and calls its methods on other threads: `process.start` needs the former.
"""

import dataclasses
import json
import os
import queue
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

BEAT_SECONDS: Final = 2.0
"""Time after which an actor that has nothing to report says that it is alive."""

_LOST: Final = -9

_OF_RAY: Final = ("RAY_", "SPT_NOENV", "PYTHONBREAKPOINT", "OMP_NUM_THREADS")
"""Variables that Ray sets for an actor, or what their names begin with: a worker process must not have them."""


class WorkerActor:
    """Own one worker process on this node. The arguments are the fields of `engine.RayPlace`, as JSON."""

    def __init__(self, place: Mapping[str, Any], devices: str | None) -> None:
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._process: Any = None
        self.about: dict[str, Any] = {}
        try:
            self._start(place, devices)
        except Exception as error:  # noqa: BLE001 - the daemon shows the reason, whatever it is
            name = "" if type(error).__module__.startswith("sidecar.") else f"{type(error).__name__}: "
            self._events.put({"exited": {"status": _LOST, "tail": "", "why": f"{self._where()}: {name}{error}"}})

    def placed(self) -> dict[str, Any]:
        """Return where the worker process runs."""
        return self.about

    def send(self, line: str) -> None:
        """Send a command to the worker process."""
        from sidecar.protocol.messages import Command, decode  # noqa: PLC0415 - see the head of this module

        command = decode(line.encode())
        if self._process is not None and isinstance(command, Command):
            self._process.send(command)

    def events(self) -> Iterator[bytes]:
        """Yield the events of the worker process as lines of JSON until it ends, and empty lines as signs of life."""
        while True:
            try:
                event = self._events.get(timeout=BEAT_SECONDS)
            except queue.Empty:
                yield b""
                continue
            yield json.dumps(event).encode()
            if "exited" in event:
                return

    def _where(self) -> str:
        """Return the address of this node, for people and for the addresses of the group."""
        import ray  # noqa: PLC0415 - the daemon's environment has no Ray

        address: str = ray.util.get_node_ip_address()
        return address

    def _start(self, place: Mapping[str, Any], devices: str | None) -> None:
        """Start the worker process with the variables of this node, and a port of this node."""
        package = Path(place["package"])
        if package.is_dir():
            runpy.run_path(str(package / "evaluation" / "__main__.py"))["_make_sidecar_importable"](package)
        from sidecar.daemon.workers.environment import worker_environment  # noqa: PLC0415 - likewise
        from sidecar.daemon.workers.logs import usable_log_folder  # noqa: PLC0415 - likewise
        from sidecar.daemon.workers.ports import Ports  # noqa: PLC0415 - likewise
        from sidecar.daemon.workers.process import start  # noqa: PLC0415 - likewise
        from sidecar.errors import SettingsError  # noqa: PLC0415 - likewise
        from sidecar.evaluation.framework_traits import traits_of  # noqa: PLC0415 - likewise
        from sidecar.evaluation.source_digest import source_digest  # noqa: PLC0415 - likewise
        from sidecar.system.addresses import host_and_port  # noqa: PLC0415 - see the head of this module

        if source_digest() != place["code"]:
            raise SettingsError(
                "the files of sidecar-evaluator here are not those that the daemon began with: install the same "
                "version, and restart the daemon if it was upgraded"
            )
        for folder in place["folders"]:
            if not Path(folder).is_dir():
                raise SettingsError(f"{folder} does not exist here: mount the storage of the daemon at the same path")
        host, port = self._where(), Ports(*place["ports"]).reserve()
        environment = worker_environment(
            {name: value for name, value in os.environ.items() if not name.startswith(_OF_RAY)},
            traits=traits_of(place["framework"]),
            devices=os.environ.get("CUDA_VISIBLE_DEVICES", "-1") if devices is None else devices,
            hosts=[host],
            changes=place["changes"],
        )
        logs, _ = usable_log_folder(Path(place["logs"]))
        self._process = start(
            place["worker"],
            interpreter=place["interpreter"],
            framework=place["framework"],
            environment=environment,
            directory=place["directory"],
            log=logs / f"{place['worker']}.log",
            keep_logs=place["running"],
            post=self._post,
        )
        self._port = port  # held until this process ends
        self.about = {"host": host, "address": host_and_port(host, port.number), "pid": self._process.pid}

    def _post(self, _: str, event: Any) -> None:
        """Note an event of the worker process, as JSON."""
        from sidecar.daemon.workers.process import Exited, Halted  # noqa: PLC0415 - see the head of this module
        from sidecar.protocol.messages import encode  # noqa: PLC0415 - likewise

        if isinstance(event, Exited):
            self._events.put({"exited": dataclasses.asdict(event)})
        elif isinstance(event, Halted):
            self._events.put({"halted": event.halted})
        else:
            self._events.put({"report": encode(event).decode()})
