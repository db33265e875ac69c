"""Trains briefly, saves every kind of checkpoint that tests need, and writes what plain Keras says about each.

Run as `python trainer.py FOLDER`; `FOLDER/expected.json` is written last.
"""

import json
import sys
from pathlib import Path

import digits
import keras
import numpy as np
import tensorflow as tf
import tf_keras

folder = Path(sys.argv[1])
x, y = digits.held_out_arrays()
weights = digits.weights_of(y)
expected = {}
LARGE = 200  # examples in a batch of Keras' own evaluation: its means depend on it by rounding alone


def train(model, of=keras):
    """A few steps: good enough that the numbers are not those of chance, bad enough that they are not 1.

    Everything here runs eagerly: to trace and compile a step takes longer than the few batches that it is for.
    """
    model.compile(
        optimizer=of.optimizers.Adam(0.01),
        loss=of.losses.SparseCategoricalCrossentropy(from_logits=True),
        run_eagerly=True,
    )
    model.fit(*digits.train_arrays(), batch_size=100, epochs=1, verbose=0)
    return model


def expect(name, model, of=keras):
    """Return what a plain evaluation by one process finds: by hand in float64, and by Keras' own evaluate."""
    logits = np.concatenate([np.asarray(model(part, training=False)) for part in np.array_split(x, 7)])
    hits = logits.argmax(axis=1) == y
    wide = logits.astype("float64")
    top = wide.max(axis=1, keepdims=True)
    losses = np.log(np.exp(wide - top).sum(axis=1)) + top[:, 0] - wide[np.arange(len(y)), y]
    added = float(sum(np.asarray(each, "float64") for each in model.losses))
    if type(model).test_step is of.Model.test_step:
        model.compile(
            optimizer="adam",
            loss=of.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            weighted_metrics=[of.metrics.SparseCategoricalAccuracy(name="weighted_accuracy")],
            run_eagerly=True,
        )
        keras_says = model.evaluate(x, y, batch_size=LARGE, verbose=0, return_dict=True)
        weighted = model.evaluate(x, y, sample_weight=weights, batch_size=LARGE, verbose=0, return_dict=True)
    else:
        keras_says, weighted = model.evaluate(x, y, batch_size=LARGE, verbose=0, return_dict=True), {}
    expected[name] = {
        "correct": int(hits.sum()),
        "count": len(y),
        "loss": float(losses.mean() + added),
        "loss_weighted": float((losses * weights).mean() + added),
        "loss_weighted_mean": float((losses * weights).sum() / weights.sum(dtype="float64") + added),
        "accuracy_weighted": float((hits * weights).sum(dtype="float64") / weights.sum(dtype="float64")),
        "keras": keras_says,
        "keras_weighted": weighted,
    }


def save(name, root, *, subject=None, of=keras):
    """One checkpoint; the model is expected to be found in it."""
    Path(folder, name).mkdir()
    root.write(str(folder / name / "ckpt-1"))
    if subject is not None:
        expect(name, subject, of)


def checkpoint(**children):
    return tf.train.Checkpoint(**children)


keras.utils.set_random_seed(7)
conv = train(digits.conv())
save("model", checkpoint(model=conv, optimizer=conv.optimizer), subject=conv)
conv.export(str(folder / "exported"), verbose=False)
save("net", checkpoint(net=conv), subject=conv)
save("net_and_optimizer", checkpoint(optimizer=conv.optimizer, net=conv), subject=conv)
save("bare", tf.train.Checkpoint(conv), subject=conv)
save("two_names_of_one", checkpoint(student=conv, teacher=conv), subject=conv)
save("ambiguous", checkpoint(student=conv, teacher=digits.conv()))
save("wide", checkpoint(model=digits.conv(width=5)))
save("optimizer_alone", checkpoint(optimizer=conv.optimizer))

later = train(conv)
save("later", checkpoint(model=later, optimizer=later.optimizer), subject=later)

subclassed = train(digits.Subclassed())
save("subclassed", checkpoint(model=subclassed, optimizer=subclassed.optimizer), subject=subclassed)
scaled = train(digits.Scaled())
scaled.scale.assign(0.5)
save("scaled", checkpoint(model=scaled), subject=scaled)
own_step = digits.own_step()
train_like = train(digits.Subclassed())
own_step(x[:1])
own_step.set_weights(train_like.get_weights())
save("own_step", checkpoint(model=own_step), subject=own_step)

keras_2 = train(digits.conv(tf_keras), tf_keras)
save("keras_2", checkpoint(model=keras_2, optimizer=keras_2.optimizer), subject=keras_2, of=tf_keras)

words = digits.words()
save("words", checkpoint(model=words))

half = digits.dense()
half_typed = keras.Sequential(
    [keras.layers.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10, dtype="float16")]
)
save("dense", checkpoint(model=half))
save("half", checkpoint(model=half_typed))

(folder / "expected.json").write_text(json.dumps(expected))
