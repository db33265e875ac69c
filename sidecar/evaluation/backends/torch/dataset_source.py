"""Open a task's data as PyTorch users have them: a `Dataset`, a `DataLoader`, an `IterableDataset`, or any data.

Every example is evaluated exactly once, in whole batches that do not depend on the number of workers. So a loader's
dataset, collate function and worker processes are used, but its sampler only if it visits each example once, always in
the same order. `RandomSampler` and `DistributedSampler` are replaced by the order of the dataset: the former shuffles,
and the latter pads and divides. What would drop or draw examples is refused.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    default_collate,
)

from sidecar.evaluation.backends.torch.tensors import bits_of, finite_rows, leaves
from sidecar.evaluation.data.array_source import ArraySource
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.elements import placed
from sidecar.evaluation.data.reader import unless_batched
from sidecar.evaluation.data.shard import Shard, all_to_first
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.task import EvalSet, call
from sidecar.records import Sharding

LABELS: Final = "labels"
"""Key of the labels in a batch that is a mapping, as in those of Hugging Face."""

_DISTRIBUTED: Final = (
    "DistributedSampler repeats or drops examples to give all processes equally many: the examples of the dataset are "
    "evaluated instead, each once"
)

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class LoadedBatch:
    """A batch as the user's collate function made it, and the number of its examples."""

    content: Any
    examples: int


