"""The Brier score and calibration errors, against scikit-learn and simulated models."""

import math

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss

from sidecar.errors import TaskError
from sidecar.evaluation.intervals import wilson
from sidecar.metrics import Calibration


def by_hand(confidences, right, bins=15):
    """The error of Guo and others, and the shares of bins."""
    number = np.minimum((confidences * bins).astype(int), bins - 1)
    parts = [(confidences[number == each], right[number == each]) for each in np.unique(number)]
    return sum(len(p) * abs(p.mean() - r.mean()) for p, r in parts) / len(right), parts


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_numbers_of_numerals(numerals, measure, ranks):
    """Ten classes, the same bits for any number of ranks, and logits as their probabilities."""
    found = measure(Calibration(), numerals.y, numerals.predictions, ranks=ranks)
    assert found == measure(Calibration(), numerals.y, numerals.predictions)
    one_hot = np.eye(10)[numerals.y]
    assert found.values["brier"].value == pytest.approx(np.square(numerals.predictions - one_hot).sum(1).mean(), 1e-12)
    assert found.values["brier"].lower < found.values["brier"].value < found.values["brier"].upper
    confidences, right = numerals.predictions.max(1), numerals.predictions.argmax(1) == numerals.y
    error, parts = by_hand(confidences, right)
    assert found.values["ece"].value == pytest.approx(error, rel=1e-10)
    last = found.classes["reliability"]["0.93-1"]
    assert (last.lower, last.upper) == wilson(int(parts[-1][1].sum()), len(parts[-1][1]))
    assert found.classes["confidence"]["0.93-1"].value == pytest.approx(parts[-1][0].mean(), rel=1e-12)
    logits = measure(Calibration(from_logits=True, name="own"), numerals.y, np.log(numerals.predictions))
    assert logits.values["own_ece"].value == pytest.approx(error, rel=1e-9)


def test_binary_labels_and_weights(measure):
    """As scikit-learn has it; the error without bias needs counts."""
    random = np.random.default_rng(0)
    scores, weights = random.random(300), random.exponential(size=300).astype(np.float32)
    y = (random.random(300) < scores).astype(int)
    plain, weighted = (measure(Calibration("binary"), y, scores, each).values for each in (None, weights))
    assert plain["brier"].value == pytest.approx(brier_score_loss(y, scores), rel=1e-12)
    assert weighted["brier"].value == pytest.approx(brier_score_loss(y, scores, sample_weight=weights), rel=1e-6)
    assert plain["ece"].value == pytest.approx(by_hand(scores, y)[0], rel=1e-10)
    assert "calibration_error" not in weighted


@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_the_error_without_bias_is_that_of_the_model(measure, shift):
    """On average over 300 sets of 200 examples, of a calibrated model or one too sure by 0.1; `ece` is too large."""
    random, squares, errors = np.random.default_rng(2), [], []
    for _ in range(300):
        scores = random.uniform(0.2, 0.8, 200)
        found = measure(Calibration("binary", bins=10), random.random(200) < scores - shift, scores, batch=200).values
        squares.append(found["calibration_error"].value ** 2)
        errors.append(found["ece"].value)
    assert np.mean(squares) == pytest.approx(shift**2, abs=0.003)
    assert np.mean(errors) > shift + (0.005 if shift else 0.05)


def test_what_has_no_number(measure):
    """NaN stays NaN, and wrong arguments are told."""
    found = measure(Calibration("binary"), [0, 1], [0.5, math.nan]).values
    assert {each.hex for each in found.values()} == {"nan"}
    assert measure(Calibration("binary"), np.zeros(0), np.zeros(0)).values["ece"].hex == "nan"
    for bins in (1, 51, True, 2.5):
        with pytest.raises(TaskError, match="bins"):
            Calibration(bins=bins)
    with pytest.raises(TaskError, match="from_logits"):
        measure(Calibration("binary"), [0, 1], [0.5, 1.5])
