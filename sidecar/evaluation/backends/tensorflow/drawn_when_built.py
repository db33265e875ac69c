"""Find random numbers that `build_model` draws and no checkpoint holds: a second model must predict the same.

A layer may hold an array in a plain attribute, such as a random projection. All variables are restored, and the numbers
are still wrong. A `restore` of the task's own may leave variables as they were drawn.
"""

import dis
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any, Final

import numpy as np
import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.completeness import Exceptions, plain_name
from sidecar.evaluation.backends.tensorflow.data import array_of
from sidecar.evaluation.backends.tensorflow.layer_tables import finalize
from sidecar.evaluation.backends.tensorflow.libraries import layers_of
from sidecar.evaluation.backends.tensorflow.mergeability import map_tensors, part_of
from sidecar.evaluation.backends.tensorflow.model import make_model, preprocessing_of
from sidecar.evaluation.backends.tensorflow.restore import variables_of
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.digest import digest_of
from sidecar.evaluation.data.elements import parts_of
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.kept_values import is_own
from sidecar.evaluation.repeatability import without_seeds
from sidecar.evaluation.row_comparison import rows_differ, tolerance_for
from sidecar.evaluation.task import Task
from sidecar.system.plain_text import listed

_NAMES_SHOWN: Final = 3
_MAX_BYTES: Final = 1 << 30  # of a model that is built a second time


class DrawnWhenBuilt:
    """Compare a restored model once with a second one, to which the values of its variables are given.

    Only a model that holds floats outside of its variables, or keeps values of `build_model`, is built again.
    """

    def __init__(self, task: Task, model: Any, exceptions: Exceptions) -> None:
        self._task, self._model, self._exceptions = task, model, exceptions
        self._is_due = model is not None
        self._built: list[bytes] | None = None  # digests of the variables before the first restore of the task's own
        self._left: list[int] = []  # numbers of the variables that it did not change

    def note_built(self) -> None:
        """Remember the values that `build_model` made. Call it before `Task(restore=…)` is called the first time."""
        if self._built is None:
            self._built = self._digests() if self._is_due and self._is_small() else []

    def note_replaced(self, again: Callable[[], Any]) -> None:
        """Find the variables that `Task(restore=…)` left as `build_model` made them. Only its first success counts.

        `again` restores once more: a file may hold the very values that `build_model` draws with its seed.
        """
        if self._built:
            both = zip(self._built, self._digests(), strict=False)
            left = [number for number, (built, now) in enumerate(both) if built == now]
            self._left, self._built = self._not_replaced(left, again), []

    def _not_replaced(self, numbers: Sequence[int], again: Callable[[], Any]) -> list[int]:
        """Return those of the variables that keep another value when the model is restored again."""
        own = variables_of(self._model)
        values = {number: array_of(own[number]) for number in numbers}
        floats = {number: value for number, value in values.items() if value.dtype.kind not in "biuO" and value.size}
        varied = {number: value for number, value in floats.items() if value.min() < value.max()}
        if not varied:
            return []
        for number, value in varied.items():
            own[number].assign(value + 1)
        try:
            again()
            return [number for number, value in varied.items() if not np.array_equal(array_of(own[number]), value)]
        finally:
            for number, value in varied.items():
                own[number].assign(value)

    def _digests(self) -> list[bytes]:
        return [digest_of([array_of(each)]) for each in variables_of(self._model)]

    def require_none(self, batch: Batch) -> None:
        """Raise `EvaluationError` if the second model predicts something else for the first example of a batch."""
        if self._is_due:
            self._require_none(batch)
            self._is_due = False

    def _require_none(self, batch: Batch) -> None:
        if not self._is_small():
            return
        if self._task.restore is not None:
            self._require_replaced(batch)
            return
        if not (self._exceptions.from_build_model or any(_held_by(self._model))):
            return
        try:
            other, predict = self._built_again(batch)
            for mine, its in zip(variables_of(self._model), variables_of(other), strict=True):
                if not self._exceptions.keeps(mine):
                    its.assign(tf.convert_to_tensor(mine))
            finalize(other)
            one, two = predict(self._model), predict(other)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - code of a user: `build_model` may work once, the model take other inputs
            return
        tolerance = tolerance_for(getattr(layer, "compute_dtype", "") for layer in layers_of(self._model))
        if not rows_differ(one, [two], tolerance):
            return
        both = zip(_held_by(self._model), _held_by(other), strict=False)
        names = [name for (name, array), (_, its) in both if not np.array_equal(array, its)]
        raise task_error(
            f"the model holds random numbers that build_model draws and the checkpoint lacks"
            f"{f', such as {listed(names, _NAMES_SHOWN)}' if names else ''}: built again, it gives other numbers with "
            f"the same weights. Let training save them, with self.add_weight(…, trainable=False), or draw them with "
            f"the seed of training, such as np.random.default_rng(7).normal(…), or give Task(restore=…). If it keeps "
            f"what a call computed of other weights, compute that in each call"
        )

    def _built_again(self, batch: Batch) -> tuple[Any, Callable[[Any], list[Any]]]:
        """Return a second model, and what predicts with a model for the first example of a batch."""
        batch = preprocessing_of(self._model)(map_tensors(partial(part_of, 0, 1), batch))
        predict = partial(_predicted, parts_of(batch)[0])
        other = make_model(self._task, trusts=False)
        begun = [(layer, dict(vars(layer))) for layer in layers_of(other)]
        predict(other)  # makes the variables that are missing
        for layer, before in begun:  # what it kept of its first weights
            for name in _stored_by_calls(layer) & before.keys():
                setattr(layer, name, before[name])
        return other, predict

    def _require_replaced(self, batch: Batch) -> None:
        """Raise `EvaluationError` if the task's own restore left random values of `build_model`."""
        if not self._left:
            return
        try:
            with without_seeds((tf.random, "set_seed")):
                others = variables_of(self._built_again(batch)[0])
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - as above
            return
        own = variables_of(self._model)
        left = [(own[number], others[number]) for number in self._left if number < len(others)]
        random = [mine for mine, its in left if not np.array_equal(array_of(mine), array_of(its))]
        names = [plain_name(mine) for mine in random if not self._exceptions.keeps(mine)]
        if names:
            patterns = ["/".join(["*", *name.split("/")[-2:]]) if name.count("/") > 1 else name for name in names]
            raise task_error(
                f"Task(restore=…) leaves {listed(names, _NAMES_SHOWN)} with the random values that build_model draws: "
                f"the file may have other names or shapes, which by_name, skip_mismatch and expect_partial() pass "
                f"over. Let restore replace them, or, if no prediction needs these values, write "
                f"Task(from_build_model={list(dict.fromkeys(patterns))!r}) next to restore"
            )

    def _is_small(self) -> bool:
        sizes = (math.prod(each.shape) * tf.as_dtype(each.dtype).size for each in variables_of(self._model))
        return bool(sum(sizes) <= _MAX_BYTES)


