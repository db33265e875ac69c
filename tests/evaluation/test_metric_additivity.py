"""Metrics that depend on how examples are divided into batches are found, and those that do not are left alone."""

import numpy as np
import pytest

from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.metric_additivity import contents_of, metric_depends_on_batches
from sidecar.metrics import (
    AUC,
    MAE,
    R2,
    RMSE,
    Accuracy,
    BinnedAUC,
    ConfusionMatrix,
    EvalBatch,
    ExactSum,
    LogLoss,
    Mean,
    MetricResult,
    MinMax,
    Perplexity,
    Sums,
    value,
)

GENERATOR = np.random.default_rng(5)
SCORES = GENERATOR.random((91, 3)).astype(np.float32)
SCORES /= SCORES.sum(axis=1, keepdims=True)
CLASSES = GENERATOR.integers(0, 3, 91)
BINARY = GENERATOR.integers(0, 2, 91)
WEIGHTS = GENERATOR.random(91).astype(np.float32)


def auc(y, scores):
    return (scores[y == 1][:, None] > scores[y == 0][None]).mean()


class Own:
    """A metric of one's own, which adds `delta(y, predictions)` to an exact sum."""

    name = "own"

    def __init__(self, delta):
        self._delta = delta

    def states(self, info):
        """One sum, and the largest score."""
        return {"sum": ExactSum((), "float64"), "largest": MinMax((), "float64", "max", info.shard)}

    def add(self, states, batch):
        """Add what the function returns."""
        states["sum"].add(np.float64(self._delta(batch.y, batch.predictions)))
        states["largest"].add(np.float64(batch.predictions.max()))

    def compute(self, states):
        """Return the sum as the value of the metric."""
        return MetricResult({"own": value(float(states["sum"].round()), "none")})


@pytest.mark.parametrize(
    ("metric", "y", "predictions"),
    [
        (Accuracy(), CLASSES, SCORES),
        (ConfusionMatrix(3), CLASSES, SCORES),
        (LogLoss(), CLASSES, SCORES),
        (Perplexity(), CLASSES, SCORES),
        (AUC(), BINARY, SCORES[:, 0]),
        (BinnedAUC(), BINARY, SCORES[:, 0]),
        (MAE(), SCORES[:, 1], SCORES[:, 0]),
        (RMSE(), SCORES[:, 1], SCORES[:, 0]),
        (R2(), SCORES[:, 1], SCORES[:, 0]),
        (Mean(lambda y, p: np.abs(y - p[:, 0])), CLASSES, SCORES),
        (Sums(lambda y, p: {"squares": np.sum(np.square(y - p[:, 0]))}, lambda t: t["squares"]), CLASSES, SCORES),
        (Sums(lambda y, p: {"loss": np.mean(p) * len(y), "n": len(y)}, lambda t: t["loss"] / t["n"]), CLASSES, SCORES),
        (Own(lambda y, p: np.sum(y - p[:, 0].astype(np.float64))), CLASSES, SCORES),
    ],
)
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_sums_over_examples_do_not_depend(metric, y, predictions, weights):
    """Counts and sums of a batch are those of its halves, whatever rounds them."""
    if weights is not None and isinstance(metric, Sums | Own | AUC):
        weights = None
    assert metric_depends_on_batches(metric, EvalBatch(y, predictions, weights, first=17)) is False


@pytest.mark.parametrize(
    "metric",
    [
        Sums(lambda y, p: {"auc": auc(y, p[:, 0]), "n": 1}, lambda t: t["auc"] / t["n"]),
        Sums(lambda y, p: {"auc": auc(y, p[:, 0]) * len(y), "n": len(y)}, lambda t: t["auc"] / t["n"]),
        Mean(lambda y, p: np.full(len(y), np.median(p[:, 0]))),
        Mean(lambda _, p: p[:, 0] - p[:, 0].mean()),
        Own(lambda y, p: np.mean(y == p.argmax(1))),
        Own(lambda _, p: np.stack(list(p)[:91])[90, 0]),
    ],
)
def test_values_of_a_batch_depend(metric):
    """A value that a batch as a whole has is not the sum of those of its halves; nor one that a half lacks."""
    assert metric_depends_on_batches(metric, EvalBatch(BINARY, SCORES, first=0)) is True


def test_one_example_is_not_divided():
    """There is nothing to find in a batch of one example, and labels of another length are not judged."""
    median = Mean(lambda _, p: np.full(len(p), np.median(p)))
    assert metric_depends_on_batches(median, EvalBatch(BINARY[:1], SCORES[:1])) is False
    assert metric_depends_on_batches(median, EvalBatch(BINARY[:7], SCORES)) is None


def test_contents_show_what_a_metric_keeps():
    """A metric without memory has the same contents each time, and one that counts its calls does not."""
    calls = []
    counting = Own(lambda *_: calls.append(0) or len(calls))
    batch = EvalBatch(CLASSES, SCORES, first=0)
    assert contents_of(Accuracy(), batch) == contents_of(Accuracy(), batch)
    with pytest.raises(EvaluationError, match="keeps something"):
        contents_of(counting, batch)


class OfScale:
    """A metric that counts the scores above half of the largest one that its states have seen."""

    name = "of_scale"

    def states(self, info):
        """A count, and the largest score."""
        return {"count": ExactSum((), "int64"), "largest": MinMax((), "float64", "max", info.shard)}

    def add(self, states, batch):
        """Count by what the states hold so far."""
        states["largest"].add(np.float64(batch.predictions.max()))
        states["count"].add(np.count_nonzero(batch.predictions > states["largest"].values() / 2))

    def compute(self, states):
        """Return the count."""
        return MetricResult({"of_scale": value(int(states["count"].integers()), "none")})


def test_a_metric_that_reads_its_states_is_refused():
    """They hold the batches of one worker; the first batch shows it only in halves."""
    scores = SCORES * np.linspace(0.2, 1, len(SCORES), dtype=np.float32)[:, None]
    with pytest.raises(EvaluationError, match="reads its states"):
        contents_of(OfScale(), EvalBatch(CLASSES, scores, first=0))


def test_a_number_that_few_examples_share_is_kept_by_nothing():
    """The order of eight examples is perfect at both ends of a batch, and not in between."""
    y = np.arange(64.0)
    predictions = y.copy()
    predictions[28:36] = predictions[28:36][::-1]

    def rank_correlation(y, p):
        return np.full(len(y), np.corrcoef(np.argsort(np.argsort(y)), np.argsort(np.argsort(p)))[0, 1].round(9))

    assert metric_depends_on_batches(Mean(rank_correlation), EvalBatch(y, predictions, None, 0, 64))
