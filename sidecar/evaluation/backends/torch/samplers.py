"""List the batches of a dataset that has indices: which examples each batch holds, in the order of evaluation.

The samplers of a user's `DataLoader` are followed if they select the same examples each time. `RandomSampler` and
`DistributedSampler` are replaced by the order of the dataset. Samplers that draw or drop examples are refused.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from sidecar.evaluation.failures import EvaluationError, task_error

_DISTRIBUTED: Final = (
    "DistributedSampler repeats or drops examples to give all processes equally many: the examples of the dataset are "
    "evaluated instead, each once"
)
_RANDOM: Final = "RandomSampler (shuffle=True) is replaced by the order of the dataset"
_SUBSET: Final = "SubsetRandomSampler is replaced by the order of its indices"
_MOST_REPETITIONS: Final = 4  # of each example, on average: a sampler that yields more is taken for endless
_SPARE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Listing:
    """The batches of a dataset.

    Attributes:
        batches: Indices of each batch; without automatic batching, the index of each element.
        notes: How this order differs from that of the user's sampler.
    """

    batches: Sequence[Any]
    notes: tuple[str, ...] = ()


def list_batches(name: str, dataset: Any, batch_size: int) -> Listing:
    """List the batches of a dataset in its own order. Raises `EvaluationError` if its length is unknown."""
    return Listing(_divided(range(_length(name, dataset)), batch_size))


def list_batches_of(name: str, loader: DataLoader[Any]) -> Listing:
    """List the batches of a `DataLoader` for the eval set `name`.

    Raises `EvaluationError` if its sampler draws or drops examples.
    """
    most = _MOST_REPETITIONS * _length(name, loader.dataset) + _SPARE
    batched = loader.batch_sampler
    if batched is None:
        return _order(name, loader.sampler, most)
    if not isinstance(batched, BatchSampler) or type(batched).__iter__ is not BatchSampler.__iter__:
        return Listing(_twice(name, batched, "batch_sampler", most))
    order = _order(name, batched.sampler, most)
    if batched.drop_last and (rest := len(order.batches) % batched.batch_size):
        raise _refused(name, f"drop_last=True leaves out {rest} of {len(order.batches)} examples: give drop_last=False")
    return Listing(_divided(order.batches, batched.batch_size), order.notes)


def _order(name: str, sampler: Any, most: int) -> Listing:
    """Return the indices of a sampler in the order in which they are evaluated."""
    kind = type(sampler)
    if kind is SequentialSampler:
        return Listing(range(len(sampler.data_source)))
    if kind is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source):
        return Listing(range(len(sampler.data_source)), (_RANDOM,))
    if kind is SubsetRandomSampler:
        return Listing(list(sampler.indices), (_SUBSET,))
    if isinstance(sampler, DistributedSampler) and kind.__iter__ is DistributedSampler.__iter__:
        return Listing(range(len(sampler.dataset)), (_DISTRIBUTED,))
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
        raise _refused(
            name,
            f"its sampler {kind.__name__} divides the examples among {sampler.num_replicas} processes in its own way: "
            f"leave it out, since the sidecar divides the batches among its workers",
        )
    return Listing(_twice(name, sampler, "sampler", most))


def _twice(name: str, sampler: Iterable[Any], parameter: str, most: int) -> list[Any]:
    """Return what a sampler yields. Raises `EvaluationError` unless it yields the same a second time."""
    once = list(islice(sampler, most + 1))
    if len(once) > most:
        raise _refused(name, f"DataLoader({parameter}=…) does not end: give a list of indices")
    again = list(islice(sampler, len(once) + 1))
    if list(map(_plain, once)) != list(map(_plain, again)):
        raise _refused(
            name,
            f"DataLoader({parameter}=…) is a {type(sampler).__name__}, which selects other examples each time, so the "
            f"numbers of two checkpoints could not be compared: leave it out, or give a list of indices",
        )
    return once


def _plain(indices: Any) -> Any:
    """Return indices as numbers that can be compared."""
    if isinstance(indices, torch.Tensor | np.ndarray):
        return indices.tolist()
    return list(indices) if isinstance(indices, Sequence) and not isinstance(indices, str) else indices


def _divided(indices: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def _length(name: str, dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise _refused(
            name,
            f"its dataset {type(dataset).__name__} has no length ({error}): define __len__, or use IterableDataset",
        ) from error


def _refused(name: str, complaint: str) -> EvaluationError:
    return task_error(f"eval set {name!r}: {complaint}")
