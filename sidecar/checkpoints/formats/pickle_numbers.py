"""Find whole numbers in the mapping that a pickle holds, without loading the pickle.

`pickletools` splits the bytes into opcodes, and knows how many values each takes from the stack and puts on it. Only
texts, numbers and the outermost mapping are followed; `_OTHER` stands for every other value. Nothing is imported or
called.
"""

import contextlib
import pickletools
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from sidecar.checkpoints.work_budget import WorkBudget

_PUTS: Final = frozenset({"BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"})  # the last value is noted, to refer to it later
_GETS: Final = frozenset({"BINGET", "LONG_BINGET", "GET"})  # a value that was noted
_PLAIN: Final = frozenset(
    {"BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4"}
    | {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"}
)
_FILLING: Final = frozenset({"SETITEM", "SETITEMS", "APPEND", "APPENDS", "ADDITEMS"})  # the container stays
_FILLING_LISTS: Final = frozenset({"APPENDS", "ADDITEMS"})
_LONGEST_KEY: Final = 255
_LARGEST: Final = 2**63 - 1
_OPCODE: Final = 1  # units of work
_MAX_OPCODES: Final = 300_000  # about 0.3 s; a model of 1000 layers with its optimizer has 250,000
_DAMAGE: Final = (ValueError, OverflowError, IndexError, KeyError, Warning)  # for bytes that are cut off or wrong


class _Value:
    """Stand for a value that is neither a text nor a number."""


_OTHER: Final = _Value()
_MARK: Final = _Value()


def numbers_at_top(data: bytes, work: WorkBudget) -> dict[str, int]:
    """Return the numbers from 0 on in the outermost mapping by their keys, as far as `data` reaches.

    `data` may be cut off: then the items that are followed by another key count. Only the rest of the pickle would say
    whether such a number is the beginning of a tuple, or the mapping is.

    >>> import pickle
    >>> numbers_at_top(pickle.dumps({"epoch": 3, "inner": {"step": 1}, "step": 70}, protocol=2), WorkBudget())
    {'epoch': 3, 'step': 70}
    """
    stack = _Stack()
    with contextlib.suppress(*_DAMAGE):  # the rest is cut off or damaged, and the items before it count
        for opcode, argument, _ in islice(pickletools.genops(data), _MAX_OPCODES):
            work.add(_OPCODE)
            if opcode.name == "STOP":
                return stack.numbers if stack.values == [stack.outermost] else {}
            if opcode.name not in ("PROTO", "FRAME"):
                stack.apply(opcode, argument)
                if not stack.values or stack.values[0] is not stack.outermost:
                    return {}
    stack.take_open_items()
    return stack.numbers


def number_at_end(data: bytes, key: str, work: WorkBudget) -> int | None:
    """Return the number from 0 on under a key in the outermost mapping, if it is among the last items; else None.

    `data`: the end of a pickle. The opcodes from the last such key on must fill a mapping that is open there, and then
    end the pickle. In an inner mapping they would end that one first.

    >>> import pickle
    >>> data = pickle.dumps({"model": ["…"] * 99, "step": 70, "loss": 0.5}, protocol=2)
    >>> number_at_end(data[-40:], "step", WorkBudget())
    70
    """
    text = key.encode(errors="surrogatepass")
    if len(text) > _LONGEST_KEY:
        return None
    # BINUNICODE or SHORT_BINUNICODE, with the length in 4 bytes or in 1
    as_opcodes = (b"X" + len(text).to_bytes(4, "little") + text, b"\x8c" + len(text).to_bytes(1, "little") + text)
    start = max(data.rfind(each) for each in as_opcodes)
    if start < 0:
        return None
    stack = _Stack(is_end=True)
    stack.values += [stack.outermost, _MARK]
    with contextlib.suppress(*_DAMAGE):
        for opcode, argument, _ in pickletools.genops(data[start:]):
            work.add(_OPCODE)
            if opcode.name == "STOP":
                return stack.numbers.get(key) if stack.values == [stack.outermost] else None
            if opcode.name in _FILLING_LISTS and _MARK not in stack.values[2:]:
                return None  # what is open is a list
            stack.apply(opcode, argument)
            if stack.values[0] is not stack.outermost:
                return None
    return None


@dataclass(slots=True)
class _Stack:
    """Follow the stack of one pickle, whose first value must be the outermost mapping.

    `numbers`: the numbers that were put into that mapping. `is_end`: the beginning of the pickle was not seen,
    so values that were noted there are unknown.
    """

    values: list[object] = field(default_factory=list)
    outermost: _Value = field(default_factory=_Value)
    numbers: dict[str, int] = field(default_factory=dict)
    is_end: bool = False
    _noted: dict[int, object] = field(default_factory=dict)

    def apply(self, opcode: pickletools.OpcodeInfo, argument: object) -> None:
        """Do what an opcode does to the stack. Raises IndexError or KeyError if a value for it is missing."""
        name = opcode.name
        if name in _PUTS:
            self._noted[argument if isinstance(argument, int) else len(self._noted)] = self.values[-1]
        elif name in _GETS:
            assert isinstance(argument, int)
            self.values.append(self._noted.get(argument, _OTHER) if self.is_end else self._noted[argument])
        elif name in _PLAIN:
            self.values.append(argument)
        elif name == "MARK":
            self.values.append(_MARK)
        elif name == "DUP":
            self.values.append(self.values[-1])
        elif name == "EMPTY_DICT" and not self.values:
            self.values.append(self.outermost)
        else:
            self._apply_effect(opcode)

    def take_open_items(self) -> None:
        """Add the items that wait on the stack to be put into the outermost mapping, up to the last text."""
        if self.values[1:2] != [_MARK]:
            return
        end = self.values.index(_MARK, 2) if _MARK in self.values[2:] else len(self.values)
        waiting = self.values[2:end]
        while waiting and not isinstance(waiting[-1], str):
            waiting.pop()
        self._add(waiting)

    def _apply_effect(self, opcode: pickletools.OpcodeInfo) -> None:
        """Take the values that an opcode takes from the stack, and put those that it makes.

        An opcode that fills a container, the first value that it takes, puts this container back.
        """
        name, taken = opcode.name, opcode.stack_before
        items: list[object] = []
        if pickletools.markobject in taken:
            while (value := self.values.pop()) is not _MARK:
                items.append(value)
            taken = taken[: taken.index(pickletools.markobject)]
        items.extend(self.values.pop() for _ in taken)
        items.reverse()
        is_filling = name in _FILLING
        if is_filling and items[0] is self.outermost:
            self._add(items[1:])
        self.values.extend([items[0] if is_filling else _OTHER] * len(opcode.stack_after))

    def _add(self, items: list[object]) -> None:
        """Put keys and values, one after the other, into the outermost mapping."""
        for key, value in zip(items[::2], items[1::2], strict=False):
            if isinstance(key, str):
                self.numbers.pop(key, None)
                if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST:
                    self.numbers[key] = value
