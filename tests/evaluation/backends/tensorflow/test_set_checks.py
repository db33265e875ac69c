# ruff: noqa: ARG001, ARG002, D102 - the signatures are Keras'
"""Models, losses and metrics that depend on the batches, or on what ran before, are noted or refused."""

import numpy as np
import pytest

from sidecar import EvalSet, Task
from sidecar.evaluation.failures import EvaluationError
from sidecar.metrics import Mean, Sums

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

EXAMPLES, BATCH = 91, 8
X = np.random.default_rng(1).normal(size=(EXAMPLES, 3)).astype("float32")
Y = (X[:, 0] + np.random.default_rng(2).normal(size=EXAMPLES) > 0).astype("int32")
TEXTS = [np.random.default_rng(n).integers(1, 9, 3 + n % 11) for n in range(EXAMPLES)]
SIZE = "another batch size gives another number"
OF_MODEL = f"the model's predictions for an example depend on the other examples of its batch; {SIZE}"


def dense():
    import keras

    return keras.layers.Dense(2, activation="softmax", kernel_initializer=keras.initializers.Orthogonal(seed=1))


def plain():
    import keras

    return keras.Sequential([keras.Input((3,)), dense()])


def with_batch_statistics():
    """A model that does not tell its layer that this is an evaluation."""
    import keras

    class Normalized(keras.Model):
        def __init__(self):
            super().__init__()
            self.norm, self.out = keras.layers.BatchNormalization(momentum=1.0), dense()

        def call(self, x, training=False):
            return self.out(self.norm(x, training=True))

    return Normalized()


def centered():
    import keras

    x = keras.Input((3,))
    return keras.Model(x, dense()(x - keras.ops.mean(x, axis=0)))


def of_texts(*, masked):
    import keras

    x = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Embedding(
        9, 4, mask_zero=masked, embeddings_initializer=keras.initializers.Orthogonal(seed=2)
    )(x)
    return keras.Model(x, dense()(keras.layers.GlobalAveragePooling1D()(hidden)))


def arrays():
    return X, Y


def padded():
    import tensorflow as tf

    pairs = list(zip(TEXTS, Y, strict=True))
    spec = (tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.int32))
    return tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=spec).padded_batch(BATCH)


def task(model, source=arrays, **changes):
    size = None if source is padded else BATCH
    return Task(model, {"test": source}, batch_size=size, restore=lambda *_: None, **changes)


def accuracy():
    import keras

    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def compiled(build):
    def make():
        model = build()
        model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    return make


def noted(evaluate, made, ranks=(1, 2, 3)):
    """Return the notes, which are the same for any number of ranks and in later evaluations."""
    found = [each for number in ranks for each in evaluate(made(), "nowhere", "nowhere", ranks=number)]
    assert all(each.notes == found[0].notes and each.hexes == found[0].hexes for each in found)
    return found[0].notes


@pytest.mark.parametrize("build", [with_batch_statistics, centered])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_models_that_depend_on_the_batch_are_noted(digits, evaluate, build, is_compiled):
    """Only the model is named: the metrics add up what it says."""
    made = (lambda: task(compiled(build))) if is_compiled else (lambda: task(build, metrics=accuracy))
    assert noted(evaluate, made) == (OF_MODEL,)


def test_padding_without_a_mask_is_noted(digits, evaluate):
    """Alone, each half would be padded to its own longest text."""
    for masked, notes in ((False, (OF_MODEL,)), (True, ())):

        def made(masked=masked):
            return task(lambda: of_texts(masked=masked), padded, metrics=accuracy)

        assert noted(evaluate, made, ranks=(1, 3)) == notes


def auc(y, scores):
    positive, negative = scores[y == 1, 1], scores[y == 0, 1]
    return float((positive[:, None] > negative[None]).mean()) if len(positive) and len(negative) else 0.5


def weighted(y, y_pred):
    """The loss of each example, on a scale that its batch defines."""
    import keras

    losses = keras.losses.sparse_categorical_crossentropy(y, y_pred)
    return losses / keras.ops.max(losses)


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


class Divided:
    """A loss of one's own, which divides by the weights of the labels unless it is told not to."""

    reduction = "mean"

    def __call__(self, y, y_pred, sample_weight=None):
        import keras

        weights = keras.ops.cast(1 + 3 * y, "float32")
        losses = weights * keras.losses.sparse_categorical_crossentropy(y, y_pred)
        return losses if self.reduction == "none" else keras.ops.sum(losses) / keras.ops.sum(weights)


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


def test_what_is_kept_until_the_end_is_refused(digits, evaluate):
    """The first batch gives the same numbers at once, and others after all other batches."""
    import keras
    import tensorflow as tf

    class Late(keras.layers.Layer):
        def build(self, shape):
            self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x):
            self.calls.assign_add(1.0)
            return x + tf.where(self.calls > 25.0, 1.0, 0.0)

    seen = []

    def counted(y, p):
        seen.append(len(y))
        return p[:, 1] + (len(seen) > 20)

    tasks = (
        task(
            lambda: keras.Sequential([keras.Input((3,)), Late(), dense()]),
            loss=keras.losses.sparse_categorical_crossentropy,
        ),
        task(plain, metrics=lambda: [Mean(counted)]),
    )
    for made in tasks:
        with pytest.raises(EvaluationError, match="evaluated again after all others"):
            evaluate(made, "nowhere")


def test_negative_labels_and_weights_are_counted(digits, evaluate):
    """Keras accepts both; metrics of this package refuse them."""
    labels, weights = Y.copy(), np.ones(EXAMPLES, "float32")
    labels[[3, 50]], weights[:5] = -1, -1
    made = Task(plain, {"test": lambda: (X, labels, weights)}, accuracy, batch_size=BATCH, restore=lambda *_: None)
    notes = noted(evaluate, lambda: made)
    assert [note.partition(":")[0] for note in notes[:2]] == ["2 labels are negative", "5 weights are negative"], notes
    assert noted(evaluate, lambda: task(plain, metrics=accuracy), ranks=(2,)) == ()