class DatasetSource:
    """Provide the data of one eval set on one rank: see `sidecar.evaluation.data.batch_source.BatchSource`.

    Args:
        name: Name of the eval set.
        eval_set: Description of the eval set in the task.
        data: What its function returned.
        batch_size: `Task.batch_size`. A `DataLoader` has its own.
        shard: This rank, and the number of ranks.

    Raises:
        EvaluationError: The data cannot be evaluated exactly.
    """

    def __init__(self, name: str, eval_set: EvalSet, data: Any, *, batch_size: int | None, shard: Shard) -> None:
        self._name, self._prepare, self._shard = name, eval_set.prepare, shard
        self.sharding: Sharding = "own" if eval_set.shards_itself else "batches"
        self.notes: tuple[str, ...] = ()
        self._loader: DataLoader[Any] | None = data if isinstance(data, DataLoader) else None
        self._dataset: Any = data if self._loader is None else self._loader.dataset
        self._collate: Collate = default_collate if self._loader is None else self._loader.collate_fn
        self._batch_size = batch_size if self._loader is None else self._loader.batch_size
        if self._loader is None and batch_size is None:
            raise self._refused("its source returns a dataset of single examples: give Task(batch_size=…), such as 256")
        if self._loader is not None and eval_set.prepare is not None:
            raise self._refused("a DataLoader prepares its own batches: leave EvalSet(prepare=…) out")
        self._batches: list[Any] | None = None if self._is_iterable else self._listed()
        if self._is_iterable and self._loader is not None and self._loader.drop_last:
            raise self._refused("DataLoader(drop_last=True) leaves examples out: give drop_last=False")

    def sample(self) -> Batch | None:
        """Return the first batch; None if there are no batches."""
        if self._batches is None:
            return next(self._iterated(None), None)
        return next(self._loaded(self._batches[:1], None), None)

    def first_prepared(self) -> Iterator[Batch]:
        """Yield at most the first batch of the set, after `prepare`."""
        if self._batches is None:
            yield from islice(self._iterated(self._prepare), 1)
        else:
            yield from self._loaded(self._batches[:1], self._prepare)

    def numbered(self) -> Iterator[tuple[int, Batch]]:
        """Yield every batch with its number, before `prepare`."""
        if self._batches is None:
            yield from enumerate(self._iterated(None))
        else:
            yield from enumerate(self._loaded(self._batches, None))

    def own(self) -> Iterator[Batch]:
        """Yield the batches of this rank in order, after `prepare`."""
        if self._batches is not None:
            owned = [batch for number, batch in enumerate(self._batches) if self._owns(number)]
            yield from self._loaded(owned, self._prepare)
            return
        for number, batch in enumerate(self._iterated(self._prepare)):
            if self._owns(number):
                yield batch

    def leave_to_first(self) -> None:
        """Give all batches to rank 0 from now on, and none to other ranks."""
        self._shard = all_to_first(self._shard)

    def fingerprint_of_files(self) -> str:
        """Raise `NotImplementedError`: datasets are never divided by files."""
        raise NotImplementedError

    def parts(self, batch: Batch) -> Iterable[tuple[str, Any]]:
        """Yield inputs, labels and weights of a batch with their places; of a mapping, `labels` are the labels."""
        content = batch.content
        if isinstance(content, Mapping):
            yield "input", [part for name, part in content.items() if name != LABELS]
            if LABELS in content:
                yield "label", content[LABELS]
        else:
            yield from placed(tuple(content) if isinstance(content, list) else content)

    def arrays(self, batch: Batch) -> Iterable[NDArray[Any]]:
        """Yield the bits of all tensors, numbers and texts of a batch."""
        for leaf in leaves(batch.content):
            if isinstance(leaf, torch.Tensor):
                yield bits_of(leaf)
            elif isinstance(leaf, np.ndarray | np.generic | bool | int | float):
                yield np.asarray(leaf)
            elif isinstance(leaf, str | bytes):
                yield np.array([leaf], object)
            else:
                raise self._refused(
                    f"its batches hold objects of {type(leaf).__module__}.{type(leaf).__qualname__}, whose content "
                    f"cannot be compared between workers: let collate_fn return tensors, numbers or texts"
                )

    def examples_in(self, batch: Batch) -> int:
        """Return the number of examples in a batch."""
        examples: int = batch.examples
        return examples

    def finite_rows(self, part: Any) -> list[NDArray[np.bool_]]:
        """Return which rows of each tensor are finite; an empty list if all are."""
        rows = finite_rows(part)
        return [] if all(finite.all() for finite in rows) else rows

    @property
    def _is_iterable(self) -> bool:
        return isinstance(self._dataset, IterableDataset) or not hasattr(self._dataset, "__getitem__")

    def _owns(self, number: int) -> bool:
        return self.sharding == "own" or self._shard.owns(number)

    def _listed(self) -> list[Any]:
        """Return the indices of each batch; without automatic batching, the index of each element."""
        count = len(self._dataset)
        loader = self._loader
        if loader is None or (loader.batch_sampler is not None and type(loader.batch_sampler) is BatchSampler):
            indices = range(count) if loader is None else self._order(loader.sampler)
            size = self._batch_size
            assert size is not None
            if loader is not None and loader.drop_last and len(indices) % size:
                raise self._refused(
                    f"DataLoader(drop_last=True) leaves out {len(indices) % size} of {len(indices)} examples: give "
                    f"drop_last=False"
                )
            return [list(indices[start : start + size]) for start in range(0, len(indices), size)]
        if loader.batch_sampler is None:
            return list(self._order(loader.sampler))
        return self._twice(loader.batch_sampler, "batch_sampler")

    def _order(self, sampler: Any) -> Sequence[Any]:
        """Return the indices in the order in which they are evaluated."""
        count = len(self._dataset)
        if isinstance(sampler, SequentialSampler):
            return range(count)
        if isinstance(sampler, DistributedSampler):
            self.notes += (_DISTRIBUTED,)
            return range(count)
        if isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == count:
            self.notes += ("RandomSampler (shuffle=True) is replaced by the order of the dataset",)
            return range(count)
        if isinstance(sampler, SubsetRandomSampler):
            self.notes += ("SubsetRandomSampler is replaced by the order of its indices",)
            return list(sampler.indices)
        return self._twice(sampler, "sampler")

    def _twice(self, sampler: Iterable[Any], parameter: str) -> list[Any]:
        """Return what a sampler yields. Raises `EvaluationError` unless it yields the same a second time."""
        once, again = list(sampler), list(sampler)
        if once != again:
            raise self._refused(
                f"DataLoader({parameter}=…) is a {type(sampler).__name__}, which selects other examples each time, so "
                f"the numbers of two checkpoints could not be compared: leave it out, or give a list of indices"
            )
        return once

    def _loaded(self, batches: list[Any], prepare: Callable[..., Any] | None) -> Iterator[LoadedBatch]:
        """Load batches of a dataset with indices, with the worker processes of the user's loader if it has any."""
        if self._loader is None:
            for indices in batches:
                examples = [self._prepared(example, prepare) for example in _fetched(self._dataset, indices)]
                yield LoadedBatch(self._collated(examples), len(examples))
            return
        if not batches:
            return
        loader = _loader_of(self._loader, batches)
        for indices, content in zip(batches, loader, strict=True):
            yield LoadedBatch(content, len(indices) if isinstance(indices, list | tuple) else self._rows(content))

    def _iterated(self, prepare: Callable[..., Any] | None) -> Iterator[LoadedBatch]:
        """Load batches of a dataset without indices, in this process: with several, each would read all examples."""
        elements = iter(self._dataset)
        if self._batch_size is None:
            for element in elements:
                content = self._collate(element)
                yield LoadedBatch(content, self._rows(content))
            return
        while examples := [self._prepared(example, prepare) for example in islice(elements, self._batch_size)]:
            yield LoadedBatch(self._collated(examples), len(examples))

    def _prepared(self, example: Any, prepare: Callable[..., Any] | None) -> Any:
        if prepare is None:
            return example
        return call("EvalSet(prepare=…)", prepare, *(example if isinstance(example, tuple) else (example,)))

    def _collated(self, examples: list[Any]) -> Any:
        try:
            return self._collate(examples)
        except (RuntimeError, TypeError) as error:
            if self._collate is not default_collate:
                raise
            raise self._refused(
                f"its examples cannot be made a batch: {_first_line(error)}; return a DataLoader with a collate_fn"
            ) from error

    def _rows(self, content: Any) -> int:
        """Return the number of examples in a batch that the user made."""
        for leaf in leaves(content):
            if isinstance(leaf, torch.Tensor | np.ndarray) and leaf.ndim:
                return len(leaf)
        raise self._refused(f"yields single examples{unless_batched(None)}")

    def _refused(self, complaint: str) -> EvaluationError:
        return EvaluationError("task_error", f"eval set {self._name!r}: {complaint}")


