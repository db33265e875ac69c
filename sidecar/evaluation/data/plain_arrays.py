"""Convert values to numpy arrays without silent losses. Imports numpy, never a framework.

`numpy.asarray` drops the mask of a masked array, so its masked values would count like any others. Readers of netCDF
files and of astronomical tables return such arrays.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MASKED: Final = "some of its values are masked: fill them, or leave these examples out"


def plain_array(values: Any) -> NDArray[Any]:
    """Convert as `numpy.asarray` does.

    Raises `ValueError` for masked values, for rows of different lengths, and for tensors that numpy cannot hold.
    """
    if is_masked(values):
        raise ValueError(MASKED)
    try:
        return np.asarray(values)
    except (TypeError, RuntimeError) as error:  # of `__array__`: a type that numpy lacks, or values on a device
        raise ValueError(
            f"numpy cannot hold {getattr(values, 'dtype', type(values).__name__)} ({error}): convert it, such as "
            f"x.detach().float().cpu()"
        ) from error


def is_masked(values: Any) -> bool:
    """Return whether any value is masked, in an array or in one of a list of arrays."""
    if isinstance(values, list | tuple):
        return any(is_masked(part) for part in values)
    return isinstance(values, np.ma.MaskedArray) and bool(np.ma.is_masked(values))


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view, so that a function that changes it fails and the array stays as it is."""
    view = array.view()
    view.flags.writeable = False
    return view
