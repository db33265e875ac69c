"""Models whose layers hold vocabularies and bins."""

import numpy as np

from sidecar import Task

WORDS = ["red", "green", "blue", "black", "white", "grey"]

TEXTS = np.array([[f"{WORDS[number % 6]} {WORDS[number % 4]}"] for number in range(23)])

AMOUNTS = np.random.default_rng(1).normal(size=(23, 1)).astype("float32")

Y = np.random.default_rng(2).integers(0, 3, 23)


def drawn(of):
    """Weights that are the same in every model."""
    return of.initializers.RandomNormal(seed=3)


def ended(of, inputs, numbers, depth):
    hidden = of.layers.Embedding(depth, 4, embeddings_initializer=drawn(of))(numbers)
    hidden = of.layers.GlobalAveragePooling1D()(hidden)
    model = of.Model(inputs, of.layers.Dense(3, activation="softmax", kernel_initializer=drawn(of))(hidden))
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def of_texts(of, adapted):
    layer = of.layers.TextVectorization(output_sequence_length=3)
    layer.adapt(TEXTS[adapted])
    x = of.Input((1,), dtype="string")
    return ended(of, x, layer(x), 9)


def of_words(of, given):
    """A vocabulary that is given, which Keras keeps in the configuration."""
    layer = of.layers.StringLookup(vocabulary=WORDS if given == slice(0, 12) else WORDS[::-1])
    x = of.Input((1,), dtype="string")
    return ended(of, x, layer(x), 9)


def of_weighted_words(of, adapted):
    """The same vocabulary, weighted by other texts."""
    texts = TEXTS if adapted == slice(0, 12) else np.concatenate([TEXTS, TEXTS[:1], TEXTS[:1], TEXTS[:6]])
    layer = of.layers.TextVectorization(output_mode="tf_idf")
    layer.adapt(texts)
    layer.set_vocabulary(WORDS, idf_weights=[len(texts) / (number + 1) for number in range(len(WORDS))])
    x = of.Input((1,), dtype="string")
    model = of.Model(x, of.layers.Dense(3, activation="softmax", kernel_initializer=drawn(of))(layer(x)))
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def of_adapted_words(of, adapted):
    layer = of.layers.StringLookup(num_oov_indices=2)
    layer.adapt(np.array(WORDS if adapted == slice(0, 12) else WORDS[:3]))
    x = of.Input((1,), dtype="string")
    return ended(of, x, layer(x), 9)


def of_amounts(of, adapted):
    layer = of.layers.Discretization(num_bins=5)
    layer.adapt(AMOUNTS[adapted])
    x = of.Input((1,))
    return ended(of, x, layer(x), 7)


def of_features(of, adapted):
    """A `FeatureSpace` as part of the model, as scripts have it."""
    import tensorflow as tf

    space = of.utils.FeatureSpace(
        features={"a": of.utils.FeatureSpace.float_discretized(num_bins=5)}, output_mode="concat"
    )
    space.adapt(tf.data.Dataset.from_tensor_slices({"a": AMOUNTS[adapted]}))
    outputs = of.layers.Dense(3, activation="softmax", kernel_initializer=drawn(of))(space.get_encoded_features())
    model = of.Model(space.get_inputs(), outputs)
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def task(build, x, **changes):
    return Task(build_model=build, eval_sets={"test": lambda: (x, Y)}, batch_size=4, **changes)


def keras_says(model, x):
    import tensorflow as tf

    model.run_eagerly = True  # a trace takes longer than these few batches
    return model.evaluate(tf.data.Dataset.from_tensor_slices((x, Y)).batch(4), verbose=0, return_dict=True)


def of_normalized(of, adapted):
    layer = of.layers.Normalization()
    layer.adapt(AMOUNTS[adapted])
    x = of.Input((1,))
    model = of.Model(x, of.layers.Dense(3, activation="softmax", kernel_initializer=drawn(of))(layer(x)))
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
