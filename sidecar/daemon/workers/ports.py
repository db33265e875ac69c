"""Reserve ports for worker processes. A port stays reserved for a worker's whole life, so that nobody else takes it."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sidecar.errors import SettingsError

OPEN_PORTS_REMEDY: Final = (
    "anybody who reaches a worker's port can run code in the worker, because TensorFlow's server asks for no password "
    "and listens on every address of the machine, whatever --host says; let a firewall restrict port_range to the "
    "nodes of the eval group: docs/how-to/firewall.md has a rule"
)
"""The remedy for ports that strangers may reach, for the log and for `sidecar check`."""


@dataclass(frozen=True, slots=True)
class Port:
    """Hold a reserved port until it is closed."""

    number: int
    _holder: socket.socket

    def close(self) -> None:
        """Release the port, so that others can use it."""
        self._holder.close()


class Ports:
    """Reserve ports of a range in turn, so that a port has been unused for long when it is taken again."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last
        self._next = first

    def reserve(self) -> Port:
        """Return the next free port of the range. Raises `SettingsError` if no port is free.

        The port is first bound exclusively, so that strangers and other daemons are refused, and then marked
        SO_REUSEPORT. A worker of the same user that asks for SO_REUSEPORT can serve on it, because the holder never
        listens.
        """
        for number in self._round():
            holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                holder.bind(("", number))
            except OSError:
                holder.close()
                continue
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._next = self._first if number == self._last else number + 1
            return Port(number, holder)
        raise SettingsError(
            f"no port from {self._first} to {self._last} is free for a worker process: widen --port-range A-B"
        )

    def _round(self) -> Iterator[int]:
        """Yield all ports of the range, beginning with the next one."""
        yield from range(self._next, self._last + 1)
        yield from range(self._first, self._next)
