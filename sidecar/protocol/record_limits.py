"""Define how large each kind of record may be. `sidecar.protocol.codec` checks it before and while it decodes a record.

The limits are constants of the protocol, not settings: every node must come to the same answer from the same bytes.
They are far above what a daemon writes, and low enough that one forged file costs little memory and time. A release may
lower what it writes, but never what it reads. Standard library only, because worker processes import this module.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

NESTING: Final = 32
"""The most lists and objects inside one another. The parser of Python fails at a depth that depends on the node."""

DIGITS: Final = 400
"""The most digits in a row of a number: a double has at most 309, and some nodes may refuse more than 4,300."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLimits:
    """Limit a kind of record."""

    size: int  # the most bytes of the file
    values: int  # the most values: objects, lists and what they hold, in unknown fields, too
    items: int = 4096  # the most items of a list or an object that has no limit of its own
    text: int = 4096  # the most characters of a text that has no limit of its own
    name: int = 1024  # the most characters of the name of a field or an item
    shared: bool = False  # whether many such records are held at the same time, so equal texts are stored once


@dataclass(frozen=True, slots=True)
class AtMost:
    """Limit the items of a list or an object, or the characters of a text; `cut`: a writer cuts what is longer."""

    count: int
    cut: bool = False


SMALL: Final = RecordLimits(size=64 * 1024, values=16_384)
"""For records without a limit of their own: run.json, progress of sinks, signals, comparisons, records of pins."""

HEARTBEAT: Final = RecordLimits(size=256 * 1024, values=16_384, shared=True)
MANIFEST: Final = RecordLimits(size=1024 * 1024, values=65_536)
PLAN: Final = RecordLimits(size=2 * 1024 * 1024, values=65_536)  # 2,000 settlements with long names, or 4,096 members
OUTCOME: Final = RecordLimits(
    size=2 * 1024 * 1024, values=98_304
)  # five numbers for each of 1,000 classes, in two eval sets
RESULT_VIEW: Final = RecordLimits(size=PLAN.size + OUTCOME.size, values=PLAN.values + OUTCOME.values)
SNAPSHOT: Final = RecordLimits(
    size=64 * 1024 * 1024, values=1_600_000, text=16_384, name=4096
)  # unpacked: 350,000 evaluations
"""A key of a checkpoint is two texts of other records, and so is the name of an item."""

_OUTSIDE_DIGITS: Final = bytes(ord("0") if chr(code).isdigit() and code < 128 else ord(" ") for code in range(256))  # noqa: PLR2004 - ASCII
_NO_BRACKETS: Final = bytes(code for code in range(256) if chr(code) not in "[]{}")
_DEPTHS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_PART: Final = 64 * 1024


def excess(data: bytes, limits: RecordLimits) -> str | None:
    """Return which limit the bytes of a record break, as the end of a sentence; None if they break none.

    Decide it before the record is parsed, which may take a hundred times the memory of the file. The text need not be
    JSON. A part of a text never breaks a limit that the whole text does not break.
    """
    return excess_of_parts((data,), limits)


def excess_of_parts(parts: Iterable[bytes], limits: RecordLimits) -> str | None:
    """Return the same for a record in parts, each of which ends outside of texts."""
    size, values, depth = 0, 1, 0
    digits = b"0" * (DIGITS + 1)
    for data in parts:
        size += len(data)
        if size > limits.size:
            return f"has more than {limits.size} bytes"
        for part in _outside_texts(data):
            brackets = part.translate(None, _NO_BRACKETS)
            values += part.count(b",") + brackets.count(b"[") + brackets.count(b"{")
            if values > limits.values:
                return f"has more than {limits.values} values"
            depths = list(accumulate(map(_DEPTHS.__getitem__, brackets), initial=depth))
            if max(depths) > NESTING:
                return f"has more than {NESTING} lists and objects inside one another"
            depth = depths[-1]
            if digits in part.translate(_OUTSIDE_DIGITS):
                return f"has a number of more than {DIGITS} digits"
    return None


def _outside_texts(data: bytes) -> Iterator[bytes]:
    """Yield what stands outside of the texts of a JSON document, in parts, so that quotes cost no memory."""
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in data else data
    inside = 0
    for start in range(0, len(plain), _PART):
        pieces = plain[start : start + _PART].split(b'"')
        yield b" ".join(pieces[inside::2])
        inside ^= (len(pieces) - 1) & 1
