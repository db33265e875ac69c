# ruff: noqa: ARG001 - the signatures are Keras'
"""Models, losses and metrics that depend on the batches, or on what ran before, are noted or refused."""

import importlib
from functools import partial

import numpy as np
import pytest
from evaluation.backends.tensorflow.checked_sets import (
    BATCH,
    EXAMPLES,
    Divided,
    X,
    Y,
    accuracy,
    auc,
    centered,
    compiled,
    dense,
    noted,
    of_texts,
    padded,
    plain,
    task,
    weighted,
    with_batch_statistics,
)

from sidecar import EvalSet, Task
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import Mean, Sums

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SIZE = "another batch size gives another number"

OF_MODEL = f"the model's predictions for an example depend on the other examples of its batch; {SIZE}"


@pytest.mark.parametrize("build", [with_batch_statistics, centered])
@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.drawn(2)
def test_models_that_depend_on_the_batch_are_noted(digits, evaluate, build, is_compiled):
    """Only the model is named: the metrics add up what it says."""
    made = (lambda: task(compiled(build))) if is_compiled else (lambda: task(build, metrics=accuracy))
    assert noted(evaluate, made) == (OF_MODEL,)


@pytest.mark.parametrize("number", [3, 5, 6, 7])
@pytest.mark.drawn(1)
def test_a_model_that_depends_on_one_batch_alone_is_noted(digits, evaluate, number):
    """Each of the first eight batches is divided, although the trace keeps nothing."""
    del digits

    def build():
        import keras

        x = keras.Input((3,))
        marked = keras.ops.cast(keras.ops.max(x) > 1e3, "float32")
        return keras.Model(x, dense()(keras.ops.minimum(x, 9.0) - marked * keras.ops.mean(x, axis=0) / 1e3))

    rows = X.copy()
    rows[number * BATCH, 0] = 1e4
    rows[number * BATCH + 5 : number * BATCH + 8, 2] = 2e3
    given = Task(build, {"test": lambda: (rows, Y)}, accuracy, batch_size=BATCH, restore=lambda *_: None)
    assert noted(evaluate, lambda: given, ranks=(1, 3)) == (OF_MODEL,)


@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_logits_that_a_metric_takes_for_probabilities_are_noted(digits, evaluate, library, activation):
    """Keras compares them with thresholds from 0 to 1, without a word."""
    del digits
    of = importlib.import_module(library)

    def build():
        rows = of.layers.Dense(1, activation=activation, kernel_initializer=of.initializers.Orthogonal(seed=1))
        return of.Sequential([of.Input((3,)), rows])

    for metrics in (
        [of.metrics.AUC()],
        [of.metrics.Recall()],
        [of.metrics.AUC(from_logits=activation is None), of.metrics.Precision(thresholds=0)],
    ):
        made = task(build, metrics=lambda metrics=metrics: metrics)
        notes = noted(evaluate, lambda made=made: made, ranks=(1,))
        assert any("from 0 to 1" in note for note in notes) == (activation is None and len(metrics) == 1)


def test_padding_without_a_mask_is_noted(digits, evaluate):
    """Alone, each half would be padded to its own longest text."""
    for masked, notes in ((False, (OF_MODEL,)), (True, ())):

        def made(masked=masked):
            return task(lambda: of_texts(masked=masked), padded, metrics=accuracy)

        assert noted(evaluate, made, ranks=(1, 3)) == notes


def test_losses_and_metrics_of_batches_are_noted(digits, evaluate):
    """Their sums are no sums over examples, whoever wrote them."""

    def made():
        return task(
            plain,
            loss=weighted,
            metrics=lambda: [
                *accuracy(),
                Sums(lambda y, p: {"auc": auc(y, p), "n": 1}, lambda t: t["auc"] / t["n"], name="auc"),
                Mean(lambda y, p: np.full(len(y), np.median(p[:, 1])), name="median"),
                Mean(lambda y, p: p[:, 1] + 0 * y, name="mean"),
            ],
        )

    first, second = noted(evaluate, made)
    assert first == f"loss is a mean over batches, as in Keras; {SIZE}"
    assert second == f"auc, median depend on how examples are divided into batches; {SIZE}"


def test_dependent_numbers_of_a_set_that_divides_itself_are_refused(digits, evaluate):
    """Its batches depend on the number of workers."""

    def source(shard):
        return X[shard.rank :: shard.world_size], Y[shard.rank :: shard.world_size]

    median = Mean(lambda y, p: np.full(len(y), np.median(p[:, 1])), name="median")
    for build, metrics, word in ((centered, accuracy, "predictions"), (plain, lambda: [median], "'median'")):
        made = Task(build, {"test": EvalSet(source)}, metrics, batch_size=BATCH, restore=lambda *_: None)
        with pytest.raises(EvaluationError, match=f"^{word} of eval set 'test'"):
            evaluate(made, "nowhere", ranks=2)


