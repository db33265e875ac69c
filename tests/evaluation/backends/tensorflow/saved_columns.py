"""Evaluations that save columns, joined again."""

import numpy as np


def losses(y, logits):
    """In float64, by hand."""
    logits = logits.astype("float64")
    logits -= logits.max(axis=1, keepdims=True)
    return np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
