"""Define what a state of a metric is, and how the states of all ranks become one.

There are two ways, and both give the same state to the bit. `merge` adds another state, in memory or read back with
`from_json`. `pack` turns a state into a matrix of int64, so that the sum of the matrices over the ranks is the matrix
of all: a framework's all-reduce needs no more. Also a maximum travels in such a sum: each rank fills rows or places of
its own and leaves those of others zero. Rows that are zero on every rank need not travel, so ranks first report which
rows they use, and then send those that any rank uses.
"""

from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray


class State(Protocol):
    """Part of a metric: neutral when new, and equal whatever the order of additions and merges."""

    @property
    def rows(self) -> int:
        """Number of rows of the matrix; like `width` it depends on the constructor, never on values that were added."""
        ...

    @property
    def width(self) -> int:
        """Number of columns of the matrix."""
        ...

    def merge(self, other: Self) -> None:
        """Add everything that was added to another state of the same kind. Raises `ValueError` for any other."""
        ...

    def used(self) -> NDArray[np.bool_]:
        """Return which rows are not zero here."""
        ...

    def pack(self, rows: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return the chosen rows, or all of them, one after the other."""
        ...

    def unpack(self, packed: NDArray[np.int64], rows: NDArray[np.bool_] | None = None) -> None:
        """Replace the content by that of a pack, or of the sum of all ranks' packs; rows that are not chosen are zero.

        Raises `ValueError` or `OverflowError` for what no sum of packs can be.
        """
        ...

    def to_json(self) -> dict[str, Any]:
        """Return everything that was added, as strict JSON."""
        ...

    @classmethod
    def from_json(cls, parsed: dict[str, Any]) -> Self:
        """Read back what `to_json` returned. Raises `RecordError` for anything else."""
        ...


SetStates = dict[str, State]
"""The states of one eval set, by name."""


def within(states: SetStates, name: str) -> SetStates:
    """Return the states that `named` gave this name."""
    start = f"{name}/"
    return {full_name.removeprefix(start): state for full_name, state in states.items() if full_name.startswith(start)}


def named(name: str, states: SetStates) -> SetStates:
    """Return the states of one metric under names that no other metric uses."""
    return {f"{name}/{own_name}": state for own_name, state in states.items()}


def chosen_rows(state: State, rows: NDArray[np.bool_] | None) -> list[int]:
    """Return the numbers of the rows that travel."""
    if rows is None:
        return list(range(state.rows))
    if rows.shape != (state.rows,) or rows.dtype != np.bool_:
        raise ValueError(f"expected one bool for each of {state.rows} rows, found {rows.dtype} {rows.shape}")
    return [int(number) for number in np.flatnonzero(rows)]


def matrix_of(state: State, packed: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Return the pack as a matrix of that many rows; raises `ValueError` if it is another state's."""
    if packed.shape != (rows * state.width,) or packed.dtype != np.int64:
        raise ValueError(f"expected a pack of int64 ({rows * state.width},), found {packed.dtype} {packed.shape}")
    return packed.reshape(rows, state.width)
