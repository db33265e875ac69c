"""Sum without rounding, as nearly every metric needs it. Imports numpy, never a framework.

A float is an integer times a power of two, so a sum of floats is one long integer per element, and it is rounded only
once, when it is read. The sum depends neither on the order of additions nor on how the examples were divided among
workers. Each worker adds the deltas of its batches, the ranks all-reduce the packs, and the sum of the packs is the sum
over all ranks.

The long integer is a fixed-point superaccumulator, as in R. M. Neal, "Fast exact summation using small and large
superaccumulators" (arXiv:1505.05571, 2015): digits of 44 bits in int64, so that 2^18 additions fit before a carry is
necessary. One digit has the weight 2^0 and holds all counts. The other digits exist only once a value needs them.
"""

import math
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sidecar.errors import RecordError
from sidecar.evaluation.states.state import SetStates, chosen_rows, matrix_of, state_of

_DIGIT_BITS: Final = 44
_BASE: Final = 1 << _DIGIT_BITS
_LIMIT: Final = 1 << 62  # limit of a digit: one bit of int64 stays free for the addition of a carry
_PACK_LIMIT: Final = _LIMIT >> 13  # so that 8192 packs can be summed
_BLOCK: Final = 1 << 14  # values added at once: the temporaries stay in the processor's cache

# NaN and infinities set flags: one int64 per element with three fields, each with room for the sum of 2^21 - 1 packs.
_NAN: Final = 1
_POSITIVE: Final = 1 << 21
_NEGATIVE: Final = 1 << 42
_FIELD: Final = (1 << 21) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """The bits of a kind of number, and the digits that hold its smallest value and 2^64 times its largest."""

    kind: type[np.generic]
    bits: type[np.signedinteger[Any]]
    mantissa_bits: int  # without the implicit one
    lowest: int  # exponent of the smallest subnormal
    fraction_digits: int
    digits: int
    words: int  # rows of a pack: digits, then flags


_FLOAT32: Final = _Layout(
    kind=np.float32, bits=np.int32, mantissa_bits=23, lowest=-149, fraction_digits=4, digits=8, words=9
)
_FLOAT64: Final = _Layout(
    kind=np.float64, bits=np.int64, mantissa_bits=52, lowest=-1074, fraction_digits=25, digits=50, words=51
)
_INT64: Final = _Layout(kind=np.int64, bits=np.int64, mantissa_bits=63, lowest=0, fraction_digits=0, digits=1, words=1)


def _layout_of(dtype: str) -> _Layout:
    """Return the layout for values of a dtype; raises `TypeError` for one that cannot be summed exactly."""
    if dtype in {"float16", "bfloat16", "float32"}:
        return _FLOAT32
    if dtype == "float64":
        return _FLOAT64
    if np.dtype(dtype).kind in "biu":
        return _INT64
    raise TypeError(f"a state of dtype {dtype} cannot be summed exactly: use floats of 16 to 64 bits, integers or bool")


