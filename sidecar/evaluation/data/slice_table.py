"""Say to which slices each example of an eval set belongs, as `Task(slices=…)` defines them. Imports numpy only.

A slice is a part of the examples with a name: `night`, or `country=de`. An example may belong to one slice of each
definition. `eval_loop` calls `put` with each batch before it is added, and `metrics.sliced` asks for its rows.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import TaskError
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.elements import parts_of
from sidecar.evaluation.task import call

_UNKNOWN: Final = -2
_NONE: Final = -1
_LONGEST: Final = 100  # characters of a key
_LABELS: Final = "labels"  # of a batch that is a mapping, as collators of Hugging Face make it
_RANK_OF_IMAGES: Final = 3  # without the dimension of the batch


def by_length(x: Any, y: Any) -> list[str]:
    """Return the length of each text as a range such as `16-31`: of characters, or of numbers of tokens that are not 0.

    A mapping has it in `attention_mask`, `input_ids` or its only part.
    """
    del y
    if isinstance(x, Mapping):
        x = next((x[name] for name in ("attention_mask", "input_ids") if name in x), next(iter(x.values())))
    if isinstance(x, np.ndarray) and x.dtype.kind in "biuf" and x.ndim > 1:
        return [_range_of(int(length)) for length in np.count_nonzero(x.reshape(len(x), -1), axis=1)]
    return [_range_of(len(text)) for text in x]


def by_size(x: Any, y: Any) -> list[str]:
    """Return the number of pixels of each image as a range such as `65536-131071`.

    The smallest of three dimensions is that of the channels.
    """
    del y
    shapes = [np.shape(image) for image in x]
    pixels = [math.prod(shape) // (min(shape) if len(shape) == _RANK_OF_IMAGES else 1) for shape in shapes]
    return [_range_of(count) for count in pixels]


def _range_of(size: int) -> str:
    """Return the range between powers of two in which a size lies, such as `16-31`."""
    bits = size.bit_length()
    return str(size) if bits < 2 else f"{1 << bits - 1}-{(1 << bits) - 1}"  # noqa: PLR2004 - 0 and 1


class SliceTable:
    """Hold the slices of the examples that this rank has read. It stays in memory between checkpoints.

    `definitions`: as `Task(slices=…)`; a value may also be a sequence with one key for each example of the set. Raises
    `TaskError` if a crossed pair names no other definition.
    """

    def __init__(self, eval_set: str, definitions: Mapping[str, Any]) -> None:
        self._eval_set = eval_set
        self._crossed = {name: pair for name, pair in definitions.items() if isinstance(pair, tuple)}
        self._single = {name: one for name, one in definitions.items() if name not in self._crossed}
        for name, pair in self._crossed.items():
            if unknown := [one for one in pair if one not in self._single]:
                raise TaskError(
                    f"{self._where(name)} crosses {unknown[0]!r}, which is no other slice: {', '.join(self._single)}"
                )
        self._numbers: dict[str, dict[str, int]] = {name: {} for name in self._single}
        self._names: dict[str, list[str]] = {name: [] for name in self._single}
        self._codes = {name: np.zeros(0, np.int32) for name in self._single}  # of each example

    def begin(self, examples: int | None, *, is_whole: bool) -> None:
        """Prepare for so many examples: all of the set, or its first ones. Raises `TaskError` if they have no numbers.

        Nothing happens if it was done before.
        """
        if examples is None:
            raise TaskError(
                f"Task(slices=…) of {self._eval_set!r}: the set divides itself or is divided by file, so its examples "
                f"have no numbers: leave slices out, or give a source that all workers read alike"
            )
        for name, definition in self._single.items():
            if _is_of_examples(definition) and (
                len(definition) != examples if is_whole else len(definition) < examples
            ):
                raise TaskError(
                    f"{self._where(name)} must give one key for each of {examples} examples, found {len(definition)}"
                )
            if len(self._codes[name]) != examples:
                self._codes[name] = np.full(examples, _UNKNOWN, np.int32)

    def digest(self) -> str:
        """Return a digest of the keys that were given for each example. All ranks need equal ones."""
        found = hashlib.sha256()
        for name, definition in self._single.items():
            if _is_of_examples(definition):
                found.update(repr((name, list(map(str, _listed(definition))))).encode(errors="surrogatepass"))
        return found.hexdigest()

    def put(self, batch: Batch, first: int, examples: int) -> None:
        """Note the slices of a batch of examples, the first of which has this number. Raises `TaskError`."""
        parts: tuple[Any, Any] | None = None
        for name, definition in self._single.items():
            codes = self._codes[name][first : first + examples]
            if (codes != _UNKNOWN).all():
                continue
            if _is_of_examples(definition):
                keys = definition[first : first + examples]
            else:
                parts = parts or x_and_y(batch)
                keys = self._called(name, definition, *parts)
            codes[:] = [self._number(name, key) for key in self._checked(name, keys, examples)]

    def of(self, places: NDArray[np.intp]) -> Iterator[tuple[str, NDArray[np.intp]]]:
        """Yield the name of each slice that has some of the examples with these numbers, with their rows, from 0."""
        for names, numbers in self.divided(places):
            order = np.argsort(numbers, kind="stable")
            starts = np.searchsorted(numbers[order], np.arange(len(names)))
            yield from zip(names, np.split(order, starts)[1:], strict=True)

    def divided(self, places: NDArray[np.intp]) -> Iterator[tuple[list[str], NDArray[np.intp]]]:
        """Yield, for each definition, the names of its slices that have some of the examples with these numbers.

        With them come the numbers, from 0, of each example's slice among these (n,); -1: it is in none.
        """
        codes = {name: codes[places] for name, codes in self._codes.items()}
        for name, of_examples in codes.items():
            yield _numbered(of_examples, self._names[name].__getitem__)
        for one, other in self._crossed.values():
            size = len(self._names[other])
            pairs = np.where(
                (codes[one] >= 0) & (codes[other] >= 0), codes[one].astype(np.int64) * size + codes[other], _NONE
            )
            yield _numbered(pairs, partial(_crossed_name, self._names[one], self._names[other]))

    def _where(self, name: str) -> str:
        return f"Task(slices={{{name!r}: …}}) of {self._eval_set!r}"

    def _called(self, name: str, definition: Any, x: Any, y: Any) -> Any:
        if not isinstance(definition, str):
            return call(f"Task(slices={{{name!r}: …}})", definition, x, y)
        remedy = f"give a function of (x, y), or EvalSet(slices={{{name!r}: keys}}) with one key for each example"
        return _column(x, y, definition, self._where(name), remedy)

    def _checked(self, name: str, keys: Any, examples: int) -> list[Any]:
        """Return one key for each example, as an object of Python. Raises `TaskError`."""
        try:
            listed = _listed(keys)
        except TypeError:
            listed = []
        if len(listed) != examples or any(isinstance(key, list | tuple | Mapping) for key in listed):
            raise TaskError(
                f"{self._where(name)} must return one bool, text or number for each of {examples} examples, found "
                f"{np.shape(keys) if hasattr(keys, 'shape') else type(keys).__name__}"
            )
        return listed

    def _number(self, name: str, key: Any) -> int:
        """Return the number of a key's slice; that of none for False, None and NaN. Raises `TaskError`."""
        if isinstance(key, np.generic):
            key = key.item()
        if key is None or key is False or (isinstance(key, float) and math.isnan(key)):
            return _NONE
        if isinstance(key, float) and not key.is_integer():
            raise TaskError(
                f"{self._where(name)} returns {key!r}: a slice needs a bool, a text or a whole number, such as the "
                f"number of a bin: np.digitize(values, [0.5, 1.0])"
            )
        shown = name if key is True else f"{name}={_text(int(key) if isinstance(key, float) else key)}"
        numbers = self._numbers[name]
        if shown not in numbers:
            numbers[shown] = len(numbers)
            self._names[name].append(shown)
        return numbers[shown]


