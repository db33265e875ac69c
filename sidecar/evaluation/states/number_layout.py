"""Describe the kinds of numbers that can be summed exactly, and the digits that their sums need. Imports numpy only."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The bits of a kind of number, and the digits that hold its smallest value and 2^64 times its largest."""

    kind: type[np.generic]
    bits: type[np.signedinteger[Any]]
    mantissa_bits: int  # without the implicit one
    lowest: int  # exponent of the smallest subnormal
    fraction_digits: int
    digits: int
    words: int  # rows of a pack: digits, then flags


FLOAT32: Final = Layout(
    kind=np.float32, bits=np.int32, mantissa_bits=23, lowest=-149, fraction_digits=4, digits=8, words=9
)
_FLOAT64: Final = Layout(
    kind=np.float64, bits=np.int64, mantissa_bits=52, lowest=-1074, fraction_digits=25, digits=50, words=51
)
INT64: Final = Layout(kind=np.int64, bits=np.int64, mantissa_bits=63, lowest=0, fraction_digits=0, digits=1, words=1)


def layout_of(dtype: str) -> Layout:
    """Return the layout for values of a dtype; raises `TypeError` for one that cannot be summed exactly."""
    if dtype in {"float16", "bfloat16", "float32"}:
        return FLOAT32
    if dtype == "float64":
        return _FLOAT64
    if np.dtype(dtype).kind in "biu":
        return INT64
    raise TypeError(f"a state of dtype {dtype} cannot be summed exactly: use floats of 16 to 64 bits, integers or bool")
