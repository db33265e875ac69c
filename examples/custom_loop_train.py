"""Train on handwritten digits with a loop of your own, and save with `tf.train.CheckpointManager`.

    python custom_loop_train.py
    sidecar run ckpts --task digits_task.py:task --once

The step of each checkpoint is read from the optimizer. Training may delete a checkpoint before it is evaluated
(`max_to_keep`): its pin keeps the files until then.
"""

import keras
import tensorflow as tf
from digits_task import build_model, training_set

STEPS = 90
SAVE_EVERY = 30


def main() -> None:
    """Train, and save every 30 steps."""
    keras.utils.set_random_seed(1)
    model, optimizer = build_model(), keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy()
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model, optimizer=optimizer), "ckpts", max_to_keep=3)

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    data = tf.data.Dataset.from_tensor_slices(training_set()).shuffle(1400, seed=1).repeat().batch(64)
    for step, (x, y) in enumerate(data.take(STEPS), start=1):
        train_step(x, y)
        if step % SAVE_EVERY == 0:
            manager.save()


if __name__ == "__main__":
    main()
