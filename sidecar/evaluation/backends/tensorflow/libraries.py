"""Tell the two Kerases apart: Keras 3, and Keras 2 as the package tf_keras."""

from typing import Any, Final

KERASES: Final = ("keras", "tf_keras")
"""The packages of Keras 3 and of Keras 2."""


def is_keras_2(made: Any) -> bool:
    """Return whether a model or metric is of tf_keras."""
    return any(cls.__module__.partition(".")[0] == "tf_keras" for cls in type(made).__mro__)


def class_named(made: Any, name: str) -> Any:
    """Return the class of Keras itself, 3 or tf_keras, by that name among the object's bases; None if there is none."""
    return next((cls for cls in type(made).__mro__ if cls.__name__ == name and is_written_by_keras(cls)), None)


def is_written_by_keras(code: Any) -> bool:
    """Return whether a class or function is that of a Keras, and not of somebody who derived from it."""
    return str(code.__module__).partition(".")[0] in KERASES


def layers_of(model: Any) -> list[Any]:
    """Return all layers of a model of either Keras, in their order, itself first; none of a stored graph."""
    flatten = getattr(model, "_flatten_layers", None)
    return [] if flatten is None else list(flatten())
