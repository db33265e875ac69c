"""Clocks that a test sets: in each process of Python that has this folder in PYTHONPATH, and the variable ODD_CLOCK.

ODD_CLOCK names a file with the hours by which the wall clock is wrong, and the rate of all clocks. It is read each
time, so a test can step the clock of a daemon that runs, and make it faster or slower: no clock goes back for that. A
wait for a condition of `threading` is as long by that clock as it says. The real clocks of the machine stay as they
are, and with them the times of files: those come from a file server that has a clock of its own.
"""

import os
import time

_HOUR = 3600.0
_REAL_NOW, _REAL_WALL, _REAL_OF = time.monotonic, time.time, time.clock_gettime
_PLACE = os.environ.get("ODD_CLOCK")
_BEGAN, _BEGAN_WALL = _REAL_NOW(), _REAL_WALL()
_since = (_BEGAN, _BEGAN, 1.0)  # a moment, what the clock showed then, and the rate from then on


def _setting():
    """Return the hours and the rate; those of a right clock while the file is being written."""
    try:
        with open(_PLACE) as file:  # noqa: PTH123 - each process starts with this
            hours, rate = file.read().split()
            return float(hours), float(rate)
    except (OSError, ValueError):
        return 0.0, 1.0


def _now():
    global _since  # noqa: PLW0603 - it replaces a function of a module
    moment, rate = _REAL_NOW(), _setting()[1]
    since, shown, rate_since = _since
    now = shown + (moment - since) * rate_since
    if rate != rate_since:
        _since = (moment, now, rate)
    return now


def _wall():
    return _BEGAN_WALL + (_now() - _BEGAN) + _setting()[0] * _HOUR


def _of(clock):
    if clock == time.CLOCK_REALTIME:
        return _wall()
    if clock in (time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME):
        return _REAL_OF(clock) - (_REAL_NOW() - _now())
    return _REAL_OF(clock)


if _PLACE is not None:
    time.time, time.monotonic, time.clock_gettime = _wall, _now, _of
    time.time_ns = lambda: int(_wall() * 1e9)

    import threading

    _real_wait = threading.Condition.wait

    def _wait(self, timeout=None):
        return _real_wait(self, timeout if timeout is None else timeout / _setting()[1])

    threading.Condition.wait = _wait
