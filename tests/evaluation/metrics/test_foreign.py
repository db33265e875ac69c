# ruff: noqa: ARG001, ARG005, D102 - functions and classes are written as users write them
"""Functions and metric objects of other libraries get the numbers of one process, with any number of workers."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sidecar.errors import TaskError
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.metrics.foreign import as_in_turn, conclude
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo
from sidecar.metrics import Accuracy, InTurn

MADE = np.random.default_rng(5)
Y = MADE.integers(0, 3, 50)
SCORES = MADE.normal(size=(50, 3)).astype(np.float32)
SORTED = np.argsort(Y, kind="stable")


def measured(metric, y=Y, predictions=SCORES, weights=None, batch=8):
    """The numbers of a metric after all batches, by name; twice, since later evaluations must get the same."""
    found = []
    for _ in range(2):
        states = metric.states(EvalSetInfo(len(y), Shard(0, 1)))
        assert metric.compute(states).values == {}
        for start in range(0, len(y), batch):
            place = slice(start, start + batch)
            metric.add(
                states, EvalBatch(y[place], predictions[place], None if weights is None else weights[place], start)
            )
        conclude(states)
        found.append({name: one.value for name, one in metric.compute(states).values.items()})
    assert found[0] == found[1]
    return found[0]


class Share:
    """A metric object with `update` and `compute`, whose arguments are those of PyTorch."""

    def __init__(self):
        self.hits = self.all = 0

    def update(self, preds, target):
        self.hits += int((preds.argmax(1) == target).sum())
        self.all += len(target)

    def compute(self):
        return self.hits / self.all


class OfKeras(Share):
    """One with `update_state` and `result`."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.hits += int(((y_pred.argmax(1) == y_true) * (1 if sample_weight is None else sample_weight)).sum())
        self.all += len(y_true)

    def result(self):
        return self.compute()


class OfHub:
    """One of Hugging Face's library `evaluate`: by name, and its result has names."""

    name = "hub"

    def __init__(self):
        self.seen = []

    def add_batch(self, *, predictions=None, references=None, **_):
        self.seen += [int(one.argmax()) == int(other) for one, other in zip(predictions, references, strict=True)]

    def compute(self):
        return {"accuracy": sum(self.seen) / len(self.seen), "count": len(self.seen)}


SHARE = float((SCORES.argmax(1) == Y).mean())


def test_functions_of_scikit_learn_get_all_examples_at_once():
    """Not the mean of batches: the balanced accuracy and an area of classes that single batches lack."""
    from sklearn import metrics

    right = metrics.balanced_accuracy_score(Y, SCORES.argmax(1))
    assert measured(as_in_turn(metrics.balanced_accuracy_score), predictions=SCORES.argmax(1)) == {
        "balanced_accuracy_score": right
    }
    assert measured(InTurn(lambda y, scores: metrics.balanced_accuracy_score(y, scores.argmax(1)), name="b")) == {
        "b": right
    }
    binary, ordered = (Y[SORTED] > 0).astype(int), SCORES[SORTED, 0]
    area = measured(as_in_turn(metrics.roc_auc_score), binary, ordered)
    assert area == {"roc_auc_score": metrics.roc_auc_score(binary, ordered)}
    weights = np.linspace(0.1, 1, 50, dtype=np.float32)
    assert measured(as_in_turn(metrics.mean_squared_error), SCORES[:, 0], SCORES[:, 1], weights) == {
        "mean_squared_error": pytest.approx(metrics.mean_squared_error(*SCORES.T[:2], sample_weight=weights))
    }
    f1 = as_in_turn(partial(metrics.f1_score, average="macro"))
    assert f1.name == "f1_score"
    assert measured(f1, predictions=SCORES.argmax(1)) == {
        "f1_score": metrics.f1_score(Y, SCORES.argmax(1), average="macro")
    }


@pytest.mark.parametrize(
    ("measure", "numbers"),
    [
        (Share(), {"share": SHARE}),
        (OfKeras(), {"ofkeras": SHARE}),
        (OfHub(), {"accuracy": SHARE, "count": 50}),
        (InTurn(Share(), name="mine", goal="max"), {"mine": SHARE}),
    ],
)
def test_objects_of_other_libraries_are_updated_batch_by_batch(measure, numbers):
    """Each evaluation begins anew, though none of these objects can be reset."""
    assert measured(as_in_turn(measure)) == pytest.approx(numbers)


def test_the_names_of_parameters_say_which_is_the_label():
    def of_torch(preds, target):
        return (preds.argmax(1) == target).mean()

    def of_scikit_learn(y_true, y_score, **_):
        return (y_score.argmax(1) == y_true).mean()

    def of_predictions(scores, threshold=0.5):
        return float((scores.argmax(1) == Y[: len(scores)]).mean() + 0 * threshold)

    for function in (of_torch, of_scikit_learn, of_predictions):
        assert measured(as_in_turn(function)) == {function.__name__: pytest.approx(SHARE)}


def test_numbers_in_several_levels_keep_their_names():
    """A report of scikit-learn has a precision for each class, and two averages of it."""
    from sklearn.metrics import classification_report

    report = lambda y, scores: classification_report(y, scores.argmax(1), output_dict=True)  # noqa: E731
    right = report(Y, SCORES)
    found = measured(InTurn(report, name="report"))
    assert len(found) == 21
    assert found["accuracy"] == right["accuracy"]
    assert found["macro avg_precision"] == right["macro avg"]["precision"]
    assert found["2_recall"] == right["2"]["recall"]


class Alone(Share):
    """One that cannot be copied, such as one with a lock or a file."""

    def __deepcopy__(self, memo):
        raise TypeError("cannot be copied")


