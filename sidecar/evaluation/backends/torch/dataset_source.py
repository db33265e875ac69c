"""Open a task's data as PyTorch users have them: a `Dataset`, a `DataLoader`, an `IterableDataset`, or any data.

Every example is evaluated exactly once, in whole batches that do not depend on the number of workers. So a loader's
dataset, collate function and worker processes are used, but its sampler only if it visits each example once, always in
the same order. `RandomSampler` and `DistributedSampler` are replaced by the order of the dataset: the former shuffles,
and the latter pads and divides. What would drop or draw examples is refused.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from enum import Enum
from itertools import islice
from pathlib import PurePath
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from sidecar.evaluation.backends.torch.ragged import (
    Key,
    finite_by_example,
    lists_of_examples,
    parts_of,
    rows_of,
)
from sidecar.evaluation.backends.torch.samplers import Listing, list_batches, list_batches_of
from sidecar.evaluation.backends.torch.tensors import bits_of, finite_rows, leaves, map_leaves, rows_in
from sidecar.evaluation.data.array_source import ArraySource
from sidecar.evaluation.data.batch_source import Batch, Division
from sidecar.evaluation.data.shard import Shard, all_to_first
from sidecar.evaluation.failures import EvaluationError, first_line, task_error
from sidecar.evaluation.remedy import UNLESS_BATCHED
from sidecar.evaluation.row_comparison import halves_of
from sidecar.evaluation.task import EvalSet, call

_ONE_PROCESS: Final = (
    "an IterableDataset is read in one process per worker: with the processes of DataLoader(num_workers=…), each would "
    "read all examples"
)

_SHOWN: Final = 4
_BEYOND: Final = 2**40  # an index that no dataset has
_SAID_BY_REPR: Final = (complex, date, Enum, PurePath, range, slice, time, torch.device, torch.dtype)

Collate = Callable[[list[Any]], Any]
Prepare = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class LoadedBatch:
    """A batch as the user's collate function made it, the number of its examples, and of those that it lacks."""

    content: Any
    examples: int
    left_out: int = 0


