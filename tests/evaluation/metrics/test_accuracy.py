"""Compare accuracies with those of scikit-learn."""

import math

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, top_k_accuracy_score

from sidecar.errors import TaskError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.intervals import wilson
from sidecar.metrics import Accuracy, ConfusionMatrix, EvalBatch, EvalSetInfo, TopK

NAN = math.nan


def test_accuracy_is_that_of_scikit_learn(numerals, number):
    """Without weights it is the same quotient of counts, to the bit; with weights to 1e-12."""
    guessed = numerals.predictions.argmax(axis=1)
    assert number(Accuracy(), numerals.y, numerals.predictions) == accuracy_score(numerals.y, guessed)
    assert number(Accuracy(), numerals.y, numerals.predictions, numerals.weights) == pytest.approx(
        accuracy_score(numerals.y, guessed, sample_weight=numerals.weights), rel=1e-12
    )


def test_positions_of_sequences_count_one_by_one(numerals, number):
    """With a mask as weights: what is masked may hold any label and any score."""
    y, p = numerals.y[:390].reshape(30, 13).copy(), numerals.predictions[:390].reshape(30, 13, 10).copy()
    kept = np.arange(13) < (np.arange(30) % 13)[:, None]
    expected = accuracy_score(y[kept], p[kept].argmax(axis=-1))
    y[~kept], p[~kept] = -1, NAN
    for mask in (kept, kept.astype(np.float32)):
        assert number(Accuracy(), y, p, mask) == expected


def test_weights_of_examples_hold_for_all_their_positions(numerals, number):
    """As Keras broadcasts them."""
    y, p, weights = numerals.y[:390], numerals.predictions[:390], np.linspace(0, 2, 30, dtype=np.float32)
    wanted = accuracy_score(y, p.argmax(axis=-1), sample_weight=np.repeat(weights, 13))
    for own in (weights, weights[:, None]):
        found = number(Accuracy(), y.reshape(30, 13), p.reshape(30, 13, 10), own)
        assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("k", [1, 2, 5, 10])
def test_top_k_is_that_of_scikit_learn(numerals, number, k):
    """To the bit; the scores in coarse steps, so that many are equal."""
    for scores in (numerals.predictions, numerals.predictions.round(1), np.zeros((397, 10))):
        right = top_k_accuracy_score(numerals.y, scores, k=k, labels=range(10), normalize=False) if k < 10 else 397
        assert number(TopK(k), numerals.y, scores) == right / 397
        assert number(TopK(k, "one_hot"), np.eye(10)[numerals.y], scores) == right / 397
    if k < 10:
        expected = top_k_accuracy_score(
            numerals.y, numerals.predictions, k=k, labels=range(10), sample_weight=numerals.weights
        )
        assert number(TopK(k), numerals.y, numerals.predictions, numerals.weights) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("metric", "good"),
    [(Accuracy(), np.eye(2, 3)), (TopK(2), np.eye(2, 3)), (Accuracy("binary"), np.array([0.25, 0.75]))],
)
def test_nan_among_scores_that_count_is_nan(number, measure, metric, good):
    """Not an error of the model's judgement: it broke. Where the weight is 0 it does not matter."""
    y, bad = np.array([0, 1]), good.copy()
    bad[1, ...] = NAN
    assert number(metric, y, good) == 1
    assert math.isnan(number(metric, y, bad))
    assert math.isnan(number(metric, y, bad, [1.0, 0.5]))
    assert number(metric, y, bad, [1.0, 0.0]) == 1
    assert measure(metric, y, bad).values[metric.name].lower is None


@pytest.mark.parametrize("metric", [Accuracy(), TopK(2)])
def test_one_nan_among_many_scores_is_enough(number, metric):
    """Also where another score is the largest."""
    assert math.isnan(number(metric, [0], [[0.75, NAN, 0.0]]))


@pytest.mark.parametrize(
    ("metric", "y", "predictions", "told"),
    [
        (Accuracy(), [0, 3], np.eye(2), "'accuracy': labels .*found 3"),
        (Accuracy(), [0, 2], np.eye(2), "found 2"),
        (Accuracy(), [0, -1], np.eye(2), "found -1.*weight 0"),
        (Accuracy(), [0, 0.5], np.eye(2), r"found 0\.5"),
        (Accuracy(), [0, NAN], np.eye(2), "found nan"),
        (Accuracy(), [0, 1, 1], np.eye(2), r"\(3,\).*\(2, 2\).*labels='index'"),
        (Accuracy(), [0, 1], [0.5, 0.5], r"\(2,\).*'one_hot' or 'binary'"),
        (Accuracy(), [0, -100], np.eye(2), r"\(y\.clip\(0\), predictions, y >= 0\)"),
        (Accuracy(), [0, 1], [[0.5], [0.5]], r"\(2,\).*'one_hot' or 'binary'"),
        (Accuracy("one_hot"), [[1, 1], [1, 0]], np.eye(2), r"one-hot labels .*\[1, 1\]"),
        (Accuracy("one_hot"), [[0.9, 0.1], [1, 0]], np.eye(2), "one-hot labels"),
        (Accuracy("one_hot"), [[0, 0], [1, 0]], np.eye(2), "one-hot labels"),
        (Accuracy("one_hot"), [[0, 0.5], [1, 0]], np.eye(2), "one-hot labels"),
        (Accuracy("binary"), [0, 2], [0.5, 0.5], "binary labels .*found 2"),
        (Accuracy("binary"), [0, 1], [0.5, -1.5], "found -1.5: give threshold=0"),
        (ConfusionMatrix(2, "binary"), [0, 1], [0.5, 3.0], "found 3: give threshold=0"),
        (Accuracy("binary"), [0, 1], np.eye(2), r"\(2,\).*\(2, 2\).*same shape"),
        (Accuracy(), ["a", "b"], np.eye(2), "labels .*<U1"),
        (Accuracy(), [0, 1], np.eye(2) * 1j, "predictions .*complex128"),
        (TopK(3), [0, 1], np.eye(2), r"TopK\(k=3\).*\b2\b"),
    ],
)
def test_mistakes_are_told_in_one_sentence(number, metric, y, predictions, told):
    """What, which metric, what was found."""
    with pytest.raises(TaskError, match=told):
        number(metric, y, predictions)


def test_wrong_arguments_are_told_at_once():
    """Before any data are read."""
    for k in (0, 2.0, True):
        with pytest.raises(TaskError, match=rf"TopK\(k={k}\).*from 1\b"):
            TopK(k)
    with pytest.raises(TaskError, match=r"labels='sparse'.*'index', 'one_hot', 'binary'"):
        Accuracy("sparse")
    with pytest.raises(TaskError, match=r"labels='binary'.*'index', 'one_hot'$"):
        TopK(1, "binary")


@pytest.mark.parametrize("metric", [Accuracy(), TopK(2)])
def test_intervals_are_wilsons(numerals, measure, metric):
    """Where one value per example is unweighted; a mask leaves fewer examples."""
    kept = np.arange(397) % 3 > 0
    for weights, count in ((None, 397), (kept, int(kept.sum()))):
        found = measure(metric, numerals.y, numerals.predictions, weights).values[metric.name]
        right = round(found.value * count)
        assert (found.lower, found.upper) == wilson(right, count)
        assert found.goal == "max"


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
