# ruff: noqa: ARG002 - the signatures are Keras'
"""Metrics that cannot be merged are evaluated by worker 0, one batch after the other, to the number of Keras itself."""

import importlib

import numpy as np
import pytest

from sidecar import Task
from sidecar.errors import TaskError
from sidecar.evaluation.task import EvalSet

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

EXAMPLES, BATCH = 111, 20


def area(y, scores):
    """The mean precision at the rank of each positive, as scikit-learn's average_precision_score without ties."""
    hits = y[np.argsort(-scores, kind="stable")]
    return float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits > 0].mean()) if hits.any() else 0.0


def listed(of, *, resets=True):
    """Keeps all scores in Python lists, as wrappers of pycocotools or scikit-learn do."""

    class AveragePrecision(of.metrics.Metric):
        def __init__(self, **named):
            super().__init__(**named)
            self.y, self.p = [], []

        def update_state(self, y, p, sample_weight=None):
            self.y.append(np.asarray(y))
            self.p.append(np.asarray(p))

        def reset_state(self):
            if resets:
                self.y, self.p = [], []

        def result(self):
            return area(np.concatenate(self.y).ravel(), np.concatenate(self.p).ravel()) if self.y else 0.0

    return AveragePrecision(name="ap")


def running(of):
    """A mean that forgets: its new state follows from the old one by a formula."""

    class Running(of.metrics.Metric):
        def __init__(self, **named):
            super().__init__(**named)
            self.kept = self.add_weight(name="kept", initializer="ones")

        def update_state(self, y, p, sample_weight=None):
            import tensorflow as tf

            self.kept.assign(self.kept * 0.9 + 0.1 * tf.reduce_mean(tf.cast(p, tf.float32)))

        def reset_state(self):
            self.kept.assign(1.0)

        def result(self):
            return self.kept + 0.0

    return Running(name="running")


def counting(of, kind):
    """A sum in a variable, and a count of batches that Keras does not know of."""
    import tensorflow as tf

    class Counting(of.metrics.Metric):
        def __init__(self, **named):
            super().__init__(**named)
            self.total = self.add_weight(name="total", initializer="zeros")
            hidden = {"variable": tf.Variable(0.0), "metric": (of.metrics.Sum(),)}.get(kind, 0.0)
            object.__setattr__(self, "seen", hidden)

        def update_state(self, y, p, sample_weight=None):
            self.total.assign_add(tf.reduce_sum(p))
            if kind == "variable":
                self.seen.assign_add(1.0)
            elif kind == "metric":
                self.seen[0].update_state(1.0)
            else:
                self.seen += 1.0

        def reset_state(self):
            self.total.assign(0.0)
            if kind == "variable":
                self.seen.assign(0.0)
            elif kind == "metric":
                self.seen[0].reset_state()
            else:
                self.seen = 0.0

        def result(self):
            seen = self.seen[0].result() if kind == "metric" else self.seen
            return self.total / (seen + 1.0)

    return Counting(name="counting")


def data():
    made = np.random.default_rng(7)
    x = made.normal(size=(EXAMPLES, 12)).astype("float32")
    return x, (x[:, 0] + made.normal(size=EXAMPLES) > 0.5).astype("float32")[:, None]


def build(of, metrics=None, *, eager=True):
    of.utils.set_random_seed(3)
    model = of.Sequential([of.Input((12,)), of.layers.Dense(1, activation="sigmoid")])
    if metrics is not None:
        model.compile("sgd", "binary_crossentropy", metrics=["accuracy", *metrics], run_eagerly=eager)
    return model


def task(of, metrics, how, **more):
    """A task with the metrics in the compiled model, or listed."""
    if how == "listed":
        made = lambda: [of.metrics.BinaryAccuracy(name="accuracy"), *metrics()]  # noqa: E731 - as users write it
        return Task(lambda: build(of), {"test": data}, made, batch_size=BATCH, restore=lambda *_: None, **more)
    return Task(
        lambda: build(of, metrics(), eager=how == "eager"),
        {"test": data},
        batch_size=BATCH,
        restore=lambda *_: None,
        **more,
    )


@pytest.mark.parametrize("how", ["eager", "traced", "listed"])
@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.nightly)])
@pytest.mark.drawn(1)
def test_lists_and_formulas(evaluate, library, how):
    """Lists of Python and a running mean get the numbers of `model.evaluate`, with any number of workers, twice."""
    of = importlib.import_module(library)
    made = lambda: [listed(of), running(of)]  # noqa: E731
    right = build(of, made()).evaluate(*data(), batch_size=BATCH, verbose=0, return_dict=True)
    for ranks in (1, 2, 3):
        first, second = evaluate(task(of, made, how), "nowhere", "nowhere", ranks=ranks)
        assert first.hexes == second.hexes
        assert first["ap"].value == right["ap"]
        assert first["running"].value == pytest.approx(right["running"], rel=1e-7)
        assert first["accuracy"].value == pytest.approx(right["accuracy"], rel=1e-6)
        (note,) = (note for note in first.notes if "in turn" in note)
        assert "ap" in note
        assert "running" in note
        assert "worker 0 evaluates this set alone" in note


