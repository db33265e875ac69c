"""Real predictions on real data, and evaluations by any number of ranks without processes or framework."""

import warnings
from dataclasses import dataclass

import numpy as np
import pytest

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo


@dataclass(frozen=True)
class Predicted:
    """Labels and what a model says about them: probabilities (n, classes), or values (n,)."""

    y: np.ndarray
    predictions: np.ndarray
    weights: np.ndarray  # float32, some of them 0


@pytest.fixture(scope="session")
def numerals():
    """Handwritten digits, 397 held out (a prime), and a model of one short fit."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    x, y = load_digits(return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is meant to stop early: a model that errs
        model = LogisticRegression(max_iter=8).fit(x[397:] / 16, y[397:])
    return Predicted(y[:397], model.predict_proba(x[:397] / 16), weights_of(397))


@pytest.fixture(scope="session")
def diabetes():
    """Progression of a disease, and a linear model of it."""
    from sklearn.datasets import load_diabetes
    from sklearn.linear_model import LinearRegression

    x, y = load_diabetes(return_X_y=True)
    return Predicted(y, LinearRegression().fit(x, y).predict(x), weights_of(len(y)))


def weights_of(count):
    found = np.random.default_rng(7).exponential(size=count).astype(np.float32)
    found[::5] = 0
    found[1::5] = 1
    return found


@pytest.fixture(scope="session")
def measure():
    """Numbers of a metric: batches go round the ranks, states are reduced by the rows that anybody uses."""

    def run(metric, y, predictions, weights=None, *, ranks=1, batch=32, known=True, groups=None):
        y, predictions = np.asarray(y), np.asarray(predictions)
        weights = None if weights is None else np.asarray(weights)
        extents = [EvalSetInfo(len(y) if known else None, Shard(rank, ranks), groups) for rank in range(ranks)]
        states = [metric.states(info) for info in extents]
        for number, first in enumerate(range(0, len(y), batch)):
            part = slice(first, first + batch)
            own = None if weights is None else weights[part]
            metric.add(states[number % ranks], EvalBatch(y[part], predictions[part], own, first if known else None))
        return reduce(metric, states)

    return run


def reduce(metric, ranks):
    for name in ranks[0]:
        of_ranks = [states[name] for states in ranks]
        rows = np.sum([state.used() for state in of_ranks], axis=0) > 0
        total = np.sum([state.pack(rows) for state in of_ranks], axis=0)
        for state in of_ranks:
            state.unpack(total, rows)
    found = [metric.compute(states) for states in ranks]
    assert all(each == found[0] for each in found)
    return found[0]


@pytest.fixture(scope="session")
def number(measure):
    """The only number of a metric, NaN and infinities included."""

    def run(metric, *arrays, **options):
        values = measure(metric, *arrays, **options).values
        assert list(values) == [metric.name]
        return plain(values[metric.name])

    return run


@pytest.fixture(scope="session")
def plain_numbers(measure):
    """All numbers of a metric by name, and those of classes."""

    def run(metric, *arrays, **options):
        found = measure(metric, *arrays, **options)
        classes = {name: {key: plain(each) for key, each in of.items()} for name, of in found.classes.items()}
        return {name: plain(each) for name, each in found.values.items()}, classes

    return run


def plain(value):
    return float(value.hex) if value.value is None else value.value


@pytest.fixture(scope="session")
def both(plain_numbers):
    """ROC-AUC and average precision."""

    def run(metric, *arrays, **options):
        numbers, classes = plain_numbers(metric, *arrays, **options)
        assert list(numbers) == [f"roc_{metric.name}", f"pr_{metric.name}"]
        assert not classes
        return list(numbers.values())

    return run


@pytest.fixture(scope="session")
def odd(numerals):
    """Which numerals are odd, and the probability that the model gives to it."""
    return numerals.y % 2, numerals.predictions[:, 1::2].sum(axis=1), numerals.weights
