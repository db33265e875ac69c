"""Build the model of a task, and complete it with a first batch, so that every variable can be restored."""

import contextlib
from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.data import repacked
from sidecar.evaluation.backends.tensorflow.libraries import is_written_by_keras
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.elements import unpack
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.task import Task, call
from sidecar.system.plain_text import shortened

_WRAPPED: Final = """: write

class Wrapped(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = build_inner()  # what build_model has returned

    def call(self, x):
        return self.inner(x)

with Task(build_model=Wrapped, checkpoint=lambda model: tf.train.Checkpoint(model=model.inner), …), where model= is the
name under which training saves it"""


def make_model(task: Task, *, trusts: bool) -> Any:
    """Build the model of a task; return `None` if it has none, which only stored graphs that are trusted allow.

    Raises `task_error` if `build_model` returns something else, or nothing can be evaluated.
    """
    if task.build_model is None:
        if not trusts:
            raise task_error(
                "Task(build_model=None) can evaluate only stored graphs: set trust_saved_graph = true if you trust the "
                "writers of the checkpoints, or give build_model"
            )
        return None
    model = call("Task(build_model=…)", task.build_model)
    if not callable(model) or not hasattr(type(model), "weights"):  # on the object, tf_keras raises until it is built
        returned = f"{type(model).__name__} {shortened(model)}"
        raise task_error(
            f"Task(build_model=…) must return a Keras model, found {returned}" + (_WRAPPED if callable(model) else "")
        )
    return model


def complete(model: Any, batch: Batch) -> None:
    """Create the variables that are still missing after a first step, and mark the model as built.

    The user's `test_step` may call only some layers of the model. The model may not even accept the inputs of the
    batch: then only the variables that the step uses exist. Keras restores a file only into a built model.
    """
    if not all(layer.built for layer in _layers(model)):
        with contextlib.suppress(Exception):
            batch = preprocessing_of(model)(batch)
            model(repacked((unpack(batch) or (batch,))[0]), training=False)
    if not model.built:
        model.built = True


def preprocessing_of(model: Any) -> Callable[[Batch], Batch]:
    """Return the function that maps a batch to what the model's `test_step` takes; most models take it unchanged.

    A task of KerasHub prepares texts and images in its own `evaluate`, before the step, with `preprocess_samples`. Any
    other model that overrides `evaluate` and has such a method is taken to do the same.
    """
    method = getattr(model, "preprocess_samples", None)
    if not callable(method) or is_written_by_keras(type(model).evaluate):
        return lambda batch: batch
    function = tf.function(method)  # with AutoGraph, as `tf.data.Dataset.map` traces it
    return lambda batch: function(*batch) if isinstance(batch, tuple) else function(batch)


def _layers(model: Any) -> list[Any]:
    """Return the layers within a model, at any depth."""
    return list(model._flatten_layers(include_self=False))  # noqa: SLF001 - the public list has only the outermost layers


def has_own_test_step(model: Any) -> bool:
    """Return whether the model defines its own `test_step`, or inherits one that is not from Keras."""
    return not is_written_by_keras(type(model).test_step)


def not_called(model: Any) -> tuple[str, ...]:
    """Return a note about methods of the user's that Keras would call around `test_step`; none for most models."""
    own = [name for name in ("evaluate", "make_test_function") if not is_written_by_keras(getattr(type(model), name))]
    if not own or callable(getattr(model, "preprocess_samples", None)):
        return ()
    return (f"the model's own {' and '.join(own)} is not called, only its test_step: the numbers may be others",)
