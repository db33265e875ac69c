"""Batches of every structure that Keras takes: the numbers of Keras' own evaluation, whoever evaluates how much of it.

Dicts and tuples of inputs and labels, ragged and sparse tensors, texts, masked sequences, weights of examples and of
positions; for Keras 3 and tf_keras, for metrics that the task names and for the compiled model's own.
"""

import numpy as np
import pytest

from sidecar import EvalSet, Task

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

EXAMPLES, BATCH, STEPS, CLASSES = 23, 4, 5, 3


def random(*shape, high=None):
    generator = np.random.default_rng(len(shape) + (high or 0))
    return generator.normal(size=shape).astype("float32") if high is None else generator.integers(0, high, shape)


def ramp(shape, **_):
    """Weights that are the same in every model."""
    import tensorflow as tf

    return tf.reshape(tf.linspace(-1.0, 1.0, int(np.prod(shape))), [int(size) for size in shape])


def classes(of, hidden, name=None):
    return of.layers.Dense(CLASSES, activation="softmax", kernel_initializer=ramp, name=name)(hidden)


def embedding(of, words, **options):
    return of.layers.Embedding(words, 4, embeddings_initializer=ramp, **options)


def two_inputs(of, kind):
    a, b = of.Input((3,), name="a"), of.Input((2,), name="b")
    return of.Model(kind(a=a, b=b) if kind is dict else kind([a, b]), classes(of, of.layers.Concatenate()([a, b])))


def two_outputs(of):
    x = of.Input((3,))
    return of.Model(x, {"p": classes(of, x, "p"), "q": of.layers.Dense(1, kernel_initializer=ramp, name="q")(x)})


def of_ragged(of):
    class Dense(of.layers.Layer):
        def call(self, x):
            return x.to_tensor(shape=[None, STEPS])

        def compute_output_shape(self, shape):
            return (shape[0], STEPS)

    x = of.Input((None,), dtype="int64", ragged=True)
    return of.Model(x, classes(of, of.layers.GlobalAveragePooling1D()(embedding(of, 7)(Dense()(x)))))


def of_sparse(of):
    x = of.Input((6,), sparse=True)
    return of.Model(x, classes(of, x))


def of_words(of):
    x = of.Input((1,), dtype="string")
    words = of.layers.StringLookup(vocabulary=["word0", "word1", "word2"])(x)
    return of.Model(x, classes(of, of.layers.Flatten()(embedding(of, 4)(words))))


def of_tokens(of):
    x = of.Input((STEPS,), dtype="int32")
    return of.Model(x, classes(of, embedding(of, 6, mask_zero=True)(x)))


def ragged():
    import tensorflow as tf

    lengths = np.arange(EXAMPLES) % STEPS
    return tf.RaggedTensor.from_row_lengths(tf.constant(random(int(lengths.sum()), high=7)), lengths)


def sparse():
    import tensorflow as tf

    return tf.sparse.from_dense(random(EXAMPLES, 6) * (random(EXAMPLES, 6, high=3) > 1))


def inputs(kind):
    return kind(a=random(EXAMPLES, 3), b=random(EXAMPLES, 2)) if kind is dict else (random(23, 3), random(23, 2))


Y, WEIGHTS = random(EXAMPLES, high=CLASSES), (np.arange(EXAMPLES) % 3 / 2).astype("float32")
TWO_Y, TWO_WEIGHTS = {"p": Y, "q": random(EXAMPLES, 1)}, {"p": WEIGHTS, "q": WEIGHTS[::-1].copy()}
TOKENS, STEPS_Y = random(EXAMPLES, STEPS, high=6), random(EXAMPLES, STEPS, high=CLASSES)
WORDS = np.array([[f"word{number % 5}"] for number in range(EXAMPLES)])
CASES = {
    "dict of inputs": (lambda of: two_inputs(of, dict), lambda: (inputs(dict), Y)),
    "tuple of inputs, weights": (lambda of: two_inputs(of, list), lambda: (inputs(tuple), Y, WEIGHTS)),
    "dict of labels": (two_outputs, lambda: (random(EXAMPLES, 3), TWO_Y)),
    "dict of labels, of weights": (two_outputs, lambda: (random(EXAMPLES, 3), TWO_Y, TWO_WEIGHTS)),
    "ragged": (of_ragged, lambda: (ragged(), Y)),
    "sparse, weights": (of_sparse, lambda: (sparse(), Y, WEIGHTS)),
    "texts": (of_words, lambda: (WORDS, Y)),
    "masked": (of_tokens, lambda: (TOKENS, STEPS_Y)),
    "masked, weights of positions": (of_tokens, lambda: (TOKENS, STEPS_Y, random(EXAMPLES, STEPS, high=4) / 2)),
}

PARTS = {"dict of inputs", "dict of labels", "masked", "texts", "tuple of inputs, weights"}
"""Cases that have less than another one, or that test_layer_tables and test_scripts have: in `make test-all` alone."""


def losses(of, several):
    crossentropy = of.losses.SparseCategoricalCrossentropy()
    return {"p": crossentropy, "q": of.losses.MeanSquaredError()} if several else crossentropy


def metrics(of, several):
    accuracy = [of.metrics.SparseCategoricalAccuracy(name="accuracy")]
    return {"p": accuracy, "q": [of.metrics.MeanAbsoluteError(name="mae")]} if several else accuracy


@pytest.mark.parametrize("name", ["keras", "tf_keras"])
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.nightly if case in PARTS else ()) for case in CASES]
)
@pytest.mark.drawn(1)
def test_numbers_of_keras(digits, evaluate, case, name):
    """Examples exactly, numbers to rounding, the same bits for 1 and 2 ranks, kept or read again, prepared or not.

    Keras is asked for all examples in one batch, so that it averages no averages. Only the loss that a compiled model
    keeps itself stays a mean over batches where the model masks: there Keras is asked with the same batches.
    """
    import tensorflow as tf

    of, (build, arrays) = pytest.importorskip(name), CASES[case]
    several, is_masked, is_weighted = "labels" in case, "masked" in case, "weights" in case
    del digits

    def data():
        return tf.data.Dataset.from_tensor_slices(arrays())

    def compiled():
        model = build(of)
        given = {"weighted_metrics" if is_weighted else "metrics": metrics(of, several)}
        model.compile(loss=losses(of, several), **given)
        return model

    def check(found, batch):
        model = compiled()
        model.run_eagerly = True  # a trace takes longer than these few batches
        expected = model.evaluate(data().batch(batch), verbose=0, return_dict=True)
        assert all(each.examples == {"test": EXAMPLES} for each in found)
        assert len({tuple(each.hexes.items()) for each in found}) == 1
        assert {key: found[0][key].value for key in expected} == pytest.approx(expected, rel=2e-5)

    usual = {"batch_size": BATCH, "restore": lambda *_: None}
    chosen = {"metrics": lambda: metrics(of, several), "loss": losses(of, several)}
    found = []
    for source, ranks, cache in ((data, 1, 1 << 20), (EvalSet(data, prepare=lambda *each: each), 2, 1 << 20)):
        task = Task(build_model=lambda: build(of), eval_sets={"test": source}, **usual, **chosen)
        found += evaluate(task, "a", "b", ranks=ranks, cache_bytes=cache)
    check(found, EXAMPLES)
    task = Task(build_model=compiled, eval_sets={"test": data}, **usual)
    found = [evaluate(task, "a", ranks=1), *evaluate(task, "a", "b", ranks=2, cache_bytes=0)]
    check(found, BATCH if is_masked else EXAMPLES)
