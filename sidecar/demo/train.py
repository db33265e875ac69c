"""The training job of the demo: one process of a MultiWorkerMirroredStrategy cluster, to be read and copied.

It knows nothing of the sidecar: it saves checkpoints, as any training job does. Start it once per task of the cluster,
each with its own TF_CONFIG; without TF_CONFIG it trains alone:

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

from sidecar.demo.digits import build_model, training_set

BATCH_SIZE: Final = 64  # over all processes
LEARNING_RATE: Final = 3e-4  # slow, so that the evaluations tell a story
SEED: Final = 1
SAY_EVERY: Final = 10  # steps
FAREWELL_SECONDS: Final = 1.0


def main(arguments: list[str]) -> None:
    """Train for a number of steps and save now and then."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits.")
    parser.add_argument("--checkpoints", type=Path, required=True, help="directory to save checkpoints in")
    parser.add_argument("--steps", type=int, default=960, help="how long to train")
    parser.add_argument("--save-every", type=int, default=120, help="steps between two checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to idle per step, as if the net were larger")
    options = parser.parse_args(arguments)

    # Before anything else of TensorFlow: collectives are configured when its runtime starts, which is at the first
    # operation. On TF_CONFIG's word the processes find each other here, and wait for each other.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(SEED)

    # Everything with variables is made in the strategy's scope, so that each becomes one variable on all processes. The
    # optimizer makes its own at its first step unless it is built, and what does not exist cannot be restored.
    with strategy.scope():
        model = build_model()
        optimizer = keras.optimizers.Adam(LEARNING_RATE)
        optimizer.build(model.trainable_variables)
        loss = keras.losses.SparseCategoricalCrossentropy(reduction="none")

    train_step = make_train_step(strategy, model, optimizer, loss)
    batches = iter(strategy.distribute_datasets_from_function(own_batches))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(checkpoint, str(directory_of(strategy, options.checkpoints)), max_to_keep=3)

    # A job that was interrupted goes on where the chief last saved; all processes must start from the same values.
    if latest := tf.train.latest_checkpoint(str(options.checkpoints)):
        checkpoint.restore(latest).assert_existing_objects_matched()

    for step in range(int(optimizer.iterations.numpy()) + 1, options.steps + 1):
        train_step(batches)
        time.sleep(options.pause)
        if step % options.save_every == 0:
            # All processes save, since reading a distributed variable can be a matter for all of them.
            manager.save(checkpoint_number=step)
        if step % SAY_EVERY == 0 or step == options.steps:
            say(f"step {step} of {options.steps}")

    wait_for_all(strategy)
    if not is_chief(strategy):
        shutil.rmtree(manager.directory)
    # Not a normal exit: taking the strategy down waits for its next check of the others' health, who are gone by then.
    sys.stdout.flush()
    os._exit(0)


def make_train_step(strategy: Any, model: Any, optimizer: Any, loss: Any) -> Any:
    """One step on all processes, as a traced function. Keras 3's own `fit` does not work under this strategy."""

    def on_one_replica(batch: Any) -> None:
        images, labels = batch
        with tf.GradientTape() as tape:
            # Gradients are added up over the replicas, so each divides by the size of the whole batch.
            mean = tf.reduce_sum(loss(labels, model(images, training=True))) / BATCH_SIZE
        gradients = tape.gradient(mean, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    def on_all_replicas(batches: Any) -> None:
        strategy.run(on_one_replica, args=(next(batches),))

    return tf.function(on_all_replicas)


def own_batches(context: Any) -> tf.data.Dataset:
    """This process's part of the data, in batches of its part of the batch size."""
    data = training_set().shard(context.num_input_pipelines, context.input_pipeline_id)
    data = data.shuffle(1000, seed=SEED).repeat()
    return data.batch(context.get_per_replica_batch_size(BATCH_SIZE), drop_remainder=True)


def directory_of(strategy: Any, checkpoints: Path) -> Path:
    """Where this process saves: two writers of the same files would spoil them, so only the chief's are the job's."""
    if is_chief(strategy):
        return checkpoints
    task = strategy.cluster_resolver
    return checkpoints.parent / "unused" / f"{task.task_type}-{task.task_id}"  # beside: it must not be watched


def is_chief(strategy: Any) -> bool:
    """Whether this process's checkpoints are the job's: the chief's; without a chief worker 0's; or the only one's."""
    task = strategy.cluster_resolver
    cluster = task.cluster_spec().as_dict()
    return not cluster or task.task_type == "chief" or ("chief" not in cluster and task.task_id == 0)


def wait_for_all(strategy: Any) -> None:
    """Return once every process is here: one that ends while another still works takes the cluster down with it."""

    def add_up() -> Any:
        return strategy.reduce("SUM", strategy.run(lambda: tf.constant(1)), axis=None)

    tf.function(add_up)()
    time.sleep(FAREWELL_SECONDS)  # what we have sent may still be on its way


def say(line: str) -> None:
    """Tell whoever reads our output, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
