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


@pytest.mark.parametrize("kind", [AUC, BinnedAUC])
def test_one_class_against_all_others(numerals, both, kind):
    """Take scores for all classes."""
    y, scores = numerals.y == 3, numerals.predictions[:, 3]
    wanted = both(kind(), y, scores)
    assert both(kind(3), numerals.y, numerals.predictions) == wanted
    assert both(kind(), y[:, None].astype(np.float32), scores[:, None]) == wanted


def test_masked_labels_and_scores_may_be_anything(odd, both):
    """Weight 0 is looked at by nobody, whatever stands there."""
    y, p, _ = odd
    kept = np.arange(397) % 3 > 0
    wanted = pytest.approx(areas(y[kept], p[kept]), rel=1e-12)
    assert both(AUC(), np.where(kept, y, -1), np.where(kept, p, 7), kept) == wanted


def test_infinite_and_signed_zero_scores_are_scores(both):
    """Infinities of one sign tie, and so do zeros of both."""
    y, scores = [0, 1, 0, 1, 1], [-math.inf, math.inf, math.inf, 0.0, -1.0]
    assert both(AUC(), y, scores) == pytest.approx(areas(y, np.nan_to_num(scores)), rel=1e-12)
    assert both(AUC(), [0, 1], [0.0, -0.0])[0] == 0.5
