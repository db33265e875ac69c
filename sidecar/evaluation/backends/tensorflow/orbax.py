"""Restore the weights of a checkpoint of `keras.callbacks.OrbaxCheckpoint` into a built model.

Keras stores its variables by their paths (`Model.get_state_tree`), each as a Zarr array in an OCDBT database. The
arrays are read with tensorstore, on which Orbax is built: Orbax itself would start JAX, which takes the GPUs. The
configuration and the assets next to the arrays are not read, and neither is the state of the optimizer.

Sources: keras `src/callbacks/orbax_checkpoint.py`, `src/models/model.py`; orbax-checkpoint
`_src/metadata/tree.py`, `_src/serialization/`.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from sidecar.evaluation.backends.tensorflow.completeness import NONE, Exceptions, Unused
from sidecar.evaluation.backends.tensorflow.differences import name_of
from sidecar.evaluation.failures import EvaluationError, mismatch, task_error

_MARKER: Final = "_CHECKPOINT_METADATA"
_TREE: Final = "pytree"
_METADATA: Final = "_METADATA"
_MAX_BYTES: Final = 256 * 1024 * 1024
_GROUPS: Final = ("trainable_variables", "non_trainable_variables")  # either: freezing a layer moves its variables
_SEED: Final = "seed_generator_state"
_AT_ONCE: Final = 32  # arrays
_MAX_NAMES: Final = 5  # in a message
_MAX_CHARACTERS: Final = 500  # of a message of tensorstore
_INSTEAD: Final = "or let training save with keras.callbacks.ModelCheckpoint"


def is_orbax(path: str) -> bool:
    """Return whether the path is that of an Orbax checkpoint."""
    return Path(path, _MARKER).is_file()


def load(variables: list[Any], path: str, exceptions: Exceptions = NONE) -> tuple[str, ...]:
    """Assign the values in a checkpoint to the variables of a Keras 3 model, and return notes on exceptions.

    Raises `EvaluationError`: `mismatch` if the checkpoint lacks a variable, has one more, or a shape differs, `corrupt`
    if it cannot be decoded, `vanished` if it is gone, `task_error` if tensorstore is not installed.
    """
    tensorstore = _import_tensorstore(path)
    metadata = _read_metadata(path)
    driver = "zarr3" if metadata.get("use_zarr3") else "zarr"
    stored = _arrays_in(metadata, path)
    kept = [variable for variable in variables if exceptions.keeps(variable) and not _places(variable, stored)]
    variables = [variable for variable in variables if not any(variable is each for each in kept)]
    names = _stored_names(variables, stored, path)
    unused = _unused(names, stored, metadata)
    exceptions.require(path, unused)
    base = {"driver": "file", "path": f"{Path(path, _TREE).absolute()}/"}
    context = tensorstore.Context()
    for start in range(0, len(variables), _AT_ONCE):
        chunk = variables[start : start + _AT_ONCE]
        try:
            opened = [
                tensorstore.open(
                    {"driver": driver, "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"}},
                    open=True,
                    read=True,
                    context=context,
                )
                for name in names[start : start + _AT_ONCE]
            ]
            arrays = [future.result() for future in opened]
            for variable, array in zip(chunk, arrays, strict=True):
                _require_same_kind(variable, array, path)
            reading = [array.read() for array in arrays]
            values = [future.result() for future in reading]
        except EvaluationError:
            raise
        except Exception as error:  # tensorstore raises ValueError for most failures
            raise _failure(error, path) from error
        for variable, value in zip(chunk, values, strict=True):
            _assign(variable, np.asarray(value), path)
    return exceptions.notes(unused, kept)


def _unused(names: list[str], arrays: Mapping[tuple[str, ...], str], metadata: Mapping[str, Any]) -> list[Unused]:
    """Return the stored values of a model that no variable is bound to, except those of random generators."""
    shapes = {
        ".".join(str(key["key"]) for key in entry["key_metadata"]): entry.get("value_metadata", {}).get("write_shape")
        for entry in metadata["tree_metadata"].values()
    }
    return [
        Unused("/".join(keys[1:]), tuple(shapes.get(name) or ()), "")
        for keys, name in arrays.items()
        if keys[0] in _GROUPS and name not in names and keys[-1] != _SEED
    ]


def _places(variable: Any, arrays: Mapping[tuple[str, ...], str]) -> list[str]:
    keys = [(group, *name_of(variable).split("/")) for group in _GROUPS]
    return [arrays[each] for each in keys if each in arrays]


def _import_tensorstore(path: str) -> Any:
    try:
        import tensorstore
    except ImportError as error:
        raise task_error(
            f"{path} is an Orbax checkpoint, and tensorstore, which reads it, is not installed for {sys.executable}: "
            f"pip install orbax-checkpoint there, {_INSTEAD}"
        ) from error
    return tensorstore


def _read_metadata(path: str) -> Mapping[str, Any]:
    file = Path(path, _TREE, _METADATA)
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise EvaluationError("corrupt", f"{file} is larger than the limit of {_MAX_BYTES} bytes")
        metadata = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        if is_orbax(path):
            raise mismatch(_not_of_keras(path, f"it has no {_TREE}/{_METADATA}")) from error
        raise EvaluationError("vanished", f"{path} is gone") from error
    except OSError as error:
        raise EvaluationError("storage", f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise EvaluationError("corrupt", f"{file} is damaged: {error}") from error
    if not isinstance(metadata, dict):
        raise EvaluationError("corrupt", f"{file} is damaged: it is not a JSON object")
    if not metadata.get("use_ocdbt"):
        raise mismatch(_not_of_keras(path, "it was written without OCDBT"))
    return metadata


def _arrays_in(metadata: Mapping[str, Any], path: str) -> dict[tuple[str, ...], str]:
    """Return the name of each array in the database, by the keys that lead to it in the tree."""
    try:
        leaves = [
            tuple(str(key["key"]) for key in entry["key_metadata"])
            for entry in metadata["tree_metadata"].values()
            if not entry.get("value_metadata", {}).get("skip_deserialize")  # an empty dict has no array
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise EvaluationError("corrupt", f"{path}/{_TREE}/{_METADATA} is damaged: it has no tree") from error
    if not any(keys[:1] == (group,) for keys in leaves for group in _GROUPS):
        tops = ", ".join(sorted({keys[0] for keys in leaves if keys})[:_MAX_NAMES]) or "nothing"
        raise mismatch(_not_of_keras(path, f"its tree has {tops}"))
    return {keys: ".".join(keys) for keys in leaves}


def _not_of_keras(path: str, reason: str) -> str:
    return (
        f"{path} is an Orbax checkpoint that keras.callbacks.OrbaxCheckpoint did not write ({reason}): give "
        f"Task(restore=…), which is called with its path, {_INSTEAD}"
    )


def _stored_names(variables: list[Any], arrays: Mapping[tuple[str, ...], str], path: str) -> list[str]:
    """Return the name of the array of each variable; raise `EvaluationError` if any is missing."""
    names, missing = [], []
    for variable in variables:
        variable_path = name_of(variable)
        name = next(iter(_places(variable, arrays)), None)
        if name is None:
            missing.append(variable_path)
        else:
            names.append(name)
    if missing:
        unused = sorted(
            "/".join(keys[1:]) for keys, name in arrays.items() if keys and keys[0] in _GROUPS and name not in names
        )
        raise mismatch(
            f"{path} does not hold the model: {len(missing)} of {len(variables)} variables are not in it: "
            f"{_some(missing)}; it has {_some(unused) or 'no others'}. Orbax checkpoints are restored by names: give "
            "the model and its layers the names that they have in training (name=…)"
        )
    return names


def _require_same_kind(variable: Any, array: Any, path: str) -> None:
    """Raise `EvaluationError` if shape or type differ.

    The types of single numbers may differ, because Orbax stores them as Python numbers.
    """
    expected, stored = tuple(variable.shape), tuple(array.shape)
    dtype = np.dtype(array.dtype.numpy_dtype)
    if expected != stored or (expected and dtype.name != str(variable.dtype)):
        raise mismatch(
            f"the model is not the one that was saved: {name_of(variable)} is {variable.dtype} {expected} in the "
            f"model, {dtype.name} {stored} in {path}"
        )


def _assign(variable: Any, value: Any, path: str) -> None:
    converted = value.astype(str(variable.dtype)) if not value.shape else value
    if not value.shape and not np.array_equal(converted.astype(value.dtype), value, equal_nan=value.dtype.kind == "f"):
        raise mismatch(f"{name_of(variable)} is {variable.dtype} in the model, and {value} in {path}")
    variable.assign(converted)


def _failure(error: Exception, path: str) -> EvaluationError:
    """Return the failure for an exception of tensorstore."""
    reason = " ".join(str(error).split())[:_MAX_CHARACTERS] or type(error).__name__
    if not is_orbax(path):
        return EvaluationError("vanished", f"{path} is gone: {reason}")
    if isinstance(error, MemoryError):
        return EvaluationError("out_of_memory", f"out of memory: {reason}")
    if "PERMISSION_DENIED" in reason or "Permission denied" in reason or "UNAVAILABLE" in reason:
        return EvaluationError("storage", f"{path} cannot be read: {reason}")
    return EvaluationError("corrupt", f"{path} is damaged: {reason}")


def _some(names: list[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
