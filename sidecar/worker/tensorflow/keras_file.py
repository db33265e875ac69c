"""From a file that Keras wrote (`.keras`, `.weights.h5`, `.weights.json`, `.h5`) into a built model: weights only.

`model.load_weights` reads arrays by the model's own structure; what else such a file holds, a configuration, code in
Lambda layers, is never looked at. Since Keras says nothing of a variable that it left alone, that is found out here.
"""

import zipfile
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.worker.failures import EvaluationError
from sidecar.worker.hdf5 import LONGEST, damaged, require_readable, require_self_contained

_SUFFIXES: Final = (".keras", ".weights.h5", ".weights.json", ".h5", ".hdf5")
_OF_DAMAGE: Final = (OSError, zipfile.BadZipFile, zlib.error, EOFError)
_OF_MODEL: Final = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ImportError)


def is_keras_file(path: str) -> bool:
    """Whether a checkpoint's path is that of a file, not the prefix of several or a folder."""
    return path.endswith(_SUFFIXES) and not Path(path).is_dir() and not has_index(path)


def has_index(path: str) -> bool:
    """Whether an object checkpoint of this prefix lies there; a name that is as long as names can be is none."""
    try:
        return Path(f"{path}.index").exists()
    except OSError:
        return False


def load(model: Any, variables: list[Any], path: str) -> None:
    """Assign the file's values to `variables`, which are the model's; a variable that it does not give is an error.

    Raises:
        EvaluationError: `mismatch`, `corrupt`, `vanished` or `storage`, as `restore.restore`.
    """
    unbound = list(variables)
    for attempt in (0, 1):  # a value may by chance be what was filled in; it is not twice
        fillings = [_filling(variable, attempt) for variable in unbound]
        for variable, filling in zip(unbound, fillings, strict=True):
            variable.assign(filling)
        _load(model, path)
        unbound = [
            variable
            for variable, filling in zip(unbound, fillings, strict=True)
            if np.asarray(variable).tobytes() == filling.tobytes() and filling.size
        ]
        if not unbound:
            return
    names = ", ".join(str(getattr(each, "path", None) or each.name) for each in unbound[:5])
    raise EvaluationError(
        "mismatch",
        f"{path} does not hold the model: {len(unbound)} of {len(variables)} variables are not in it: {names}. "
        "Let build_model return the model that was saved.",
    )


def _load(model: Any, path: str) -> None:
    """Let Keras load what is known to be data; where it fails, all values are read to see whose fault that is."""
    require_self_contained(path)
    try:
        model.load_weights(path)
    except _OF_DAMAGE as error:
        require_readable(path)
        raise damaged(path, error) from error
    except _OF_MODEL as error:
        require_readable(path)
        said = " ".join(str(error).split()) or type(error).__name__
        raise EvaluationError("mismatch", f"{path} does not fit the model: {said[:LONGEST]}") from error


def _filling(variable: Any, attempt: int) -> NDArray[Any]:
    """Values that no checkpoint holds, and others the second time."""
    now = np.asarray(variable)
    if now.dtype == np.bool_:
        return np.full(now.shape, bool(attempt))
    numbers = np.random.default_rng(attempt).integers(1, 100, now.shape)
    return (numbers + attempt + 0.5).astype(now.dtype)
