"""A training process that saves every so often and keeps one checkpoint: its only weight is the step.

    rapid_writer.py FOLDER SECONDS EVERY

Begins when its input does. One line for each save: its step. At the end a file DONE says that there will be no more.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "tasks"))

import keras
import numpy as np
import stepped
import tensorflow as tf


def main():
    folder, seconds, every = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    model, optimizer = stepped.build_model(), keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model, optimizer=optimizer), str(folder), max_to_keep=1
    )
    sys.stdin.readline()
    begin, step = time.monotonic(), 0
    while time.monotonic() < begin + seconds:
        step += 1
        model.set_weights([np.full((1, 1), step, "float32")])
        optimizer.iterations.assign(step)
        manager.save()
        sys.stdout.write(f"{step}\n")
        sys.stdout.flush()
        time.sleep(max(0.0, begin + step * every - time.monotonic()))
    (folder / "DONE").touch()


if __name__ == "__main__":
    main()
