"""Define the task that evaluates each checkpoint of digits_train.py or custom_loop_train.py on handwritten digits.

Run it on all existing checkpoints, during training or afterwards:

    sidecar run ckpts --task digits_task.py:task --once
"""

import keras
import numpy as np
from sklearn.datasets import load_digits

from sidecar import Task

TRAINING_EXAMPLES = 1400  # of 1,797; the 397 others are held out


def build_model() -> keras.Model:
    """Return a small convolutional network. Training and evaluation build the same one."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return images of shape (1797, 8, 8, 1) with values from 0 to 1, and labels of shape (1797,)."""
    data = load_digits()
    return (data.images[..., np.newaxis] / 16).astype("float32"), data.target.astype("int32")


def training_set() -> tuple[np.ndarray, np.ndarray]:
    """Return the first 1,400 digits."""
    x, y = digits()
    return x[:TRAINING_EXAMPLES], y[:TRAINING_EXAMPLES]


def test_set() -> tuple[np.ndarray, np.ndarray]:
    """Return the 397 digits that training does not see."""
    x, y = digits()
    return x[TRAINING_EXAMPLES:], y[TRAINING_EXAMPLES:]


def task() -> Task:
    """Return the task: `--task digits_task.py:task` names this function."""
    return Task(
        build_model=build_model,
        eval_sets={"test": test_set},
        metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        loss=keras.losses.SparseCategoricalCrossentropy(),
        batch_size=64,
        predictions=True,  # every worker saves labels and predictions: see read_predictions.py
    )
