"""Name the parts of an element of an eval set, or of a batch of them, as Keras does: inputs, labels, weights.

A `test_step` of the user's own may take any other structure; only what needs labels asks for them here.
"""

from collections.abc import Iterator
from typing import Any, Final

from sidecar.evaluation.data.nonfinite import PLACES
from sidecar.evaluation.failures import EvaluationError

_MOST_PARTS: Final = 3  # (x, y, sample_weight)
_FORMS: Final = "(x, y) or (x, y, sample_weight)"


def unpack(batch: Any) -> tuple[Any, Any, Any] | None:
    """Return inputs, labels and weights of a batch, None for those it lacks; None for a tuple of another length."""
    if not isinstance(batch, tuple):
        return batch, None, None
    return (*batch, None, None)[:_MOST_PARTS] if 0 < len(batch) <= _MOST_PARTS else None


def parts_of(batch: Any) -> tuple[Any, Any, Any]:
    """Return inputs, labels and weights of a batch; all of a batch that has none of these forms counts as inputs."""
    return unpack(batch) or (batch, None, None)


def with_labels(batch: Any) -> tuple[Any, Any, Any]:
    """Return inputs, labels and weights of a batch; raises `EvaluationError` if there are no labels."""
    parts = unpack(batch)
    if parts is None or parts[1] is None:
        raise EvaluationError(
            "task_error",
            f"Task(metrics=…) and Task(loss=…) compare predictions with labels: elements of an eval set must be "
            f"{_FORMS}, found {describe(batch)}. Map them to that, (x, x) for an autoencoder; or leave out metrics and "
            f"loss, so that the compiled model's own test_step takes the elements as they are",
        )
    return parts


def require_form_of_keras(batch: Any) -> None:
    """Raise `EvaluationError` for what the `test_step` of Keras itself does not take."""
    if unpack(batch) is None:
        raise EvaluationError(
            "task_error",
            f"elements of an eval set must be x, (x,), {_FORMS} for the test_step of Keras, found "
            f"{describe(batch)}: map them to that, or give the model a test_step of its own",
        )


def placed(batch: Any) -> Iterator[tuple[str, Any]]:
    """Return each part of a batch after its place, one of `nonfinite.PLACES`: all are inputs where nobody can tell."""
    parts = zip(PLACES, unpack(batch) or (batch,), strict=False)
    return ((place, part) for place, part in parts if part is not None)


def describe(batch: Any) -> str:
    """Describe the structure of a batch in words."""
    if isinstance(batch, tuple):
        return f"a tuple of {len(batch)}"
    return "a dict" if isinstance(batch, dict) else "x alone"
