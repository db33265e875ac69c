"""Every metric class of Keras 3 and of tf_keras, tried as the worker uses it: which work, and why others are refused.

`python tests/evaluation/backends/tensorflow/every_metric.py` writes the table of the docs anew.
"""

import inspect
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

TABLE = Path(__file__).parents[4] / "docs" / "reference" / "tensorflow-metrics.md"
EXAMPLES = 203
BATCHES = (64, 64, 7, 1, 50, 17)  # uneven on purpose, and one of a single example
RANKS = 3
_HALVES = (slice(0, 32), slice(32, None))  # of the first batch
CLASSES = 5


def data(kind):
    """Labels and predictions of one kind, the same each time."""
    random = np.random.default_rng(7)
    scores = random.normal(size=(EXAMPLES, CLASSES)).astype("float32")
    probabilities = (np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)).astype("float32")
    labels = random.integers(0, CLASSES, EXAMPLES)
    one_hot = np.eye(CLASSES, dtype="float32")[labels]
    single = (1 / (1 + np.exp(-scores[:, :1]))).astype("float32")
    return {
        "classes": (labels.astype("int32"), probabilities),
        "one-hot": (one_hot, probabilities),
        "binary": ((labels[:, None] > 2).astype("float32"), single),
        "signs": ((2.0 * (labels[:, None] > 2) - 1).astype("float32"), scores[:, :1]),
        "numbers": ((scores[:, :2] + 0.5).astype("float32"), (scores[:, :2] * 0.9).astype("float32")),
        "positive": (probabilities + 0.1, probabilities[:, ::-1] + 0.2),
        "labels": (labels.astype("int32"), ((labels + (scores[:, 0] > 1)) % CLASSES).astype("int32")),
    }[kind]


CASES = {
    "AUC": ("binary", {}),
    "Accuracy": ("labels", {}),
    "BinaryAccuracy": ("binary", {}),
    "BinaryCrossentropy": ("binary", {}),
    "BinaryIoU": ("binary", {}),
    "CategoricalAccuracy": ("one-hot", {}),
    "CategoricalCrossentropy": ("one-hot", {}),
    "CategoricalHinge": ("one-hot", {}),
    "ConcordanceCorrelation": ("numbers", {}),
    "CosineSimilarity": ("numbers", {}),
    "F1Score": ("one-hot", {"average": "macro"}),
    "FBetaScore": ("one-hot", {"average": "micro"}),
    "FalseNegatives": ("binary", {}),
    "FalsePositives": ("binary", {}),
    "Hinge": ("signs", {}),
    "IoU": ("labels", {"num_classes": CLASSES, "target_class_ids": [0, 2]}),
    "KLDivergence": ("one-hot", {}),
    "LogCoshError": ("numbers", {}),
    "Mean": ("numbers", {}),
    "MeanAbsoluteError": ("numbers", {}),
    "MeanAbsolutePercentageError": ("positive", {}),
    "MeanIoU": ("labels", {"num_classes": CLASSES}),
    "MeanMetricWrapper": ("numbers", {"fn": lambda y, p: (y - p)[..., 0] ** 2}),
    "MeanRelativeError": ("positive", {"normalizer": np.ones(CLASSES, "float32")}),
    "MeanSquaredError": ("numbers", {}),
    "MeanSquaredLogarithmicError": ("positive", {}),
    "MeanTensor": ("numbers", {}),
    "OneHotIoU": ("one-hot", {"num_classes": CLASSES, "target_class_ids": [1]}),
    "OneHotMeanIoU": ("one-hot", {"num_classes": CLASSES}),
    "PearsonCorrelation": ("numbers", {}),
    "PearsonCorrelation(axis=None)": ("numbers", {"axis": None}),
    "ConcordanceCorrelation(axis=None)": ("numbers", {"axis": None}),
    "Poisson": ("positive", {}),
    "Precision": ("binary", {}),
    "PrecisionAtRecall": ("binary", {"recall": 0.5}),
    "R2Score": ("numbers", {}),
    "Recall": ("binary", {}),
    "RecallAtPrecision": ("binary", {"precision": 0.4}),
    "RootMeanSquaredError": ("numbers", {}),
    "SensitivityAtSpecificity": ("binary", {"specificity": 0.5}),
    "SparseCategoricalAccuracy": ("classes", {}),
    "SparseCategoricalCrossentropy": ("classes", {}),
    "SparseTopKCategoricalAccuracy": ("classes", {"k": 2}),
    "SpecificityAtSensitivity": ("binary", {"sensitivity": 0.5}),
    "SquaredHinge": ("signs", {}),
    "Sum": ("numbers", {}),
    "TopKCategoricalAccuracy": ("one-hot", {"k": 2}),
    "TrueNegatives": ("binary", {}),
    "TruePositives": ("binary", {}),
}
"""What each class is tried on, and what it must be given."""


