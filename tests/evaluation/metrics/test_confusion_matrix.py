"""Compare confusion matrices with those of scikit-learn."""

import math
import warnings

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from sidecar.errors import TaskError
from sidecar.metrics import ConfusionMatrix

NAMES = ("precision", "recall", "f1")


def expected(y, guessed, classes, weights=None, zero_division=0.0):
    """Return what scikit-learn says of all classes, by our names."""
    arguments = {"labels": range(classes), "sample_weight": weights, "zero_division": zero_division}
    numbers = {}
    for average in ("macro", "micro", "weighted"):
        for name, each in zip(
            NAMES, precision_recall_fscore_support(y, guessed, average=average, **arguments), strict=False
        ):
            numbers[f"{name}_{average}"] = each
    by_class = precision_recall_fscore_support(y, guessed, **arguments)
    return numbers, {name: dict(enumerate(each)) for name, each in zip(NAMES, by_class, strict=False)}


def check(found, wanted, **tolerance):
    (numbers, classes), (wanted_numbers, wanted_classes) = found, wanted
    assert numbers == pytest.approx(wanted_numbers, nan_ok=True, **tolerance)
    assert set(classes) == set(NAMES)
    for name in NAMES:
        own = {int(key): each for key, each in classes[name].items()}
        assert own == pytest.approx(wanted_classes[name], nan_ok=True, **tolerance)


def test_all_numbers_are_those_of_scikit_learn(numerals, plain_numbers):
    """Count the ten digits, unweighted and weighted."""
    guessed = numerals.predictions.argmax(axis=1)
    for weights in (None, numerals.weights):
        found = plain_numbers(ConfusionMatrix(10), numerals.y, numerals.predictions, weights)
        check(found, expected(numerals.y, guessed, 10, weights), rel=1e-12)


@pytest.mark.parametrize("zero_division", [0.0, 1.0, math.nan])
@pytest.mark.parametrize("weighted", [False, True])
def test_absent_classes_are_as_in_scikit_learn(numerals, plain_numbers, zero_division, weighted):
    """Classes that are never actual, never predicted, or neither: 0 / 0 is what `zero_division` says."""
    y = np.where(np.isin(numerals.y, (3, 4)), 5, numerals.y)
    scores = numerals.predictions.copy()
    scores[:, [4, 6]] = 0
    weights = numerals.weights if weighted else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = expected(y, scores.argmax(axis=1), 10, weights, zero_division)
    metric = ConfusionMatrix(10, zero_division=zero_division)
    check(plain_numbers(metric, y, scores, weights), wanted, rel=1e-12)


def test_one_class_only(plain_numbers):
    """Everything is of class 1 and taken for it."""
    y, scores = np.ones(5, int), np.tile([0.25, 0.75, 0.0], (5, 1))
    check(plain_numbers(ConfusionMatrix(3), y, scores), expected(y, y, 3), rel=0, abs=0)


def test_binary_one_hot_and_sequences(numerals, plain_numbers):
    """Labels written otherwise give the same numbers."""
    y, p = numerals.y % 2, numerals.predictions[:, 1::2].sum(axis=1)
    check(plain_numbers(ConfusionMatrix(2, "binary"), y, p), expected(y, p > 0.5, 2), rel=1e-12)
    check(plain_numbers(ConfusionMatrix(2, "binary", threshold=0.9), y, p), expected(y, p > 0.9, 2), rel=1e-12)
    plain = plain_numbers(ConfusionMatrix(10), numerals.y[:396], numerals.predictions[:396])
    one_hot = np.eye(10)[numerals.y[:396]]
    assert plain_numbers(ConfusionMatrix(10, "one_hot"), one_hot, numerals.predictions[:396]) == plain
    sequences = numerals.y[:396].reshape(-1, 4), numerals.predictions[:396].reshape(-1, 4, 10)
    assert plain_numbers(ConfusionMatrix(10), *sequences) == plain


