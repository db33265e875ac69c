"""Give the same numbers to the bit for any number of ranks and any division of batches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.evaluation.data.shard import Shard
from sidecar.metrics import (
    AUC,
    MAE,
    MSE,
    R2,
    RMSE,
    Accuracy,
    BinnedAUC,
    ConfusionMatrix,
    EvalBatch,
    EvalSetInfo,
    LogLoss,
    Mean,
    Perplexity,
    Sums,
    TopK,
)

CLASSES = 3


def sums_of(y, predictions, weights):
    return {
        "hits": np.bincount(y[predictions.argmax(-1) == y], minlength=CLASSES),
        "weight": 0.0 if weights is None else weights.sum(dtype=np.float64),
    }


OF_CLASSES = [
    Accuracy(),
    TopK(2),
    ConfusionMatrix(CLASSES),
    LogLoss(from_logits=True),
    AUC(1),
    Sums(sums_of, lambda totals: {"hits": totals["hits"].max(), "weight": totals["weight"]}),
]
OF_VALUES = [Mean(), MSE(), MAE(), RMSE(), R2(), Mean(lambda y, p: (y < p) * 1.0)]
OF_SEQUENCES = [
    Accuracy(),
    TopK(2),
    ConfusionMatrix(CLASSES),
    Perplexity(from_logits=True),
    BinnedAUC(1, from_logits=True),
]


@st.composite
def divided(draw, sequences=False):
    """Batches of several sizes, and the rank of each; some ranks may have none."""
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=8))
    ranks = draw(st.integers(1, 5))
    owners = draw(st.lists(st.integers(0, ranks - 1), min_size=len(sizes), max_size=len(sizes)))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, t = sum(sizes), (4,) if sequences else ()
    spread = 2.0 ** random.integers(-40, 40, (n, *t))
    y = random.integers(0, CLASSES, (n, *t))
    scores = (random.normal(size=(n, *t, CLASSES)) * 3).round(draw(st.sampled_from([0, 8])))
    weights = draw(st.sampled_from([None, random.random((n, *t)) < 0.7, random.random((n, *t)) * spread]))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    return sizes, owners, ranks, y, scores.astype(dtype), None if weights is None else weights.astype(np.float32)


def numbers(metric, sizes, owners, ranks, y, predictions, weights):
    states = [metric.states(EvalSetInfo(len(y), Shard(rank, ranks))) for rank in range(ranks)]
    first = 0
    for size, owner in zip(sizes, owners, strict=True):
        part = slice(first, first + size)
        metric.add(
            states[owner], EvalBatch(y[part], predictions[part], None if weights is None else weights[part], first)
        )
        first += size
    for name in states[0]:
        rows = np.sum([own[name].used() for own in states], axis=0) > 0
        total = np.sum([own[name].pack(rows) for own in states], axis=0)
        for own in states:
            own[name].unpack(total, rows)
    found = [metric.compute(own) for own in states]
    assert all(each == found[0] for each in found)
    return found[0]


def check(metrics, sizes, owners, ranks, *arrays):
    for metric in metrics:
        one = numbers(metric, sizes, [0] * len(sizes), 1, *arrays)
        assert numbers(metric, sizes, owners, ranks, *arrays) == one


EXAMPLES = pytest.mark.parametrize("examples", [30, pytest.param(200, marks=pytest.mark.nightly)])


def of_many(examples, strategy, try_one):
    """Try so many examples of a strategy."""
    settings(max_examples=examples)(given(strategy)(try_one))()


@EXAMPLES
def test_metrics_of_classes(examples):
    """Ties, masks, weights over 80 binary orders of magnitude, empty batches, ranks without data."""
    of_many(examples, divided(), lambda case: check(OF_CLASSES, *case))


@pytest.mark.seconds
@EXAMPLES
def test_metrics_of_sequences(examples):
    """With weights for each position."""
    of_many(examples, divided(sequences=True), lambda case: check(OF_SEQUENCES, *case))


@pytest.mark.seconds
@EXAMPLES
def test_metrics_of_values(examples):
    """Predicted values beside labels that are wide apart."""

    def try_one(case):
        sizes, owners, ranks, y, scores, weights = case
        check(OF_VALUES, sizes, owners, ranks, y * scores[:, 1] * 1e3, scores[:, 0], weights)

    of_many(examples, divided(), try_one)


@pytest.mark.parametrize("batch", [1, 7, 64, 397])
@pytest.mark.parametrize("weighted", [False, True])
def test_real_data_in_batches_of_any_size(numerals, measure, batch, weighted):
    """Not even the size of batches is seen in a number."""
    few = slice(100 if batch == 1 else None)  # each batch has a cost of its own
    arrays = numerals.y[few], numerals.predictions[few], numerals.weights[few] if weighted else None
    for metric in (Accuracy(), TopK(3), ConfusionMatrix(10), LogLoss(), AUC(8), BinnedAUC(8)):
        assert measure(metric, *arrays, batch=batch, ranks=3) == measure(metric, *arrays)
