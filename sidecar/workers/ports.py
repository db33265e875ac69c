"""Ports for worker processes, reserved for a worker's whole life so that nobody else can take one in between."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sidecar.errors import SettingsError

OPEN_PORTS_REMEDY: Final = (
    "whoever reaches a worker's port can run code in it, since TensorFlow's server asks for no password, and it "
    "listens on every address of the machine, whatever --host says; let a firewall keep port_range to the nodes of the "
    "eval group: docs/how-to/firewall.md has a rule"
)
"""The remedy for ports that strangers may reach, for the log and for `sidecar check`."""


@dataclass(frozen=True, slots=True)
class Port:
    """A reserved port; closing it gives it back."""

    number: int
    _holder: socket.socket

    def close(self) -> None:
        """Let others have it."""
        self._holder.close()


class Ports:
    """Hands out ports of a range, round robin: an old group's port is long unused when it is taken again."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last
        self._next = first

    def reserve(self) -> Port:
        """The next free port.

        It is bound exclusively, so that strangers and other daemons are refused, and marked SO_REUSEPORT only then: a
        worker of the same user that asks for SO_REUSEPORT can serve on it, since the holder never listens.
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
        yield from range(self._next, self._last + 1)
        yield from range(self._first, self._next)
