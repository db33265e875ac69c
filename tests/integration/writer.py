"""A real training process without the training: saves checkpoints when told to, and evaluates each by Keras itself.

Every line of input is a command, `{"folder", "steps", "max_to_keep", "every", "form"}`; every save is answered by one
line with what plain Keras, in this one process, finds for it.
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


def save_orbax(model, path):
    """As at the end of an epoch."""
    callback = keras.callbacks.OrbaxCheckpoint(str(path.parent), max_to_keep=None, save_on_background=False)
    callback.set_model(model)
    callback.on_epoch_end(int(path.name))
    callback.on_train_end()


FORMS = {
    "orbax": save_orbax,
    ".keras": lambda model, path: model.save(path),
    ".weights.h5": lambda model, path: model.save_weights(path),
    ".weights.json": lambda model, path: model.save_weights(path, max_shard_size=1),
    ".h5": lambda model, path: model.save(path),
    "-exported": lambda model, path: model.export(path, verbose=False),
}
"""How Keras saves, by the end of the name, where no manager does."""


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

    def save(self, folder, step, max_to_keep, form):
        """One checkpoint whose weights depend on the step alone."""
        random = np.random.default_rng(step)
        self.model.set_weights(
            [random.uniform(0.1, 2, each.shape) - 0.8 * (each.ndim > 1) for each in self.model.get_weights()]
        )
        self.optimizer.iterations.assign(step)
        if form:
            path = Path(folder, str(step) if form == "orbax" else f"m-{step}{form}")
            FORMS[form](self.model, path)
        elif folder not in self.managers:
            checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)
            self.managers[folder] = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=max_to_keep)
        path = path if form else Path(self.managers[folder].save())
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
            answers.write(
                json.dumps(writer.save(command["folder"], step, command["max_to_keep"], command["form"])) + "\n"
            )
            answers.flush()


if __name__ == "__main__":
    main()
