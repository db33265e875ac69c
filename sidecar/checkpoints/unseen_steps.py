"""Count the checkpoints that training deleted before any node scanned them, by gaps in the numbers of their names.

The names of one series often count up by a constant stride, as those of `tf.train.CheckpointManager` do (`ckpt-24`,
`ckpt-25`). A number that is skipped was probably a checkpoint. Counting too few is acceptable here, but counting a
checkpoint that never existed is not. So a gap counts only if all of this holds:

- Three pairs of names in a row before the gap differ by the stride, and so does a pair after the gap.
- This node did not scan for about as long as saving the missing checkpoints takes. Between frequent scans no checkpoint
  can come and go.
- The time was long enough to save all missing checkpoints, at the pace of the quickest of those three pairs.
- A checkpoint after the gap is settled, and until then neither the journal nor a pin named a missing checkpoint.
- The checkpoint before the gap is gone, too. Training that has not deleted it has not deleted later ones.

A number that is not higher than the last one belongs to another start of training, whose stride is learned anew.
Nothing is known about the time before this daemon's first scan. Pure: the daemon's state reports scans and the journal.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.scan import DiscoveredCheckpoint

_PAIRS: Final = 3  # pairs in a row that establish a stride
_SUFFIXES: Final = tuple({suffix for format_ in FORMATS.values() for suffix in format_.suffixes})
_NUMBER: Final = re.compile(r"(.*?)([0-9]{1,15})", re.DOTALL)
_WAIT_SECONDS: Final = 10.0  # a checkpoint must stay unchanged for a while, so it is found some scans after it appeared
_TOLERANCE: Final = 0.5  # saves are not exactly evenly spaced
_MOST_MISSING: Final = 1000  # in one gap. This limit and the next two bound the cost of names, which are untrusted
_MOST_SUSPECTED: Final = 10  # gaps in one series
_MOST_SERIES: Final = 20


@dataclass(frozen=True, slots=True)
class Gap:
    """Report numbers without a known checkpoint, between two numbers of known checkpoints."""

    series: str  # a name with `*` in place of its number
    missing: tuple[int, ...]


@dataclass(slots=True)
class _SuspectedGap:
    """Hold a gap until the journal decides whether it counts."""

    before: str  # the name of the checkpoint before the gap
    above: int  # the number after the gap
    missing: dict[int, None]
    confirmed: bool = False  # whether the stride continues after the gap


@dataclass(slots=True, kw_only=True)
class _Series:
    """Hold the last number, the stride and the suspected gaps of one series of names."""

    last: int
    name: str
    written_at: float
    difference: int = 0  # between the last two numbers
    pairs: int = 0  # pairs in a row with that difference
    quickest: float = 0.0  # the least seconds between the writing of such a pair
    stride: int | None = None
    pace: float = 0.0  # the least seconds between the writing of a pair with that stride
    suspected: list[_SuspectedGap] = field(default_factory=list)
    ahead: set[int] = field(default_factory=set)  # numbers above `last` that the journal names: other nodes saw them

    def follow(self, number: int, discovered: DiscoveredCheckpoint, pause: float) -> None:
        """Advance to the next higher number, and note a gap before it. `pause`: as in `_is_gap`."""
        difference, seconds = number - self.last, max(discovered.written_at - self.written_at, 0.0)
        goes_on = difference == self.difference
        self.pairs = self.pairs + 1 if goes_on else 1
        self.quickest = min(self.quickest, seconds) if goes_on else seconds
        self.difference = difference
        if self.pairs >= _PAIRS:
            if difference != self.stride:
                self.suspected = []  # training changed its stride, which may explain the gaps
            self.stride, self.pace = difference, self.quickest
        if difference == self.stride:
            for gap in self.suspected:
                gap.confirmed = True
        elif self._is_gap(difference, seconds, pause):
            assert self.stride is not None
            skipped = range(self.last + self.stride, number, self.stride)
            missing = dict.fromkeys(step for step in skipped if step not in self.ahead)
            self.suspected = [*self.suspected[1 - _MOST_SUSPECTED :], _SuspectedGap(self.name, number, missing)]
        self.ahead = {step for step in self.ahead if step > number}
        self.last, self.name, self.written_at = number, discovered.checkpoint.name, discovered.written_at

    def _is_gap(self, difference: int, seconds: float, pause: float) -> bool:
        """Return whether checkpoints were probably saved and deleted between two numbers.

        `seconds`: the time between the writing of both. `pause`: the longest recent time between two scans.
        """
        if self.stride is None or difference % self.stride:
            return False
        saved = difference // self.stride
        was_paused = pause >= _TOLERANCE * seconds * (saved - 1) / saved
        return was_paused and seconds >= _TOLERANCE * self.pace * saved and saved - 1 <= _MOST_MISSING

    def forget(self, number: int) -> bool:
        """Remove the number of a known checkpoint from the gaps, and return whether it was in one."""
        return any(gap.missing.pop(number, 0) is None for gap in self.suspected)

    def judge(self, settled: int, is_there: Callable[[str], bool]) -> list[tuple[int, ...]]:
        """End the gaps below the number of a settled checkpoint, and return the missing numbers of each.

        A gap is not ended yet if its stride is not confirmed, or if the checkpoint before it still exists.
        """
        ended = [gap for gap in self.suspected if gap.confirmed and gap.above <= settled and not is_there(gap.before)]
        self.suspected = [gap for gap in self.suspected if gap not in ended]
        return [tuple(gap.missing) for gap in ended if gap.missing]


@dataclass(slots=True)
class UnseenSteps:
    """Find the gaps in what one node discovered. Times are seconds of the node's own clock."""

    count: int = 0  # missing checkpoints so far
    unreported: list[Gap] = field(default_factory=list)  # since the last call of `take`
    _series: dict[str, _Series] = field(default_factory=dict)
    _pauses: list[tuple[float, float]] = field(default_factory=list)  # recent times between scans: (end, seconds)
    _scanned_at: float | None = None

    def scan(self, new: Iterable[DiscoveredCheckpoint], now: float) -> None:
        """Add the checkpoints that a scan discovered, in order of discovery."""
        if self._scanned_at is not None:
            recent = [pause for pause in self._pauses if pause[0] >= now - _WAIT_SECONDS]
            self._pauses = [*recent, (now, now - self._scanned_at)]
        self._scanned_at = now
        longest_pause = max((seconds for _, seconds in self._pauses), default=-1.0)
        for discovered in new:
            if (parsed := _parsed(discovered.checkpoint.name)) is not None:
                self._add(*parsed, discovered, longest_pause)

    def _add(self, name: str, number: int, discovered: DiscoveredCheckpoint, pause: float) -> None:
        """Add one checkpoint to the series `name`, or begin the series anew if its numbers do."""
        series = self._series.pop(name, None)
        if series is None or (number <= series.last and not series.forget(number)):
            series = _Series(last=number, name=discovered.checkpoint.name, written_at=discovered.written_at)
        elif number > series.last:
            series.follow(number, discovered, pause)
        self._series[name] = series
        if len(self._series) > _MOST_SERIES:
            del self._series[next(iter(self._series))]

    def journaled(self, checkpoint: str, is_there: Callable[[str], bool], *, settled: bool) -> None:
        """Note that a record of the journal names a checkpoint, so that the checkpoint is not missing.

        `is_there`: returns whether the last scan found a checkpoint of a name. `settled`: whether the record settles
        the checkpoint, which ends the gaps before it.
        """
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
            self.unreported += gaps

    def take(self) -> list[Gap]:
        """Return the gaps that became certain since the last call."""
        gaps, self.unreported = self.unreported, []
        return gaps


def _parsed(name: str) -> tuple[str, int] | None:
    """Return the series that a name belongs to, and the last number in it apart from the format's suffix (`.h5`)."""
    suffix = max((suffix for suffix in _SUFFIXES if name.endswith(suffix)), key=len, default="")
    stem = name.removesuffix(suffix)
    match = _NUMBER.fullmatch(stem)
    return (f"{match[1]}*{suffix}", int(match[2])) if match else None
