"""Seed the generators of numpy and Python for one batch, and compare evaluations of the same batch.

The number of workers decides which batches a process evaluates, and in which order. So the result of a batch must
depend on the weights and the batch alone. If the user's code draws random numbers, generators are seeded from both
before each batch. Code that gives other numbers even then is refused. Imports numpy, never a framework.
"""

import hashlib
import random
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.data.structure import leaves
from sidecar.evaluation.failures import EvaluationError

NOTE: Final = (
    "the model draws random numbers in an evaluation: they are seeded by its weights and each batch's number, so the "
    "same weights get the same numbers, and another batch size gets others"
)
REPEATED: Final = "twice"
AFTER_OTHERS: Final = "again after all others"


def seed(weights: str, eval_set: str, batch: int | bytes) -> int:
    """Seed the generators of numpy and Python for one batch, and return the seed, a number below 2^64.

    `weights`: digest of the model's values. `batch`: the number of the batch, or its digest if that is unknown.
    """
    number = str(batch) if isinstance(batch, int) else batch.hex()
    digest = hashlib.sha256(f"{weights} {eval_set} {number}".encode(errors="surrogateescape")).digest()
    chosen = int.from_bytes(digest[:8], "big")
    np.random.seed(chosen & 0xFFFFFFFF)  # noqa: NPY002 - the generator that a task may use
    random.seed(chosen)
    return chosen


def generators() -> tuple[Any, ...]:
    """Return the states of the generators of numpy and Python. They differ after a generator was used."""
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
    assert isinstance(numpy_state, dict)
    return numpy_state["state"]["pos"], numpy_state["state"]["key"].tobytes(), random.getstate()


def are_equal(one: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]]) -> bool:
    """Return whether two lists of arrays are equal to the bit."""
    return len(one) == len(other) and all(
        first.shape == second.shape and first.dtype == second.dtype and _bytes(first) == _bytes(second)
        for first, second in zip(one, other, strict=True)
    )


def require_equal(one: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]], when: str, advice: str) -> None:
    """Raise `EvaluationError` unless two evaluations of one batch gave arrays that are equal to the bit.

    `when` is `REPEATED` or `AFTER_OTHERS`. `advice` says how the framework's users draw random numbers.
    """
    if not are_equal(one, other):
        raise EvaluationError(
            "task_error",
            f"the first batch evaluated {when} gives different numbers: the model draws random numbers that cannot be "
            f"seeded from outside, or keeps something from batch to batch. {advice}",
        )


def _bytes(array: NDArray[Any]) -> bytes:
    """Return the bytes of an array; of an array of objects those of its arrays, texts and numbers."""
    if not array.dtype.hasobject:
        return array.tobytes()
    return b"\0".join(map(_bytes_of, leaves(array.tolist())))


def _bytes_of(leaf: Any) -> bytes:
    """Return the content of an array, a text or a number. Of other objects only the types are compared."""
    if isinstance(leaf, np.ndarray):
        return f"{leaf.dtype}{leaf.shape}".encode() + _bytes(leaf)
    is_plain = isinstance(leaf, str | bytes | bool | int | float | np.generic)
    return (repr(leaf) if is_plain else type(leaf).__qualname__).encode(errors="surrogatepass")
