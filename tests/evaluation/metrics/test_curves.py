"""Compute areas under curves from weights at thresholds."""

import math

import numpy as np
import pytest
from evaluation.metrics.areas import areas

from sidecar.metrics import AUC, BinnedAUC

NAN = math.nan


def test_exact_auc_is_that_of_scikit_learn(odd, both):
    """Also with many equal scores, also weighted; of float32 scores and of logits."""
    y, p, weights = odd
    for scores in (p, p.round(1), p.astype(np.float32), np.log(p), np.zeros(397), -p):
        assert both(AUC(), y, scores) == pytest.approx(areas(y, scores), rel=1e-12)
        assert both(AUC(), y, scores, weights) == pytest.approx(areas(y, scores, weights), rel=1e-12)


@pytest.mark.parametrize("metric", [AUC(), BinnedAUC()])
def test_what_cannot_be_ranked_is_nan(both, metric):
    """One class only has no ROC; without a positive there is no precision; nothing at all has neither."""
    for arrays, roc, precision in (
        (([1, 1], [0.25, 0.75]), NAN, 1.0),
        (([0, 0], [0.25, 0.75]), NAN, NAN),
        (([0, 1], [0.25, 0.75], [0.0, 1.0]), NAN, 1.0),
        (([0, 1], [0.25, 0.75], [1.0, 0.0]), NAN, NAN),
        (([0, 1], [0.25, 0.75], [0.0, 0.0]), NAN, NAN),
        ((np.zeros(0), np.zeros(0)), NAN, NAN),
        (([0, 1, 1], [0.25, 0.75, NAN]), NAN, NAN),
        (([0, 1, 1], [0.25, 0.75, NAN], [1.0, 1.0, 0.0]), 1.0, 1.0),
        (([False, True], [0.5, 0.5]), 0.5, 0.5),
    ):
        assert both(metric, *arrays) == pytest.approx([roc, precision], nan_ok=True, rel=0, abs=0)