def column_of(batch: Batch, name: str, where: str, remedy: str) -> list[Any]:
    """Return the values of a column of the inputs or labels of a batch, one for each example. Raises `TaskError`."""
    return _listed(_column(*x_and_y(batch), name, where, remedy))


def columns_of(batch: Batch, is_wanted: Callable[[str], Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield the columns of the inputs and labels of a batch whose names are wanted, with their values."""
    content = getattr(batch, "content", batch)  # of PyTorch's batches
    x, y, _ = parts_of(tuple(content) if isinstance(content, list) else content)
    for part in (x, y):
        if isinstance(part, Mapping):
            yield from ((name, _listed(_as_arrays(part[name]))) for name in part if is_wanted(str(name)))


def _column(x: Any, y: Any, name: str, where: str, remedy: str) -> Any:
    for part in (x, y):
        if isinstance(part, Mapping) and name in part:
            return part[name]
    columns = [str(column) for part in (x, y) if isinstance(part, Mapping) for column in part]
    raise TaskError(f"{where}: batches have no column {name!r}, but {', '.join(columns) or 'none by name'}: {remedy}")


def _numbered(codes: NDArray[Any], name_of: Callable[[int], str]) -> tuple[list[str], NDArray[np.intp]]:
    """Return the names of the codes that are not below 0, and the place among them of each code; -1 for the others."""
    found, numbers = np.unique(codes, return_inverse=True)
    left_out = int(np.searchsorted(found, 0))
    return list(map(name_of, found[left_out:].tolist())), np.maximum(numbers.reshape(-1) - left_out, -1)


def _crossed_name(names: Sequence[str], others: Sequence[str], code: int) -> str:
    """Return the name of a pair of slices, whose numbers the code holds."""
    number, other = divmod(code, len(others))
    return f"{names[number]} & {others[other]}"


def _is_of_examples(definition: Any) -> bool:
    return not callable(definition) and not isinstance(definition, str)


def _listed(keys: Any) -> list[Any]:
    listed = keys.tolist() if hasattr(keys, "tolist") else list(keys)
    return listed if isinstance(listed, list) else [listed]


def _text(key: Any) -> str:
    text = key.decode(errors="replace") if isinstance(key, bytes) else str(key)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def x_and_y(batch: Batch) -> tuple[Any, Any]:
    """Return inputs and labels of a batch as arrays of numpy. Of a batch by name, the labels are those of that name."""
    content = getattr(batch, "content", batch)  # of PyTorch's batches
    x, y, _ = parts_of(tuple(content) if isinstance(content, list) else content)
    x, y = _as_arrays(x), _as_arrays(y)
    return x, x.get(_LABELS) if y is None and isinstance(x, Mapping) else y


def _as_arrays(structure: Any) -> Any:
    if isinstance(structure, Mapping):
        return {name: _as_arrays(part) for name, part in structure.items()}
    if isinstance(structure, tuple):
        return tuple(map(_as_arrays, structure))
    if hasattr(structure, "__array__"):
        try:
            return np.asarray(structure)
        except (TypeError, ValueError):  # a type that numpy lacks
            return structure
    return structure.to_list() if hasattr(structure, "to_list") else structure  # a ragged tensor
