"""Print numbers, intervals and foreign text for people. Every part of the program that writes for people uses it."""

import math
import re
from collections.abc import Sequence
from typing import Any, Final

_SHOWN_CHARACTERS: Final = 80  # one line of a terminal
_MOST_DECIMALS: Final = 6
_LINE_ENDS: Final = re.compile(r"\s*\n\s*")  # arrays have them
_USER_IN_URL: Final = re.compile(r"(?<=://)[^/\s]*(?=@)")


def number(value: float | str) -> str:
    """Return a number with five significant digits; a text, such as `nan`, stays as it is."""
    return value if isinstance(value, str) else f"{value:.5g}"


def aligned(values: Sequence[float | str | None]) -> list[str]:
    """Return the numbers of a column with equally many decimals, as many as the one that needs most; None is empty.

    Numbers of very different sizes stay as `number` writes them, because so many decimals would say nothing.
    """
    texts = ["" if value is None else number(value) for value in values]
    written = [text for value, text in zip(values, texts, strict=True) if _is_finite(value)]
    decimals = max((len(text.partition(".")[2]) for text in written), default=0)
    if decimals > _MOST_DECIMALS or any("e" in text for text in written):
        return texts
    return [f"{value:.{decimals}f}" if _is_finite(value) else text for value, text in zip(values, texts, strict=True)]


def _is_finite(value: float | str | None) -> bool:
    return not isinstance(value, str | None) and math.isfinite(value)


def interval(lower: float | None, upper: float | None) -> str:
    """Return an interval as `LOWER to UPPER`; empty if a bound is missing."""
    return "" if lower is None or upper is None else f"{number(lower)} to {number(upper)}"


def printable(text: str) -> str:
    """Escape control characters except tabs and line ends, so that a message cannot control a terminal."""
    return "".join(character if character in "\n\t" else one_line(character) for character in text)


def one_line(text: str) -> str:
    """Escape all control characters: the name of a file may hold any of them."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def broken_at_signs(name: str, width: int) -> list[str]:
    """Return a name in lines of at most `width` characters, which end after `/`, `_`, `-` or `.`.

    A longer part is cut at its beginning, since names of metrics differ at their ends: `multiclassf1score`.
    """
    lines = [""]
    for part in re.findall(r"[^/_.-]*[/_.-]|[^/_.-]+$", name):
        fits = len(lines[-1]) + len(part) <= width
        lines = [*lines[:-1], lines[-1] + part] if fits else [*filter(None, lines), part]
    return [line if len(line) <= width else f"…{line[1 - width :]}" for line in lines]


def counted(count: int, one: str, several: str | None = None) -> str:
    """Return a number with its noun: `1 worker`, `2 workers`. `several`: the plural, if it is not `one` with an s."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"


def listed(names: Sequence[str], most: int = 5, *, separator: str = ", ") -> str:
    """Return at most so many names for a sentence, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def encodable(text: str) -> str:
    """Return a text that UTF-8 can encode: bytes of the name of a file that are not UTF-8 are escaped."""
    return text.encode(errors="backslashreplace").decode()


def shortened(value: Any, most: int = _SHOWN_CHARACTERS) -> str:
    """Return a value as Python writes it, in one line, cut to `most` characters, for a message about it."""
    return cut(_LINE_ENDS.sub(" ", repr(value)), most)


def shortened_without_password(value: Any) -> str:
    """Return a value as `shortened` does, without the users and passwords of URLs, also of one that is cut."""
    masked = without_password(value if isinstance(value, str) else repr(value))
    return shortened(masked) if isinstance(value, str) else cut(masked)


def cut(text: str, most: int = _SHOWN_CHARACTERS) -> str:
    """Return a text that is cut to `most` characters, with … as the last one."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def without_password(text: str) -> str:
    """Return a text without the users and passwords of the URLs in it."""
    return _USER_IN_URL.sub("…", text)
