"""Every evaluation equals a plain one of the same checkpoint, to the bit for any number of ranks."""

import pytest
from evaluation.backends.tensorflow.plain_evaluations import check

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("kind", ["model", "net", "net_and_optimizer", "bare", "two_names_of_one", "later"])
def test_roots(trained, digits, evaluate, kind):
    """The model is found in its checkpoint wherever it was saved, and gives the numbers of a plain evaluation."""
    check(evaluate(digits.make(), trained.path(kind)), trained.expected[kind])


def test_bare_checkpoint_by_name(trained, digits, evaluate):
    """`Task(checkpoint=…)` says where the model lies: the only way when two models fit."""
    import tensorflow as tf

    task = digits.make(checkpoint=lambda model: tf.train.Checkpoint(student=model))
    found = evaluate(task, trained.path("ambiguous"))
    assert found["accuracy"].value == trained.expected["model"]["correct"] / digits.HELD_OUT


@pytest.mark.parametrize(("kind", "build"), [("subclassed", "Subclassed"), ("scaled", "Scaled")])
def test_unbuilt_subclassed_model(trained, digits, evaluate, kind, build):
    """A model without variables until it is called is built before it is restored, plain tf.Variables included."""
    check(evaluate(digits.make(getattr(digits, build)), trained.path(kind)), trained.expected[kind])


def test_compiled_model_without_task_metrics(trained, digits, evaluate):
    """Without Task metrics everything is measured that the compiled model measures, under Keras' own names."""
    task = digits.make(digits.compiled, metrics=None, loss=None)
    found = evaluate(task, trained.path("model"))
    check(found, trained.expected["model"])
    assert set(found.values["test"]) == {"loss", "accuracy", "top2", "weighted_accuracy"}
    assert found["accuracy"].goal == "max"
    assert found["loss"].goal == "min"