@pytest.mark.parametrize("kind", ["number", "variable", "metric"])
@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.nightly)])
@pytest.mark.drawn(1)
def test_states_outside_of_variables(evaluate, library, kind):
    """A metric that also counts in an attribute gets the number of `model.evaluate`, with any number of workers."""
    of = importlib.import_module(library)
    made = lambda: [counting(of, kind)]  # noqa: E731
    right = build(of, made()).evaluate(*data(), batch_size=BATCH, verbose=0, return_dict=True)
    for ranks, how in ((1, "eager"), (2, "eager"), (3, "listed")):
        found = evaluate(task(of, made, how), "nowhere", ranks=ranks)
        assert found["counting"].value == pytest.approx(right["counting"], rel=1e-6)
        assert any("counting keeps 'seen' outside of its variables" in note for note in found.notes)


def test_several_numbers_of_a_compiled_metric(evaluate):
    """They are among the results of the step, and do not follow from other metrics."""
    import keras

    def summary():
        class Summary(type(listed(keras))):
            def result(self):
                return {"ap": super().result(), "seen": float(sum(map(len, self.y)))}

        return Summary(name="summary")

    right = build(keras, [summary()]).evaluate(*data(), batch_size=BATCH, verbose=0, return_dict=True)
    found = evaluate(task(keras, lambda: [summary()], "eager"), "nowhere", ranks=2)
    assert {name: found[name].value for name in right} == pytest.approx(right, rel=1e-6)
    assert found["seen"].value == EXAMPLES


@pytest.mark.parametrize("wanted", [True, ["accuracy"]])
@pytest.mark.drawn(1)
def test_a_task_asks_for_it(evaluate, wanted):
    """Metrics that do add up are updated in turn as well, if the task names them."""
    import keras

    for how in ("listed", "traced"):
        right = build(keras, []).evaluate(*data(), batch_size=BATCH, verbose=0, return_dict=True)
        found = evaluate(task(keras, list, how, in_turn=wanted), "nowhere", ranks=2)
        assert found["accuracy"].value == right["accuracy"]
        assert [streams[0].own_batches for streams in found.streams] == [6, 0]
        assert any("Task(in_turn=…) asks for accuracy" in note for note in found.notes)


def test_names_that_no_metric_has():
    """A misspelt name would have no effect without a word."""
    import keras

    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.data.shard import Shard

    for how in ("listed", "traced"):
        with pytest.raises(TaskError, match=r"'acuracy'.*'accuracy'"):
            KerasEvaluator.build(task(keras, list, how, in_turn=["acuracy"]), Shard(0, 1), threads=1, cache_bytes=0)


def test_sets_that_divide_themselves(evaluate):
    """Nobody can evaluate them in order."""
    import keras

    from sidecar.evaluation.failures import EvaluationError

    own = EvalSet(lambda shard: data())  # noqa: ARG005
    made = Task(lambda: build(keras), {"test": own}, lambda: [listed(keras)], batch_size=BATCH, restore=lambda *_: None)
    with pytest.raises(EvaluationError, match=r"'test' divides.*'ap'.*Shard"):
        evaluate(made, "nowhere", ranks=2)


def test_a_metric_that_is_not_reset(evaluate):
    """Each evaluation would count the batches of those before: refused, with what to write."""
    import keras

    from sidecar.evaluation.failures import EvaluationError

    with pytest.raises(EvaluationError, match=r"keeps 'y', 'p'.*reset_state\(\)"):
        evaluate(task(keras, lambda: [listed(keras, resets=False)], "eager"), "nowhere")


def test_functions_and_foreign_objects_of_a_task(evaluate):
    """A function of scikit-learn gets all examples at once, an object without variables one batch after another."""
    import keras
    from sklearn.metrics import average_precision_score

    class Share:
        def __init__(self):
            self.hits = self.all = 0

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.hits, self.all = self.hits + int(((y_pred > 0.5) == y_true).sum()), self.all + len(y_true)

        def result(self):
            return self.hits / self.all

    x, y = data()
    metrics = [keras.metrics.BinaryAccuracy(), average_precision_score, Share(), keras.losses.BinaryCrossentropy()]
    made = Task(lambda: build(keras), {"test": data}, lambda: metrics, batch_size=BATCH, restore=lambda *_: None)
    scores = build(keras)(x).numpy()
    found = [evaluate(made, "nowhere", ranks=ranks) for ranks in (1, 2, 3)]
    assert found[0].hexes == found[1].hexes == found[2].hexes
    assert found[0]["average_precision_score"].value == pytest.approx(average_precision_score(y, scores))
    assert found[0]["share"].value == pytest.approx(found[0]["binary_accuracy"].value)
    assert found[0]["binary_crossentropy"].value == pytest.approx(float(keras.losses.BinaryCrossentropy()(y, scores)))
    assert any("worker 0 evaluates this set alone" in note for note in found[0].notes)
