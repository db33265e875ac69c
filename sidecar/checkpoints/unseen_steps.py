"""Checkpoints that nobody saw: gaps in the numbers of names, where training deletes faster than a node looks.

Where the names of one series count up by a constant stride, as those of `tf.train.CheckpointManager` do (`ckpt-24`,
`ckpt-25`), a number that is skipped was a checkpoint, perhaps. Counting too few is right here, counting one that never
existed is not, so a gap counts only if all of this holds:

- the stride was the difference of three pairs in a row before the gap, and is that of a pair behind it;
- this node did not look for about as long as the missing ones take to be saved. While it scans, none comes and goes;
- as many as that could be saved in the time, by the quickest pair of those three;
- something behind the gap is settled, and by then no record of the journal, and no pin, named what is missing;
- the checkpoint before the gap is gone, too: training that deletes nothing has not deleted these.

A number that is not higher than the last one is another start of training: its stride is learned anew. What happened
before this daemon's first scan is not known here. Pure: the daemon's state reports scans and the journal.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.scan import DiscoveredCheckpoint

_PAIRS: Final = 3  # in a row, to believe in a stride
_SUFFIXES: Final = tuple({suffix for format_ in FORMATS.values() for suffix in format_.suffixes})
_NUMBER: Final = re.compile(r"(.*?)([0-9]{1,15})", re.DOTALL)
_WAIT_SECONDS: Final = 10.0  # a checkpoint that has to stay unchanged for a while is found some scans after it was seen
_EVEN: Final = 0.5  # saves are not exactly evenly spaced
_MOST_MISSING: Final = 1000  # in one gap; these three bound what names, which are anybody's, can cost
_MOST_SUSPECTED: Final = 10  # in one series
_MOST_SERIES: Final = 20


@dataclass(frozen=True, slots=True)
class Gap:
    """Numbers that nobody saw, between two names that somebody did."""

    series: str  # the name up to its number, and what follows it
    missing: tuple[int, ...]


@dataclass(slots=True)
class _Suspected:
    before: str  # the name of the checkpoint below the gap
    above: int
    missing: dict[int, None]
    confirmed: bool = False  # the stride goes on behind it


@dataclass(slots=True)
class _Series:
    """Where one series of names stands."""

    last: int
    name: str
    written_at: float
    difference: int = 0
    pairs: int = 0  # with that difference, in a row
    quickest: float = 0.0  # seconds between the writing of two of these
    stride: int | None = None
    pace: float = 0.0  # the quickest with that stride
    suspected: list[_Suspected] = field(default_factory=list)
    ahead: set[int] = field(default_factory=set)  # numbers above `last` that the journal names: other nodes saw them

    def follow(self, number: int, discovered: DiscoveredCheckpoint, pause: float) -> None:
        """Go on to the next higher number."""
        difference, seconds = number - self.last, max(discovered.written_at - self.written_at, 0.0)
        goes_on = difference == self.difference
        self.pairs = self.pairs + 1 if goes_on else 1
        self.quickest = min(self.quickest, seconds) if goes_on else seconds
        self.difference = difference
        if self.pairs >= _PAIRS:
            if difference != self.stride:
                self.suspected = []  # training saves at another stride: that may be all there is to the gaps
            self.stride, self.pace = difference, self.quickest
        if difference == self.stride:
            for each in self.suspected:
                each.confirmed = True
        elif self._is_gap(difference, seconds, pause):
            assert self.stride is not None
            between = range(self.last + self.stride, number, self.stride)
            missing = dict.fromkeys(each for each in between if each not in self.ahead)
            self.suspected = [*self.suspected[1 - _MOST_SUSPECTED :], _Suspected(self.name, number, missing)]
        self.ahead = {each for each in self.ahead if each > number}
        self.last, self.name, self.written_at = number, discovered.checkpoint.name, discovered.written_at

    def _is_gap(self, difference: int, seconds: float, pause: float) -> bool:
        if self.stride is None or difference % self.stride:
            return False
        saved = difference // self.stride
        fits = pause >= _EVEN * seconds * (saved - 1) / saved and seconds >= _EVEN * self.pace * saved
        return fits and saved - 1 <= _MOST_MISSING

    def forget(self, number: int) -> bool:
        """Take a number, which somebody saw, out of the gaps; returns whether it was in one."""
        return any(gap.missing.pop(number, 0) is None for gap in self.suspected)

    def judge(self, settled: int, is_there: Callable[[str], bool]) -> list[tuple[int, ...]]:
        """End the gaps below a number that is settled; returns what is missing of those that count."""
        ripe = [
            gap
            for gap in self.suspected
            if gap.confirmed and gap.above <= settled and not is_there(gap.before)  # perhaps it is held, still
        ]
        self.suspected = [gap for gap in self.suspected if gap not in ripe]
        return [tuple(gap.missing) for gap in ripe if gap.missing]


@dataclass(slots=True)
class UnseenSteps:
    """One node's. Times are seconds of its own clock."""

    count: int = 0  # checkpoints that nobody saw, so far
    untold: list[Gap] = field(default_factory=list)  # since they were taken last
    _series: dict[str, _Series] = field(default_factory=dict)
    _pauses: list[tuple[float, float]] = field(default_factory=list)  # between scans: when it ended, how long it was
    _looked_at: float | None = None

    def scan(self, new: Iterable[DiscoveredCheckpoint], now: float) -> None:
        """Take in what a scan discovered, in order of discovery."""
        if self._looked_at is not None:
            recent = [each for each in self._pauses if each[0] >= now - _WAIT_SECONDS]
            self._pauses = [*recent, (now, now - self._looked_at)]
        self._looked_at = now
        pause = max((seconds for _, seconds in self._pauses), default=-1.0)
        for discovered in new:
            if (parsed := _parsed(discovered.checkpoint.name)) is not None:
                self._discovered(*parsed, discovered, pause)

    def _discovered(self, name: str, number: int, discovered: DiscoveredCheckpoint, pause: float) -> None:
        series = self._series.pop(name, None)
        if series is None or (number <= series.last and not series.forget(number)):
            series = _Series(number, discovered.checkpoint.name, discovered.written_at)
        elif number > series.last:
            series.follow(number, discovered, pause)
        self._series[name] = series
        if len(self._series) > _MOST_SERIES:
            del self._series[next(iter(self._series))]

    def journaled(self, checkpoint: str, is_there: Callable[[str], bool], *, settled: bool) -> None:
        """Take in that a record names a checkpoint; `is_there` says whether the last scan found one of a name."""
        parsed = _parsed(checkpoint)
        series = self._series.get(parsed[0]) if parsed is not None else None
        if parsed is None or series is None:
            return
        name, number = parsed
        series.forget(number)
        if number > series.last:
            series.ahead.add(number)
        if settled:
            gaps = [Gap(name, missing) for missing in series.judge(number, is_there)]
            self.count += sum(len(gap.missing) for gap in gaps)
            self.untold += gaps

    def take(self) -> list[Gap]:
        """Return the gaps that became certain since this was called last."""
        gaps, self.untold = self.untold, []
        return gaps


def _parsed(name: str) -> tuple[str, int] | None:
    """Return the series that a name belongs to, and its number: the last one in it that is not the format's (`.h5`)."""
    suffix = max((each for each in _SUFFIXES if name.endswith(each)), key=len, default="")
    stem = name.removesuffix(suffix)
    match = _NUMBER.fullmatch(stem)
    return (f"{match[1]}*{suffix}", int(match[2])) if match else None
