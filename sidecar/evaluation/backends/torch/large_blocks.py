"""Tell glibc when large blocks of memory, such as weights, return to the system as soon as they are freed.

`traits` has freed memory stay in the process, for the tensors of the next batch. Weights live longer, and those of a
checkpoint that was read, or of a model that is only compared, are freed once: their memory goes back to the system.
Called by `evaluator` and `division`. Imports no framework.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_M_MMAP_THRESHOLD: Final = -3  # of mallopt(3)
_LARGE_BYTES: Final = 1 << 20
_USUAL: Final = "MALLOC_MMAP_THRESHOLD_"  # the variable that glibc reads when a process starts


def return_large_blocks(threshold: int = _LARGE_BYTES) -> None:
    """Let blocks of so many bytes return to the system when they are freed. Another C library is left as it is."""
    mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, threshold)


@contextmanager
def large_blocks_returned(*, is_needed: bool = True) -> Iterator[None]:
    """Do so for what is made in this part of the code, if the process was told to keep what is freed."""
    usual = os.environ.get(_USUAL, "")
    if not usual.isdecimal() or not is_needed:
        yield
        return
    return_large_blocks()
    try:
        yield
    finally:
        return_large_blocks(int(usual))