class DatasetSource:
    """Provide the data of one eval set on one rank: see `sidecar.evaluation.data.batch_source.BatchSource`.

    `data`: what the function of the eval set returned. A `DataLoader` has a batch size of its own. Raises
    `EvaluationError` if the data cannot be evaluated exactly.
    """

    def __init__(self, name: str, eval_set: EvalSet, data: Any, *, batch_size: int | None, shard: Shard) -> None:
        self._name, self._prepare, self._shard = name, eval_set.prepare, shard
        self._loader: DataLoader[Any] | None = data if isinstance(data, DataLoader) else None
        self._lists: frozenset[Key] = frozenset()  # parts of each batch that are lists of examples
        self._dataset: Any = data if self._loader is None else self._loader.dataset
        self._collate: Collate = default_collate if self._loader is None else self._loader.collate_fn
        self._batch_size = batch_size if self._loader is None else self._loader.batch_size
        if self._loader is not None:
            self._require_plain(self._loader)
        is_read_in_turn = _is_iterable(self._dataset) or (self._loader is None and self._ends_by_index_error())
        listing = None if is_read_in_turn else self._listed(data, batch_size)
        self._batches = None if listing is None else listing.batches
        self.sharding = self._sharding(eval_set)
        has_processes = self._loader is not None and self._loader.num_workers > 0
        self.notes = listing.notes if listing else (_ONE_PROCESS,) if has_processes else ()

    def sample(self) -> Batch | None:
        """Return the first batch; None if there are no batches."""
        return next((batch for _, batch in self._first(None)), None)

    def first_prepared(self) -> Iterator[Batch]:
        """Yield at most the first batch of the set, after `prepare`."""
        self._require_own_memory()
        for _, batch in self._first(self._prepare):
            self._lists = lists_of_examples(batch.content, batch.examples)
            yield batch

    def collated_parts(self, number: int, places: Sequence[slice], examples: int) -> list[Batch] | None:
        """Return parts of a batch as the collate function makes them from the examples, after `prepare`.

        Padding may be shorter in them. If the batch has other examples than the dataset, since the function leaves out
        some, the parts are its halves. None: only the batch as a whole is known, the function does not take a part, or
        it is not the first batch and would need much reading or new processes.
        """
        has_processes = self._loader is not None and self._loader.num_workers > 0
        if number and (self._batches is None or has_processes):
            return None
        try:
            if self._batches is None:
                return self._first_parts(places, examples)
            return self._listed_parts(list(self._batches[number]), places, examples)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - code of a user, which took the whole batch
            return None

    def _first_parts(self, places: Sequence[slice], examples: int) -> list[Batch] | None:
        """Return parts of the first batch of a dataset without indices."""
        if self._batch_size is None:
            return None
        first = list(islice(self._elements(), self._batch_size))
        places = places if len(first) == examples else halves_of(len(first)) or places
        return [self._batch_of(first[place], self._prepare) for place in places]

    def _listed_parts(self, indices: list[Any], places: Sequence[slice], examples: int) -> list[Batch] | None:
        """Return parts of a batch of a dataset with indices."""
        if self._loader is not None and self._loader.batch_sampler is None:
            return None
        places = places if len(indices) == examples else halves_of(len(indices)) or places
        return list(self._loaded([indices[place] for place in places], self._prepare))

    def numbered(self) -> Iterator[tuple[int, Batch]]:
        """Yield every batch with its number, before `prepare`."""
        if self._batches is None:
            return self._iterated(None, lambda _: True)
        return enumerate(self._loaded(self._batches, None))

    def own(self) -> Iterator[Batch]:
        """Yield the batches of this rank in order, after `prepare`."""
        if self._batches is None:
            yield from (batch for _, batch in self._iterated(self._prepare, self._owns))
        else:
            owned = [batch for number, batch in enumerate(self._batches) if self._owns(number)]
            yield from self._loaded(owned, self._prepare)

    def leave_to_first(self) -> None:
        """Give all batches to rank 0 from now on, and none to other ranks."""
        self._shard = all_to_first(self._shard)

    def fingerprint_of_files(self) -> str:
        """Raise `NotImplementedError`: datasets are never divided by files."""
        raise NotImplementedError

    def sizes(self) -> Sequence[int]:
        """Return the number of examples in each batch."""
        assert self._batches is not None
        return [len(indices) for indices in self._batches]

    def fingerprint_of_list(self) -> str:
        """Return the digest of the indices of all batches."""
        assert self._batches is not None
        digest = hashlib.blake2b(digest_size=16)
        for indices in self._batches:
            listed = _as_bytes(indices)
            digest.update(len(listed).to_bytes(8, "little") + listed)
        return digest.hexdigest()

    def chosen(self, numbers: Sequence[int]) -> Iterator[Batch]:
        """Yield the batches with these numbers, before `prepare`."""
        assert self._batches is not None
        return self._loaded([self._batches[number] for number in numbers], None)

    def parts(self, batch: Batch) -> Iterable[tuple[str, Any]]:
        """Yield inputs, labels and weights of a batch with their places."""
        by_place: dict[str, list[Any]] = {}
        for key, place, part in parts_of(batch.content):
            plain = finite_by_example(part) if key in self._lists else part
            by_place.setdefault(place, []).append(plain)
        return by_place.items()

    def arrays(self, batch: Batch) -> Iterable[NDArray[Any]]:
        """Yield the bits of all tensors, numbers and texts of a batch."""
        for leaf in leaves(batch.content):
            if isinstance(leaf, torch.Tensor):
                yield bits_of(leaf)
            elif isinstance(leaf, np.ndarray | np.generic | bool | int | float):
                yield np.asarray(leaf)
            elif isinstance(leaf, str | bytes):
                yield np.array([leaf], object)
            elif isinstance(leaf, _SAID_BY_REPR):
                yield np.array([repr(leaf)], object)
            else:
                raise self._refused(
                    f"its batches hold objects of {type(leaf).__module__}.{type(leaf).__qualname__}, whose content "
                    f"cannot be compared between workers: let collate_fn return tensors, numbers, texts, or objects "
                    f"with tensors as attributes"
                )

    def examples_in(self, batch: Batch) -> int:
        """Return the number of examples in a batch."""
        examples: int = batch.examples
        return examples

    def finite_rows(self, part: Any) -> list[NDArray[np.bool_]]:
        """Return which rows of each tensor are finite; an empty list if all are."""
        rows = finite_rows(part)
        return [] if all(finite.all() for finite in rows) else rows

    def _sharding(self, eval_set: EvalSet) -> Division:
        if eval_set.shards_itself:
            return "own"
        is_listed = self._batches is not None and (self._loader is None or self._loader.batch_sampler is not None)
        return "index" if is_listed and self._batches and eval_set.check == "sample" else "batches"

    def _owns(self, number: int) -> bool:
        return self.sharding == "own" or self._shard.owns(number)

    def _require_plain(self, loader: DataLoader[Any]) -> None:
        """Raise `EvaluationError` for a loader whose batches are not those of its dataset and its collate function."""
        if self._prepare is not None:
            raise self._refused("a DataLoader prepares its own batches: leave EvalSet(prepare=…) out")
        if type(loader).__iter__ is not DataLoader.__iter__:
            raise self._refused(
                f"its source returns a {type(loader).__module__}.{type(loader).__qualname__}, which makes batches in "
                f"its own way: return a torch.utils.data.DataLoader, or with Task(batch_size=None) iter(loader)"
            )

    def _require_own_memory(self) -> None:
        """Raise `EvaluationError` for a dataset whose second example is written over the first one."""
        listed = (self._batches or ())[:2]
        has_batches = self._loader is None or self._loader.batch_sampler is not None
        indices = [index for batch in listed for index in batch][:2] if has_batches else list(listed)
        try:
            first = _fetched(self._dataset, indices[:1])
            before = _contents(first)
            _fetched(self._dataset, indices[1:])
        except Exception:  # noqa: BLE001 - a dataset that only the processes of its loader can read, or a wrong one
            return
        if _contents(first) != before:
            raise self._refused(
                "its dataset returns the same tensor for each example, and writes the next example into it, so a batch "
                "would hold one example several times: return a copy, such as x.clone() or array.copy()"
            )

    def _ends_by_index_error(self) -> bool:
        """Return whether the dataset has no length, and an index beyond its end raises `IndexError`.

        Python reads such an object in turn, as it reads a list. Raises `EvaluationError` for one without an end.
        """
        try:
            len(self._dataset)
        except (AttributeError, TypeError, NotImplementedError):
            pass
        else:
            return False
        try:
            self._dataset[_BEYOND]
        except IndexError:
            return True
        except Exception as error:  # noqa: BLE001 - any dataset of a user
            found = f"raises {type(error).__name__}"
        else:
            found = "returns an example"
        raise self._refused(
            f"its dataset {type(self._dataset).__name__} has no length, and {found} for the index {_BEYOND}: define "
            f"__len__, or let __getitem__ raise IndexError beyond the end"
        )

    def _listed(self, data: Any, batch_size: int | None) -> Listing:
        if isinstance(data, DataLoader):
            return list_batches_of(self._name, data)
        if batch_size is None:
            raise self._refused("its source returns a dataset of single examples: give Task(batch_size=…), such as 256")
        return list_batches(self._name, data, batch_size)

    def _first(self, prepare: Prepare | None) -> Iterator[tuple[int, LoadedBatch]]:
        if self._batches is None:
            return islice(self._iterated(prepare, lambda _: True), 1)
        return enumerate(self._loaded(self._batches[:1], prepare))

    def _loaded(self, batches: Sequence[Any], prepare: Prepare | None) -> Iterator[LoadedBatch]:
        """Load batches of a dataset with indices, with the worker processes of the user's loader if it has any."""
        if self._loader is None:
            for indices in batches:
                yield self._batch_of(_fetched(self._dataset, list(indices)), prepare)
        elif batches:
            is_batched = self._loader.batch_sampler is not None
            contents = iter(_loader_of(self._loader, batches))
            if self._loader.num_workers == 0:  # its collate function may write each batch into the same memory
                contents = map(_with_own_memory, contents)
            for indices, content in zip(batches, contents, strict=True):
                yield _collated(content, len(indices)) if is_batched else LoadedBatch(content, self._rows(content))

    def _iterated(self, prepare: Prepare | None, owns: Callable[[int], bool]) -> Iterator[tuple[int, LoadedBatch]]:
        """Load batches of a dataset without indices, in this process: with several, each would read all examples."""
        elements, size = self._elements(), self._batch_size
        if size is None:
            for number, element in enumerate(elements):
                if owns(number):
                    content = self._prepared(element, prepare) if self._loader is None else self._collate(element)
                    yield number, LoadedBatch(content, self._rows(content))
            return
        groups = iter(lambda: list(islice(elements, size)), [])
        for number, examples in enumerate(groups):
            if self._loader is not None and self._loader.drop_last and len(examples) < size:
                raise self._refused(f"drop_last=True leaves out {len(examples)} examples: give drop_last=False")
            if owns(number):
                yield number, self._batch_of(examples, prepare)

    def _elements(self) -> Iterator[Any]:
        """Yield what a dataset without indices yields, in memory that it does not write to again."""
        return map(_with_own_memory, iter(self._dataset))

    def _batch_of(self, examples: list[Any], prepare: Prepare | None) -> LoadedBatch:
        """Return a batch of prepared examples. Examples before `prepare` may be of a kind that cannot be collated."""
        if prepare is None and self._prepare is not None:
            return LoadedBatch(examples, len(examples))
        return _collated(self._collated([self._prepared(each, prepare) for each in examples]), len(examples))

    def _prepared(self, example: Any, prepare: Prepare | None) -> Any:
        if prepare is None:
            return example
        return call("EvalSet(prepare=…)", prepare, *(example if isinstance(example, tuple) else (example,)))

    def _collated(self, examples: list[Any]) -> Any:
        if self._loader is not None:
            return self._collate(examples)
        if any(example is None for example in examples):
            raise self._refused(
                "its dataset returns None for an example: leave it out with torch.utils.data.Subset, or return a "
                "DataLoader with a collate_fn that does"
            )
        try:
            return self._collate(examples)
        except (RuntimeError, TypeError) as error:
            raise self._refused(
                f"its examples cannot be made a batch: {first_line(error)}; return a DataLoader with a collate_fn"
            ) from error

    def _rows(self, content: Any) -> int:
        """Return the number of examples in a batch that the user made. Raises `EvaluationError` if it is unclear."""
        if isinstance(graphs := getattr(content, "num_graphs", None), int):  # of PyTorch Geometric
            return graphs
        tensors = (leaf for leaf in leaves(content) if isinstance(leaf, torch.Tensor | np.ndarray) and leaf.ndim)
        rows = list(dict.fromkeys(map(rows_in, tensors)))
        if not rows:
            raise self._refused(f"yields single examples{UNLESS_BATCHED.for_task}")
        if len(rows) > 1:
            raise self._refused(
                f"its batches hold tensors of {' and '.join(map(str, rows[:_SHOWN]))} rows, so their number of "
                f"examples is unclear: yield single examples, and give a batch_size and a collate_fn"
            )
        return rows[0]

    def _refused(self, complaint: str) -> EvaluationError:
        return task_error(f"eval set {self._name!r}: {complaint}")


