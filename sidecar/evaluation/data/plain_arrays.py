"""Convert to numpy arrays without losing anything silently. Imports numpy, never a framework.

`numpy.asarray` forgets the mask of a masked array, so the values below it would count like any others. netCDF files
and astronomers' tables yield such arrays.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MASKED: Final = "some of its values are masked: fill them, or leave these examples out"


def plain_array(values: Any) -> NDArray[Any]:
    """Return what `numpy.asarray` does; raises `ValueError` for masked values and for rows of different lengths."""
    if is_masked(values):
        raise ValueError(MASKED)
    return np.asarray(values)


def is_masked(values: Any) -> bool:
    """Return whether any value is masked, in an array or in one of a list of arrays."""
    if isinstance(values, list | tuple):
        return any(is_masked(each) for each in values)
    return isinstance(values, np.ma.MaskedArray) and bool(np.ma.is_masked(values))


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view that cannot be written to: a function that changes it fails instead of changing what follows."""
    view = array.view()
    view.flags.writeable = False
    return view