class Reset(Alone):
    """A metric that forgets everything when it is reset."""

    def reset(self):
        self.hits = self.all = 0


class HalfReset(Alone):
    """Its mean of the first batch is the same when it is counted twice."""

    def reset(self):
        self.hits = 0 if self.all > 100 else self.hits


def test_an_object_that_cannot_be_copied_has_to_forget():
    assert measured(as_in_turn(Reset())) == {"reset": SHARE}
    with pytest.raises(TaskError, match=r"method reset\(\)"):
        measured(as_in_turn(Alone()))
    with pytest.raises(EvaluationError, match="'hits', 'all'"):
        measured(as_in_turn(HalfReset()))


class ByClass(Share):
    """Appends to a list of its class, which no copy and no reset empties."""

    seen: list[int] = []  # noqa: RUF012 - the mistake

    def update(self, preds, target):
        super().update(preds, target)
        self.seen.append(1)


class InClosure:
    """Keeps a list that neither its attributes nor a copy show; the mean of one batch is the same each time."""

    def __init__(self):
        seen = []
        self.add, self.all = seen.extend, lambda: seen

    def update(self, preds, _target):
        self.add(preds[:, 0])

    def compute(self):
        return float(np.mean(self.all()))

    def reset(self):
        pass


def drawn(y, predictions, *, own=np.random.default_rng(1)):  # noqa: B008 - the mistake
    return float(own.random() + 0 * len(y) + 0 * len(predictions))


def either(a, b):
    return float((a == b).mean())


def absolute(y_true, y_pred):
    return np.abs(y_true - y_pred[:, 0])


def three(y_true, y_pred, classes):
    return 0.0


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        (either, "InTurn(lambda y, predictions: either(y, predictions), name='either')"),
        (three, "InTurn(lambda y, predictions: three(y, predictions, classes=…), name='three')"),
        (lambda y, predictions: 0.0, "InTurn(lambda y, predictions: …, name='my_metric')"),
        (ByClass(), "'ByClass.seen'"),
        (drawn, "other numbers for the same examples"),
        (InClosure(), "other numbers for the same examples"),
        (absolute, "Mean(lambda y, predictions: absolute(y, predictions), name='absolute')"),
        (lambda: 1, "InTurn needs a name"),
        (InTurn(lambda y, predictions: None, name="nothing"), "return a number, or numbers by name"),
        (InTurn(lambda y, predictions: {"a": {"b": 1}, "a_b": 2}, name="twice"), "two numbers with the name"),
        (InTurn(lambda y, predictions: ("a", "b"), name="texts"), "by name"),
        (InTurn(lambda y, predictions: 1 / 0, name="zero"), "division by zero"),
    ],
)
def test_what_says_too_little_or_keeps_something_is_refused(measure, words):
    with pytest.raises((TaskError, EvaluationError)) as caught:
        measured(as_in_turn(measure))
    assert words in str(caught.value)


def test_scores_where_classes_are_needed_are_refused_with_the_line():
    """At the first batch, not after an hour."""
    from sklearn import metrics

    for y, predictions, line in (
        (Y, SCORES, "f1_score(y, predictions.argmax(1)), name='f1_score')"),
        (Y > 0, SCORES[:, 0], "f1_score(y, predictions.ravel() > 0.5)"),
    ):
        metric = as_in_turn(metrics.f1_score)
        states = metric.states(EvalSetInfo(len(y), Shard(0, 1)))
        with pytest.raises(EvaluationError) as caught:
            metric.add(states, EvalBatch(y[:8], predictions[:8], None, 0))
        assert line in str(caught.value)
        assert caught.value.lasting == "task"


def test_a_scorer_is_refused_with_its_function():
    """It takes a model and its inputs."""
    from sklearn.metrics import accuracy_score, make_scorer

    with pytest.raises(TaskError, match="accuracy_score"):
        as_in_turn(make_scorer(accuracy_score))


def test_weights_that_a_function_does_not_take_are_refused():
    with pytest.raises(TaskError, match="sample_weight"):
        measured(as_in_turn(Share()), weights=np.ones(50, np.float32))


def test_too_much_for_one_array_is_refused(monkeypatch):
    monkeypatch.setattr("sidecar.evaluation.metrics.foreign._MAX_BYTES", 100)
    with pytest.raises(EvaluationError, match=r"Sums\(…\)"):
        measured(InTurn(lambda y, predictions: 0.0, name="zero"))


def test_generators_are_as_before():
    """Functions that draw get the same numbers each time, and a dataset that draws goes on as if unseeded."""
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - the generator that metrics use

    def sampled(y_true, y_pred):
        return float(np.random.random() + len(y_true) + len(y_pred))  # noqa: NPY002

    assert measured(as_in_turn(sampled)) == measured(as_in_turn(sampled))
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_metrics_of_this_package_and_other_values_stay_as_they_are():
    accuracy = Accuracy()
    assert as_in_turn("accuracy") == "accuracy"
    assert as_in_turn(Accuracy) is Accuracy
    assert as_in_turn(in_turn := InTurn(Share())) is in_turn
    assert as_in_turn(accuracy) is accuracy


def test_the_example_of_the_docs_is_the_balanced_accuracy():
    from sklearn.metrics import balanced_accuracy_score

    page = (Path(__file__).parents[3] / "docs" / "how-to" / "metrics.md").read_text()
    block = re.search(r"<!-- in_turn.py -->\n```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(block[1], names)
    (metric,) = names["metrics"]()
    assert measured(metric) == {"balanced": balanced_accuracy_score(Y, SCORES.argmax(1))}
