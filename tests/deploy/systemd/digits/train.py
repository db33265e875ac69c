"""Training, as far as the daemon sees it: each call trains a little more, saves, and prints the checkpoint's name."""

import keras
import tensorflow as tf
from my_eval import build_model, examples

model = build_model()
model.compile(optimizer=keras.optimizers.Adam(0.01), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
manager = tf.train.CheckpointManager(checkpoint, "/shared/checkpoints", max_to_keep=2)
model.optimizer.build(model.trainable_variables)
checkpoint.restore(manager.latest_checkpoint)
model.fit(*examples(), epochs=3, verbose=0)
print(manager.save().rpartition("/")[2])  # noqa: T201 - the answer
