"""Compare names of values in a checkpoint with the patterns of `Task(ignore=…)` and `Task(from_build_model=…)`.

Imports no framework: the same rule holds for the names that each framework gives to values.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

_WILDCARDS: Final = frozenset("*?[")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether one of the patterns describes the name.

    A pattern with `*`, `?` or `[` must describe the whole name, as in a shell. Any other pattern is the beginning of
    names:

        >>> matches("body.0.weight", ["body."]), matches("head.weight", ["body."])
        (True, False)
        >>> matches("body.0.lora_A", ["*.lora_?"])
        True
    """
    return any(
        fnmatchcase(name, pattern) if _WILDCARDS & set(pattern) else name.startswith(pattern) for pattern in patterns
    )


def unused(patterns: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the patterns that describe none of the names. A misspelt pattern would have no effect without a word."""
    names = list(names)
    return [pattern for pattern in patterns if not any(matches(name, [pattern]) for name in names)]
