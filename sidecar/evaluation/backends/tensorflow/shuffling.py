"""Make shuffled data repeatable: give a seed if the task gives none, and keep the order when data is read again.

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

import tensorflow as tf

_SEED: Final = 0
_READERS: Final = (
    "audio_dataset_from_directory",
    "image_dataset_from_directory",
    "text_dataset_from_directory",
    "timeseries_dataset_from_array",
)
"""Functions of `keras.utils` that shuffle. Without a seed, they draw one with numpy's global generator."""


def make_repeatable(*libraries: ModuleType) -> ExitStack:
    """Replace `tf.data.Dataset.shuffle` and the readers of these Keras modules. Closing the result undoes that."""
    undo = ExitStack()
    _replace(undo, tf.data.Dataset, "shuffle", _seeded(tf.data.Dataset.shuffle, reshuffle_each_iteration=False))
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


def _replace_everywhere(undo: ExitStack, name: str, original: Any, replacement: Any) -> None:
    """Replace a function in every module that has it under this name. Later imports get the replacement from these."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and vars(module).get(name) is original:
            _replace(undo, module, name, replacement)


def _replace(undo: ExitStack, owner: Any, name: str, replacement: Any) -> None:
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, replacement)
