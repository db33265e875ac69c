"""Open a task's data without a framework: arrays, `.npz` files, or an iterator of examples or of batches.

Batches of arrays are views. Batches of an iterator are stacked from examples, which must have the same type and shape.
"""

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.digest import is_plain_row
from sidecar.evaluation.data.elements import placed
from sidecar.evaluation.data.file_sources import RecordFiles
from sidecar.evaluation.data.shard import Shard, all_to_first
from sidecar.evaluation.data.structure import as_arrays, copied, form_of, leaves, map_leaves
from sidecar.evaluation.failures import EvaluationError, task_error
from sidecar.evaluation.remedy import UNLESS_BATCHED
from sidecar.evaluation.task import EvalSet, call
from sidecar.protocol.records import Sharding

_ACCEPTED: Final = "arrays x, (x, y) or (x, y, sample_weight), an iterator of examples, or npz files (sidecar.data)"
_AS_LISTS: Final = ", or return lists of rows of any lengths as a whole: lambda: (list_of_x, list_of_y)"
_PADDED: Final = ", or a dataset of PyTorch in a DataLoader(collate_fn=…) that pads them"
_SIZES_SHOWN: Final = 6
_ROWS: Final = (list, tuple, dict, np.ndarray)
_NUMBERS: Final = "biufcUSMm"
"""Kinds of numpy types whose bytes can be hashed."""


