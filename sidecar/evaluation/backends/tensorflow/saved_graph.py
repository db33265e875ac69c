"""Evaluate the graph that is stored in a SavedModel, by calling its signature as if it were a model.

A graph runs all code that its author stored, partly already while it is loaded. So this module is used only if the user
sets `trust_saved_graph`. Without that, `restore` reads only the variables.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.restore import STORAGE_ERRORS
from sidecar.evaluation.backends.tensorflow.saved_tables import MARKER
from sidecar.evaluation.backends.tensorflow.weights import NAME, as_os_error
from sidecar.evaluation.failures import EvaluationError, mismatch, task_error

_NEEDED: Final = (MARKER, "variables/variables.index", "variables/variables.data-*")
_DAMAGE_ERRORS: Final = (tf.errors.DataLossError, IndexError)  # and `OpError` itself, from checkpoint readers
_MAX_CHARACTERS: Final = 500  # of TensorFlow's message, which may list all operations


def is_saved_model(path: str) -> bool:
    """Return whether a path is that of a SavedModel, and not also the prefix of another checkpoint."""
    return Path(path, MARKER).is_file() and not Path(f"{path}.index").exists()


class SavedGraph:
    """Call the signature of a SavedModel like a model, with the inputs of a batch.

    `path`: the SavedModel's folder. `signature`: name of the function to call.

    Raises:
        EvaluationError: `mismatch` if it cannot be loaded or has no such signature, `corrupt` if its bytes contradict
            themselves, `vanished` if files are gone, `storage` if they cannot be read.
    """

    losses: Final = ()
    """Always empty: a signature does not return the losses that a model adds, such as regularisation."""

    def __init__(self, path: str, signature: str) -> None:
        self._loaded = _load(path)  # keeps the variables alive: the function alone does not
        functions = dict(getattr(self._loaded, "signatures", {}))
        if signature not in functions:
            names = ", ".join(sorted(functions)) or "none"
            raise mismatch(f"{path} has no signature {signature!r}, it has {names}: name one with Task(signature=…)")
        self._function = functions[signature]
        self._inputs: dict[str, Any] = dict(sorted(self._function.structured_input_signature[1].items()))
        self._shown = f"the signature {signature!r} of {path}"

    def __call__(self, x: Any, *, training: bool = False) -> Any:
        """Return the signature's only output, or a dict of its outputs.

        `x`: a tensor (n, …) for a signature of one input, else a dict of tensors by the names of its inputs. Other
        tensors in the dict are left out. `training`: ignored: the behaviour of a signature was fixed when it was saved.
        """
        del training
        try:
            # Sorted, because the order of the outputs differs each time the model is loaded.
            outputs = dict(sorted(self._function(**self._by_name(x)).items()))
        except tf.errors.ResourceExhaustedError:
            raise
        except tf.errors.OpError as error:
            raise task_error(f"{self._shown} fails on a batch: {_text_of(error)}") from error
        if not outputs:
            raise mismatch(f"{self._shown} has no output: there is nothing to measure")
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    @property
    def variables(self) -> list[Any]:
        """Return all variables of the SavedModel in its order, also those that the signature does not use."""
        descendants = tf.train.TrackableView(self._loaded).descendants()
        return [descendant for descendant in descendants if isinstance(descendant, tf.Variable)]

    def write(self, folder: Path) -> None:
        """Write the variables for `tf.train.Checkpoint(model=loaded).restore(folder / "weights")`.

        `loaded` is the result of `tf.saved_model.load(path)`. Raises `OSError`.
        """
        with as_os_error():
            tf.train.Checkpoint(model=self._loaded).write(str(folder / NAME))

    def _by_name(self, x: Any) -> dict[str, Any]:
        """Return the inputs by their names. Raises `EvaluationError` for inputs that do not match the signature."""
        by_name = x
        if not isinstance(x, Mapping) and len(self._inputs) == 1:
            by_name = dict.fromkeys(self._inputs, x[0] if isinstance(x, list | tuple) and len(x) == 1 else x)
        if not isinstance(by_name, Mapping) or not all(
            name in by_name and _fits(by_name[name], spec) for name, spec in self._inputs.items()
        ):
            raise mismatch(self._refusal(x))
        return {name: tf.cast(by_name[name], spec.dtype) for name, spec in self._inputs.items()}

    def _refusal(self, x: Any) -> str:
        is_fixed = any(spec.shape.rank and spec.shape[0] is not None for spec in self._inputs.values())
        remedy = "save it with a free first dimension" if is_fixed else "let x be a dict of tensors by these names"
        return f"{self._shown} takes {_form(self._inputs)}, the data gives {_form(x)} as x: {remedy}"


def _fits(tensor: Any, spec: Any) -> bool:
    """Return whether an input accepts batches of any size, with numbers cast as Keras casts the inputs of a model."""
    if not isinstance(tensor, tf.Tensor) or not (tensor.dtype == spec.dtype or _is_cast(tensor.dtype, spec.dtype)):
        return False
    if spec.shape.rank is None:
        return True
    return bool(spec.shape.rank) and spec.shape[0] is None and bool(spec.shape.is_compatible_with(tensor.shape))


def _is_cast(from_dtype: Any, to_dtype: Any) -> bool:
    if to_dtype.is_floating:
        return bool(from_dtype.is_floating or from_dtype.is_integer)
    return bool(to_dtype.is_integer and from_dtype.is_integer)


def _form(x: Any) -> str:
    """Return the types and shapes in a structure of tensors, as text."""
    if isinstance(x, Mapping):
        return f"{{{', '.join(f'{name!r}: {_form(value)}' for name, value in x.items())}}}"
    if isinstance(x, list | tuple):
        return f"({', '.join(_form(value) for value in x)})"
    if isinstance(x, tf.Tensor | tf.TensorSpec):
        return f"{x.dtype.name} {x.shape}"
    return type(x).__name__


def _load(path: str) -> Any:
    try:
        return tf.saved_model.load(path)
    except (MemoryError, tf.errors.ResourceExhaustedError):
        raise
    except Exception as error:
        raise _failure(error, path) from error


def _failure(error: Exception, path: str) -> EvaluationError:
    """Return the failure behind an exception. TensorFlow raises one class for missing files and unknown operations."""
    text = _text_of(error)
    is_absent = path in text and "No such file" in text
    if is_absent or not all(any(Path(path).glob(pattern)) for pattern in _NEEDED):
        return EvaluationError("vanished", f"{path} is gone, or a file of it: {text}")
    if isinstance(error, STORAGE_ERRORS):
        return EvaluationError("storage", f"{path} cannot be read: {text}")
    if isinstance(error, _DAMAGE_ERRORS) or type(error) is tf.errors.OpError or "Cannot parse" in text:
        return EvaluationError("corrupt", f"{path} is damaged: {text}")
    remedy = "if it needs operations of a package, import the package in the task's file"
    return mismatch(f"the graph stored in {path} cannot be loaded; {remedy}: {text}")


def _text_of(error: Exception) -> str:
    return " ".join(str(getattr(error, "message", "") or error).split())[:_MAX_CHARACTERS]
