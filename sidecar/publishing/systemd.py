"""Notify systemd that a daemon has started, what it is doing, and that its loop still turns. See sd_notify(3).

The loop calls the notifier at each turn. If the loop hangs, the watchdog hears nothing and restarts the unit. Messages
are datagrams to a local socket, and sending never waits. Without a socket, nothing is sent.
"""

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

from sidecar.coordination.journal_state import JournalState
from sidecar.protocol.states import NodeState
from sidecar.publishing.status import Status
from sidecar.system.clock import Clock, SystemClock
from sidecar.system.plain_text import number, one_line

_PER_WATCHDOG: Final = 4  # signs of life per watchdog period: three may be lost or late
_MICROSECONDS: Final = 1e6


class Notifier:
    """Notify the service manager named in `environ`, if there is one.

    NOTIFY_SOCKET is a path, or an abstract name behind `@`. WATCHDOG_PID is the process that the watchdog watches, and
    WATCHDOG_USEC the period in which it must send a sign of life.
    """

    def __init__(self, environ: Mapping[str, str], *, clock: Clock | None = None) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self._clock = clock or SystemClock()
        self._watchdog = _watchdog_seconds(environ)
        self._alive_at = float("-inf")
        self._sent: frozenset[str] = frozenset()

    def __call__(self, status: Status, history: JournalState) -> None:
        """Tell what this node does. It has started when the task was checked, or if it has none."""
        if self._address:
            stopping = status.state in (NodeState.DRAINING, NodeState.LEFT)
            self.tell(describe(status, history), started=status.state != NodeState.STARTING, stopping=stopping)

    def tell(self, doing: str, *, started: bool, stopping: bool) -> None:
        """Send the facts that changed since the last call and, when it is time, a sign of life."""
        if not self._address:
            return
        facts = {f"STATUS={one_line(doing)}"}  # names of files may hold control characters
        if started:
            facts.add("READY=1")
        if stopping:
            facts.add("STOPPING=1")
        lines = sorted(facts - self._sent)
        now = self._clock.now()
        if alive := self._watchdog is not None and now - self._alive_at >= self._watchdog / _PER_WATCHDOG:
            lines.append("WATCHDOG=1")
        if lines and self._send("\n".join(lines)):
            self._sent = frozenset(facts)
            self._alive_at = now if alive else self._alive_at

    def _send(self, text: str) -> bool:
        """Send a message, and return whether that worked. A manager that is busy or gone must not stop the loop."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outlet:
            outlet.setblocking(False)
            outlet.sendto(text.encode(), self._address)
            return True
        return False


def describe(status: Status, history: JournalState) -> str:
    """Return a line for `systemctl status`: the node's activity, the length of the queue, and the newest numbers."""
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
    is_watched = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(period) / _MICROSECONDS if is_watched and period.isascii() and period.isdecimal() else None
