"""Restore the weights of a checkpoint of `keras.callbacks.OrbaxCheckpoint` into a built model.

Keras stores its variables by their paths (`Model.get_state_tree`), each as an array of Zarr in a database of OCDBT.
They are read by tensorstore alone, which Orbax is built on: Orbax itself would start JAX, which takes the GPUs. Neither
the configuration nor the assets that lie next to the arrays are looked at, nor is the optimizer's state read.

Sources: keras `src/callbacks/orbax_checkpoint.py`, `src/models/model.py`; orbax-checkpoint
`_src/metadata/tree.py`, `_src/serialization/`.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from sidecar.evaluation.failures import EvaluationError

_MARKER: Final = "_CHECKPOINT_METADATA"
_TREE: Final = "pytree"
_METADATA: Final = "_METADATA"
_MAX_BYTES: Final = 256 * 1024 * 1024
_GROUPS: Final = ("trainable_variables", "non_trainable_variables")  # a layer may be frozen since, or no more
_AT_ONCE: Final = 32
_NAMED: Final = 5
_INSTEAD: Final = "or let training save with keras.callbacks.ModelCheckpoint"


def is_orbax(path: str) -> bool:
    """Return whether a checkpoint's path is that of an Orbax checkpoint."""
    return Path(path, _MARKER).is_file()


def load(variables: list[Any], path: str) -> None:
    """Assign the checkpoint's values to a Keras 3 model's variables.

    Raises:
        EvaluationError: `mismatch` if not every variable is in it or a shape differs, `corrupt` if it cannot be
            decoded, `vanished` if it is gone, `task_error` if tensorstore is not installed.
    """
    tensorstore = _tensorstore(path)
    metadata = _read_metadata(path)
    saved = _saved(metadata, path)
    driver = "zarr3" if metadata.get("use_zarr3") else "zarr"
    places = _places(variables, saved, path)
    base = {"driver": "file", "path": f"{Path(path, _TREE).absolute()}/"}
    context = tensorstore.Context()
    for start in range(0, len(variables), _AT_ONCE):
        some = variables[start : start + _AT_ONCE]
        try:
            opened = [
                tensorstore.open(
                    {"driver": driver, "kvstore": {"driver": "ocdbt", "base": base, "path": f"{place}/"}},
                    open=True,
                    read=True,
                    context=context,
                )
                for place in places[start : start + _AT_ONCE]
            ]
            arrays = [each.result() for each in opened]
            for variable, array in zip(some, arrays, strict=True):
                _require_same_kind(variable, array, path)
            reading = [each.read() for each in arrays]
            values = [each.result() for each in reading]
        except EvaluationError:
            raise
        except Exception as error:  # tensorstore raises ValueError for most
            raise _named(error, path) from error
        for variable, value in zip(some, values, strict=True):
            _assign(variable, np.asarray(value), path)


def _tensorstore(path: str) -> Any:
    try:
        import tensorstore
    except ImportError as error:
        raise EvaluationError(
            "task_error",
            f"{path} is an Orbax checkpoint, and tensorstore, which reads it, is not installed for {sys.executable}: "
            f"pip install orbax-checkpoint there, {_INSTEAD}",
        ) from error
    return tensorstore


def _read_metadata(path: str) -> Mapping[str, Any]:
    file = Path(path, _TREE, _METADATA)
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise EvaluationError("corrupt", f"{file} is larger than the {_MAX_BYTES} bytes that it may have")
        found = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        if is_orbax(path):
            raise EvaluationError("mismatch", _not_of_keras(path, f"it has no {_TREE}/{_METADATA}")) from error
        raise EvaluationError("vanished", f"{path} is gone") from error
    except OSError as error:
        raise EvaluationError("storage", f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise EvaluationError("corrupt", f"{file} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise EvaluationError("corrupt", f"{file} is damaged: it is not a JSON object")
    if not found.get("use_ocdbt"):
        raise EvaluationError("mismatch", _not_of_keras(path, "it was written without OCDBT"))
    return found


def _saved(metadata: Mapping[str, Any], path: str) -> dict[tuple[str, ...], str]:
    """Return where each array is, by the keys that lead to it in the tree."""
    try:
        keys = [tuple(str(key["key"]) for key in each["key_metadata"]) for each in metadata["tree_metadata"].values()]
    except (AttributeError, KeyError, TypeError) as error:
        raise EvaluationError("corrupt", f"{path}/{_TREE}/{_METADATA} is damaged: it describes no tree") from error
    if not any(each[:1] == (group,) for each in keys for group in _GROUPS):
        tops = ", ".join(sorted({each[0] for each in keys if each})[:_NAMED]) or "nothing"
        raise EvaluationError("mismatch", _not_of_keras(path, f"its tree has {tops}"))
    return {each: ".".join(each) for each in keys}


def _not_of_keras(path: str, why: str) -> str:
    return (
        f"{path} is an Orbax checkpoint that keras.callbacks.OrbaxCheckpoint did not write ({why}): give "
        f"Task(restore=…), which is called with its path, {_INSTEAD}"
    )


def _places(variables: list[Any], saved: Mapping[tuple[str, ...], str], path: str) -> list[str]:
    """Return where each variable is stored."""
    found, missing = [], []
    for variable in variables:
        name = str(getattr(variable, "path", None) or variable.name)
        keys = [(group, *name.split("/")) for group in _GROUPS]
        place = next((saved[each] for each in keys if each in saved), None)
        if place is None:
            missing.append(name)
        else:
            found.append(place)
    if missing:
        left = sorted("/".join(each[1:]) for each in saved if each[0] in _GROUPS and saved[each] not in found)
        raise EvaluationError(
            "mismatch",
            f"{path} does not hold the model: {len(missing)} of {len(variables)} variables are not in it: "
            f"{_some(missing)}; it has {_some(left) or 'no others'}. Orbax checkpoints are restored by names: give the "
            "model and its layers the names that they have in training (name=…)",
        )
    return found


def _require_same_kind(variable: Any, array: Any, path: str) -> None:
    """Raise if shape or type differ; single numbers are stored as Python has them."""
    here, there = tuple(variable.shape), tuple(array.shape)
    dtype = np.dtype(array.dtype.numpy_dtype)
    if here != there or (here and dtype.name != str(variable.dtype)):
        name = getattr(variable, "path", None) or variable.name
        raise EvaluationError(
            "mismatch",
            f"the model is not the one that was saved: {name} is {variable.dtype} {here} in the model, {dtype.name} "
            f"{there} in {path}",
        )


def _assign(variable: Any, value: Any, path: str) -> None:
    converted = value.astype(str(variable.dtype)) if not value.shape else value
    if not value.shape and not np.array_equal(converted.astype(value.dtype), value, equal_nan=value.dtype.kind == "f"):
        name = getattr(variable, "path", None) or variable.name
        raise EvaluationError("mismatch", f"{name} is {variable.dtype} in the model, and {value} in {path}")
    variable.assign(converted)


def _named(error: Exception, path: str) -> EvaluationError:
    words = " ".join(str(error).split())[:500] or type(error).__name__
    if not is_orbax(path):
        return EvaluationError("vanished", f"{path} is gone: {words}")
    if isinstance(error, MemoryError):
        return EvaluationError("out_of_memory", f"out of memory: {words}")
    if "PERMISSION_DENIED" in words or "Permission denied" in words or "UNAVAILABLE" in words:
        return EvaluationError("storage", f"{path} cannot be read: {words}")
    return EvaluationError("corrupt", f"{path} is damaged: {words}")


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
