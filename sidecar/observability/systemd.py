"""Tell systemd that a daemon started, what it is doing, and that its loop still turns. See sd_notify(3).

Called by the loop at each of its turns, so a loop that hangs falls silent and the watchdog restarts the unit. It sends
datagrams to a local socket and never waits: where nobody listens, nothing is said.
"""

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

from sidecar.clock import Clock, SystemClock
from sidecar.coordination.journal_state import JournalState
from sidecar.observability.status import Status
from sidecar.plain_text import number, one_line
from sidecar.states import NodeState

_PER_WATCHDOG: Final = 4  # signs of life per watchdog period: three may be lost or late
_MICROSECONDS: Final = 1e6


class Notifier:
    """Notify the service manager named in `environ`, if there is one.

    Args:
        environ: NOTIFY_SOCKET is a path, or an abstract name behind `@`; WATCHDOG_USEC and WATCHDOG_PID say how often,
            and which process, the watchdog wants to hear.
        clock: for the pauses between signs of life.
    """

    def __init__(self, environ: Mapping[str, str], *, clock: Clock | None = None) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self._clock = clock or SystemClock()
        self._watchdog = _watchdog_seconds(environ)
        self._alive_at = float("-inf")
        self._said: frozenset[str] = frozenset()

    def __call__(self, status: Status, history: JournalState) -> None:
        """Say what changed since the last call, and, when it is time, that the loop turns."""
        if not self._address:
            return
        says = {f"STATUS={one_line(describe(status, history))}"}  # file names need not be text
        if status.state != NodeState.STARTING:  # the task was checked, or there is none to check
            says.add("READY=1")
        if status.state in (NodeState.DRAINING, NodeState.LEFT):
            says.add("STOPPING=1")
        lines = sorted(says - self._said)
        now = self._clock.now()
        if alive := self._watchdog is not None and now - self._alive_at >= self._watchdog / _PER_WATCHDOG:
            lines.append("WATCHDOG=1")
        if lines and self._send("\n".join(lines)):
            self._said = frozenset(says)
            self._alive_at = now if alive else self._alive_at

    def _send(self, text: str) -> bool:
        """Send a message, and return whether it was taken: a manager that is busy or gone must not stop the loop."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outlet:
            outlet.setblocking(False)
            outlet.sendto(text.encode(), self._address)
            return True
        return False


def describe(status: Status, history: JournalState) -> str:
    """Return a line for `systemctl status`: what the node is doing, the queue's length, and the newest numbers."""
    plan, newest = history.open, history.newest
    if status.unready is not None:
        doing = status.unready
    elif status.identity.role.role == "chief":
        doing = f"idle: this is the chief ({status.identity.role.source})"
    elif plan is not None and plan.checkpoint is not None:
        doing = f"evaluating {plan.checkpoint.name} (plan {plan.plan}, {len(plan.members or ())} workers)"
    else:
        doing = "waiting for a checkpoint"
    parts = [doing]
    if status.checkpoints.pending:
        parts.append(f"{status.checkpoints.pending} pending")
    if newest is not None and newest.plan.checkpoint is not None and newest.outcome.result is not None:
        metrics = newest.outcome.result.metrics
        numbers = [f"{name} {number(value.number)}" for _, values in metrics.items() for name, value in values.items()]
        parts.append(f"newest {newest.plan.checkpoint.name}: {', '.join(numbers)}")
    return " ".join("; ".join(parts).split())


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    """Return how long systemd waits for a sign of life; None if it does not wait, or waits for another process."""
    period = environ.get("WATCHDOG_USEC", "")
    wanted = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(period) / _MICROSECONDS if wanted and period.isascii() and period.isdecimal() else None
