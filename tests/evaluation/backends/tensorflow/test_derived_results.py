# ruff: noqa: ARG001 - the signatures are Keras'
"""A `test_step` may compute with the results of metrics; the numbers are those of all batches."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

from sidecar import Task
from sidecar.evaluation.failures import EvaluationError

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

EXAMPLES, BATCH = 91, 8
X = np.random.default_rng(1).normal(size=(EXAMPLES, 4)).astype("float32")
Y = X[:, :3].argmax(1).astype("int32")


def net(of, *, extra=None, wrap=lambda step: step):
    """A model whose step returns a perplexity, an F1 and the root of a mean, some of them in a dict."""
    import tensorflow as tf

    class Net(of.Model):
        def __init__(self):
            super().__init__()
            self.out = of.layers.Dense(3, kernel_initializer=of.initializers.Orthogonal(seed=1))
            self.nll, self.squares = of.metrics.Mean(name="nll"), of.metrics.MeanSquaredError(name="mse")
            self.hits = [of.metrics.Precision(name="precision"), of.metrics.Recall(name="recall")]

        def call(self, x):
            return self.out(x)

        def test_step(self, data):
            return self.measured(*data)

        @wrap
        def measured(self, x, y):
            logits = self(x, training=False)
            losses = of.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
            self.nll.update_state(losses)
            one_hot = tf.one_hot(y, 3)
            for metric in (self.squares, *self.hits):
                metric.update_state(one_hot, tf.nn.softmax(logits))
            precision, recall = (metric.result() for metric in self.hits)
            found = {
                "nll": self.nll.result(),
                "perplexity": tf.exp(self.nll.result()),
                "more": {
                    "rmse": tf.sqrt(self.squares.result()),
                    "f1": 2 * precision * recall / (precision + recall + 1e-7),
                    "both": tf.stack([precision, recall]),
                },
            }
            return found | ({} if extra is None else extra(self, losses))

    model = Net()
    model.compile()
    return model


def task(build):
    return Task(build, {"test": lambda: (X, Y)}, batch_size=BATCH, restore=lambda *_: None)


@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("is_function", [False, True])
@pytest.mark.drawn(1)
def test_results_of_results_are_those_of_all_batches(digits, evaluate, library, is_function):
    """The numbers are those of the formulas for all examples, with equal bits for any number of ranks."""
    import tensorflow as tf

    of = importlib.import_module(library)
    wrap = tf.function if is_function else lambda step: step
    found = [evaluate(task(lambda: net(of, wrap=wrap)), "nowhere", ranks=ranks) for ranks in (1, 2, 3)]
    assert found[0].hexes == found[1].hexes == found[2].hexes
    model = net(of)
    logits = np.asarray(model(X), np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    one_hot = np.eye(3)[Y]
    right = ((shares > 0.5) & (one_hot > 0)).sum()
    precision, recall = right / (shares > 0.5).sum(), right / EXAMPLES
    nll = -np.log(shares[np.arange(EXAMPLES), Y]).mean()
    expected = {
        "nll": nll,
        "perplexity": np.exp(nll),
        "rmse": np.sqrt(np.square(shares - one_hot).mean()),
        "f1": 2 * precision * recall / (precision + recall),
        "both_0": precision,
        "both_1": recall,
    }
    values = found[0].values["test"]
    assert {name: each.value for name, each in values.items()} == pytest.approx(expected, rel=1e-5)
    assert list(values) == list(expected)
    assert values["perplexity"].goal == "none"
    assert found[0].notes == ()


def test_a_result_of_means_over_batches_is_named(digits, evaluate):
    """The exponential of a mean of batch means depends on the batches, too."""
    import keras
    import tensorflow as tf

    class Means(keras.Model):
        def __init__(self):
            super().__init__()
            self.out, self.nll = keras.layers.Dense(3), keras.metrics.Mean(name="nll")

        def call(self, x):
            return self.out(x)

        def test_step(self, data):
            x, y = data
            loss = keras.losses.sparse_categorical_crossentropy(y, self(x, training=False), from_logits=True)
            self.nll.update_state(tf.reduce_mean(loss))
            return {"perplexity": tf.exp(self.nll.result())}

    def build():
        model = Means()
        model.compile()
        return model

    (note,) = evaluate(task(build), "nowhere").notes
    assert note.startswith("perplexity is a mean over batches")


def test_the_example_of_the_docs_is_a_perplexity(digits, evaluate):
    """It is the exponential of the mean of all losses, for any number of ranks."""
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "custom-training-loops.md").read_text()
    names = {}
    exec(re.search(r"<!-- perplexity.py -->\n```python\n(.*?)```", page, re.DOTALL)[1], names)

    def build():
        model = names["Net"]()
        model.out.kernel_initializer = "ones"
        model.compile()
        return model

    found = evaluate(task(build), "nowhere", ranks=2)
    assert found["perplexity"].value == pytest.approx(np.exp(found["nll"].value), rel=1e-6)
    assert found["perplexity"].value == pytest.approx(3, rel=1e-6)


def last(model, losses):
    import tensorflow as tf

    return {"last": tf.reduce_mean(losses)}


def mixed(model, losses):
    import tensorflow as tf

    return {"mixed": model.nll.result() + tf.reduce_mean(losses)}


def constant(model, losses):
    return {"constant": 1.0}


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (last, "'last', which depends on the batch"),
        (mixed, "'mixed', which depends on the batch"),
        (constant, "'constant', which does not follow from the metrics"),
    ],
)
def test_what_a_batch_alone_gives_is_refused(digits, evaluate, extra, words):
    """Its value for the last batch is not a number of all examples."""
    import keras

    with pytest.raises(EvaluationError) as caught:
        evaluate(task(lambda: net(keras, extra=extra)), "nowhere")
    assert caught.value.kind == "task_error"
    assert words in str(caught.value)
    assert "return what follows from their result()" in str(caught.value)
    assert "keras.metrics.Mean " not in str(caught.value)
