"""Restore weights of a file that Keras wrote (`.keras`, `.weights.h5`, `.weights.json`, `.h5`) into a built model.

`model.load_weights` reads arrays by the model's own structure; vocabularies and bins of a `.keras` file are
`keras_assets`' matter. Code in such a file, as of Lambda layers, is never run. Since Keras says nothing of a variable
that it left alone, that is found out here.
"""

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.backends.tensorflow.differences import differences, name_of, some
from sidecar.evaluation.backends.tensorflow.keras_assets import OF_DAMAGE, load_assets
from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2
from sidecar.evaluation.backends.tensorflow.saved_by import advice, by_file
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.hdf5 import LONGEST, damaged, require_readable, require_self_contained

_ADVICE: Final = "Let build_model return the model that was saved"
_ARCHIVE: Final = ".keras"
_COMPILED: Final = ("optimizer", "compiled_loss", "compiled_metrics")
_SUFFIXES: Final = (_ARCHIVE, ".weights.h5", ".weights.json", ".h5", ".hdf5")
_OF_MODEL: Final = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ImportError)


def is_keras_file(path: str) -> bool:
    """Return whether a checkpoint's path is that of a file, not the prefix of several or a folder."""
    return path.endswith(_SUFFIXES) and not Path(path).is_dir() and not has_index(path)


def has_index(path: str) -> bool:
    """Return whether an object checkpoint of this prefix lies there; a name that is as long as names can be is none."""
    try:
        return Path(f"{path}.index").exists()
    except OSError:
        return False


def load(model: Any, variables: list[Any], path: str, *, model_of: int) -> list[Any]:
    """Assign the file's values to `variables`, which are the model's; a variable that it does not give is an error.

    `model_of` is the model's Keras, 2 or 3.

    Returns:
        The layers to which it gave what they hold outside of them.

    Raises:
        EvaluationError: `mismatch`, `corrupt`, `vanished` or `storage`, as `restore.restore`.
    """
    unbound = list(variables)
    for attempt in (0, 1):  # a value may by chance be what was filled in; it is not twice
        fillings = [_filling(variable, attempt) for variable in unbound]
        for variable, filling in zip(unbound, fillings, strict=True):
            variable.assign(filling)
        _load(model, path, model_of)
        unbound = [
            variable
            for variable, filling in zip(unbound, fillings, strict=True)
            if np.asarray(variable).tobytes() == filling.tobytes() and filling.size
        ]
        if not unbound:
            return load_assets(model, path) if path.endswith(_ARCHIVE) else []
    raise EvaluationError(
        "mismatch",
        f"{path} does not hold the model: {len(unbound)} of {len(variables)} variables are not in it: "
        f"{some([name_of(each) for each in unbound])}. {advice(by_file(path), model_of=model_of) or _ADVICE}.",
    )


def _load(model: Any, path: str, model_of: int) -> None:
    """Let Keras load what is known to be data; where it fails, all values are read to see whose fault that is."""
    require_self_contained(path)
    try:
        with _uncompiled(model):
            model.load_weights(path)
    except (*OF_DAMAGE, *_OF_MODEL) as error:
        # Its frames hold the file open, with which HDF5 opens it in one way only.
        failure = error.with_traceback(None)
    else:
        return
    failure.__context__ = None
    gc.collect()
    require_readable(path)
    if isinstance(failure, OF_DAMAGE):
        raise damaged(path, failure) from failure
    said = some(differences(model, path)) or " ".join(str(failure).split())[:LONGEST] or type(failure).__name__
    hint = advice(by_file(path), model_of=model_of) or _ADVICE
    raise EvaluationError("mismatch", f"{path} does not fit the model: {said.rstrip('.')}. {hint}.") from failure


@contextlib.contextmanager
def _uncompiled(model: Any) -> Iterator[None]:
    """Take away meanwhile what `compile` gave a model of tf_keras.

    It would be loaded, too, and fail where the saved model was compiled otherwise, not at all, or never called.
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


def _filling(variable: Any, attempt: int) -> NDArray[Any]:
    """Return values that no checkpoint holds, and other values the second time."""
    now = np.asarray(variable)
    if now.dtype == np.bool_:
        return np.full(now.shape, bool(attempt))
    numbers = np.random.default_rng(attempt).integers(1, 100, now.shape)
    return (numbers + attempt + 0.5).astype(now.dtype)
