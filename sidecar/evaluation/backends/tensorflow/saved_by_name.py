"""Bind variables of a model to what TensorFlow 1 saved: values by their names, without an object graph.

`tf.compat.v1.train.Saver` and Estimators write such checkpoints. Called by `restore`, which reads and assigns values.
"""

import re
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

from sidecar.evaluation.backends.tensorflow.completeness import Exceptions, Unused, plain_name
from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2
from sidecar.evaluation.failures import EvaluationError, mismatch
from sidecar.evaluation.remedy import Remedy
from sidecar.system.plain_text import listed

_OF_TRAINING: Final = re.compile(
    r"(^|/)((training|Adam|SGD|RMSprop|RMSProp|Adagrad|Adadelta|Adamax|Nadam|Ftrl|Momentum)\w*(/|$)"
    r"|(global_step|beta[12]_power|save_counter|iterations?|iter|learning_rate|decay|ExponentialMovingAverage)$)"
)
"""Names that optimizers and counters have in checkpoints by name."""


def bind(
    model: Any, variables: list[Any], path: str, shapes: Mapping[str, Any], exceptions: Exceptions
) -> tuple[dict[int, str], tuple[str, ...]]:
    """Return the name in the checkpoint of each variable, by position, and notes on what was left out.

    `shapes`: those of the values in the checkpoint, by name. Raises `EvaluationError` if a variable or a value is left
    over that `exceptions` do not name.
    """
    keys = {index: name for index, each in enumerate(variables) if (name := _name_in(shapes, plain_name(each)))}
    scope = None if keys else _scope_of(model, variables, shapes)
    if scope is not None:
        keys = {index: f"{scope}/{_own_name(model, each)}" for index, each in enumerate(variables)}
    unbound = [variable for index, variable in enumerate(variables) if index not in keys]
    missing = [variable for variable in unbound if not exceptions.keeps(variable)]
    if missing or len(set(keys.values())) < len(keys):
        raise _cannot_bind(model, variables, missing, path, shapes)
    unused = tuple(Unused(name, tuple(shapes[name]), "") for name in sorted(_others(shapes, set(keys.values()))))
    exceptions.require(path, unused)
    notes = () if scope is None else (f"the model is {scope!r} of the checkpoint, which was saved by names",)
    return keys, notes + exceptions.notes(unused, unbound)


def _name_in(names: Container[str], name: str) -> str:
    """Return the name of a variable in the checkpoint: its own, or that without the models around its layer."""
    parts = name.split("/")
    shorter = ("/".join(parts[start:]) for start in range(max(1, len(parts) - 1)))
    return next((each for each in shorter if each in names), "")


def _own_name(model: Any, variable: Any) -> str:
    """Return the name of a variable without that of the model, which Keras may number."""
    return plain_name(variable).removeprefix(f"{model.name}/")


def _scope_of(model: Any, variables: list[Any], names: Mapping[str, Any]) -> str | None:
    """Return the scope below which the checkpoint has all names of the model, as Estimators make one; else None.

    It is unique, or nothing: two networks of the same layers, or averages, cannot be told apart.
    """
    own = [_own_name(model, variable) for variable in variables]
    ends = [name.removesuffix(f"/{own[0]}") for name in names if name.endswith(f"/{own[0]}")]
    scopes = [scope for scope in ends if all(f"{scope}/{name}" in names for name in own)]
    return scopes[0] if len(scopes) == 1 and len(set(own)) == len(own) else None


def _others(names: Iterable[str], bound: set[str]) -> list[str]:
    """Return the names that are not bound, and are not of optimizers, averages of bound values, or counters."""
    return [
        name
        for name in names
        if name not in bound
        and not _OF_TRAINING.search(name)
        and not any(name.startswith(f"{value}/") for value in bound)
    ]


def _cannot_bind(
    model: Any, variables: list[Any], missing: list[Any], path: str, shapes: Mapping[str, Any]
) -> EvaluationError:
    """Name the variables without a value, and write the line that restores them by the names in the checkpoint."""
    names = listed([plain_name(variable) for variable in missing])
    text = (
        f"{path} was saved by names, as TensorFlow 1 does, and has none for {len(missing)} of {len(variables)} "
        f"variables of the model: {names}. Give the layers the names that they have in training"
    )
    others = sorted(_others(shapes, set()))
    weights = [weight for weight in model.weights if hasattr(weight, "assign")]
    own = [_own_name(model, weight) for weight in weights]
    if len(weights) < len(variables) or len(set(own)) < len(own):  # a line by names would leave some out
        return mismatch(f"{text}; the checkpoint has {listed(others)}")
    fitting = {
        name: [each for each in others if list(shapes[each]) == list(weight.shape)]
        for name, weight in zip(own, weights, strict=True)
    }
    chosen = {name: each[0] if len(each) == 1 else f"one of {' or '.join(each)}" for name, each in fitting.items()}
    is_known = all(len(each) == 1 for each in fitting.values())
    attribute = "v.name.removesuffix(':0')" if is_keras_2(model) else "v.path"
    told = "" if is_known else ", with one name in the place of each 'one of …'"
    line = (
        f", or write Task(restore=lambda model, path: [v.assign(tf.train.load_variable(path, {chosen!r}"
        f"[{attribute}.removeprefix(model.name + '/')])) for v in model.weights]){told}"
    )
    return mismatch(text, remedy=Remedy(line, ""))
