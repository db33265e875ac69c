"""The training job of the demo: one process of a MultiWorkerMirroredStrategy cluster, to be read and copied.

It saves checkpoints, as any training job does, and ends early if the sidecar advises it. Start it once per task of the
cluster, each with its own TF_CONFIG. Without TF_CONFIG it trains in a single process:

    python train.py --checkpoints ckpts
"""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Final

import keras
import tensorflow as tf

from sidecar.commands.demo.digits import build_model, training_set
from sidecar.early_stop import should_stop

BATCH_SIZE: Final = 64  # over all processes
LEARNING_RATE: Final = 5e-4  # low, so that the accuracy rises over several checkpoints before it falls
SEED: Final = 1
LOG_EVERY: Final = 10  # steps
SHUTDOWN_SECONDS: Final = 1.0


def main(arguments: list[str]) -> None:
    """Train for a number of steps and save a checkpoint every `--save-every` steps."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits.")
    parser.add_argument("--checkpoints", type=Path, required=True, help="directory to save checkpoints in")
    parser.add_argument("--steps", type=int, default=960, help="how long to train")
    parser.add_argument("--save-every", type=int, default=120, help="steps between two checkpoints")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds to sleep per step, as if the network were larger"
    )
    options = parser.parse_args(arguments)

    # The strategy comes first: TensorFlow configures collectives when its runtime starts, at the first operation. The
    # processes find each other here by TF_CONFIG, and wait for each other.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(SEED)

    # Everything with variables is created in the strategy's scope, so that each becomes one variable on all processes.
    # The optimizer is built here, since it would create its variables at its first step, too late for a restore.
    with strategy.scope():
        model = build_model()
        optimizer = keras.optimizers.Adam(LEARNING_RATE)
        optimizer.build(model.trainable_variables)
        loss = keras.losses.SparseCategoricalCrossentropy(reduction="none")

    train_step = make_train_step(strategy, model, optimizer, loss)
    batches = iter(strategy.distribute_datasets_from_function(own_batches))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(checkpoint, str(directory_of(strategy, options.checkpoints)), max_to_keep=3)

    # An interrupted job continues where the chief last saved. All processes must start from the same values.
    if latest := tf.train.latest_checkpoint(str(options.checkpoints)):
        checkpoint.restore(latest).assert_existing_objects_matched()

    for step in range(int(optimizer.iterations.numpy()) + 1, options.steps + 1):
        train_step(batches)
        time.sleep(options.pause)
        if step % options.save_every == 0:
            # All processes save, since reading a distributed variable can need all of them.
            manager.save(checkpoint_number=step)
            if agree(strategy, should_stop(options.checkpoints) is not None):
                say(f"step {step}: the sidecar saw no improvement any more")
                break
        if step % LOG_EVERY == 0 or step == options.steps:
            say(f"step {step} of {options.steps}")

    wait_for_all(strategy)
    if not is_chief(strategy):
        shutil.rmtree(manager.directory)
    # A normal exit would wait for the strategy's next health check of the other processes, which have ended by then.
    sys.stdout.flush()
    os._exit(0)


def make_train_step(strategy: Any, model: Any, optimizer: Any, loss: Any) -> Any:
    """Return one traced training step on all processes; Keras 3's `fit` does not work with this strategy."""

    def on_one_replica(batch: Any) -> None:
        images, labels = batch
        with tf.GradientTape() as tape:
            # Gradients are summed over the replicas, so each replica divides by the size of the whole batch.
            mean = tf.reduce_sum(loss(labels, model(images, training=True))) / BATCH_SIZE
        gradients = tape.gradient(mean, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    def on_all_replicas(batches: Any) -> None:
        strategy.run(on_one_replica, args=(next(batches),))

    return tf.function(on_all_replicas)


def own_batches(context: Any) -> tf.data.Dataset:
    """Return this process's part of the data, in batches of its part of the batch size."""
    data = training_set().shard(context.num_input_pipelines, context.input_pipeline_id)
    data = data.shuffle(1000, seed=SEED).repeat()
    return data.batch(context.get_per_replica_batch_size(BATCH_SIZE), drop_remainder=True)


def directory_of(strategy: Any, checkpoints: Path) -> Path:
    """Return where this process saves: only the chief saves where the job's checkpoints are expected."""
    if is_chief(strategy):
        return checkpoints
    task = strategy.cluster_resolver
    return checkpoints.parent / "unused" / f"{task.task_type}-{task.task_id}"  # outside: the daemon must not see it


def is_chief(strategy: Any) -> bool:
    """Return whether this process saves the job's checkpoints: the chief, or worker 0 where there is no chief."""
    task = strategy.cluster_resolver
    cluster = task.cluster_spec().as_dict()
    return not cluster or task.task_type == "chief" or ("chief" not in cluster and task.task_id == 0)


def agree(strategy: Any, stops: bool) -> bool:
    """Return whether any process passes true: all make the same steps, though they see a file at different moments."""
    flag = tf.constant(int(stops))

    def add_up() -> Any:
        return strategy.reduce("SUM", strategy.run(lambda: flag), axis=None)

    return bool(tf.function(add_up)())


def wait_for_all(strategy: Any) -> None:
    """Return when every process is here. A process that ended earlier would take the cluster down with it."""
    agree(strategy, stops=False)
    time.sleep(SHUTDOWN_SECONDS)  # the last message may still be on its way


def say(line: str) -> None:
    """Print a line and flush it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
