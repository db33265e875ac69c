"""Make the task's model, and complete it with a first batch, so that every variable can be restored."""

import contextlib
from typing import Any

from sidecar.evaluation.backends.tensorflow.libraries import is_written_by_keras
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.elements import unpack
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.task import Task, call


def make_model(task: Task, *, trusts: bool) -> Any:
    """Return the task's model, None if it has none; raises `EvaluationError` for what is not a model."""
    if task.build_model is None:
        if not trusts:
            raise EvaluationError(
                "task_error",
                "Task(build_model=None) can evaluate stored graphs only: set trust_saved_graph = true if you trust who "
                "writes the checkpoints, or give build_model",
            )
        return None
    model = call("Task(build_model=…)", task.build_model)
    if not callable(model) or not hasattr(type(model), "weights"):  # the object's own raise in tf_keras until built
        found = f"{type(model).__name__} {str(model)[:80]!r}"
        raise EvaluationError("task_error", f"Task(build_model=…) must return a Keras model, found {found}")
    return model


def complete(model: Any, batch: Batch) -> None:
    """Create the variables that are missing after the first step, which need not call the model or all of its layers.

    A step may get along without the model's `call`, and that may not take these inputs at all. Then the variables that
    the step uses are all that can be there, and the model counts as built: Keras restores no file into one that is not.
    """
    if not all(layer.built for layer in _layers(model)):
        with contextlib.suppress(Exception):
            model((unpack(batch) or (batch,))[0], training=False)
    if not model.built:
        model.built = True


def _layers(model: Any) -> list[Any]:
    """Return the layers within a model, at any depth."""
    return list(model._flatten_layers(include_self=False))  # noqa: SLF001 - the public list has those at the top alone


def has_own_test_step(model: Any) -> bool:
    """Return whether `test_step` is not that of Keras."""
    return not is_written_by_keras(type(model).test_step)
