"""Read the number of steps that the optimizer in an HDF5 file of Keras has made.

Sources: keras and tf_keras `src/saving/saving_lib.py` (`.keras` and `.weights.h5`: the variables of each object are
`<path>/vars/<number>`, and an optimizer's first one counts its steps) and `legacy/hdf5_format.py` (`.h5`:
`optimizer_weights/<name>/iteration`, with `iter` in older optimizers).

An optimizer that wraps another one (`LossScaleOptimizer`), or that `compile` made and nobody uses, has made 0 steps:
then the next optimizer is read.
"""

from collections.abc import Iterator
from typing import BinaryIO, Final

from sidecar.checkpoints.formats.hdf5_numbers import Hdf5Numbers, UnexpectedError

_FIRST: Final = ("vars", "0")
_OPTIMIZER: Final = "optimizer"
_INNER: Final = "inner_optimizer"
_LEGACY: Final = "optimizer_weights"
_COUNTS: Final = ("iteration", "iteration:0", "iter", "iter:0")
_MOST_WRAPPED: Final = 4
_MOST_OPTIMIZERS: Final = 16
_MOST_GROUPS: Final = 200


def iterations(file: BinaryIO, start: int, size: int) -> int | None:
    """Return the steps that the optimizer in a part of a file has made; None if no optimizer can be read.

    Raises OSError if the file cannot be read at all.
    """
    steps: int | None = None
    try:
        for count in _counts(Hdf5Numbers(file, start, size)):
            if count > 0:
                return count
            steps = 0 if count == 0 else steps
    except UnexpectedError:
        pass
    return steps


def _counts(content: Hdf5Numbers) -> Iterator[int]:
    """Yield the step counts of all optimizers, the likeliest first."""
    root = content.root()
    groups = content.children(root)
    names = [name for name in groups if name.endswith(_OPTIMIZER)]
    names.sort(key=lambda name: (name != _OPTIMIZER, name))
    for name in names[:_MOST_OPTIMIZERS]:
        optimizer: int | None = groups[name]
        for _ in range(_MOST_WRAPPED):
            if optimizer is None:
                break
            if (first := content.child(optimizer, *_FIRST)) is not None:
                yield from _value(content, first)
            optimizer = content.child(optimizer, _INNER)
    if _LEGACY in groups:
        yield from _legacy_counts(content, groups[_LEGACY])


def _legacy_counts(content: Hdf5Numbers, group: int) -> Iterator[int]:
    """Yield the step counts in a group and its sub-groups, level by level."""
    waiting, opened = [group], 0
    while waiting and opened < _MOST_GROUPS:
        inner, opened = content.children(waiting.pop(0)), opened + 1
        for name, address in inner.items():
            if name in _COUNTS:
                yield from _value(content, address)
            else:
                waiting.append(address)


def _value(content: Hdf5Numbers, address: int) -> Iterator[int]:
    """Yield the integer of a data set; nothing if it is not a single integer."""
    value = content.integer(address)
    if value is not None:
        yield value
