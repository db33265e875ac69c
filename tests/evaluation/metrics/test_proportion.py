"""Compute a share with its interval from exact counts."""

import math

import numpy as np
import pytest

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.intervals import wilson
from sidecar.metrics import Accuracy, EvalBatch, EvalSetInfo, TopK


@pytest.mark.parametrize("metric", [Accuracy(), TopK(2)])
def test_intervals_are_wilsons(numerals, measure, metric):
    """Where one value per example is unweighted; a mask leaves fewer examples, other weights no interval."""
    kept = np.arange(397) % 3 > 0
    for weights, count in ((None, 397), (kept, int(kept.sum()))):
        found = measure(metric, numerals.y, numerals.predictions, weights).values[metric.name]
        right = round(found.value * count)
        assert (found.lower, found.upper) == wilson(right, count)
        assert found.goal == "max"
    sequences = numerals.y[:396].reshape(-1, 2), numerals.predictions[:396].reshape(-1, 2, 10)
    assert measure(metric, numerals.y, numerals.predictions, numerals.weights).values[metric.name].lower is None
    assert measure(metric, *sequences).values[metric.name].lower is None
    assert measure(metric, *sequences, np.ones((198, 2))).values[metric.name].lower is None


def test_another_interval_is_an_argument(numerals, measure):
    """It is told counts, and only where there is something to tell."""
    told = []

    def interval(sample):
        told.append(sample)
        return 0.25, 0.75

    for metric in (Accuracy(interval=interval), TopK(1, interval=interval)):
        found = measure(metric, numerals.y, numerals.predictions).values[metric.name]
        assert (found.lower, found.upper) == (0.25, 0.75)
        assert told[-1].count == told[-1].binary == 397
        assert told[-1].total == told[-1].squares == round(found.value * 397)
    told.clear()
    assert measure(Accuracy(interval=interval), [0], [[0.5, 0.25]], [0.0]).values["accuracy"].lower is None
    assert not told


@pytest.mark.parametrize("metric", [Accuracy(), TopK(1)])
def test_no_weight_is_nan(number, metric):
    """No example, an empty batch, or a weight of 0 for each."""
    assert math.isnan(number(metric, np.zeros(0, int), np.zeros((0, 3))))
    assert math.isnan(number(metric, [0, 1], np.eye(2), [0.0, 0.0]))
    states = metric.states(EvalSetInfo(0, Shard(0, 1)))
    metric.add(states, EvalBatch(np.zeros(0, int), np.zeros((0, 3), np.float32), np.zeros(0, np.float32), 0))
    assert metric.compute(states).values[metric.name].hex == "nan"
