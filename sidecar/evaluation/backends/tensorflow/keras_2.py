"""Provide Keras 2 for a task whose file sets TF_USE_LEGACY_KERAS before it imports Keras.

TensorFlow reads that variable when it is imported, and once more when `tf.keras` is first used. A worker process
imports TensorFlow before the task, so `from tensorflow.keras import layers` would give Keras 3, and `tf.keras` Keras 2.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Final

import tensorflow as tf

_PACKAGE: Final = "tf_keras"
_API: Final = Path("api", "_v2")  # folder of the `keras` that TensorFlow names `tensorflow.keras`


class _Finder(MetaPathFinder):
    """Intercept the imports of `tensorflow.keras` and `tf_keras`; leave all other imports alone."""

    def __init__(self, prepare: Callable[[ModuleType], object]) -> None:
        self._prepare = prepare

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for `tf_keras`, whose loader calls `prepare` on it; None for all other modules."""
        if fullname == "tensorflow.keras" and _is_wanted():
            _lead_to_keras_2()
        if fullname != _PACKAGE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_prepare(module: ModuleType) -> None:
                execute(module)
                self._prepare(module)

            spec.loader.exec_module = execute_and_prepare  # type: ignore[method-assign]
        return spec


def follow_the_task(prepare: Callable[[ModuleType], object]) -> None:
    """Respect TF_USE_LEGACY_KERAS if a task sets it before it uses Keras; call `prepare` on Keras 2 once imported."""
    if _PACKAGE in sys.modules:
        prepare(sys.modules[_PACKAGE])
    sys.meta_path.insert(0, _Finder(prepare))


def _is_wanted() -> bool:
    return os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")  # the values that TensorFlow accepts


def _lead_to_keras_2() -> None:
    """Put the folder of Keras 2 before that of Keras 3 in the search path for submodules of TensorFlow."""
    spec = PathFinder.find_spec(_PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        tf.__path__.insert(0, str(Path(location) / _API))
