"""Models with several outputs: metrics and losses of each, under the names and with the numbers of Keras."""

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow

EXAMPLES, BATCH = 103, 16


def arrays():
    random = np.random.default_rng(3)
    x = random.normal(size=(EXAMPLES, 6)).astype("float32")
    return x, {"digit": random.integers(0, 4, EXAMPLES), "size": x.sum(axis=1, keepdims=True)}


@pytest.fixture(scope="module")
def build():
    """A function that builds the same model each time, with a dict or a list of outputs."""
    import keras

    def build(*, listed=False):
        keras.utils.set_random_seed(5)
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(8, activation="relu", kernel_regularizer=keras.regularizers.L2(0.01))(inputs)
        digit = keras.layers.Dense(4, activation="softmax", name="digit")(hidden)
        size = keras.layers.Dense(1, name="size")(hidden)
        return keras.Model(inputs, [digit, size] if listed else {"digit": digit, "size": size})

    return build


def losses():
    import keras

    return {"digit": keras.losses.SparseCategoricalCrossentropy(), "size": keras.losses.MeanSquaredError()}


def metrics():
    import keras

    return {
        "digit": [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        "size": [keras.metrics.MeanAbsoluteError(name="mae"), keras.metrics.MeanSquaredError(name="mse")],
    }


def task(build, data=arrays, **changes):
    from sidecar import Task

    given = {"metrics": metrics, "loss": losses(), "restore": lambda *_: None} | changes
    return Task(build_model=build, eval_sets={"test": data}, batch_size=BATCH, **given)


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_each_output_has_its_numbers(build, evaluate, ranks):
    """Equal to `Model.evaluate` of the compiled model in one batch, which averages nothing twice."""
    found = evaluate(task(build), "nowhere", ranks=ranks)
    model = build()
    model.compile(loss=losses(), metrics=metrics(), run_eagerly=True)
    x, y = arrays()
    expected = model.evaluate(x, y, batch_size=EXAMPLES, verbose=0, return_dict=True)
    assert {name: found[name].value for name in expected} == pytest.approx(expected, rel=1e-5)
    assert set(found.values["test"]) == set(expected)
    assert found["digit_accuracy"].lower is not None


@pytest.mark.parametrize("kind", [tuple, list])
def test_outputs_in_a_list(build, evaluate, kind):
    """Keyed by their place, as are the labels, which Keras takes in a list, too."""

    def data():
        x, y = arrays()
        return x, kind((y["digit"], y["size"]))

    def listed():
        by_name = metrics()
        return {0: by_name["digit"], 1: by_name["size"]}

    by_place = evaluate(
        task(lambda: build(listed=True), data, metrics=listed, loss=dict(enumerate(losses().values()))), "nowhere"
    )
    by_name = evaluate(task(build), "nowhere")
    assert by_place["0_accuracy"] == by_name["digit_accuracy"]
    assert by_place["loss"] == by_name["loss"]


def test_weights_for_all_outputs_alike(build, evaluate):
    """One weight per example holds for every output, as in Keras."""

    def weighted():
        x, y = arrays()
        return x, y, (np.arange(EXAMPLES) % 3).astype("float32")

    found = evaluate(task(build, weighted, metrics=None), "nowhere", ranks=2)
    model = build()
    model.compile(loss=losses(), run_eagerly=True)
    x, y, weights = weighted()
    expected = model.evaluate(
        x, y, sample_weight={"digit": weights, "size": weights}, batch_size=EXAMPLES, verbose=0, return_dict=True
    )
    assert found["loss"].value == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metrics": lambda: metrics()["digit"]}, "parts ['digit', 'size']: give metrics and loss for each"),
        ({"metrics": lambda: {"colour": metrics()["digit"]}}, "no part 'colour': they have ['digit', 'size']"),
        ({"loss": "losses"}, "parts ['digit', 'size']"),
    ],
)
def test_metrics_of_no_output(build, evaluate, changes, words):
    """The error about a metric or a loss without an output names the outputs that the model has."""
    from sidecar.evaluation.failures import EvaluationError

    if changes.get("loss") == "losses":
        changes = {"loss": losses()["digit"], "metrics": None}
    with pytest.raises(EvaluationError) as failed:
        evaluate(task(build, **changes), "nowhere")
    assert words in str(failed.value)


def test_outputs_in_a_list_have_numbers(build, evaluate):
    """Keras finds them by the names of layers, and the message says what the task has to write."""
    from sidecar.evaluation.failures import EvaluationError

    with pytest.raises(EvaluationError, match="those of a list"):
        evaluate(task(lambda: build(listed=True)), "nowhere")
