"""Make a dataset from a Python iterator or a Keras `PyDataset`; every pass over it calls the source again."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.libraries import class_named
from sidecar.evaluation.data.plain_arrays import plain_array
from sidecar.evaluation.data.structure import form_of
from sidecar.evaluation.failures import EvaluationError, task_error

_NOTHING: Final = object()
_SEQUENCES: Final = ("PyDataset", "Sequence")  # of Keras 3 and of tf_keras: have a length, and batches by index


class GeneratorSource:
    """Make a dataset from a Python iterator; all elements must have the types and shapes of the first one.

    Elements of other shapes could not form batches. The first dimension is free only if the elements are already
    batches, because the last batch may be short. `make` calls the source, which returned `iterator`, again.
    """

    def __init__(
        self, name: str, iterator: Iterator[Any], make: Callable[[], Iterator[Any]], *, is_batched: bool
    ) -> None:
        self._name, self._make, self._is_batched = name, make, is_batched
        first = next(iterator, _NOTHING)
        if first is _NOTHING:
            raise task_error(f"eval set {name!r} is empty: its iterator yields no example")
        self._spec = self._spec_of(first)
        self._unused: Iterator[Any] | None = make()
        if self._unused is iterator:
            raise task_error(
                f"eval set {name!r}: its function returns the same iterator each time it is called, which can be "
                f"read only once: make the iterator within the function, or write it as a generator with yield"
            )
        self.problem: EvaluationError | None = None
        self.dataset = tf.data.Dataset.from_generator(self._examples, output_signature=self._spec)

    def _examples(self) -> Iterator[Any]:
        iterator, self._unused = self._make() if self._unused is None else self._unused, None
        for number, element in enumerate(iterator):
            try:
                spec = self._spec_of(element)
            except EvaluationError as error:  # TensorFlow, which calls this, would report it in other words
                self.problem = error
                raise
            if spec != self._spec:
                self.problem = task_error(
                    f"eval set {self._name!r}: element {number} of its iterator is {_form(spec)}, the first was "
                    f"{_form(self._spec)}: give all the same types and shapes, or return a tf.data.Dataset"
                )
                raise self.problem
            yield _arrays(element)

    def _spec_of(self, element: Any) -> Any:
        try:
            arrays = _arrays(element)
        except ValueError as error:
            raise task_error(
                f"eval set {self._name!r}: its iterator yields something that is not an array: {error}"
            ) from None
        return tf.nest.map_structure(self._spec_of_array, arrays)

    def _spec_of_array(self, array: Any) -> Any:
        is_batch = self._is_batched and array.ndim > 0
        return tf.TensorSpec([None, *array.shape[1:]] if is_batch else array.shape, array.dtype)


def is_sequence(data: Any) -> bool:
    """Return whether a source is a `PyDataset` of Keras 3 or a `Sequence` of tf_keras, whose elements are batches."""
    return any(class_named(data, name) is not None for name in _SEQUENCES)


def in_order(batches: Any) -> Iterator[Any]:
    """Yield the batches of a sequence by index, without `on_epoch_end`, in which sequences often shuffle."""
    for number in range(len(batches)):
        yield without_lists(batches[number])


def without_lists(element: Any) -> Any:
    """Return an element as tuples and dicts of arrays; like Keras, take lists of arrays as tuples.

    None at the end of a tuple is left out; elsewhere it keeps its place, so that weights are not taken for labels.
    """
    if isinstance(element, dict):
        return {name: without_lists(value) for name, value in element.items()}
    is_list_of_arrays = isinstance(element, list) and all(getattr(part, "shape", ()) for part in element)
    if isinstance(element, tuple) or is_list_of_arrays:
        last = max((place for place, value in enumerate(element) if value is not None), default=-1)
        return tuple(without_lists(value) for value in element[: last + 1])
    return element


def _arrays(element: Any) -> Any:
    """Convert an element to tuples and dicts of arrays; a list is one array. Raises `ValueError` for None."""
    if isinstance(element, dict):
        return {name: _arrays(value) for name, value in element.items()}
    if isinstance(element, tuple):
        return tuple(_arrays(value) for value in element)
    if element is None:
        raise ValueError("found None, expected an array")
    return plain_array(element)


def _form(specs: Any) -> str:
    """Describe types and shapes, such as (float32(8, 8, 1), int64())."""
    return form_of(specs, lambda spec: f"{spec.dtype.name}{spec.shape}")
