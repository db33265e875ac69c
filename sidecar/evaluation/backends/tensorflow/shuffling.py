"""Make shuffled data repeatable: a seed where the task gives none, and the same order whenever it is read.

Keras' readers of directories shuffle unless they are told otherwise, also what a script calls its test data. The order
matters to no metric, but all ranks must number the same batches. Only worker processes call this, before they import
the task.
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
"""Functions of `keras.utils` that draw a seed with numpy's global generator if they shuffle and are given none."""


def make_repeatable(*libraries: ModuleType) -> ExitStack:
    """Replace `tf.data.Dataset.shuffle`, and the readers of these Kerases; closing what is returned undoes it."""
    undo = ExitStack()
    _replace(undo, tf.data.Dataset, "shuffle", _seeded(tf.data.Dataset.shuffle, reshuffle_each_iteration=False))
    for library in libraries:
        undo.enter_context(make_readers_repeatable(library))
    return undo


def make_readers_repeatable(library: ModuleType) -> ExitStack:
    """Replace the readers of a Keras alone; closing what is returned undoes it.

    A reader that splits (`validation_split`) is left alone: its seed decides which examples are whose, so it is an
    error in Keras itself to give none.
    """
    undo = ExitStack()
    for name in _READERS:
        if (reader := getattr(library.utils, name, None)) is not None:
            _replace_everywhere(undo, name, reader, _seeded(reader))
    return undo


def _seeded(original: Callable[..., Any], **always: Any) -> Callable[..., Any]:
    """Return the function with a seed wherever it is called without one, and with these arguments `always`."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def seeded(*arguments: Any, **named: Any) -> Any:
        given = signature.bind(*arguments, **named)
        if given.arguments.get("seed") is None and not given.arguments.get("validation_split"):
            given.arguments["seed"] = _SEED
        given.arguments |= always
        return original(*given.args, **given.kwargs)

    return seeded


def _replace_everywhere(undo: ExitStack, name: str, original: Any, replacement: Any) -> None:
    """Replace a function under all names that modules give it; those that are imported later take it from these."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and vars(module).get(name) is original:
            _replace(undo, module, name, replacement)


def _replace(undo: ExitStack, owner: Any, name: str, replacement: Any) -> None:
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, replacement)
