"""Files of arrays and records, and sets made of them."""

import numpy as np

from sidecar import EvalSet
from sidecar.data import tfrecords

COUNTS = (5, 0, 3, 4, 1)  # records of each file: with batches of 2, one file ends evenly, one is empty


def contents(batches):
    """Every own batch with the place of its first example."""
    batches.read(lambda: None)
    return [(first, *(each.numpy().tolist() for each in batch)) for _, first, batch in batches.own()]


def parse(record):
    """(x, y) of a record; the condition needs AutoGraph, as users' functions may."""
    import tensorflow as tf

    number = tf.strings.to_number(record, tf.int64)
    if number >= 30:
        number += 1000
    return number, record


def record_set(pattern, **how):
    return EvalSet(tfrecords(pattern, **how), parse)


def generate(count=10):
    """Examples in a nested structure."""
    for number in range(count):
        yield {"n": np.float32([number, 1]), "word": f"word {number}"}, number % 3, 0.5
