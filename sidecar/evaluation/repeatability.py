"""Seed the generators of numpy and Python for one batch, and compare evaluations of the same batch.

The number of workers decides which batches a process evaluates, and in which order. So the result of a batch must
depend on the weights and the batch alone. If the user's code draws random numbers, generators are seeded from both
before each batch. Code that gives other numbers even then is refused. Imports numpy, never a framework.
"""

import hashlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.data.batch_source import Division
from sidecar.evaluation.data.structure import leaves
from sidecar.evaluation.eval_loop import BatchOutput
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum

NOTE: Final = (
    "the model draws random numbers in an evaluation: they are seeded by its weights and each batch's number, so the "
    "same weights get the same numbers, and another batch size gets others"
)
REPEATED: Final = "twice"
AFTER_OTHERS: Final = "again after all others"


_DRAWN: Final = "batches with random numbers"  # name of a state


@runtime_checkable
class SeededStep(Protocol):
    """A step of an eval set that draws from generators of its own, which it seeds for each example."""

    def seed_with(self, weights_digest: Callable[[], str]) -> None:
        """Seed from now on with the digest of the restored values, for which this function waits."""
        ...


class RandomDraws:
    """Run batches with seeded generators if the user's code draws random numbers.

    `seed`: seeds the generators for one batch, as `seed` does. `generators`: returns the states of these generators, as
    `generators` does.
    """

    def __init__(self, seed: Callable[[str, str, int | bytes], Any], generators: Callable[[], tuple[Any, ...]]) -> None:
        self._seed, self._generators = seed, generators
        self._drawn: dict[str, int] = {}  # by eval set: batches of the present evaluation that drew
        self.weights_digest: Callable[[], str] = lambda: ""
        """Waits for the digest of the restored values."""

    def run(self, eval_set: str, place: int | bytes, run: Callable[[], BatchOutput]) -> BatchOutput:
        """Run one batch, with seeded generators if a batch of the set has drawn before or this one does.

        `place`: the number of the batch, or its digest if that is unknown.
        """
        if eval_set not in self._drawn:
            before = self._generators()
            output = run()
            if self._generators() == before:
                return output
            self._drawn[eval_set] = 0
        self._seed(self.weights_digest(), eval_set, place)
        seeded = self._generators()
        output = run()
        self._drawn[eval_set] += self._generators() != seeded
        return output

    def is_drawn(self, eval_set: str) -> bool:
        """Return whether a batch of the set has drawn random numbers in this process."""
        return eval_set in self._drawn

    def states(self, eval_set: str) -> SetStates:
        """Return the empty state that counts such batches of all ranks, and begin to count those of a set anew."""
        if eval_set in self._drawn:
            self._drawn[eval_set] = 0
        return {_DRAWN: ExactSum((), "int64")}

    def add_to(self, states: SetStates, eval_set: str) -> None:
        """Add the count of this rank so far to the state."""
        exact_sum(states, _DRAWN).add(np.int64(self._drawn.get(eval_set, 0)))

    def refuse(self, states: SetStates, eval_set: str, sharding: Division) -> None:
        """Raise `EvaluationError` if a rank drew random numbers and the batches depend on the number of workers."""
        if int(exact_sum(states, _DRAWN).integers()):
            refuse_drawn(eval_set, sharding)

    def notes(self, states: SetStates) -> tuple[str, ...]:
        """Return a note for the reader of the result if a rank drew random numbers."""
        return (NOTE,) if int(exact_sum(states, _DRAWN).integers()) else ()


def refuse_drawn(eval_set: str, sharding: Division) -> None:
    """Raise `EvaluationError` for random numbers in an eval set whose batches depend on the number of workers."""
    if sharding == "own":
        raise task_error(
            f"the model draws random numbers for eval set {eval_set!r}, seeded for each batch, and the set divides "
            f"itself, so that its batches depend on the number of workers: let its source yield all examples, without "
            f"the argument shard, or draw nothing in an evaluation"
        )


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
    """Return the states of the generators of numpy, Python and, if it is loaded, torch. They differ after a use."""
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
    assert isinstance(numpy_state, dict)
    torch = sys.modules.get("torch")
    of_torch = torch.get_rng_state().numpy().tobytes() if torch is not None and hasattr(torch, "get_rng_state") else b""
    return numpy_state["state"]["pos"], numpy_state["state"]["key"].tobytes(), random.getstate(), of_torch


@contextmanager
def without_seeds(*of_framework: tuple[Any, str]) -> Iterator[None]:
    """Let functions that seed a generator do nothing, such as `random.seed`, given by their modules and names.

    A model that is built twice has the same random values if `build_model` sets a seed.
    """
    functions = [(random, "seed"), (np.random, "seed"), *of_framework]
    kept = [getattr(module, name) for module, name in functions]
    try:
        for module, name in functions:
            setattr(module, name, lambda *_, **__: None)
        yield
    finally:
        for (module, name), function in zip(functions, kept, strict=True):
            setattr(module, name, function)


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
        raise task_error(
            f"the first batch evaluated {when} gives different numbers: the model draws random numbers that cannot be "
            f"seeded from outside, or keeps something from batch to batch. {advice}"
        )


def digest_of(arrays: Iterable[NDArray[Any]]) -> str:
    """Return a digest of the types, shapes and bits of arrays."""
    described = [(array.dtype.str, array.shape, hashlib.sha256(_bytes(array)).digest()) for array in arrays]
    return hashlib.sha256(repr(described).encode()).hexdigest()


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
