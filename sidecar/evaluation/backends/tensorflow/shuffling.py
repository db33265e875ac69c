"""Make data repeatable: seed shuffles, keep the order when data is read again, and copy what generators yield.

Keras' readers of directories shuffle by default, so the test data of many scripts is shuffled. No metric depends on the
order, but all ranks must number the same batches. Only worker processes call this, before they import the task.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType
from typing import Any, Final

import numpy as np
import tensorflow as tf

from sidecar.evaluation.data.structure import map_leaves

_SEED: Final = 0
_READERS: Final = (
    "audio_dataset_from_directory",
    "image_dataset_from_directory",
    "text_dataset_from_directory",
    "timeseries_dataset_from_array",
)
"""Functions of `keras.utils` that shuffle. Without a seed, they draw one with numpy's global generator."""


def make_repeatable(*libraries: ModuleType) -> ExitStack:
    """Replace `shuffle` and `from_generator` of `tf.data.Dataset`, and the readers of these Keras modules.

    Closing the result undoes that.
    """
    undo = ExitStack()
    _replace(undo, tf.data.Dataset, "shuffle", _seeded(tf.data.Dataset.shuffle, reshuffle_each_iteration=False))
    _replace(undo, tf.data.Dataset, "from_generator", staticmethod(_copying(tf.data.Dataset.from_generator)))
    for library in libraries:
        undo.enter_context(make_readers_repeatable(library))
    return undo


def make_readers_repeatable(library: ModuleType) -> ExitStack:
    """Replace only the readers of one Keras module. Closing the result undoes that.

    A call with `validation_split` gets no seed: its seed decides which examples are validation data, so Keras itself
    raises an error if there is none.
    """
    undo = ExitStack()
    for name in _READERS:
        if (reader := getattr(library.utils, name, None)) is not None:
            _replace_everywhere(undo, name, reader, _seeded(reader))
    return undo


def _seeded(original: Callable[..., Any], **always: Any) -> Callable[..., Any]:
    """Return a function that calls the original with a seed, if none is given, and with the arguments `always`."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def seeded(*arguments: Any, **named: Any) -> Any:
        call = signature.bind(*arguments, **named)
        if call.arguments.get("seed") is None and not call.arguments.get("validation_split"):
            call.arguments["seed"] = _SEED
        call.arguments |= always
        return original(*call.args, **call.kwargs)

    return seeded


def _copying(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function like `from_generator`, with copies of the arrays that the generator yields.

    TensorFlow reads the memory of an array later, when the generator may have written its next element there.
    """

    @functools.wraps(original)
    def copying(generator: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        def copies(*given: Any) -> Any:
            return (map_leaves(_copied, element) for element in generator(*given))

        return original(copies if callable(generator) else generator, *arguments, **named)

    return copying


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, list):
        return [map_leaves(_copied, part) for part in leaf]
    return np.array(leaf) if isinstance(leaf, np.ndarray) else leaf


def _replace_everywhere(undo: ExitStack, name: str, original: Any, replacement: Any) -> None:
    """Replace a function in every module that has it under this name. Later imports get the replacement from these."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and vars(module).get(name) is original:
            _replace(undo, module, name, replacement)


def _replace(undo: ExitStack, owner: Any, name: str, replacement: Any) -> None:
    undo.callback(setattr, owner, name, vars(owner)[name])
    setattr(owner, name, replacement)
