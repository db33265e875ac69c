"""Restore the weights in a file that Keras wrote (`.keras`, `.weights.h5`, `.weights.json`, `.h5`) into a built model.

`model.load_weights` finds the arrays by the structure of the model. `keras_assets` loads vocabularies and bins of a
`.keras` file. Code in such a file, such as that of a Lambda layer, is never run. Keras does not report a variable that
it did not restore, so this module checks each of them.
"""

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from sidecar.evaluation.backends.tensorflow.completeness import NONE, Exceptions, Restored
from sidecar.evaluation.backends.tensorflow.differences import differences, name_of
from sidecar.evaluation.backends.tensorflow.file_contents import recorded
from sidecar.evaluation.backends.tensorflow.keras_assets import DAMAGE_ERRORS, load_assets
from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2, layers_of
from sidecar.evaluation.backends.tensorflow.saved_by import advice, by_file
from sidecar.evaluation.backends.tensorflow.saved_configuration import compare_configuration
from sidecar.evaluation.backends.tensorflow.saved_order import require_same_layers, require_same_order
from sidecar.evaluation.backends.tensorflow.saved_switches import advice_against, advice_for_file
from sidecar.evaluation.failures import mismatch
from sidecar.evaluation.hdf5 import MAX_CHARACTERS, read_failure, require_readable, require_self_contained
from sidecar.evaluation.remedy import GIVE_SAVED_MODEL
from sidecar.system.plain_text import listed

_ADVICE: Final = GIVE_SAVED_MODEL.sentence()
_ARCHIVE: Final = ".keras"
_COMPILED: Final = ("optimizer", "compiled_loss", "compiled_metrics")
_SUFFIXES: Final = (_ARCHIVE, ".weights.h5", ".weights.json", ".h5", ".hdf5")
_MISMATCH_ERRORS: Final = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ImportError)


def is_keras_file(path: str) -> bool:
    """Return whether a checkpoint is one file of Keras, not a folder or the prefix of several files."""
    return path.endswith(_SUFFIXES) and not Path(path).is_dir() and not has_index(path)


def has_index(path: str) -> bool:
    """Return whether there is an object checkpoint of this prefix."""
    try:
        return Path(f"{path}.index").exists()
    except OSError:  # the longest name that a file can have leaves no room for the suffix
        return False


def load(model: Any, variables: list[Any], path: str, *, model_of: int, exceptions: Exceptions = NONE) -> Restored:
    """Assign the values in the file to all variables of a built model. A variable that the file lacks is an error.

    So is a value in the file that no variable got, and a setting of a layer that changes the numbers. `model_of`: the
    major version of the model's Keras, 2 or 3. `exceptions`: values that only the file may have, or only the model.
    Raises as `restore.restore`.
    """
    counters = {id(getattr(layer, "num_documents", None)) for layer in layers_of(model)}  # of `adapt` alone: in no file
    missing = [variable for variable in variables if id(variable) not in counters]
    built = [(variable, np.array(variable)) for variable in variables if exceptions.keeps(variable)]
    for attempt in (0, 1):  # a stored value may equal one placeholder by chance, but not both
        placeholders = [_placeholder(variable, attempt) for variable in missing]
        for variable, placeholder in zip(missing, placeholders, strict=True):
            variable.assign(placeholder)
        with recorded(model, path, exceptions.keeps) as contents:
            _load(model, path, model_of)
        missing = [
            variable
            for variable, placeholder in zip(missing, placeholders, strict=True)
            if np.asarray(variable).tobytes() == placeholder.tobytes() and placeholder.size
        ]
        if not missing:
            break
    kept = [(variable, value) for variable, value in built if any(variable is each for each in missing)]
    for variable, value in kept:
        variable.assign(value)
    missing = [variable for variable in missing if not exceptions.keeps(variable)]
    if not missing:
        unused = contents.unused()
        exceptions.require(path, unused)
        require_same_layers(model, contents.names, path)
        notes = exceptions.notes(unused, [variable for variable, _ in kept]) + compare_configuration(model, path)
        notes += _type_notes(variables, contents.types)
        return Restored(load_assets(model, path) if path.endswith(_ARCHIVE) else [], notes)
    names = [name_of(variable) for variable in missing]
    hint = advice(by_file(path), model_of=model_of) or advice_against(names) or _ADVICE
    raise mismatch(
        f"{path} does not hold the model: {len(missing)} of {len(variables)} variables are not in it: "
        f"{listed(names)}. ",
        remedy=hint + ".",
    )


def _type_notes(variables: list[Any], stored: set[str]) -> tuple[str, ...]:
    """Return a note if floats are stored with another type than the model has, since Keras converts them."""
    used = {tf.as_dtype(variable.dtype).name for variable in variables}
    if not stored - used:
        return ()
    types = ", ".join(sorted(name for name in used if "float" in name))
    return (f"weights are stored as {', '.join(sorted(stored - used))} and evaluated as {types}, the model's type",)


def _load(model: Any, path: str, model_of: int) -> None:
    """Let Keras load the file once it is known to hold only data.

    If Keras fails, all values are read: a file that cannot be read is damaged, any other does not match the model.
    """
    require_self_contained(path)
    require_same_order(model, path)
    try:
        with _uncompiled(model):
            model.load_weights(path)
    except (*DAMAGE_ERRORS, *_MISMATCH_ERRORS) as error:
        # The frames of the traceback hold the file open, and HDF5 refuses to open it a second time in another mode.
        failure = error.with_traceback(None)
    else:
        return
    failure.__context__ = None
    gc.collect()
    require_readable(path)
    if isinstance(failure, DAMAGE_ERRORS):
        raise read_failure(path, failure) from failure
    reason = (
        listed(differences(model, path)) or " ".join(str(failure).split())[:MAX_CHARACTERS] or type(failure).__name__
    )
    hint = advice(by_file(path), model_of=model_of) or advice_for_file(path) or _ADVICE
    raise mismatch(f"{path} does not fit the model: {reason.rstrip('.')}. ", remedy=hint + ".") from failure


@contextlib.contextmanager
def _uncompiled(model: Any) -> Iterator[None]:
    """Remove temporarily what `compile` added to a model of tf_keras.

    tf_keras would restore it as well, and fail if the saved model was compiled otherwise, not at all, or never called.
    """
    names = [name for name in _COMPILED if is_keras_2(model) and getattr(model, name, None) is not None]
    compiled = {name: getattr(model, name) for name in names}
    for name in compiled:
        setattr(model, name, None)
    try:
        yield
    finally:
        for name, value in compiled.items():
            setattr(model, name, value)


def _placeholder(variable: Any, attempt: int) -> NDArray[Any]:
    """Return values that a checkpoint hardly holds, and other values at the second attempt."""
    values = np.asarray(variable)
    if values.dtype == np.bool_:
        return np.full(values.shape, bool(attempt))
    numbers = np.random.default_rng(attempt).integers(1, 100, values.shape)
    return (numbers + attempt + 0.5).astype(values.dtype)
