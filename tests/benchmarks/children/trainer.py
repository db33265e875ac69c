"""A training loop that is timed block by block. `trainer.py THREADS` (0: TensorFlow's default)."""

import sys
import time

import keras
import tensorflow as tf
from answers import serve
from conv import BATCH, arrays, conv_net

threads = int(sys.argv[1])
tf.config.threading.set_intra_op_parallelism_threads(threads)
tf.config.threading.set_inter_op_parallelism_threads(threads)

model = conv_net(keras)
model.compile(keras.optimizers.Adam(), "sparse_categorical_crossentropy", metrics=["accuracy"])
x, y = arrays()
batches = [(tf.constant(x[at : at + BATCH]), tf.constant(y[at : at + BATCH])) for at in range(0, 2048, BATCH)]
test = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
model.optimizer.build(model.trainable_variables)
checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
managers = {}


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, model(x, training=True)))
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


def train(seconds, save_to=None, evaluate=False):
    """Save if told to, train for so long, evaluate if told to; seconds and CPU seconds of a step, without the save."""
    if save_to is not None:
        if save_to not in managers:
            managers[save_to] = tf.train.CheckpointManager(checkpoint, save_to, max_to_keep=5)
        managers[save_to].save()
    begin, computing, steps = time.monotonic(), time.process_time(), 0
    while time.monotonic() - begin < seconds:
        for batch in batches:
            loss = train_step(*batch)
        float(loss)
        steps += len(batches)
    if evaluate:
        model.evaluate(test, verbose=0)
    return {"step": (time.monotonic() - begin) / steps, "cpu": (time.process_time() - computing) / steps}


serve(train)