class ArraySource:
    """Provide the data of one eval set on one rank: see `sidecar.evaluation.data.batch_source.BatchSource`.

    `opened` is what the function of the eval set returned, if the caller has called it already. With `takes_objects`,
    the rows of whole lists may be lists of different lengths, or dicts: the model gets an array of such objects.

    Raises `EvaluationError` for data that cannot be evaluated.
    """

    def __init__(
        self,
        name: str,
        eval_set: EvalSet,
        *,
        batch_size: int | None,
        shard: Shard,
        opened: Any = None,
        takes_objects: bool = False,
    ) -> None:
        self._takes_objects = takes_objects
        self._name, self._eval_set, self._batch_size, self._shard = name, eval_set, batch_size, shard
        self.sharding: Sharding = "own" if eval_set.shards_itself else "batches"
        data = self._open() if opened is None else self._accepted(opened)
        self._data = None if isinstance(data, Iterator) else self._arrays_of(data)
        self._unused: Iterator[Any] | None = data if isinstance(data, Iterator) else None
        self._form: str | None = None  # types and shapes of the first example of an iterator
        if self._data is None:
            self._unused = self._checked(data)

    def sample(self) -> Batch | None:
        """Return the first batch, before `prepare`; None if there are no batches."""
        return next((batch for _, batch in self.numbered()), None)

    def first_prepared(self) -> Iterator[Batch]:
        """Yield at most the first batch of the set, after `prepare`."""
        yield from (self._prepared(batch) for batch in islice(self._batches(), 1))

    def numbered(self) -> Iterator[tuple[int, Batch]]:
        """Yield every batch with its number, before `prepare`."""
        return enumerate(self._batches())

    def own(self) -> Iterator[Batch]:
        """Yield the batches of this rank in order, after `prepare`."""
        for number, batch in self.numbered():
            if self.sharding == "own" or self._shard.owns(number):
                yield self._prepared(batch)

    def leave_to_first(self) -> None:
        """Give all batches to rank 0 from now on, and none to other ranks."""
        self._shard = all_to_first(self._shard)

    def fingerprint_of_files(self) -> str:
        """Raise `NotImplementedError`: data without a framework are never divided by files."""
        raise NotImplementedError

    def parts(self, batch: Batch) -> Iterable[tuple[str, Any]]:
        """Yield inputs, labels and weights of a batch with their places."""
        return placed(batch)

    def arrays(self, batch: Batch) -> Iterable[NDArray[Any]]:
        """Yield the arrays of a batch."""
        return leaves(batch)

    def examples_in(self, batch: Batch) -> int:
        """Return the number of examples in a batch."""
        return len(next(leaves(batch)))

    def finite_rows(self, part: Any) -> list[NDArray[np.bool_]]:
        """Return which rows of each array are finite; an empty list if all are."""
        rows = finite_rows(part)
        return [] if all(finite.all() for finite in rows) else rows

    def _open(self) -> Any:
        data = call(
            f"eval set {self._name!r}", self._eval_set.source, *([self._shard] if self.sharding == "own" else [])
        )
        return self._accepted(data)

    def _accepted(self, data: Any) -> Any:
        """Return arrays as they are, and an iterator for everything else that can be read."""
        inputs = data[0] if isinstance(data, tuple) and data else data
        self.columns = [*map(str, names)] if (names := getattr(inputs, "columns", None)) is not None else []
        if isinstance(data, RecordFiles):
            raise self._refused("TFRecord files need framework = 'tensorflow': give arrays, npz or an iterator")
        if isinstance(data, Iterator | np.ndarray | tuple | list | dict) or hasattr(data, "__array__"):
            return data
        if isinstance(data, Iterable):
            return iter(data)
        raise self._refused(f"expected {_ACCEPTED}, found {type(data).__name__}")

    def _arrays_of(self, data: Any) -> Any:
        """Return the arrays of a source of whole arrays. Raises `EvaluationError` unless they are equally long."""
        data = tuple(data) if isinstance(data, list) else data
        arrays = self._converted(_with_objects(data) if self._takes_objects else data)
        if self._batch_size is None:
            raise self._refused("its source returns whole arrays: give Task(batch_size=…), such as 256")
        self._require_equally_many(arrays)
        return arrays

    def _require_equally_many(self, arrays: Any) -> None:
        """Raise `EvaluationError` unless all arrays have a row for each example."""
        sizes = [str(array.shape[0]) if array.ndim else "no" for array in leaves(arrays)]
        if len(set(sizes)) == 1 and "no" not in sizes:
            return
        more = f" and {len(sizes) - _SIZES_SHOWN} more; " if len(sizes) > _SIZES_SHOWN else "; "
        raise self._refused(
            f"its arrays (x, y, sample_weight) need equally many examples, found "
            f"{', '.join(sizes[:_SIZES_SHOWN]) or 'none'}{more}for a list of examples return iter(…)"
        )

    def _checked(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Note the form of the first example, and return a new iterator. Raises `EvaluationError` without examples."""
        nothing = object()
        first = next(iterator, nothing)
        if first is nothing and self.sharding != "own":
            raise self._refused("is empty: its iterator yields no example")
        if first is not nothing:
            self._form = self._form_of(self._converted(first))
        again = self._open()
        if again is iterator:
            raise self._refused(
                "its function returns the same iterator each time it is called, which can be read only once: "
                "make the iterator within the function, or write it as a generator with yield"
            )
        checked: Iterator[Any] = again
        return checked

    def _batches(self) -> Iterator[Batch]:
        size = self._batch_size
        if self._data is not None:
            assert size is not None
            count = len(next(leaves(self._data)))
            for start in range(0, count, size):
                yield map_leaves(lambda array, start=start: array[start : start + size], self._data)
            return
        elements = self._elements()
        if size is None:
            yield from elements
            return
        gathered: list[Any] = []
        for element in elements:
            gathered.append(element)
            if len(gathered) == size:
                yield _stacked(gathered)
                gathered = []
        if gathered:
            yield _stacked(gathered)

    def _elements(self) -> Iterator[Any]:
        iterator, self._unused = self._unused or self._open(), None
        for number, element in enumerate(iterator):
            converted = self._converted(element)
            if (form := self._form_of(converted)) != self._form:
                raise self._refused(
                    f"element {number} of its iterator is {form}, the first was {self._form}: give all elements "
                    f"the same types and shapes{_AS_LISTS if self._takes_objects else _PADDED}"
                )
            yield copied(converted)  # a generator may fill the same array for every element

    def _form_of(self, element: Any) -> str:
        """Describe types and shapes of an element; a short last batch has the same description as others."""
        if self._batch_size is not None:
            return str(form_of(element))
        if any(not array.ndim for array in leaves(element)):
            raise self._refused(f"yields single examples, {form_of(element)}{UNLESS_BATCHED.for_task}")
        self._require_equally_many(element)
        return str(form_of(map_leaves(lambda array: array[:0], element)))

    def _prepared(self, batch: Batch) -> Batch:
        """Return a batch after `prepare`, which takes single examples, or batches if the source yields batches."""
        prepare = self._eval_set.prepare
        if prepare is None:
            return batch
        name = "EvalSet(prepare=…)"
        if self._batch_size is None:
            return copied(self._converted(call(name, prepare, *_arguments(copied(batch)))))
        examples = range(self.examples_in(batch))
        rows = (map_leaves(lambda array, at=at: copy(array[at]), batch) for at in examples)
        return self._stacked_alike([copied(self._converted(call(name, prepare, *_arguments(row)))) for row in rows])

    def _stacked_alike(self, examples: list[Any]) -> Batch:
        forms = list(dict.fromkeys(str(form_of(example)) for example in examples))
        if len(forms) > 1:
            raise self._refused(f"EvalSet(prepare=…) returns {forms[1]} after {forms[0]}: return one form")
        return _stacked(examples)

    def _converted(self, element: Any) -> Any:
        try:
            arrays = as_arrays(element)
        except ValueError as error:
            advice = "" if "inhomogeneous" not in str(error) or self._takes_objects else _PADDED
            raise self._refused(f"its source yields something that is not an array: {error}{advice}") from None
        for array in leaves(arrays):
            if array.dtype.kind not in _NUMBERS and not all(map(self._is_taken, array.ravel().tolist())):
                kind = array.dtype if array.ndim else type(array.item()).__name__
                raise self._refused(
                    f"its source yields {kind}, which is neither numbers nor text: convert it, or let x be the numbers "
                    "of the rows, np.arange(n), and let predict look them up"
                )
        return arrays

    def _is_taken(self, item: Any) -> bool:
        """Return whether an array of objects may hold this one."""
        return isinstance(item, str | bytes) or (self._takes_objects and is_plain_row(item))

    def _refused(self, complaint: str) -> EvaluationError:
        return task_error(f"eval set {self._name!r}: {complaint}")


def _with_objects(data: Any) -> Any:
    """Return data with an array of objects for each list whose rows numpy cannot hold in one array."""
    if isinstance(data, Mapping):
        return {name: _with_objects(part) for name, part in data.items()}
    if isinstance(data, tuple):
        return tuple(map(_with_objects, data))
    if not isinstance(data, list) or not data or not is_plain_row(data) or not isinstance(data[0], _ROWS):
        return data
    try:
        array = np.asarray(data)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype != object:
        return data
    rows = np.empty(len(data), object)
    for number, row in enumerate(data):
        rows[number] = row
    return rows


def finite_rows(structure: Any) -> list[NDArray[np.bool_]]:
    """Return a bool (n,) for each array of floats (n, …) in a nested structure: whether that row is finite."""
    arrays = [array for array in leaves(structure) if array.ndim and _is_float(array)]
    return [np.isfinite(array).all(axis=tuple(range(1, array.ndim))) for array in arrays]


def _is_float(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "fc" or array.dtype.name == "bfloat16"


def _stacked(examples: list[Any]) -> Batch:
    return map_leaves(lambda *arrays: np.stack(arrays), *examples)


def _arguments(element: Any) -> tuple[Any, ...]:
    """Return an element as arguments: a tuple (x, y) gives two, as for `tf.data.Dataset.map`."""
    return element if isinstance(element, tuple) else (element,)