def open_source(name: str, eval_set: EvalSet, *, batch_size: int | None, shard: Shard) -> ArraySource | DatasetSource:
    """Call the function of an eval set, and return a source for what it returns."""
    shards_itself = eval_set.shards_itself
    data = call(f"eval set {name!r}", eval_set.source, *([shard] if shards_itself else []))
    if isinstance(data, DataLoader | Dataset) or _is_dataset(data):
        return DatasetSource(name, eval_set, data, batch_size=batch_size, shard=shard)
    return ArraySource(name, eval_set, batch_size=batch_size, shard=shard)


def _is_dataset(data: Any) -> bool:
    """Return whether an object is a dataset that does not inherit from torch's, such as one of Hugging Face."""
    if isinstance(data, np.ndarray | torch.Tensor | tuple | list | Mapping | Iterator) or hasattr(data, "__array__"):
        return False
    has_indices = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return has_indices or (type(data).__module__.partition(".")[0] == "datasets" and hasattr(data, "__iter__"))


def _fetched(dataset: Any, indices: list[Any]) -> list[Any]:
    """Return examples by their indices, as a `DataLoader` fetches them."""
    fetch = getattr(dataset, "__getitems__", None)
    return list(fetch(indices)) if fetch else [dataset[index] for index in indices]


def _loader_of(loader: DataLoader[Any], batches: list[Any]) -> DataLoader[Any]:
    """Return a loader like the user's for these batches only."""
    chosen: dict[str, Any] = (
        {"sampler": batches, "batch_size": None} if loader.batch_sampler is None else {"batch_sampler": batches}
    )
    return DataLoader(
        loader.dataset,
        **chosen,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory and torch.cuda.is_available(),
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
