"""An exact sum per cell of a large array, to few of which a batch adds. Imports numpy only.

`ExactSum.add` reads and writes all of its elements: a million of a 1000-class confusion matrix, of which a batch of 256
changes 256.
"""

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sidecar.worker.states import ExactSum

_BLOCK: Final = 1 << 14  # values added at once: 2^18 of them would fill a digit
_EXACT: Final = 2**24  # whole numbers below it are added as such; weights are hardly ever more


class Cells(ExactSum):
    """An `ExactSum` that is added to by cell."""

    def add_at(self, cells: NDArray[np.int64], values: ArrayLike) -> None:
        """Add finite values (m,) to the cells with these numbers (m,), in C order; a cell may occur several times.

        Raises `ValueError` for values that are not finite, `TypeError` and `OverflowError` as `add` does.
        """
        array = self._accept(values)
        if not np.isfinite(array).all():
            raise ValueError("a value to be added to a cell is not finite")
        for first in range(0, len(array), _BLOCK):
            own, at = array[first : first + _BLOCK], cells[first : first + _BLOCK]
            self._reserve(self._growth(own) * len(own))
            whole = np.ones(len(own), np.bool_) if self.is_integral else (np.trunc(own) == own) & (np.abs(own) < _EXACT)
            np.add.at(self._units(), at[whole], own[whole].astype(np.int64))
            if not whole.all():
                self._add_digits(at[~whole], own[~whole])