@pytest.mark.parametrize("period", [8, 11])
def test_what_counts_its_calls_is_refused(digits, evaluate, period):
    """A model that keeps the count in a variable, and a function of a metric, although they seldom change."""
    import keras
    import tensorflow as tf

    class Counting(keras.Model):
        def __init__(self):
            super().__init__()
            self.out, self.calls = dense(), tf.Variable(0, trainable=False)

        def call(self, x):
            return self.out(x + tf.cast(self.calls.assign_add(1) % period == 0, tf.float32))

    calls = []

    def function(y, _):
        calls.append(0)
        return {"n": len(y) * (1 + (len(calls) % period == 0))}

    counting = Sums(function, lambda totals: totals["n"])
    for made, found in ((task(Counting, metrics=accuracy), "model"), (task(plain, metrics=lambda: [counting]), "sums")):
        with pytest.raises(EvaluationError, match=found):
            evaluate(made, "nowhere")


def test_a_loss_with_its_own_divisor_is_what_it_returns(digits, evaluate):
    """The mean of its single values is another number."""
    found = [evaluate(task(plain, loss=Divided()), "nowhere", ranks=ranks) for ranks in (1, 2)]
    assert found[0].hexes == found[1].hexes
    assert found[0].notes == (f"loss is a mean over batches, as in Keras; {SIZE}",)
    model, loss, sizes = plain(), Divided(), []
    for first in range(0, EXAMPLES, BATCH):
        part = slice(first, first + BATCH)
        sizes.append((len(Y[part]), float(loss(Y[part], model(X[part])))))
    expected = sum(size * number for size, number in sizes) / EXAMPLES
    assert found[0]["loss"].value == pytest.approx(expected, rel=1e-6)


def test_negative_labels_and_weights_are_counted(digits, evaluate):
    """Keras accepts both; metrics of this package refuse them."""
    labels, weights = Y.copy(), np.ones(EXAMPLES, "float32")
    labels[[3, 50]], weights[:5] = -1, -1
    made = Task(plain, {"test": lambda: (X, labels, weights)}, accuracy, batch_size=BATCH, restore=lambda *_: None)
    notes = noted(evaluate, lambda: made)
    assert [note.partition(":")[0] for note in notes[:2]] == ["2 labels are negative", "5 weights are negative"], notes
    assert noted(evaluate, lambda: task(plain, metrics=accuracy), ranks=(2,)) == ()


@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.nightly)])
def test_a_loss_keeps_its_arguments(digits, evaluate, library):
    """A subclass of Keras' Loss without a `get_config`, defined in a function, is what its author made it."""
    of = importlib.import_module(library)
    del digits

    class Scaled(of.losses.Loss):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def call(self, y, y_pred):
            return self.factor * of.losses.sparse_categorical_crossentropy(y, y_pred)

    losses = (of.losses.SparseCategoricalCrossentropy(), Scaled(3.0))
    one, other = (evaluate(task(partial(plain, library), loss=loss), "nowhere") for loss in losses)
    assert other["loss"].value == pytest.approx(3 * one["loss"].value, rel=1e-6)
    assert other["loss"].lower is not None
    assert other.notes == ()


@pytest.mark.parametrize("eager", [False, True])
def test_numbers_that_no_checkpoint_has_are_compared(digits, eager):
    """Ranks that draw a projection without a seed predict differently, in a model of metrics or with a step."""
    del digits
    from keras import Model, ops

    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.output_comparison import differing_outputs

    class Projected(Model):
        def __init__(self, seed):
            super().__init__()
            self.out = dense()
            self.projection = np.random.default_rng(seed).normal(size=(3, 3)).astype("float32")

        def call(self, x):
            return self.out(ops.matmul(x, self.projection))

    def outputs(seed):
        def build():
            model = Projected(seed)
            if eager:
                model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"], run_eagerly=True)
            return model

        made = task(build) if eager else task(build, metrics=accuracy)
        evaluator = KerasEvaluator.build(made, Shard(0, 2), threads=2, cache_bytes=1 << 20)
        assert evaluator.outputs_are_new
        evaluator.read(lambda: None)
        evaluator.digest()
        return evaluator.outputs()

    seeded = [outputs(1), outputs(1)]
    assert not list(differing_outputs(seeded))
    assert list(differing_outputs([*seeded, outputs(None)])) == [(0, [[0, 1], [2]])]
