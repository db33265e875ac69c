"""Reduce batches to one score for each example."""

import math

import numpy as np
import pytest
from evaluation.metrics.areas import areas

from sidecar.metrics import AUC, BinnedAUC


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