def open_source(name: str, eval_set: EvalSet, *, batch_size: int | None, shard: Shard) -> ArraySource | DatasetSource:
    """Call the function of an eval set, and return a source for what it returns."""
    shards_itself = eval_set.shards_itself
    data = call(f"eval set {name!r}", eval_set.source, *([shard] if shards_itself else []))
    if isinstance(data, DataLoader | Dataset) or _is_dataset(data):
        return DatasetSource(name, eval_set, data, batch_size=batch_size, shard=shard)
    if isinstance(data, Mapping) and data and all(map(_is_dataset, data.values())):
        raise task_error(
            f"eval set {name!r}: its source returns several datasets, {', '.join(map(repr, data))}: return one of "
            f"them, and make an eval set of each"
        )
    if isinstance(data, Iterator):
        if not any(isinstance(leaf, torch.Tensor) for leaf in leaves(next(data, None))):
            return ArraySource(name, eval_set, batch_size=batch_size, shard=shard)
        generated = _Generated(name, eval_set, shard, data)
        return DatasetSource(name, eval_set, generated, batch_size=batch_size, shard=shard)
    return ArraySource(name, eval_set, batch_size=batch_size, shard=shard, opened=data)


class _Generated:
    """A dataset of what a function yields, which is called for each reading. `first` is what it returned before."""

    def __init__(self, name: str, eval_set: EvalSet, shard: Shard, first: Iterator[Any]) -> None:
        self._name, self._eval_set, self._first = name, eval_set, first
        self._arguments = [shard] if eval_set.shards_itself else []

    def __iter__(self) -> Iterator[Any]:
        elements: Iterator[Any] = call(f"eval set {self._name!r}", self._eval_set.source, *self._arguments)
        if elements is self._first:
            raise task_error(
                f"eval set {self._name!r}: its function returns the same iterator each time it is called, which can be "
                f"read only once: make the iterator within the function, or write it as a generator with yield"
            )
        return elements