def test_custom_test_step(trained, digits, evaluate):
    """A custom test_step with Mean trackers is measured under the names that it returns."""
    task = digits.make(digits.own_step, metrics=None, loss=None)
    found = evaluate(task, trained.path("own_step"))
    assert set(found.values["test"]) == {"cross_entropy", "accuracy"}
    check(found, trained.expected["own_step"], loss="cross_entropy")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_keras_2_model(trained, digits, evaluate):
    """A compiled tf_keras model is measured by its own test_step."""
    import tf_keras

    task = digits.make(lambda: digits.compiled(tf_keras), metrics=None, loss=None)
    found = evaluate(task, trained.path("keras_2"), ranks=2)
    check(found, trained.expected["keras_2"])
    assert set(found.values["test"]) == {"loss", "accuracy", "top2", "weighted_accuracy"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_keras_2_model_with_task_metrics(trained, digits, evaluate):
    """A tf_keras model with tf_keras metrics and loss named by the task."""
    import tf_keras

    task = digits.make(
        lambda: digits.conv(tf_keras),
        metrics=lambda: [tf_keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        loss=tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    found = evaluate(task, trained.path("keras_2"), ranks=2)
    check(found, trained.expected["keras_2"])
    assert found["accuracy"].lower < found["accuracy"].value < found["accuracy"].upper


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_sample_weights(trained, digits, evaluate, ranks):
    """With weights the loss is Keras' Σwl/N, beside it Σwl/Σw, and accuracy is weighted as Keras weights it."""
    found = evaluate(digits.make(eval_sets={"test": digits.weighted}), trained.path("model"), ranks=ranks)
    expected = trained.expected["model"]
    assert found["loss"].value == pytest.approx(expected["loss_weighted"], rel=1e-6)
    assert found["loss"].value == pytest.approx(expected["keras_weighted"]["loss"], rel=1e-6)
    assert found["loss_weighted_mean"].value == pytest.approx(expected["loss_weighted_mean"], rel=1e-6)
    assert found["accuracy"].value == expected["accuracy_weighted"]
    assert found["accuracy"].lower is None, "weights leave no simple interval"


def test_compiled_model_with_sample_weights(trained, digits, evaluate):
    """A compiled model's plain and weighted metrics are those of Keras' own evaluate."""
    task = digits.make(digits.compiled, {"test": digits.weighted}, metrics=None, loss=None)
    found = evaluate(task, trained.path("model"), ranks=2)
    says = trained.expected["model"]["keras_weighted"]
    for name in ("loss", "accuracy", "weighted_accuracy"):
        assert found[name].value == pytest.approx(says[name], rel=1e-6)


def test_loss_as_a_function(trained, digits, evaluate):
    """A loss given as a function of (y, y_pred) is averaged over examples, whatever their batches."""
    import keras

    def loss(y, logits):
        return keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)

    check(evaluate(digits.make(loss=loss), trained.path("model"), ranks=2), trained.expected["model"])


def test_metrics_that_keras_computes_from_its_states(trained, digits, evaluate):
    """States of many numbers (AUC, F1) are summed and go through Keras' own result."""
    import keras
    import numpy as np

    def one_hot(x, y):
        import tensorflow as tf

        return x, tf.one_hot(y, 10)

    def metrics():
        return [keras.metrics.AUC(from_logits=True, name="auc"), keras.metrics.F1Score("macro", name="f1")]

    task = digits.make(eval_sets={"test": lambda: digits.held_out().map(one_hot)}, metrics=metrics, loss=None)
    one, two = (evaluate(task, trained.path("model"), ranks=ranks) for ranks in (1, 2))
    assert one.hexes == two.hexes

    from sidecar.evaluation.backends.tensorflow.restore import restore

    model = digits.conv()
    restore(model, trained.path("model"), None)
    x, y = digits.held_out_arrays()
    for metric in metrics():
        metric.update_state(np.eye(10, dtype="float32")[y], model(x, training=False))
        assert one[metric.name].value == pytest.approx(float(metric.result()), rel=1e-5)


def test_own_restore_replaces_ours(trained, digits, evaluate):
    """`Task(restore=…)` is handed model and path, and nothing else is asked of the checkpoint."""
    import tensorflow as tf

    def restore(model, path):
        tf.train.Checkpoint(student=model).restore(path).expect_partial()

    found = evaluate(digits.make(restore=restore), trained.path("ambiguous"))
    assert found["accuracy"].value == trained.expected["model"]["correct"] / digits.HELD_OUT


def test_inputs_by_name(digits, evaluate, tmp_path):
    """An element's x may be a dictionary."""
    import keras
    import tensorflow as tf

    def build():
        image = keras.Input((8, 8, 1), name="image")
        return keras.Model({"image": image}, keras.layers.Dense(10)(keras.layers.Flatten()(image)))

    def source():
        return digits.held_out().map(lambda x, y: ({"image": x}, y))

    path = tf.train.Checkpoint(model=build()).write(str(tmp_path / "ckpt"))
    assert evaluate(digits.make(build, {"test": source}), path, ranks=2).examples == {"test": digits.HELD_OUT}


def test_lookup_table_is_restored(digits, evaluate, tmp_path):
    """A layer whose state is a table, no variable, gives what it gave when it was saved."""
    import keras
    import tensorflow as tf

    class Table(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, default_value=-1)

        def call(self, words):
            found = tf.cast(self.table.lookup(words), tf.float32)
            found.set_shape(words.shape)
            return found

        def compute_output_spec(self, words):
            return keras.KerasTensor(words.shape, "float32")

    def build():
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        return keras.Sequential([keras.layers.Input((1,), dtype="string"), Table(), dense])

    class Mean(keras.metrics.Mean):
        def update_state(self, y, y_pred):
            del y
            super().update_state(y_pred)

    model = build()
    model.layers[0].table.insert(tf.constant(["a", "b"]), tf.constant([3, 5], tf.int64))
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt"))
    task = digits.make(
        build, {"test": lambda: ([["a"], ["b"], ["a"]], [0, 0, 0])}, metrics=lambda: [Mean(name="mean")], loss=None
    )
    assert evaluate(task, path, ranks=2)["mean"].value == (3 + 5 + 3) / 3


def test_a_set_of_its_own_rhythm(trained, digits):
    """It is read when it first takes part, and meanwhile nothing of it is evaluated, compared or computed."""
    from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
    from sidecar.evaluation.data.shard import Shard
    from sidecar.evaluation.task import EvalSet

    few = EvalSet(lambda: digits.held_out().take(digits.BATCH + 1), every_nth=2)
    task = digits.make(eval_sets={"few": few, "test": digits.held_out})
    evaluator = KerasEvaluator.build(task, Shard(0, 1), threads=2, cache_bytes=0)
    whole = -(-digits.HELD_OUT // digits.BATCH)
    evaluator.restore(trained.path("model"))()
    found = []
    for evaluated in (1, 2, 3):
        ticks = []
        streams = evaluator.read(lambda ticks=ticks: ticks.append("read"), evaluated)
        states = evaluator.evaluate(lambda ticks=ticks: ticks.append("evaluated"))
        sets = {stream.eval_set for stream in streams}
        assert sets == set(states) == set(evaluator.compute(states))
        assert ("('few'," in evaluator.layout()) == ("few" in sets)
        found.append((sets, ticks.count("read"), ticks.count("evaluated")))
    assert found == [({"test"}, whole, whole), ({"few", "test"}, 2, whole + 2), ({"test"}, 0, whole)]


def test_masked_positions_do_not_count(digits, evaluate, tmp_path):
    """Where Keras masks positions of a sequence, the loss is the mean over the others, whatever the batches."""
    import keras
    import numpy as np
    import tensorflow as tf

    def build():
        return keras.Sequential(
            [keras.layers.Input((3,)), keras.layers.Embedding(5, 2, mask_zero=True), keras.layers.Dense(4)]
        )

    x = np.array([[1, 0, 0], [2, 3, 4], [1, 2, 0], [4, 0, 0], [3, 3, 3]], "int32")
    y = np.tile(np.arange(3), (5, 1))
    model = build()
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt"))
    single = keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)
    expected = np.asarray(single, "float64")[x != 0].mean()
    task = digits.make(build, {"test": lambda: (x, y)}, metrics=None, loss=digits.SCCE(from_logits=True), batch_size=2)
    found = [evaluate(task, path, ranks=ranks) for ranks in (1, 3)]
    assert found[0].hexes == found[1].hexes
    assert found[0]["loss"].value == pytest.approx(expected, rel=1e-6)


def test_metrics_and_losses_of_keras_have_the_intervals_of_groups(trained, digits, evaluate):
    """Those of this package's metrics."""
    from sidecar import EvalSet
    from sidecar.metrics import Accuracy, LogLoss

    task = digits.make(
        eval_sets={"test": EvalSet(digits.held_out, groups=[number // 5 for number in range(digits.HELD_OUT)])},
        metrics=lambda: [Accuracy(name="own"), LogLoss(from_logits=True), *digits.accuracy()],
    )
    found = evaluate(task, trained.path("model"), ranks=2)
    for name, same in (("accuracy", "own"), ("loss", "log_loss")):
        assert None is not found[name].lower
        own = found[same].value - found[name].value  # what the model adds to its loss
        wanted = (found[same].lower - own, found[same].upper - own)
        assert (found[name].lower, found[name].upper) == pytest.approx(wanted, rel=1e-5)


def test_slices_of_both_kinds_of_batches(trained, digits, evaluate):
    """Tensors reach the functions as arrays; means of Keras and losses have slices, and equal bits for two ranks."""
    from sidecar.metrics import Accuracy, LogLoss

    task = digits.make(
        metrics=lambda: [Accuracy(name="own"), LogLoss(from_logits=True), *digits.accuracy()],
        slices={"even": lambda x, y: (y % 2 == 0) & (x.ndim == 4), "digit": lambda _, y: y},
    )
    found = [evaluate(task, trained.path("model"), ranks=ranks) for ranks in (1, 2)]
    one, two = (each.slices["test"] for each in found)
    assert one == two
    added = found[0]["loss"].value - found[0]["log_loss"].value  # by the model
    assert one.keys() == {"even", *(f"digit={digit}" for digit in range(10))}
    assert all(values.keys() == {"own", "accuracy", "log_loss", "loss"} for values in one.values())
    for name, same in (("accuracy", "own"), ("loss", "log_loss")):
        for values in one.values():
            ends = [(each.value, each.lower, each.upper) for each in (values[name], values[same])]
            shift = added if name == "loss" else 0.0
            assert ends[0] == pytest.approx(tuple(end and end + shift for end in ends[1]), rel=1e-4)
