"""What every state is to the all-reduce: a matrix of int64 whose sum over the ranks is the matrix of the whole.

Also what is no sum travels in one: each rank fills rows or places of its own and leaves those of others zero. Rows that
are zero on every rank need not travel, so ranks first tell which they use, and then send those that anybody uses.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class State(Protocol):
    """Part of a metric: the identity when new, the same whatever the order of additions and merges."""

    @property
    def rows(self) -> int:
        """Rows of the matrix; like `width` it depends on how the state was made, never on what was added."""
        ...

    @property
    def width(self) -> int:
        """Columns of the matrix."""
        ...

    def used(self) -> NDArray[np.bool_]:
        """Which rows are not zero here."""
        ...

    def pack(self, rows: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """The chosen rows, or all, one after the other."""
        ...

    def unpack(self, packed: NDArray[np.int64], rows: NDArray[np.bool_] | None = None) -> None:
        """Become what a pack, or the sum of the ranks' packs, says; rows that are not chosen are zero.

        Raises `ValueError` or `OverflowError` for what no sum of packs can be.
        """
        ...

    def to_json(self) -> dict[str, Any]:
        """Everything that was added, as strict JSON."""
        ...


SetStates = dict[str, State]
"""The states of one eval set, by name."""


def within(states: SetStates, name: str) -> SetStates:
    """The states that `named` gave this name."""
    start = f"{name}/"
    return {each.removeprefix(start): state for each, state in states.items() if each.startswith(start)}


def named(name: str, states: SetStates) -> SetStates:
    """The states of a part, told from those of other parts."""
    return {f"{name}/{each}": state for each, state in states.items()}


def chosen_rows(state: State, rows: NDArray[np.bool_] | None) -> list[int]:
    """Numbers of the rows that travel."""
    if rows is None:
        return list(range(state.rows))
    if rows.shape != (state.rows,) or rows.dtype != np.bool_:
        raise ValueError(f"expected one bool for each of {state.rows} rows, found {rows.dtype} {rows.shape}")
    return [int(number) for number in np.flatnonzero(rows)]


def matrix_of(state: State, packed: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """The pack as a matrix of that many rows; raises `ValueError` if it is another's."""
    if packed.shape != (rows * state.width,) or packed.dtype != np.int64:
        raise ValueError(f"expected a pack of int64 ({rows * state.width},), found {packed.dtype} {packed.shape}")
    return packed.reshape(rows, state.width)
