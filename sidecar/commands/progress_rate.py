"""Measure how fast a worker gets through its batches, and estimate the time that is left. Pure.

All times are seconds of the clock of whoever observes the worker, and none of them is written anywhere.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

_WINDOW_SECONDS: Final = 30.0  # the rate follows a change of speed, and is steady if batches take a few seconds
_SAMPLES_KEPT: Final = 512
_MOST_BATCHES: Final = 10**12  # more than any evaluation has; a float cannot hold every integer that a file can
_UNITS: Final = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


@dataclass(slots=True)
class ProgressRate:
    """Hold when one worker was seen to have finished how many batches of a phase.

    The time before the first batch does not count, because that batch may trace and compile the model. There is no rate
    before two reports with different numbers of batches.
    """

    _samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_SAMPLES_KEPT))

    def note(self, batches: int, now: float) -> None:
        """Note a report that was seen at `now`. Fewer batches than before begin a new phase."""
        batches = bounded(batches)
        if self._samples and batches < self._samples[-1][1]:
            self._samples.clear()
        if batches < 1 or (self._samples and batches == self._samples[-1][1]):
            return
        self._samples.append((now, batches))
        # One sample from before the window remains: batches may take longer than the window.
        while len(self._samples) > 2 and self._samples[1][0] < now - _WINDOW_SECONDS:  # noqa: PLR2004
            self._samples.popleft()

    def per_second(self, now: float) -> float | None:
        """Return batches per second; None before it is known.

        The silence since the newest batch counts as soon as it is longer than usual, so a stalled worker gets slower.
        """
        if len(self._samples) < 2:  # noqa: PLR2004
            return None
        (began, first), (newest, last) = self._samples[0], self._samples[-1]
        usual = (newest - began) / (len(self._samples) - 1)
        seconds = max(newest - began, now - began - usual)
        return (last - first) / seconds if seconds > 0 else None

    def seconds_left(self, total: int | None, now: float) -> float | None:
        """Return the estimated seconds until `total` batches are done; None before they are known."""
        rate = self.per_second(now)
        if rate is None or total is None:
            return None
        newest, batches = self._samples[-1]
        left = max(0, bounded(total) - batches)
        return max(0.0, left / rate - min(now - newest, 1 / rate)) if left else 0.0


def bounded(batches: int) -> int:
    """Return a number of batches from a file as one that can be: a file may hold any."""
    return min(max(0, batches), _MOST_BATCHES)


def duration(seconds: float) -> str:
    """Return a duration in at most two units: `8 s`, `1 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    whole = round(seconds)
    for size, unit, smaller, its_unit in _UNITS:
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit} {rest} {its_unit}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"