class ExactSum:
    """Sum exactly, per element of an array of any shape. A new sum is zero, the identity of `merge`.

    `dtype` is the type of the values added: float16, bfloat16 and float32 share one layout, float64 has another, and
    integers and bool are summed in int64. Raises `TypeError` for any other type.
    """

    def __init__(self, shape: tuple[int, ...] = (), dtype: str = "float32") -> None:
        self.shape = shape
        self.dtype = dtype
        self._layout = _layout_of(dtype)
        self._size = math.prod(shape)
        self._digits: NDArray[np.int64] = np.zeros((1, self._size), np.int64)  # (digits, size), or only the units
        self._flags: NDArray[np.int64] = np.zeros(self._size, np.int64)
        self._reach = 0  # no digit is larger than this
        self.part_of_row: NDArray[np.intp] | None = None
        """The number of the part of each row (n,) that is added next, for sums that `by_part` made."""

    @property
    def is_integral(self) -> bool:
        """Whether this is a sum of integers, so that `integers` can return it."""
        return self._layout is _INT64

    @property
    def rows(self) -> int:
        """Number of rows: 9, 51 or 1, by dtype. Digits come first, the least significant before others, then flags."""
        return self._layout.words

    @property
    def width(self) -> int:
        """Number of columns: one per element."""
        return self._size

    def add(self, delta: ArrayLike) -> None:
        """Add an array of the shape of this sum.

        Raises `ValueError` for another shape, `TypeError` for a dtype that this layout cannot hold exactly,
        `OverflowError` when a sum of integers could pass 2^62.
        """
        values = self._accept(delta)
        if values.shape != self.shape:
            raise ValueError(f"a delta of shape {values.shape} was added to a state of shape {self.shape}")
        self._add_rows(values.reshape(1, -1))

    def add_all(self, deltas: ArrayLike) -> None:
        """Add an array (times, …) of deltas at once, which is cheaper and gives the same sum. Raises as `add` does."""
        values = self._accept(deltas)
        if values.shape[1:] != self.shape:
            raise ValueError(f"deltas of shape {values.shape[1:]} were added to a state of shape {self.shape}")
        self._add_rows(values.reshape(len(values), self._size))

    def add_each(self, values: ArrayLike, rows: NDArray[np.intp] | None = None) -> None:
        """Add every element of an array of any shape to this sum of shape (). Raises as `add` does.

        `rows`: for sums by part, the row that each element belongs to (m,); None: there is one for each row.
        """
        if self.part_of_row is not None:
            array = self._accept(values).reshape(-1)
            self.add_at(np.zeros(len(array), np.int64), array, rows)
            return
        if self.shape != ():
            raise ValueError(f"add_each needs a state of shape (), this one has {self.shape}: use add")
        self._add_rows(self._accept(values).reshape(-1, 1))

    def add_at(self, elements: NDArray[np.int64], values: ArrayLike, rows: NDArray[np.intp] | None = None) -> None:
        """Add values (m,) to the elements with these numbers (m,), in C order. A number may occur several times.

        The cost depends on the number of values, not on the size of the array. Raises as `add` does. `rows`: see
        `add_each`.
        """
        array = self._accept(values)
        if self.part_of_row is not None:
            parts = self.part_of_row if rows is None else self.part_of_row[rows]
            elements = elements + parts * math.prod(self.shape[1:])
        for first in range(0, len(array), _BLOCK):
            block, at = array[first : first + _BLOCK], elements[first : first + _BLOCK]
            self._reserve(self._growth(block) * len(block))
            whole = np.ones(len(block), np.bool_) if self.is_integral else _is_count(block)
            np.add.at(self._units(), at[whole], block[whole].astype(np.int64))
            self._add_others(at[~whole], block[~whole])

    def merge(self, other: Self) -> None:
        """Add another sum to this one. Raises `ValueError` unless it has the same shape and layout."""
        if (self.shape, self._layout) != (other.shape, other._layout):
            raise ValueError(f"{other.dtype} {other.shape} cannot be merged into {self.dtype} {self.shape}")
        other._carry()
        self._reserve(other._reach)
        if len(other._digits) > 1:
            self._widen()
            self._digits += other._digits
        else:
            self._units()[:] += other._units()
        self._flags |= other._flags

    def by_part(self, count: int) -> Self:
        """Return new sums like this one for each of so many parts of the data: of the shape (count, …).

        Set `part_of_row`: then `add_each` and `add_at` add each value to the sums of the part of its row.
        """
        return self._of_shape((count, *self.shape), 0, np.zeros((1, count * self._size), np.int64))

    def items(self) -> Iterator[Self]:
        """Yield the sums of each part, which `by_part` keeps in one array."""
        self._carry()
        size, units = math.prod(self.shape[1:]), self._layout.fraction_digits
        for first in range(0, self._size, size) if size else ():
            digits = self._digits[:, first : first + size].copy()
            if len(digits) > 1 and not (digits[:units].any() or digits[units + 1 :].any()):
                digits = digits[units : units + 1]
            yield self._of_shape(self.shape[1:], self._reach, digits, self._flags[first : first + size].copy())

    def _of_shape(
        self,
        shape: tuple[int, ...],
        reach: int,
        digits: NDArray[np.int64],
        flags: NDArray[np.int64] | None = None,
    ) -> Self:
        """Return sums of this kind with these digits and flags, and of no parts."""
        made = copy(self)
        made.shape, made.part_of_row = shape, None
        made._size, made._digits, made._reach = math.prod(shape), digits, reach  # noqa: SLF001 - of this class
        made._flags = np.zeros(math.prod(shape), np.int64) if flags is None else flags  # noqa: SLF001 - of this class
        return made

    def used(self) -> NDArray[np.bool_]:
        """Return a bool for each row: whether it is not zero. Sums of whole numbers use only one row."""
        self._carry()
        used = np.zeros(self.rows, np.bool_)
        first = 0 if len(self._digits) > 1 else self._layout.fraction_digits
        used[first : first + len(self._digits)] = self._digits.any(axis=1)
        if not self.is_integral:
            used[-1] = self._flags.any()
        return used

    def pack(self, rows: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return the sums as int64, row by row: equal sums have equal packs, and 8192 packs add up without overflow.

        A row holds one digit of every element, in [-2^43, 2^43). The last row holds the flags: bit 0 for NaN, 21 for
        inf, 42 for -inf. With 44 bits per digit and one word for the flags, a float32 takes 9 words; 32-bit digits and
        three counters would take 13. Raises `OverflowError` for a sum of integers from 2^49 on.
        """
        self._carry()
        if self.is_integral and self._reach >= _PACK_LIMIT:
            raise OverflowError(
                f"an integer sum reached {self._reach}: from 2^49 on the ranks' sum could overflow int64"
            )
        return self._matrix(rows).reshape(-1)

    def unpack(self, packed: NDArray[np.int64], rows: NDArray[np.bool_] | None = None) -> None:
        """Replace the sums by those of a pack, or of an element-wise sum of packs.

        Raises `ValueError` for another length or dtype, `OverflowError` for numbers beyond any sum of 8192 packs.
        """
        chosen = chosen_rows(self, rows)
        matrix = dict(zip(chosen, matrix_of(self, packed, len(chosen)), strict=True))
        flags = matrix.pop(self.rows - 1, None) if not self.is_integral else None
        reach = max((_largest(row) for row in matrix.values()), default=0)
        if reach > _LIMIT:
            raise OverflowError(f"a digit of the pack is {reach}: it is damaged, or more than 8192 packs were summed")
        units = self._layout.fraction_digits
        self._digits, self._flags = np.zeros((1, self._size), np.int64), np.zeros(self._size, np.int64)
        if any(row.any() for number, row in matrix.items() if number != units):
            self._widen()
            for number, row in matrix.items():
                self._digits[number] = row
        elif units in matrix:
            self._digits[0] = matrix[units]
        self._reach = reach
        if flags is not None:
            for flag in (_NAN, _POSITIVE, _NEGATIVE):
                self._flags[(flags // flag & _FIELD) > 0] |= flag

    def round(self) -> NDArray[np.float64]:
        """Return the sums as float64, each rounded once to the nearest, ties to even.

        A sum is NaN if a NaN or both infinities were added. A sum is infinite if one infinity was added, or if
        it exceeds float64.
        """
        self._carry()
        units = self._units()
        rounded = units.astype(np.float64)
        # This conversion rounds correctly. Only sums with further digits need the slow way through Python.
        if len(self._digits) > 1:
            for element in np.flatnonzero(np.count_nonzero(self._digits, axis=0) > (units != 0)):
                rounded[element] = _to_float(self._digits[:, element].tolist(), self._layout.fraction_digits)
        if self._flags.any():
            positive, negative = self._flags & _POSITIVE > 0, self._flags & _NEGATIVE > 0
            rounded[positive] = math.inf
            rounded[negative] = -math.inf
            rounded[(self._flags & _NAN > 0) | (positive & negative)] = math.nan
        return rounded.reshape(self.shape)

    def integers(self) -> NDArray[np.int64]:
        """Return the sums of integers or bool, in this shape. Raises `TypeError` for a sum of floats."""
        if not self.is_integral:
            raise TypeError(f"a sum of {self.dtype} may not be an integer: use round")
        return self._units().reshape(self.shape).copy()

    def to_json(self) -> dict[str, Any]:
        """Return strict JSON: shape, dtype, and the rows that are not zero, by row number."""
        used = self.used()
        rows = self._matrix(used).tolist()
        rows_by_number = {str(number): row for number, row in zip(chosen_rows(self, used), rows, strict=True)}
        return {"reduction": "sum", "shape": list(self.shape), "dtype": self.dtype, "rows": rows_by_number}

    @classmethod
    def from_json(cls, parsed: dict[str, Any]) -> Self:
        """Build a sum from the output of `to_json`. Raises `RecordError` for anything else."""
        try:
            state = cls(tuple(parsed["shape"]), parsed["dtype"])
            rows = np.zeros((state.rows, state._size), np.int64)
            for number, row in parsed["rows"].items():
                rows[int(number)] = np.array(row).astype(np.int64, casting="safe")  # refuses floats
            state.unpack(rows.reshape(-1))
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise RecordError(f"not the saved state of a metric: {error!r}") from error
        return state

    def _matrix(self, rows: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """Return the chosen rows, or all rows."""
        chosen = chosen_rows(self, rows)
        matrix = np.zeros((len(chosen), self._size), np.int64)
        for place, number in enumerate(chosen):
            matrix[place] = self._row(number)
        return matrix

    def _row(self, number: int) -> NDArray[np.int64]:
        """Return one row of the pack; zeros for digits that do not exist."""
        if number == self.rows - 1 and not self.is_integral:
            return self._flags
        if len(self._digits) > 1:
            row: NDArray[np.int64] = self._digits[number]
            return row
        return self._units() if number == self._layout.fraction_digits else np.zeros(self._size, np.int64)

    def _accept(self, values: ArrayLike) -> NDArray[Any]:
        """Return the values as an array for `_add`; raises `TypeError` if the conversion could change a value."""
        array = np.asarray(values)
        is_integer = array.dtype.kind in "biu"  # numpy wrongly calls int64 to float64 safe
        if is_integer != self.is_integral or not (is_integer or np.can_cast(array.dtype, self._layout.kind)):
            raise TypeError(f"values of dtype {array.dtype} cannot be added exactly to a state of dtype {self.dtype}")
        return array if is_integer else array.astype(self._layout.kind, copy=False)

    def _add_rows(self, values: NDArray[Any]) -> None:
        """Add values (times, size) in blocks."""
        columns = min(max(1, self._size), _BLOCK)
        times = _BLOCK // columns
        for start in range(0, len(values), times):
            rows = values[start : start + times]
            self._reserve(self._growth(rows) * len(rows))
            for first in range(0, self._size, columns):
                self._add(rows[:, first : first + columns], first)

    def _add(self, values: NDArray[Any], first: int) -> None:
        """Add each column of values (times, columns) to its element; the first column belongs to element `first`."""
        units = self._units()[first : first + values.shape[1]]
        if self.is_integral:
            units += values.astype(np.int64, copy=False).sum(axis=0)
            return
        counts = _is_count(values)
        whole = values if counts.all() else np.where(counts, values, 0)
        units += whole.astype(np.int64).sum(axis=0)
        if whole is values:
            return
        self._add_others(np.nonzero(~counts)[1] + first, values[~counts])

    def _add_others(self, elements: NDArray[np.intp], values: NDArray[Any]) -> None:
        """Add floats that are not small whole numbers, each to its element."""
        finite = np.isfinite(values)
        if finite.any():
            self._add_digits(elements[finite], values[finite])
        if finite.all():
            return
        for flag, has_it in ((_NAN, np.isnan), (_POSITIVE, np.isposinf), (_NEGATIVE, np.isneginf)):
            np.bitwise_or.at(self._flags, elements[has_it(values)], flag)

    def _add_digits(self, elements: NDArray[np.intp], values: NDArray[Any]) -> None:
        """Add finite floats, each to its element, by their bits (IEEE 754-2019, section 3.4)."""
        self._widen()
        layout = self._layout
        bits = values.view(layout.bits).astype(np.int64)
        one = 1 << layout.mantissa_bits
        exponent = (bits & np.iinfo(layout.bits).max) >> layout.mantissa_bits
        mantissa = (bits & (one - 1)) + (exponent > 0) * one  # a subnormal has no implicit one
        mantissa *= 1 - 2 * (bits < 0)
        place = np.maximum(exponent, 1) - 1 + (layout.fraction_digits * _DIGIT_BITS + layout.lowest)
        row = place // _DIGIT_BITS
        fitting = (row + 1) * _DIGIT_BITS - place  # bits that fit into the lowest of the digits
        # Shifts and masks floor, so they divide a negative mantissa as exactly as a positive one.
        low = (mantissa & ((1 << fitting) - 1)) << (_DIGIT_BITS - fitting)
        high = mantissa >> fitting
        parts = (low, high) if layout is _FLOAT32 else (low, high & (_BASE - 1), high >> _DIGIT_BITS)
        for offset, part in enumerate(parts):
            np.add.at(self._digits.reshape(-1), (row + offset) * self._size + elements, part)

    def _units(self) -> NDArray[np.int64]:
        """Return the digits of weight 2^0, as a view."""
        row: NDArray[np.int64] = self._digits[self._layout.fraction_digits if len(self._digits) > 1 else 0]
        return row

    def _widen(self) -> None:
        """Allocate the digits that are not the units, if they do not exist yet."""
        if len(self._digits) < self._layout.digits:
            digits = np.zeros((self._layout.digits, self._size), np.int64)
            digits[self._layout.fraction_digits] = self._units()
            self._digits = digits

    def _growth(self, values: NDArray[Any]) -> int:
        """Return the most that one of the values can add to a digit."""
        return _largest(values) if self.is_integral else _BASE

    def _reserve(self, growth: int) -> None:
        """Make sure that every digit can grow by this much. Raises `OverflowError` if a digit cannot."""
        if self._reach + growth > _LIMIT:
            self._carry()
        if self._reach + growth > _LIMIT:
            raise OverflowError(f"a sum of {self.dtype} could overflow int64: {self._reach} and up to {growth} more")
        self._reach += growth

    def _carry(self) -> None:
        """Bring every digit but the highest into [-2^43, 2^43), which makes the digits of a sum unique."""
        self._reach = _largest(self._digits)
        if self._reach < _BASE // 2:
            return
        self._widen()
        large = np.flatnonzero(np.maximum(self._digits.max(axis=1), -self._digits.min(axis=1)) >= _BASE // 2)
        for row in range(large[0], len(self._digits) - 1):
            carry = (self._digits[row] + _BASE // 2) >> _DIGIT_BITS
            if row > large[-1] and not carry.any():
                break
            self._digits[row] -= carry << _DIGIT_BITS
            self._digits[row + 1] += carry
        self._reach = _largest(self._digits)


def exact_sum(states: SetStates, name: str) -> ExactSum:
    """Return the state of that name, which is an exact sum."""
    return state_of(states, name, ExactSum)


def _is_count(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a bool for each float: whether it is a whole number that fits into one digit."""
    is_count: NDArray[np.bool_] = (np.trunc(values) == values) & (np.abs(values) < _BASE)
    return is_count


def _largest(values: NDArray[Any]) -> int:
    """Return the largest magnitude as an int, which cannot overflow; 0 if there are no values."""
    return max(int(values.max()), -int(values.min())) if values.size else 0


def _to_float(digits: list[int], fraction_digits: int) -> float:
    """Return the number with these digits, the least significant first."""
    total = sum(digit << row * _DIGIT_BITS for row, digit in enumerate(digits))
    try:  # a quotient of Python's integers is rounded correctly
        return total / (1 << fraction_digits * _DIGIT_BITS)
    except OverflowError:
        return math.inf if total > 0 else -math.inf