def _is_dataset(data: Any) -> bool:
    """Return whether an object is a dataset that does not inherit from torch's, such as one of Hugging Face."""
    if isinstance(data, np.ndarray | torch.Tensor | tuple | list | Mapping | Iterator) or hasattr(data, "__array__"):
        return False
    has_indices = hasattr(data, "__getitem__") and (hasattr(data, "__len__") or not hasattr(data, "__iter__"))
    return has_indices or (type(data).__module__.partition(".")[0] == "datasets" and hasattr(data, "__iter__"))


def _is_iterable(dataset: Any) -> bool:
    """Return whether a dataset has no indices. That of Hugging Face has `__getitem__`, for columns."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__len__")


def _fetched(dataset: Any, indices: list[Any]) -> list[Any]:
    """Return examples by their indices, as a `DataLoader` fetches them."""
    fetch = getattr(dataset, "__getitems__", None)
    return list(fetch(indices)) if fetch else [dataset[index] for index in indices]


def _with_own_memory(element: Any) -> Any:
    """Return an example or a batch with copies of its tensors and arrays."""

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.clone()
        return leaf.copy() if isinstance(leaf, np.ndarray | list) else leaf

    return map_leaves(copied, element, is_leaf=_is_plain_list)


def _is_plain_list(part: Any) -> bool:
    return isinstance(part, list) and bool(part) and isinstance(part[0], bool | int | float | str)


def _contents(examples: list[Any]) -> bytes:
    """Return a digest of the tensors and arrays in examples."""
    digest = hashlib.blake2b(digest_size=16)
    for leaf in leaves(examples):
        if isinstance(leaf, torch.Tensor):
            digest.update(bits_of(leaf).tobytes())
        elif isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
            digest.update(leaf.tobytes())
    return digest.digest()


def _collated(content: Any, examples: int) -> LoadedBatch:
    """Return a batch that a collate function made of so many examples. It may have left out some, such as broken files.

    It did so if no part has a row for each, and all parts have the same smaller number of rows.
    """
    if content is None:
        raise task_error(
            "collate_fn returns None for a batch: leave the examples out with torch.utils.data.Subset, or let it "
            "return a batch without rows, such as (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))"
        )
    if (rows := rows_of(content, examples)) is None:
        return LoadedBatch(content, examples)
    return LoadedBatch(content, rows, examples - rows)


def _as_bytes(indices: Any) -> bytes:
    """Return the content of indices: numbers as int64, and other keys of examples as texts."""
    numbers = np.arange(indices.start, indices.stop, indices.step) if isinstance(indices, range) else None
    if numbers is None and all(isinstance(index, int | np.integer | torch.Tensor) for index in indices):
        numbers = np.array([int(index) for index in indices], np.int64)
    return repr(list(indices)).encode() if numbers is None else numbers.astype(np.int64).tobytes()


def _loader_of(loader: DataLoader[Any], batches: Sequence[Any]) -> DataLoader[Any]:
    """Return a loader like the user's for these batches only."""
    if loader.batch_sampler is None:
        chosen: dict[str, Any] = {"sampler": batches, "batch_size": None}
    else:
        chosen = {"batch_sampler": [list(indices) for indices in batches]}
    processes = min(loader.num_workers, len(batches))
    return DataLoader(
        loader.dataset,
        **chosen,
        num_workers=processes,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory and torch.cuda.is_available(),
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor if processes else None,
    )