@dataclass(frozen=True)
class Tried:
    """Hold what became of one class."""

    name: str
    ours: float | None  # None: refused
    keras: float | None  # its own value, in one process
    refusal: str | None = None
    is_of_batches: bool = False

    @property
    def works(self):
        """Return whether it was taken."""
        return self.refusal is None


def cases(library):
    """The cases of the metric classes that a library offers; the abstract one is none."""
    found = [name for name in dir(library.metrics) if inspect.isclass(getattr(library.metrics, name))]
    classes = {
        name
        for name in found
        if issubclass(getattr(library.metrics, name), library.metrics.Metric) and name != "Metric"
    }
    unknown = classes - CASES.keys()
    assert not unknown, f"new in {library.__name__}: say in CASES what to try them on: {unknown}"
    return [case for case in CASES if _class(case) in classes]


def _class(case):
    """The class of a case, which may be of certain arguments."""
    return case.partition("(")[0]


def attempt(library, name):
    """Evaluate with three ranks, and beside it as Keras does alone."""
    import tensorflow as tf

    from sidecar.evaluation.backends.tensorflow.data import array_of
    from sidecar.evaluation.backends.tensorflow.measured_metric import MeasuredMetric
    from sidecar.evaluation.data.shard import Shard
    from sidecar.evaluation.failures import EvaluationError
    from sidecar.evaluation.metrics.metric import EvalSetInfo

    kind, arguments = CASES[name]
    y, predictions = data(kind)
    ends = np.cumsum(BATCHES)[:-1]
    batches = list(zip(np.split(y, ends), np.split(predictions, ends), strict=True))
    metric = getattr(library.metrics, _class(name))(**arguments, name="it")
    try:
        first = [tf.constant(part) for part in batches[0]]
        measured = MeasuredMetric(metric, *first, None)
    except EvaluationError as error:
        return Tried(name, None, None, str(error))
    step = tf.function(lambda y, predictions: measured.step(y, predictions, None), reduce_retracing=True)
    ranks = [measured.states(EvalSetInfo(EXAMPLES, Shard(rank, RANKS))) for rank in range(RANKS)]
    for number, (of_y, of_predictions) in enumerate(batches):
        outputs = tf.nest.map_structure(
            lambda each: [array_of(each)], step(tf.constant(of_y), tf.constant(of_predictions))
        )
        measured.add(ranks[number % RANKS], outputs, [len(of_y)], [None])
    whole = ranks[0]
    for state, own in whole.items():
        rows = np.sum([rank[state].used() for rank in ranks], axis=0) > 0
        own.unpack(np.sum([rank[state].pack(rows) for rank in ranks], axis=0), rows)
    (ours,) = measured.compute(whole).values.values()
    alone = getattr(library.metrics, _class(name))(**arguments)
    for of_y, of_predictions in batches:
        alone.update_state(of_y, of_predictions)
    number = float.fromhex(ours.hex) if ours.value is not None else math.nan
    whole, *halves = [
        (tf.constant(of_y), tf.constant(of_predictions), None)
        for of_y, of_predictions in (batches[0], *[[part[at] for part in batches[0]] for at in _HALVES])
    ]
    return Tried(name, number, float(alone.result()), is_of_batches=bool(measured.depends_on_batches(whole, halves)))


def table(by_library):
    """The markdown of the docs."""
    lines = [
        "# Keras metrics",
        "",
        "Which classes of `keras.metrics` and `tf_keras.metrics` can be evaluated by several workers: each is tried by",
        "a test on uneven batches over three ranks, and compared with what it says itself in one process. Written by",
        "`tests/evaluation/backends/tensorflow/every_metric.py`. Those that are not means have intervals, but for",
        "[these](../how-to/metrics.md#numbers-from-sums).",
        "",
        "| class | " + " | ".join(by_library) + " |",
        "|---|" + "---|" * len(by_library),
    ]
    names = sorted({name for tried in by_library.values() for name in tried})
    lines += [
        f"| `{name}` | " + " | ".join(_cell(tried.get(name)) for tried in by_library.values()) + " |" for name in names
    ]
    return "\n".join(lines) + "\n"


def _cell(tried):
    if tried is None:
        return "is not there"
    if tried.is_of_batches:
        return "works, as a mean over batches"
    return "works" if tried.works else f"refused: {tried.refusal}"


def main():
    """Write the table of all metrics for Keras 3 and tf_keras."""
    import keras
    import tf_keras

    libraries = {"Keras 3": keras, "tf_keras": tf_keras}
    tried = {title: {name: attempt(library, name) for name in cases(library)} for title, library in libraries.items()}
    TABLE.write_text(table(tried))


if __name__ == "__main__":
    main()
