"""Read large JSON objects member by member, so that only the text itself takes memory. The text is untrusted."""

import json
import re
from collections.abc import Callable
from typing import Any, Final

from sidecar.checkpoints.work_budget import WorkBudget

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()
_WINDOWS: Final = (128, 4096)
"""The characters that are tried for one value. Most values are short, and a copy of the longest takes long for each."""

_MEMBER: Final = 3  # units of work

MOST_MEMBERS: Final = 400_000
"""The members of one object. An index of 16 MiB with real names has 160,000 tensors."""


class TooManyMembersError(ValueError):
    """An object has more members than any real one, as in a file that is to keep its reader busy."""


def read_members(text: str, at: int, read: Callable[[str, int], int], work: WorkBudget) -> int:
    """Read the object that begins at `at`, and return where it ends.

    `read` is called with each key and the place of its value, and returns where the value ends.
    Raises ValueError if the text is not JSON there, and `TooManyMembersError` behind the member `MOST_MEMBERS`.

    >>> text = '{"a": "b", "c": "d"}'
    >>> read_members(text, 0, lambda key, at: print(key) or value_at(text, at)[1], WorkBudget())
    a
    c
    20
    """
    at, members = _next(text, at, "{"), 0
    while not text.startswith("}", at):
        members += 1
        work.add(_MEMBER)
        if members > MOST_MEMBERS:
            raise TooManyMembersError(f"an object has more than {MOST_MEMBERS} members")
        key, at = string_at(text, at)
        at = _skip(text, read(key, _next(text, at, ":")))
        if not text.startswith("}", at):
            at = _next(text, at, ",")  # JSON does not allow one before the }, but nothing depends on it
    return at + 1


def string_at(text: str, at: int) -> tuple[str, int]:
    """Return the string that begins at `at`, and where it ends. Raises ValueError."""
    if not text.startswith('"', at):
        raise ValueError(f"there is no string at {at}")
    value, end = _DECODER.raw_decode(text, at)
    return value, end


def value_at(text: str, at: int) -> tuple[Any, int]:
    """Return the value of any kind that begins at `at`, and where it ends. Raises ValueError, also if it is long."""
    for window in _WINDOWS:
        part = text[at : at + window]
        try:
            value, length = _DECODER.raw_decode(part)
        except RecursionError as error:
            raise ValueError(f"the value at {at} is nested too deep") from error
        except ValueError:
            if len(part) < window:
                raise
        else:
            if length < window:  # a number at the end of the window may go on behind it
                return value, at + length
    raise ValueError(f"the value at {at} is longer than {_WINDOWS[-1]} characters")


def has_many_containers(content: bytes) -> bool:
    """Return whether JSON text may have more than `MOST_MEMBERS` lists and objects, without building any of them."""
    return content.count(b"[") + content.count(b"{") > MOST_MEMBERS


def _next(text: str, at: int, sign: str) -> int:
    """Return the place behind a sign and the white space around it. Raises ValueError if there is another sign."""
    at = _skip(text, at)
    if not text.startswith(sign, at):
        raise ValueError(f"there is no {sign} at {at}")
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()
