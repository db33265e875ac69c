"""Split an element of an eval set, or a batch of elements, into inputs, labels and weights, as Keras does.

A custom `test_step` may take any other structure. Only code that needs labels requires them.
"""

from collections.abc import Iterator
from typing import Any, Final

from sidecar.evaluation.data.nonfinite import PLACES
from sidecar.evaluation.failures import task_error

_MOST_PARTS: Final = 3  # (x, y, sample_weight)
_FORMS: Final = "(x, y) or (x, y, sample_weight)"
_REMEDY_FOR_KERAS: Final = (
    "Map them to this form, (x, x) for an autoencoder; or leave out metrics and loss, so that the compiled model's own "
    "test_step takes the elements unchanged"
)


def unpack(batch: Any) -> tuple[Any, Any, Any] | None:
    """Return inputs, labels and weights of a batch, None for missing ones; None for a tuple of another length."""
    if not isinstance(batch, tuple):
        return batch, None, None
    return (*batch, None, None)[:_MOST_PARTS] if 0 < len(batch) <= _MOST_PARTS else None


def parts_of(batch: Any) -> tuple[Any, Any, Any]:
    """Return inputs, labels and weights of a batch; a batch of another form consists of inputs."""
    return unpack(batch) or (batch, None, None)


def with_labels(batch: Any, remedy: str = _REMEDY_FOR_KERAS) -> tuple[Any, Any, Any]:
    """Return inputs, labels and weights of a batch; raises `EvaluationError` with the remedy if there are no labels."""
    parts = unpack(batch)
    if parts is None or parts[1] is None:
        what = "Task(metrics=…) and Task(loss=…) compare" if remedy is _REMEDY_FOR_KERAS else "metrics compare"
        raise task_error(
            f"{what} predictions with labels: elements of an eval set must be "
            f"{_FORMS}, found {describe(batch)}. {remedy}"
        )
    return parts


def require_form_of_keras(batch: Any) -> None:
    """Raise `EvaluationError` for a batch that the `test_step` of Keras does not take."""
    if unpack(batch) is None:
        raise task_error(
            f"elements of an eval set must be x, (x,), {_FORMS} for the test_step of Keras, found "
            f"{describe(batch)}: map them to this form, or give the model its own test_step"
        )


def placed(batch: Any) -> Iterator[tuple[str, Any]]:
    """Return each part of a batch with its place, one of `nonfinite.PLACES`; a batch of another form is an input."""
    parts = zip(PLACES, unpack(batch) or (batch,), strict=False)
    return ((place, part) for place, part in parts if part is not None)


def describe(batch: Any) -> str:
    """Describe the structure of a batch, for a message."""
    if isinstance(batch, tuple):
        return f"a tuple of {len(batch)}"
    return "a dict" if isinstance(batch, dict) else "x alone"
