"""Find whole numbers in the mapping that a pickle holds, without loading the pickle.

`pickletools` splits the bytes into opcodes and runs nothing. The numbers are those that follow directly on a text key
of the outermost mapping. Marks are counted to know how deep an opcode lies.
"""

import pickletools
from dataclasses import dataclass, field
from typing import Final

_TEXTS: Final = frozenset({"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"})
_NUMBERS: Final = frozenset({"BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4"})
_PUTS: Final = frozenset({"BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"})  # a value is noted, to refer to it later
_GETS: Final = frozenset({"BINGET", "LONG_BINGET", "GET"})  # a value that was noted
_CLOSING: Final = frozenset({"SETITEMS", "APPENDS", "TUPLE", "LIST", "DICT", "ADDITEMS", "FROZENSET", "OBJ", "INST"})
_LARGEST: Final = 2**63 - 1


def numbers_at_top(data: bytes) -> dict[str, int]:
    """Return the numbers from 0 on in the outermost mapping by key, as far as `data` reaches; it may be cut off.

    >>> import pickle
    >>> numbers_at_top(pickle.dumps({"epoch": 3, "inner": {"step": 1}, "step": 70}, protocol=2))
    {'epoch': 3, 'step': 70}
    """
    reading = _Reading()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if not reading.take(opcode.name, argument):
                break
    except (ValueError, OverflowError, IndexError):
        pass  # the rest is cut off, or damaged: what was found so far counts
    return reading.found


@dataclass(slots=True)
class _Reading:
    """Follow the opcodes of one pickle.

    A mapping is filled between a mark and SETITEMS or, if it has one item, by SETITEM without a mark. So a number in a
    mapping of one item is taken for one of the mapping around it, until SETITEM follows.
    """

    found: dict[str, int] = field(default_factory=dict)
    _depth: int = 0  # marks that are open
    _is_outermost: bool | None = None  # whether no other container has begun before the first mark; None: at the start
    _key: str | None = None  # the last text, if a value may follow
    _last: str | None = None  # the key of the last number
    _noted: dict[int, str] = field(default_factory=dict)  # texts
    _notes: int = 0
    _text: str | None = None  # the last opcode's, if it is one

    def take(self, name: str, argument: object) -> bool:
        """Take the next opcode, and return whether the outermost mapping is still open."""
        if name in ("PROTO", "FRAME"):
            return True
        if name in _PUTS:
            if self._text is not None:
                self._noted[argument if isinstance(argument, int) else self._notes] = self._text
            self._notes += 1
            return True
        self._text = self._text_of(name, argument)
        if self._is_outermost is None:
            self._is_outermost = name == "EMPTY_DICT"
            return self._is_outermost
        if name == "SETITEM" and self._depth == 1 and self._last is not None:
            del self.found[self._last]
        self._last = None
        is_item = self._depth == 1 or (self._depth == 0 and self._is_outermost)
        if is_item and self._key not in (None, *self.found) and name in _NUMBERS and isinstance(argument, int):
            self._add(argument)
        self._key = self._text if is_item and self._key is None else None
        self._depth += (name == "MARK") - (name in _CLOSING)
        self._is_outermost = self._is_outermost and not (self._depth == 0 and name.startswith("EMPTY_"))
        return self._depth >= 0

    def _text_of(self, name: str, argument: object) -> str | None:
        if name in _GETS and isinstance(argument, int):
            return self._noted.get(argument)
        return argument if name in _TEXTS and isinstance(argument, str) else None

    def _add(self, number: int) -> None:
        assert self._key is not None
        if 0 <= number <= _LARGEST:
            self.found[self._key], self._last = number, self._key
