"""Define the state of a metric, and how the states of all ranks become one.

There are two ways, and both give the same state to the bit. `merge` adds another state, in memory or read with
`from_json`. `pack` turns a state into a matrix of int64, and the sum of the matrices over the ranks is the matrix of
all: an all-reduce of the framework is enough. Such a sum can also carry a maximum: each rank fills its own rows or
places and leaves those of others zero. Rows that are zero on every rank are not sent: ranks first report which rows
they use, and then send the rows that any rank uses.
"""

from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray


class State(Protocol):
    """A part of a metric that is neutral when new. The order of additions and merges does not matter."""

    @property
    def rows(self) -> int:
        """Number of rows of the matrix. Like `width` it depends on the constructor only, not on added values."""

    @property
    def width(self) -> int:
        """Number of columns of the matrix."""

    def merge(self, other: Self) -> None:
        """Add the content of another state. Raises `ValueError` unless it is of the same kind."""

    def used(self) -> NDArray[np.bool_]:
        """Return a bool for each row: whether it is not zero on this rank."""

    def pack(self, rows: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return the chosen rows, or all rows, as a flat array."""

    def unpack(self, packed: NDArray[np.int64], rows: NDArray[np.bool_] | None = None) -> None:
        """Replace the content by that of a pack, or of the sum of all ranks' packs; rows that are not chosen are zero.

        Raises `ValueError` or `OverflowError` for an array that cannot be a sum of packs.
        """

    def to_json(self) -> dict[str, Any]:
        """Return the content as strict JSON."""

    @classmethod
    def from_json(cls, parsed: dict[str, Any]) -> Self:
        """Build a state from the output of `to_json`. Raises `RecordError` for anything else."""


SetStates = dict[str, State]
"""The states of one eval set, by name."""


Kind = TypeVar("Kind")


def state_of(states: SetStates, name: str, kind: type[Kind]) -> Kind:
    """Return the state of that name, which is of this kind, because whoever uses it has made it."""
    state = states[name]
    assert isinstance(state, kind), f"{name} is not a {kind.__name__}"
    return state


def within(states: SetStates, name: str) -> SetStates:
    """Return the states of one metric, which `named` put under its name."""
    start = f"{name}/"
    return {full_name.removeprefix(start): state for full_name, state in states.items() if full_name.startswith(start)}


def named(name: str, states: SetStates) -> SetStates:
    """Return the states of one metric under names that no other metric uses."""
    return {f"{name}/{short_name}": state for short_name, state in states.items()}


def chosen_rows(state: State, rows: NDArray[np.bool_] | None) -> list[int]:
    """Return the numbers of the chosen rows; all rows for None. Raises `ValueError` for another number of bools."""
    if rows is None:
        return list(range(state.rows))
    if rows.shape != (state.rows,) or rows.dtype != np.bool_:
        raise ValueError(f"expected one bool for each of {state.rows} rows, found {rows.dtype} {rows.shape}")
    return [int(number) for number in np.flatnonzero(rows)]


def matrix_of(state: State, packed: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Return the pack as a matrix of that many rows. Raises `ValueError` if its shape or dtype differs."""
    if packed.shape != (rows * state.width,) or packed.dtype != np.int64:
        raise ValueError(f"expected a pack of int64 ({rows * state.width},), found {packed.dtype} {packed.shape}")
    return packed.reshape(rows, state.width)
