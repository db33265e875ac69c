"""The plain numpy task with one mistake, which the environment variable MISTAKE names."""

import os
from dataclasses import replace

import numpy_plain as plain

MISTAKE = os.environ["MISTAKE"]


def load(path):
    """Return a model, unless that is the mistake."""
    if MISTAKE == "load":
        raise KeyError("no such layer")
    return None if MISTAKE == "nothing" else plain.load(path)


def predict(model, x):
    """Return probabilities, unless that is the mistake."""
    if MISTAKE == "predict":
        return model.transform(x)
    found = plain.predict(model, x)
    return found[:1] if MISTAKE == "rows" else found


def task():
    """Return the plain task with one mistake in `load` or `predict`."""
    return replace(plain.task(), load=load, predict=predict)
