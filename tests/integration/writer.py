"""A real training process without the training: saves checkpoints when told to, and evaluates each by Keras itself.

Every line of input is a command, `{"folder", "steps", "max_to_keep", "every"}`; every save is answered by one line with
what plain Keras, in this one process, finds for it.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "tasks"))

import keras
import numpy as np
import plain
import tensorflow as tf


class Writer:
    """A model, its optimizer, and a checkpoint manager for each folder."""

    def __init__(self):
        self.model = plain.build_model()
        self.optimizer = keras.optimizers.SGD()
        self.optimizer.build(self.model.trainable_variables)
        self.model.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(), metrics=[keras.metrics.SparseCategoricalAccuracy()]
        )
        self.managers = {}

    def save(self, folder, step, max_to_keep):
        """One checkpoint whose weights depend on the step alone."""
        random = np.random.default_rng(step)
        self.model.set_weights(
            [random.uniform(0.1, 2, each.shape) - 0.8 * (each.ndim > 1) for each in self.model.get_weights()]
        )
        self.optimizer.iterations.assign(step)
        if folder not in self.managers:
            checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)
            self.managers[folder] = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=max_to_keep)
        path = Path(self.managers[folder].save())
        right = np.argmax(self.model(plain.X, training=False), axis=1) == plain.Y
        loss = self.model.evaluate(plain.X, plain.Y, batch_size=plain.BATCH, verbose=0)[0]
        return {"name": path.name, "step": step, "correct": int(right.sum()), "examples": len(right), "loss": loss}


def main():
    answers = sys.stdout
    sys.stdout = sys.stderr
    writer = Writer()
    for line in sys.stdin:
        command = json.loads(line)
        start = time.monotonic()
        for number, step in enumerate(command["steps"]):
            time.sleep(max(0.0, start + number * command["every"] - time.monotonic()))
            answers.write(json.dumps(writer.save(command["folder"], step, command["max_to_keep"])) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
