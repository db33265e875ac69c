"""Draw the course of a number in one line of characters: `▁▂▄▆█`. Pure; no terminal."""

import math
from collections.abc import Sequence
from typing import Final

_LEVELS: Final = "▁▂▃▄▅▆▇█"
_GAP: Final = " "


def sparkline(values: Sequence[float], *, width: int) -> str:
    """Return one character for each of the newest `width` values, from the smallest to the largest of them.

    A value that is not finite is a gap. If all values are equal, each has the middle level.
    """
    shown = list(values[-width:]) if width > 0 else []
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return _GAP * len(shown)
    return "".join(
        _LEVELS[_level(value, min(finite), max(finite))] if math.isfinite(value) else _GAP for value in shown
    )


def _level(value: float, least: float, most: float) -> int:
    """Return the level of a value, from 0 to 7."""
    half = most / 2 - least / 2  # of the span, which may be larger than the largest float
    if half <= 0.0:
        return len(_LEVELS) // 2
    return min(len(_LEVELS) - 1, int((value / 2 - least / 2) / half * len(_LEVELS)))
