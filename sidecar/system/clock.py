"""Provide the time: durations from a clock that counts through suspend, and wall time for records only."""

import time
from datetime import UTC, datetime
from typing import Final, Protocol

_FIRST_SECOND: Final = datetime(1, 1, 2, tzinfo=UTC).timestamp()
_LAST_SECOND: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


class Clock(Protocol):
    """Provide the clocks of a daemon. Tests pass a clock that they move by hand."""

    def now(self) -> float:
        """Return seconds since an arbitrary start. They never decrease, and count while the machine sleeps."""

    def wall(self) -> float:
        """Return seconds since 1970-01-01 UTC, for records only: these are never compared between machines."""


class SystemClock:
    """Read the machine's own clocks."""

    def now(self) -> float:
        """Return CLOCK_BOOTTIME, because a suspended node must notice afterwards that its lease ran out."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        """Return CLOCK_REALTIME."""
        return time.time()


def timestamp(wall_seconds: float) -> str:
    """Return a time in RFC 3339, UTC with milliseconds, as in records: `2026-01-31T12:00:00.123Z`."""
    wall_seconds = min(max(wall_seconds, _FIRST_SECOND), _LAST_SECOND)  # a file may have any time
    return datetime.fromtimestamp(wall_seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def local_time(text: str) -> tuple[str, str]:
    """Return a record's timestamp for people in this machine's zone, and the zone: `01-31 13:00` and `UTC+01:00`.

    Both are empty if it is not a timestamp.
    """
    try:
        moment = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError):  # a file may have any time
        return "", ""
    return f"{moment:%m-%d %H:%M}", f"UTC{moment.isoformat()[-6:]}".removesuffix("+00:00")


def seconds_between(begun: str, ended: str) -> float | None:
    """Return the seconds between two records' timestamps, for people: clocks differ. None if one is not a timestamp."""
    since, until = seconds_of(begun), seconds_of(ended)
    return None if since is None or until is None else round(max(0.0, until - since), 3)


def seconds_of(text: str) -> float | None:
    """Return the Unix time of a record's timestamp; None if it is not one."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