def test_names_of_metric_and_classes(measure, numerals):
    """The default prefixes nothing, and goals say that more is better."""
    names = [f"numeral {number}" for number in range(10)]
    found = measure(ConfusionMatrix(names, name="fine"), numerals.y, numerals.predictions)
    averages = [f"fine_{name}_{average}" for name in NAMES for average in ("macro", "micro", "weighted")]
    assert list(found.values) == averages
    assert list(found.classes) == [f"fine_{name}" for name in NAMES]
    assert list(found.classes["fine_f1"]) == names
    everything = [*found.values.values(), *found.classes["fine_recall"].values()]
    assert {each.goal for each in everything} == {"max"}


def ends(found):
    everything = [*found.values.values(), *found.classes["f1"].values(), *found.classes["precision"].values()]
    return [(each.lower, each.upper) for each in everything]


def test_independent_examples_have_intervals(measure, numerals):
    """They have the same bits for any number of ranks, and with a mask of ones."""
    metric = ConfusionMatrix(10)
    found = measure(metric, numerals.y, numerals.predictions)
    assert all(each.lower < each.value <= each.upper for each in found.values.values())
    for ranks in (2, 3, 5):
        assert measure(metric, numerals.y, numerals.predictions, ranks=ranks, batch=9) == found
    assert ends(measure(metric, numerals.y, numerals.predictions, np.ones(len(numerals.y)))) == ends(found)


@pytest.mark.parametrize("kind", ["weights", "groups", "positions"])
def test_examples_that_are_not_independent_have_no_intervals(measure, numerals, kind):
    """Nor have weighted ones: the counts of a matrix do not tell what belongs together."""
    y, predictions = numerals.y[:396], numerals.predictions[:396]
    given = {
        "weights": (y, predictions, np.full(396, 0.5)),
        "groups": (y, predictions),
        "positions": (y.reshape(99, 4), predictions.reshape(99, 4, 10)),
    }[kind]
    groups = {"groups": np.arange(396) // 4} if kind == "groups" else {}
    assert set(ends(measure(ConfusionMatrix(10), *given, **groups))) == {(None, None)}


@pytest.mark.parametrize("zero_division", [0.0, 1.0])
def test_no_weight_and_nan_are_nan(plain_numbers, zero_division):
    """In every number, whatever stands for 0 / 0."""
    metric = ConfusionMatrix(2, zero_division=zero_division)
    nothing = plain_numbers(metric, [0, 1], np.eye(2), [0.0, 0.0])
    broken = plain_numbers(metric, [0, 1], [[1, 0], [math.nan, 1]])
    for numbers, classes in (nothing, broken):
        assert len(numbers) == 9
        everything = [*numbers.values(), *(each for of in classes.values() for each in of.values())]
        assert all(math.isnan(each) for each in everything)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ConfusionMatrix(1), "number from 2.*found 1"),
        (lambda: ConfusionMatrix("ab"), "different names.*'ab'"),
        (lambda: ConfusionMatrix(["a", "a"]), "different names"),
        (lambda: ConfusionMatrix(["a", 1]), "different names"),
        (lambda: ConfusionMatrix(True), "different names"),
        (lambda: ConfusionMatrix(3, "binary"), r"labels='binary'.*\b2\b.*\b3\b"),
        (lambda: ConfusionMatrix(3, "other"), "labels='other'"),
        (lambda: ConfusionMatrix(3, zero_division=0.5), r"zero_division=0\.5.*NaN"),
    ],
)
def test_wrong_arguments_are_told_at_once(make, told):
    """Before any data are read."""
    with pytest.raises(TaskError, match=told):
        make()


def test_another_number_of_classes_is_told(measure):
    """With the line to write."""
    with pytest.raises(TaskError, match=r"\b2 classes.*\b3\b.*ConfusionMatrix\(2\b"):
        measure(ConfusionMatrix(3), [0, 1], np.eye(2))
