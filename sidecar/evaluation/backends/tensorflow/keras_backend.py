"""Report that Keras 3 computes with TensorFlow in this worker, although it computes with JAX or PyTorch in training.

Keras 3 stores weights in the same form under every backend, and its layers compute the same numbers up to rounding. So
`sidecar.daemon.workers.environment` sets KERAS_BACKEND for workers, whatever the daemon's environment says. Only a
layer that calls functions of JAX or PyTorch itself cannot be evaluated in this way.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sidecar.errors import SidecarError
from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2
from sidecar.evaluation.backends.tensorflow.traits import KERAS_BACKEND_OF_TRAINING
from sidecar.evaluation.failures import EvaluationError, task_error

_NAME: Final = "KERAS_BACKEND"
_OURS: Final = "tensorflow"
_MAX_CHARACTERS: Final = 300  # of an error of Keras
_STYLE: Final = re.compile(r"\x1b\[\d*m")  # of the terminal, in errors of Keras
_SIGNS: Final = {
    "jax": re.compile(r"\bJAX\b|\bjax\.|as an abstract array"),
    "torch": re.compile(r"must be Tensor, not|\btorch\."),
}
"""Texts in the errors of libraries whose functions get tensors of TensorFlow."""


def other_backend() -> str | None:
    """Return the backend of Keras 3 that the daemon's environment or the task's file names; None if it is TensorFlow.

    Keras has been imported before the task, so a task that sets the variable has no effect.
    """
    named = os.environ.get(_NAME) or _OURS
    return os.environ.get(KERAS_BACKEND_OF_TRAINING) if named == _OURS else named


def notes_on(model: Any) -> tuple[str, ...]:
    """Return the note on a result whose model was trained with another backend; empty if there is none to tell of."""
    backend = None if model is None or is_keras_2(model) else other_backend()
    if backend is None:
        return ()
    where = f"with {backend} in training ({_NAME}), and with TensorFlow here"
    return (f"Keras computes {where}, from the same weights: numbers agree up to rounding",)


@contextmanager
def explained(backend: str | None) -> Iterator[None]:
    """Say that the worker computes with TensorFlow if a layer fails that was written for another backend.

    `backend`: the backend that training uses; None if nothing but the error may tell.
    """
    try:
        yield
    except (EvaluationError, SidecarError):
        raise
    except Exception as error:
        text = " ".join(_STYLE.sub("", f"{type(error).__name__}: {error}").split())
        named = backend or next((name for name, sign in _SIGNS.items() if sign.search(text)), None)
        if named is None:
            raise
        refused = task_error(
            f"the model cannot be evaluated with TensorFlow, which this worker computes with, although training "
            f"computes with {named}: {text[:_MAX_CHARACTERS]}. Let its layers use keras.ops in place of {named}. "
            f"{_way_out(named)}"
        )
        refused.lasting = getattr(error, "lasting", None)  # type: ignore[attr-defined]
        raise refused from error


def _way_out(backend: str) -> str:
    return (
        f'To compute with {backend}, write framework = "python" and worker_env = {{ {_NAME} = "{backend}" }} into '
        f"sidecar.toml, and Task(load=keras.saving.load_model, predict=lambda model, x: model.predict_on_batch(x), …) "
        f"with metrics of sidecar.metrics into the task"
    )
