"""Find learned values that a task uses next to its model: no checkpoint restores them.

A loss that compares features of a layer in a global variable uses the values that the layer was made with, and so does
a model whose `call` divides by a temperature in a global variable. Each worker process draws other values of a layer,
and a model next to its data draws other data, so the number would be none of any model.
"""

import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.data import array_of
from sidecar.evaluation.backends.tensorflow.libraries import class_named, layers_of
from sidecar.evaluation.backends.tensorflow.restore import variables_of
from sidecar.evaluation.failures import EvaluationError, task_error
from sidecar.evaluation.remedy import Remedy
from sidecar.evaluation.task import Task
from sidecar.evaluation.used_objects import used_by

_METHODS: Final = ("test_step", "compute_loss", "compute_metrics")
_MOST_VALUES: Final = 1 << 20  # of a variable that are drawn again


def require_restored(task: Task, model: Any) -> None:
    """Raise `EvaluationError` if the loss or the model uses learned variables that are not the model's.

    Layers that are not `trainable` count as constants: those of a fixed network, for example. So do layers next to data
    and metrics whose values were not drawn, but loaded.
    """
    own = _handles(variables_of(model))
    for root, value in roots_of(task, model):
        for name, found in used_by(value, _is_learned, _is_opaque).items():
            if not own & _handles(_variables_in(found)):
                raise _learned_outside(root, name, found)
    sets = [part for name, each in task.sets().items() for part in ((name, each.source), (name, each.prepare))]
    roots = [*((f"eval set {name!r}", part) for name, part in sets), ("Task(metrics=…)", task.metrics)]
    for root, value in roots:
        for name, found in used_by(value, _is_layer, _is_opaque).items():
            if not own & _handles(found.variables) and _is_drawn(found):
                raise task_error(
                    f"{root} uses {name}, a {type(found).__name__} with the random values that it was made with, which "
                    f"are not those of training: load them, such as with {name}.load_weights(…) or {name} = "
                    f"keras.models.load_model(…), or make it an attribute of the model, or give its initializers the "
                    f"seeds of training"
                )


def require_known(variables: Iterable[Any], task: Task, model: Any, metrics: Iterable[Any]) -> None:
    """Raise `EvaluationError` if a traced step has read learned variables where neither Keras nor the user has them.

    A model may hold layers where Keras does not look for them, such as in an object of the user. Networks in metrics
    have their own values, and `require_restored` knows what functions use.
    """
    users = (*metrics, task.metrics, *(value for _, value in roots_of(task, model)))
    found = [one for user in users for one in used_by(user, _has_values, _is_opaque).values()]
    known = _handles((*variables_of(model), *(each for one in found for each in _variables_in(one))))
    for variable in variables:
        if _is_learned(variable) and id(variable.handle) not in known:
            name = variable.name.removesuffix(":0")
            raise task_error(
                f"the model uses the learned values {name!r} {tuple(variable.shape)} of a layer that Keras does not "
                f"find in it, so no checkpoint restores them: let the model hold the layer in an attribute, or in a "
                f"list or dict of layers, and not in an object of your own",
                remedy=Remedy(
                    f"; if the values are right as build_model makes them, write "
                    f"Task(from_build_model=['*{name.rpartition('/')[2]}']), too",
                    "",
                ),
            )


def _learned_outside(root: str, name: str, found: Any) -> EvaluationError:
    kind = "keras.Variable" if _is_of_keras(found) else "tf.Variable"
    is_variable = _is_of_keras(found) or isinstance(found, tf.Variable)
    fixed = f"{name} = {kind}(…, trainable=False)" if is_variable else f"{name}.trainable = False"
    return task_error(
        f"{root} uses {name}, a {type(found).__name__} with learned values that are not part of the model, so no "
        f"checkpoint restores them: make it an attribute of the model; or, if the values are right as they are, write "
        f"{fixed}"
    )


def roots_of(task: Task, model: Any) -> Iterator[tuple[str, Any]]:
    """Yield what computes with the values of a model, with its name for people."""
    compiled = getattr(model, "_compile_loss", None) or getattr(model, "compiled_loss", None)  # Keras 3, tf_keras
    yield from (("Task(loss=…)", task.loss), ("compile(loss=…)", getattr(compiled, "_user_loss", None)))
    for name in _METHODS:
        yield f"the model's {name}", getattr(type(model), name, None)
    for layer in layers_of(model):
        is_lambda = class_named(layer, "Lambda") is not None
        yield f"call of {type(layer).__name__}", layer.function if is_lambda else getattr(type(layer), "call", None)


def _handles(variables: Iterable[Any]) -> set[int]:
    """Return the identities of the tensors behind variables of TensorFlow and of Keras 3."""
    return {id((each.value if _is_of_keras(each) else each).handle) for each in variables}


def _variables_in(found: Any) -> list[Any]:
    return list(found.variables) if _is_layer(found) else [found]


def _is_learned(value: Any) -> bool:
    if isinstance(value, tf.Variable) or _is_of_keras(value):
        return bool(value.trainable) and tf.as_dtype(value.dtype).is_floating
    return _is_layer(value) and bool(value.trainable_variables)


def _has_values(value: Any) -> bool:
    return _is_layer(value) or isinstance(value, tf.Variable) or _is_of_keras(value)


def _is_layer(value: Any) -> bool:
    return hasattr(type(value), "trainable_variables") and bool(value.variables)


def _is_of_keras(value: Any) -> bool:
    """Return whether a value is a variable of Keras 3."""
    return class_named(value, "Variable") is not None


def _is_drawn(found: Any) -> bool:
    """Return whether a layer still has values that its initializer drew without a seed, and draws again if asked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tf_keras warns that the values are the same
        return any(
            initializer.get_config().get("seed", 0) is None
            and math.prod(variable.shape) <= _MOST_VALUES
            and np.array_equal(array_of(initializer(variable.shape, variable.dtype)), array_of(variable))
            for layer in layers_of(found) or [found]
            for initializer in vars(layer).values()
            if class_named(initializer, "RandomInitializer") or class_named(initializer, "VarianceScaling")
            for variable in layer.variables
        )


def _is_opaque(value: Any) -> bool:
    return isinstance(value, tf.Tensor) or hasattr(value, "numpy")
