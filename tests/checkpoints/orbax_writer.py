"""Orbax checkpoints of `keras.callbacks.OrbaxCheckpoint`, and what Keras itself finds for the same weights.

A program: `orbax_writer.py FOLDER EPOCHS [name=value …]`, the values being the callback's arguments, in JSON. It writes
one line of JSON: names and values of the weights after the last epoch.
"""

import json
import sys

import keras
import numpy as np


def main(folder: str, epochs: str, *settings: str) -> None:
    """Train for so many epochs."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8,))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(16, activation="relu")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dropout(0.5)(hidden)))
    model.compile("adam", "mse")
    given = {name: json.loads(value) for name, _, value in (each.partition("=") for each in settings)}
    random = np.random.default_rng()  # never the same values twice
    x, y = random.normal(size=(64, 8)), random.normal(size=(64, 2))
    model.fit(x, y, epochs=int(epochs), verbose=0, callbacks=[keras.callbacks.OrbaxCheckpoint(folder, **given)])
    sys.stdout.write(json.dumps({each.path: np.asarray(each).tolist() for each in model.weights}) + "\n")


main(*sys.argv[1:])
