"""Compute areas under ROC and precision-recall curves from the weights at each threshold. Imports numpy only.

Both functions take the weights of positives and of negatives by score, from the highest score to the lowest. Equal
scores share one entry, so the order of examples with the same score does not matter.
"""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def roc_auc(positives: Floats, negatives: Floats) -> float:
    """Return how often a positive scores higher than a negative; a tie counts one half. NaN if a class has no weight.

    J. A. Hanley and B. J. McNeil, "The meaning and use of the area under a receiver operating characteristic (ROC)
    curve", Radiology 143 (1982) 29-36. The result equals the trapezoids of scikit-learn's `roc_auc_score`.
    """
    pairs = math.fsum(positives.tolist()) * math.fsum(negatives.tolist())
    higher = np.cumsum(positives) - positives / 2
    return math.fsum((higher * negatives).tolist()) / pairs if pairs else math.nan


def average_precision(positives: Floats, negatives: Floats) -> float:
    """Return the mean precision over the positives; NaN if they have no weight.

    The formula is Σ (R_k - R_k-1) P_k without interpolation, as scikit-learn's `average_precision_score`.
    """
    total = math.fsum(positives.tolist())
    true = np.cumsum(positives)
    steps = positives != 0  # elsewhere recall does not change; NaN differs from 0
    parts = positives[steps] * (true[steps] / (true + np.cumsum(negatives))[steps])
    return math.fsum(parts.tolist()) / total if total else math.nan
