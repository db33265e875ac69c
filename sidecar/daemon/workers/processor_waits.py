"""Measure how long a process waits for a processor, so that a worker on a busy node is not taken for one that hangs.

Workers have a low priority. If training uses all processors, a worker may wait for most of the time, and would never
finish its import if it were killed for that. Linux counts the time: the second number in `/proc/PID/task/TID/schedstat`
is the time in nanoseconds that a thread was ready to run and did not run. It has been there since Linux 2.6.23, unless
the kernel was built without it: https://docs.kernel.org/scheduler/sched-stats.html#proc-pid-schedstat
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sidecar.system.priority import threads_of

_EVERY_SECONDS: Final = 1.0  # between two measurements


def processor_waits(pid: int) -> dict[int, float]:
    """Return the seconds for which each thread of a process and of its children has waited; empty if unknown."""
    waits = dict[int, float]()
    for thread in threads_of(pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            waits[int(thread.name)] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return waits


@dataclass(slots=True)
class WaitMeter:
    """Add up how long the thread of a process that waited most has waited.

    `share`: the part of the time between the last two measurements in which it did.
    """

    seconds: float = 0.0
    share: float = 0.0
    _waits: Mapping[int, float] = field(default_factory=dict)  # by thread, at the last measurement
    _measured_at: float | None = None

    def measure(self, read: Callable[[], Mapping[int, float]], now: float) -> None:
        """Take a measurement at the time `now`, unless the last one is recent. The first one is where the meter begins.

        `read`: returns what `processor_waits` returns.
        """
        if self._measured_at is not None and now < self._measured_at + _EVERY_SECONDS:
            return
        waits = read()
        if self._measured_at is not None:
            longer = [seconds - self._waits[thread] for thread, seconds in waits.items() if thread in self._waits]
            passed = now - self._measured_at
            waited = min(max(longer, default=0.0), passed)
            self.seconds += waited
            self.share = waited / passed
        self._waits, self._measured_at = waits, now
