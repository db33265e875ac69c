"""Find layers with learned variables that a task uses next to its model: no checkpoint restores them.

A loss that compares features of a layer in a global variable uses the values that the layer was made with. Each worker
process draws other ones, so the number would be none of any model.
"""

from typing import Any, Final

import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.libraries import is_written_by_keras
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.task import Task
from sidecar.evaluation.used_objects import used_by

_METHODS: Final = ("test_step", "compute_loss", "compute_metrics")


def require_restored(task: Task, model: Any) -> None:
    """Raise `EvaluationError` if the loss, or the model's own step, uses learned variables that are not the model's.

    Layers that are not `trainable` count as constants: those of a fixed network, for example.
    """
    own = {id(variable) for variable in model.variables}
    compiled = getattr(model, "_compile_loss", None) or getattr(model, "compiled_loss", None)  # Keras 3, tf_keras
    roots = {"Task(loss=…)": task.loss, "compile(loss=…)": getattr(compiled, "_user_loss", None)}
    for name in _METHODS:
        method = getattr(type(model), name, None)
        if method is not None and not is_written_by_keras(method):
            roots[f"the model's {name}"] = method
    for root, value in roots.items():
        for name, layer in used_by(value, _is_learned, _is_opaque).items():
            is_variable = isinstance(layer, tf.Variable)
            if any(id(variable) in own for variable in ([layer] if is_variable else layer.trainable_variables)):
                continue
            fixed = f"{name} = tf.Variable(…, trainable=False)" if is_variable else f"{name}.trainable = False"
            raise task_error(
                f"{root} uses {name}, a {type(layer).__name__} with learned values that are not part of the model, so "
                f"no checkpoint restores them: make it an attribute of the model; or, if the values are right as they "
                f"are, write {fixed}"
            )


def _is_learned(value: Any) -> bool:
    if isinstance(value, tf.Variable):
        return bool(value.trainable) and value.dtype.is_floating
    return hasattr(type(value), "trainable_variables") and bool(value.trainable_variables)


def _is_opaque(value: Any) -> bool:
    return isinstance(value, tf.Tensor) or hasattr(value, "numpy")
