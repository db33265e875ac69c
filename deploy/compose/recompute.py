"""Compute the numbers of a checkpoint again, in one process on the whole eval set, by Keras' `predict` and plain numpy.

No code of the daemon takes part, so that its errors cannot hide themselves.
"""  # noqa: INP001 - a script next to others, not a package

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from sidecar.commands.demo.digits import build_model, test_set


def measure(original: Path, saves: Sequence[Path]) -> dict[str, float]:
    """Return accuracy and mean log loss of the weights in `original`, a checkpoint's prefix.

    Raises `ValueError` unless each worker's saved weights are the same, to the bit.
    """
    weights = _restore(original).get_weights()
    for save in saves:
        restored = _restore(save / "weights").get_weights()
        if not all(np.array_equal(one, other) for one, other in zip(weights, restored, strict=True)):
            raise ValueError(f"the weights that a worker saved in {save} are not those of {original.name}")
    return _measure(_restore(original))


def _restore(prefix: Path) -> Any:
    """Return the model with the weights of a checkpoint."""
    model = build_model()
    tf.train.Checkpoint(model=model).read(str(prefix)).assert_existing_objects_matched().expect_partial()
    return model


def _measure(model: Any) -> dict[str, float]:
    """Return accuracy and mean log loss of a model."""
    examples = list(test_set().as_numpy_iterator())
    labels = np.array([label for _, label in examples])
    probabilities = model.predict(np.stack([image for image, _ in examples]), verbose=0).astype("float64")
    right = int((probabilities.argmax(axis=1) == labels).sum())
    of_the_label = probabilities[np.arange(len(labels)), labels]
    return {"accuracy": right / len(labels), "loss": float(-np.log(of_the_label).mean())}