def _predicted(x: Any, model: Any) -> list[Any]:
    tensors = tf.nest.flatten(model(x, training=False), expand_composites=True)
    return [np.atleast_1d(array_of(tensor)) for tensor in tensors if tensor is not None]


def _held_by(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of what layers hold outside of the variables of a model: arrays of floats, kept numbers."""
    known = {id(variable) for variable in variables_of(model)}
    for number, layer in enumerate(layers_of(model)):
        numbers = ((name, vars(layer).get(name)) for name in _stored_by_calls(layer))
        yield from ((f"{layer.name}.{name}", np.asarray(each)) for name, each in numbers if type(each) in (int, float))
        places = [*vars(layer).items(), *(("a constant", node.arguments) for node in _nodes_of(layer))]
        for name, content in places:
            for leaf in _leaves(content):
                if id(leaf) not in known:
                    yield f"{getattr(layer, 'name', number)}.{name}", array_of(leaf)


def _stored_by_calls(layer: Any) -> set[str]:
    """Return the attributes that methods of a user's layer store, apart from those that make it."""
    methods = [
        method
        for kind in type(layer).__mro__
        if is_own(kind.__module__)
        for name, method in vars(kind).items()
        if isinstance(method, FunctionType) and name not in ("__init__", "build")
    ]
    instructions = (each for method in methods for each in dis.get_instructions(method))
    return {str(each.argval) for each in instructions if each.opname == "STORE_ATTR"}


def _nodes_of(layer: Any) -> Iterator[Any]:
    """Yield the calls of the operations of a functional model, which may have constant arguments."""
    for operation in getattr(layer, "operations", ()):
        yield from getattr(operation, "_inbound_nodes", ())


def _leaves(content: Any) -> Iterator[Any]:
    """Yield arrays, tensors and variables of floats in an attribute of a layer, or that its function refers to."""
    if isinstance(content, np.ndarray | tf.Variable | tf.Tensor):
        if tf.as_dtype(content.dtype).is_floating and not tf.is_symbolic_tensor(content):
            yield content
    elif isinstance(content, Mapping):
        yield from (leaf for part in content.values() for leaf in _leaves(part))
    elif isinstance(content, list | tuple):
        yield from (leaf for part in content for leaf in _leaves(part))
    elif type(content).__name__ == "SymbolicArguments":  # of a node
        yield from _leaves((content.args, content.kwargs))
    else:
        cells = (cell.cell_contents for cell in getattr(content, "__closure__", None) or ())
        yield from _leaves([held for held in cells if not callable(held)])
