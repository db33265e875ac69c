"""A small convolutional net on 10,000 examples of 32x32x3, or as many as the environment says."""

import keras
from conv_data import BATCH, CLASSES, arrays

from sidecar import Task


def conv_net(keras):
    """For Keras 3 or tf_keras: 15,000 weights."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((32, 32, 3)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def task():
    return Task(
        build_model=lambda: conv_net(keras),
        eval_sets={"test": arrays},
        metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        loss=keras.losses.SparseCategoricalCrossentropy(),
        batch_size=BATCH,
    )
