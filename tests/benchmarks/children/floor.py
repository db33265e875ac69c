"""The floor: one plain process that restores a checkpoint and runs one traced function over data in memory.

Forward pass, loss and accuracy, summed in the graph in float32, on all cores that it has: nothing that could be left
out. `floor.py [keras|tf_keras]`; tf_keras' own `evaluate` is timed beside it.
"""

import importlib
import sys
import time

from answers import serve
from conv import BATCH, arrays, conv_net

keras = importlib.import_module(sys.argv[1])
import tensorflow as tf  # noqa: E402 - Keras chooses its backend

model = conv_net(keras)
model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
x, y = arrays()
batches = [(tf.constant(x[at : at + BATCH]), tf.constant(y[at : at + BATCH])) for at in range(0, len(x), BATCH)]
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
total, correct = tf.Variable(0.0), tf.Variable(0.0)


@tf.function(input_signature=[tf.TensorSpec([None, 32, 32, 3]), tf.TensorSpec([None], tf.int32)])
def step(x, y):
    predictions = model(x, training=False)
    total.assign_add(tf.reduce_sum(keras.losses.sparse_categorical_crossentropy(y, predictions)))
    correct.assign_add(tf.reduce_sum(keras.metrics.sparse_categorical_accuracy(y, predictions)))


def evaluate(path, by_keras=False):
    begin = time.monotonic()
    tf.train.Checkpoint(model=model).restore(path).expect_partial()
    if by_keras:
        restored = time.monotonic()
        model.evaluate(data, verbose=0)
        return {"seconds": time.monotonic() - restored}
    total.assign(0.0)
    correct.assign(0.0)
    for batch in batches:
        step(*batch)
    return {"loss": float(total) / len(x), "accuracy": float(correct) / len(x), "seconds": time.monotonic() - begin}


serve(evaluate)
