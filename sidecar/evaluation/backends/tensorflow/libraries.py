"""Distinguish Keras 3 from Keras 2, which is the package tf_keras."""

from typing import Any, Final

KERASES: Final = ("keras", "tf_keras")
"""The packages of Keras 3 and of Keras 2."""


def is_keras_2(item: Any) -> bool:
    """Return whether the class of a model or metric, or one of its bases, comes from tf_keras."""
    return any(cls.__module__.partition(".")[0] == "tf_keras" for cls in type(item).__mro__)


def class_named(item: Any, name: str) -> Any:
    """Return the class of this name that Keras 3 or tf_keras defines among the bases of the object, or None."""
    return next((cls for cls in type(item).__mro__ if cls.__name__ == name and is_written_by_keras(cls)), None)


def is_written_by_keras(code: Any) -> bool:
    """Return whether Keras 3 or tf_keras defines a class or function itself, rather than a subclass of the user."""
    return str(code.__module__).partition(".")[0] in KERASES


def layers_of(model: Any) -> list[Any]:
    """Return all layers of a model in order, the model itself first; an empty list for a stored graph."""
    flatten = getattr(model, "_flatten_layers", None)
    return [] if flatten is None else list(flatten())
