"""Measure with the metrics that a task lists, whatever kind they are."""

import numpy as np
import pytest
from evaluation.backends.python.tasks import (
    GENERATOR,
    Confident,
    X,
    Y,
    predict,
    run,
    task,
)

from sidecar import EvalSet, Task
from sidecar.metrics import Accuracy, InTurn, Mean, Sums

WEIGHTS = GENERATOR.random(103).astype(np.float32)


def test_a_metric_of_ones_own_is_merged_over_ranks(checkpoint, tmp_path):
    """As the docstring of `Metric` shows it."""
    ends = run(task(metrics=lambda: [Confident()]), checkpoint, tmp_path / "a", ranks=2)
    expected = np.mean((X @ np.load(checkpoint)).max(axis=1) > 0.9)
    assert [end.result.metrics["test"]["confident"].value for end in ends] == [expected] * 2


def test_numbers_that_are_not_finite_are_counted_and_located(checkpoint, tmp_path):
    """As with TensorFlow, by where they are."""
    x = X.copy()
    x[20, 1] = np.nan
    (done,) = run(task(EvalSet(lambda: (x, Y), nonfinite="count")), checkpoint, tmp_path / "a")
    found = done.result.nonfinite["test"]
    assert {place: (each.examples, each.first_example) for place, each in found.items()} == {
        "input": (1, 20),
        "prediction": (1, 20),
    }


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_functions_of_other_libraries_get_all_examples(checkpoint, tmp_path, ranks):
    """The area under the curve of scikit-learn for several classes, next to a metric that adds up."""
    from sklearn.metrics import cohen_kappa_score

    kappa = InTurn(lambda y, scores: cohen_kappa_score(y, scores.argmax(1)), name="kappa", goal="max")
    ends = run(task(metrics=lambda: [Accuracy(), kappa]), checkpoint, tmp_path / "a", ranks)
    right = cohen_kappa_score(Y, predict(np.load(checkpoint), X).argmax(1))
    assert [end.result.metrics["test"]["kappa"].value for end in ends] == [right] * ranks
    assert all("kappa is a function of all examples" in note for end in ends for note in end.result.notes)


@pytest.mark.parametrize("dtypes", [("uint8", "uint8"), ("int16", "uint8"), ("int32", "int32")])
@pytest.mark.parametrize("ranks", [1, 2])
def test_functions_get_integers_of_few_bits_as_int64(checkpoint, tmp_path, ranks, dtypes):
    """Differences and squares of the pixels of two images would wrap around in numpy, without an error."""
    limit = np.iinfo(dtypes[0]).max
    labels, images = (GENERATOR.integers(0, limit if dtype == dtypes[0] else 255, 103) for dtype in dtypes)
    x, y = images.astype(dtypes[1]), labels.astype(dtypes[0])
    metrics = [
        Mean(lambda y, p: np.abs(y - p), name="mean"),
        Sums(lambda y, p: {"squares": np.sum((y - p) ** 2.0)}, lambda totals: totals["squares"], name="sum"),
        InTurn(lambda y, p: float(np.abs(p - y).max()), name="largest"),
    ]
    given = task(lambda: (x, y), predict=lambda _, x: x, metrics=lambda: metrics)
    end, *_ = run(given, checkpoint, tmp_path / "a", ranks)
    found = {name: number.value for name, number in end.result.metrics["test"].items()}
    differences = np.abs(labels - images)
    right = {"mean": differences.mean(), "sum": np.sum(differences**2.0), "largest": differences.max()}
    assert found == pytest.approx(right, rel=1e-12)


@pytest.mark.tensorflow
def test_counts_are_those_of_tensorflow(checkpoint, tmp_path, evaluate):
    """The same examples and predictions: every state that counts is equal, and so are the numbers made of them."""
    import keras

    from sidecar import results

    model = np.load(checkpoint).astype(np.float32)
    x = X.astype(np.float32)
    scores = x @ model  # computed once: frameworks may round a product differently

    def build():
        return keras.Sequential([keras.Input((3,)), keras.layers.Activation("linear")])

    chosen = {"metrics": lambda: [Accuracy()], "batch_size": 16}
    theirs = evaluate(
        Task(build, {"test": lambda: (scores, Y, WEIGHTS)}, restore=lambda *_: None, **chosen), str(checkpoint), ranks=2
    )
    ours = run(
        task(lambda: (scores, Y, WEIGHTS), predict=lambda _, x: x, **chosen), checkpoint, tmp_path / "a", ranks=2
    )
    assert ours[0].result.metrics["test"]["accuracy"] == theirs["accuracy"]
    states = results.read(tmp_path / "a").states["test"]
    assert int(states["examples"].integers()) == theirs.examples["test"]
    assert ours[0].result.data["test"].fingerprint == theirs.streams[0][0].fingerprint
