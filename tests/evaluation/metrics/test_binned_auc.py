"""Compute areas under curves from a histogram of scores."""

import numpy as np
import pytest
from evaluation.metrics.areas import areas

from sidecar.errors import TaskError
from sidecar.metrics import AUC, BinnedAUC


def test_binned_auc_is_that_of_rounded_scores(odd, both):
    """Scores in the same bin are ties; a score of 1 is in the last bin."""
    y, p, weights = odd
    p = np.concatenate([[1.0, 0.0], p[2:]])
    for bins in (2, 10, 1000):
        rounded = np.minimum(np.floor(p * bins), bins - 1)
        assert both(BinnedAUC(bins=bins), y, p) == pytest.approx(areas(y, rounded), rel=1e-12)
        assert both(BinnedAUC(bins=bins), y, p, weights) == pytest.approx(areas(y, rounded, weights), rel=1e-12)


def test_binned_auc_errs_by_half_the_ties_at_most(odd, both):
    """The bound that its docstring gives, here for coarse bins."""
    y, p, _ = odd
    for bins in (5, 50):
        bin_of = np.minimum(np.floor(p * bins), bins - 1)
        ties = np.mean(bin_of[y == 1][:, None] == bin_of[y == 0])
        assert abs(both(BinnedAUC(bins=bins), y, p)[0] - areas(y, p)[0]) <= ties / 2


def test_binned_auc_of_logits_takes_their_sigmoid(odd, both):
    """Also of such as overflow."""
    y, p, _ = odd
    logits = np.log(p) - np.log1p(-p)
    binned = np.floor(1 / (1 + np.exp(-logits)) * 100)
    assert both(BinnedAUC(bins=100, from_logits=True), y, logits) == pytest.approx(areas(y, binned), rel=1e-12)
    assert both(BinnedAUC(from_logits=True), [0, 1], [-1e4, 1e4]) == [1, 1]


def test_binned_auc_counts_positions_of_sequences(odd, both):
    """Which an exact one refuses."""
    y, p, _ = odd
    kept = np.arange(396).reshape(-1, 4) % 5 > 0
    binned = np.floor(p[:396] * 1000)[kept.ravel()]
    found = both(BinnedAUC(), y[:396].reshape(-1, 4), p[:396].reshape(-1, 4), kept)
    assert found == pytest.approx(areas(y[:396][kept.ravel()], binned), rel=1e-12)
    with pytest.raises(TaskError, match=r"'auc'.*\(32, 4\).*BinnedAUC"):
        both(AUC(), y[:396].reshape(-1, 4), p[:396].reshape(-1, 4))


def test_scores_outside_the_bins_are_told(both):
    """They are logits, most likely."""
    for wrong in (1.5, -0.25):
        with pytest.raises(TaskError, match=f"scores .*found {wrong}.*from_logits=True"):
            both(BinnedAUC(), [0, 1], [0.5, wrong])
    for bins in (1, 2.0, True):
        with pytest.raises(TaskError, match=rf"BinnedAUC\(bins={bins}\).*from 2\b"):
            BinnedAUC(bins=bins)
