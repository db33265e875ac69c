"""Evaluate the graph that a SavedModel stores, in the place of a model: its own signature is called.

A graph runs whatever its author stored, some of it already while it is loaded. So nobody comes here unless the user set
`trust_saved_graph`; without it the variables alone are read, by `restore`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.restore import OF_STORAGE
from sidecar.evaluation.backends.tensorflow.weights import NAME, as_os_error
from sidecar.evaluation.failures import EvaluationError

_MARKER: Final = "saved_model.pb"
_NEEDED: Final = (_MARKER, "variables/variables.index", "variables/variables.data-*")
_OF_DAMAGE: Final = (tf.errors.DataLossError, IndexError)  # and bare `OpError`s: as the reader of checkpoints says it
_LONGEST: Final = 500  # characters of what TensorFlow says; it may list every operation it knows


def is_saved_model(path: str) -> bool:
    """Return whether a checkpoint's path is that of a SavedModel; what is the prefix of another one, too, is not."""
    return Path(path, _MARKER).is_file() and not Path(f"{path}.index").exists()


class SavedGraph:
    """Called as a model is, with the inputs of a batch.

    Args:
        path: The SavedModel's folder.
        signature: Which of its functions is called.

    Raises:
        EvaluationError: `mismatch` if it cannot be loaded or has no such signature, `corrupt` if its bytes contradict
            themselves, `vanished` if files are gone, `storage` if they cannot be read.
    """

    losses: Final = ()
    """Always empty: a signature does not return the losses that a model adds, such as regularisation."""

    def __init__(self, path: str, signature: str) -> None:
        self._loaded = _load(path)  # the function does not keep its variables, this does
        functions = dict(getattr(self._loaded, "signatures", {}))
        if signature not in functions:
            there = ", ".join(sorted(functions)) or "none"
            raise EvaluationError(
                "mismatch", f"{path} has no signature {signature!r}, it has {there}: name one with Task(signature=…)"
            )
        self._function = functions[signature]
        self._inputs: dict[str, Any] = dict(sorted(self._function.structured_input_signature[1].items()))
        self._shown = f"the signature {signature!r} of {path}"

    def __call__(self, x: Any, *, training: bool = False) -> Any:
        """Return the signature's only output, or a dict of its outputs.

        Args:
            x: A tensor (n, …) for a signature of one input, else a dict of tensors by the names of its inputs; more
                than it takes is left out.
            training: No matter: what a signature does was decided when it was saved.
        """
        del training
        try:
            outputs = dict(sorted(self._function(**self._fed(x)).items()))  # in another order each time it is loaded
        except tf.errors.ResourceExhaustedError:
            raise
        except tf.errors.OpError as error:
            raise EvaluationError("task_error", f"{self._shown} fails on a batch: {_words(error)}") from error
        if not outputs:
            raise EvaluationError("mismatch", f"{self._shown} has no output: there is nothing to measure")
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    @property
    def variables(self) -> list[Any]:
        """All variables that the SavedModel holds, also those that the signature does not use, in its own order."""
        return [each for each in tf.train.TrackableView(self._loaded).descendants() if isinstance(each, tf.Variable)]

    def write(self, folder: Path) -> None:
        """Write what `tf.train.Checkpoint(model=tf.saved_model.load(path)).restore(folder / "weights")` reads.

        Raises `OSError`.
        """
        with as_os_error():
            tf.train.Checkpoint(model=self._loaded).write(str(folder / NAME))

    def _fed(self, x: Any) -> dict[str, Any]:
        """Return the inputs by their names; raises `EvaluationError` for what does not fit."""
        by_name = x
        if not isinstance(x, Mapping) and len(self._inputs) == 1:
            by_name = dict.fromkeys(self._inputs, x[0] if isinstance(x, list | tuple) and len(x) == 1 else x)
        if not isinstance(by_name, Mapping) or not all(
            name in by_name and _fits(by_name[name], spec) for name, spec in self._inputs.items()
        ):
            raise EvaluationError("mismatch", self._refusal(x))
        return {name: tf.cast(by_name[name], spec.dtype) for name, spec in self._inputs.items()}

    def _refusal(self, x: Any) -> str:
        is_fixed = any(spec.shape.rank and spec.shape[0] is not None for spec in self._inputs.values())
        remedy = "save it with a free first dimension" if is_fixed else "let x be a dict of tensors by these names"
        return f"{self._shown} takes {_told(self._inputs)}, the data gives {_told(x)} as x: {remedy}"


def _fits(tensor: Any, spec: Any) -> bool:
    """Return whether whole batches of any size can be given, with numbers cast as Keras casts a model's inputs."""
    if not isinstance(tensor, tf.Tensor) or not (tensor.dtype == spec.dtype or _is_cast(tensor.dtype, spec.dtype)):
        return False
    if spec.shape.rank is None:
        return True
    return bool(spec.shape.rank) and spec.shape[0] is None and bool(spec.shape.is_compatible_with(tensor.shape))


def _is_cast(given: Any, taken: Any) -> bool:
    if taken.is_floating:
        return bool(given.is_floating or given.is_integer)
    return bool(taken.is_integer and given.is_integer)


def _told(x: Any) -> str:
    if isinstance(x, Mapping):
        return f"{{{', '.join(f'{name!r}: {_told(each)}' for name, each in x.items())}}}"
    if isinstance(x, list | tuple):
        return f"({', '.join(_told(each) for each in x)})"
    if isinstance(x, tf.Tensor | tf.TensorSpec):
        return f"{x.dtype.name} {x.shape}"
    return type(x).__name__


def _load(path: str) -> Any:
    try:
        return tf.saved_model.load(path)
    except (MemoryError, tf.errors.ResourceExhaustedError):
        raise
    except Exception as error:
        raise _named(error, path) from error


def _named(error: Exception, path: str) -> EvaluationError:
    """Return the failure behind an exception: TensorFlow has one for a missing file and for an unknown operation."""
    words = _words(error)
    is_absent = path in words and "No such file" in words
    if is_absent or not all(any(Path(path).glob(each)) for each in _NEEDED):
        return EvaluationError("vanished", f"{path} is gone, or a file of it: {words}")
    if isinstance(error, OF_STORAGE):
        return EvaluationError("storage", f"{path} cannot be read: {words}")
    if isinstance(error, _OF_DAMAGE) or type(error) is tf.errors.OpError or "Cannot parse" in words:
        return EvaluationError("corrupt", f"{path} is damaged: {words}")
    remedy = "if it needs operations of a package, import that in the task's file"
    return EvaluationError("mismatch", f"the graph stored in {path} cannot be loaded; {remedy}: {words}")


def _words(error: Exception) -> str:
    return " ".join(str(getattr(error, "message", "") or error).split())[:_LONGEST]
