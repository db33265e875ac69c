"""Whole models and weights, written by Keras 3, tf_keras and TensorFlow themselves. Run by real_writer.py."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf
from kinds import CALLBACKS, KINDS


def _keras_3() -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(60), keras.layers.BatchNormalization()])
    model.add(keras.layers.Dense(50))
    model.compile("adam", "mse")
    return _fitted(model)


def _keras_2() -> Any:
    import tf_keras

    tf_keras.utils.set_random_seed(1)
    model = tf_keras.Sequential([tf_keras.layers.Dense(60, input_shape=(30,)), tf_keras.layers.Dense(50)])
    model.compile("adam", "mse")
    return _fitted(model)


def _fitted(model: Any) -> Any:
    random = np.random.default_rng()  # never the same values twice
    model.fit(random.normal(size=(8, 30)), random.normal(size=(8, 50)), verbose=0)
    return model


def _latest_superblock(folder: Path) -> None:
    with h5py.File(folder / "m-5.weights.h5", "w", libver="latest") as file:
        file["vars/0"] = np.ones((100, 100))


def _through_a_temporary_file(folder: Path) -> None:
    """As Keras does where memory is short."""
    from keras.src.saving import saving_lib

    enough, saving_lib.is_memory_sufficient = saving_lib.is_memory_sufficient, lambda _: False
    try:
        models["keras_3"].save(folder / "m-5.keras")
    finally:
        saving_lib.is_memory_sufficient = enough


def _failed(folder: Path) -> None:
    """A save that an error ends after the configuration."""
    from keras.src.saving import saving_lib

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    state, saving_lib._save_state = saving_lib._save_state, fail
    try:
        models["keras_3"].save(folder / "m-5.keras")
    except MemoryError:
        pass
    finally:
        saving_lib._save_state = state


def _with_assets(folder: Path) -> None:
    """A graph that reads a vocabulary: other words each time, under the same name."""
    module = tf.Module()
    module.kernel = tf.Variable(models["keras_3"].layers[-1].kernel)
    words = Path(tempfile.mkdtemp(dir=folder.parent), "words.tmp.txt")  # users name files as they like
    words.write_text("\n".join(map(str, module.kernel.numpy()[0])))
    source = tf.lookup.TextFileInitializer(
        str(words),
        tf.string,
        tf.lookup.TextFileIndex.WHOLE_LINE,
        tf.int64,
        tf.lookup.TextFileIndex.LINE_NUMBER,
    )
    module.table = tf.lookup.StaticHashTable(source, -1)
    spec = tf.TensorSpec((None,), tf.string)
    module.serve = tf.function(lambda text: tf.gather(module.kernel, module.table.lookup(text)), input_signature=[spec])
    tf.saved_model.save(module, str(folder / "m-5"), signatures=module.serve)


def _manager(folder: Path) -> None:
    """With the state of an iterator, whose checksum is not that of its bytes."""
    model = models["keras_3"]
    iterator = iter(tf.data.Dataset.range(10).shuffle(5))
    next(iterator)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, iterator=iterator)
    tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=1, checkpoint_name="m").save(5)


def _sharded(folder: Path) -> None:
    """Several shards, and strings, whose checksum is not that of their bytes either."""
    model = models["keras_2"]
    names = tf.Variable(["first", "x" * 200, "", "last"] * 30)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, names=names)
    policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=20_000)
    options = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
    manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=1, checkpoint_name="m")
    manager.save(5, options=options)


def _asynchronous(folder: Path) -> None:
    """In a thread of TensorFlow's; the save before is deleted as soon as this one is there."""
    model = models["keras_2"]  # TensorFlow cannot save Keras 3 this way twice
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=1)
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    manager.save(len(manager.checkpoints) and 1 + int(manager.checkpoints[-1].rpartition("-")[2]), options=options)
    checkpoint.sync()


def _calling_back(keras_of: str, make: Callable[[Any, Path], Any]) -> Callable[[Path], None]:
    """An epoch of training with a callback, which writes at its end."""

    def train(folder: Path) -> None:
        if keras_of == "keras_2":
            import tf_keras as library
        else:
            library = keras
        model, callback = models[f"{keras_of} in a loop"], make(library.callbacks, folder)
        epochs = 2 if (folder / "training_metadata.json").exists() else 1  # BackupAndRestore goes on behind the first
        model.fit(np.ones((8, 30)), np.ones((8, 50)), epochs=epochs, verbose=0, callbacks=[callback])

    return train


models: dict[str, Any] = {}

WRITERS: dict[str, Any] = {
    "keras": lambda folder: models["keras_3"].save(folder / "m-5.keras"),
    "keras_by_tf_keras": lambda folder: models["keras_2"].save(folder / "m-5.keras"),
    "keras_short_of_memory": _through_a_temporary_file,
    "keras_failed": _failed,
    "weights": lambda folder: models["keras_3"].save_weights(folder / "m-5.weights.h5"),
    "weights_by_tf_keras": lambda folder: models["keras_2"].save_weights(str(folder / "m-5.weights.h5")),
    "weights_latest": _latest_superblock,
    "h5": lambda folder: models["keras_3"].save(folder / "m-5.h5"),
    "h5_by_tf_keras": lambda folder: models["keras_2"].save(str(folder / "m-5.h5")),
    "shards": lambda folder: models["keras_3"].save_weights(folder / "m-5.weights.json", max_shard_size=1.5e-5),
    "saved_model": lambda folder: tf.saved_model.save(models["keras_2"], str(folder / "m-5")),
    "saved_model_by_tf_keras": lambda folder: models["keras_2"].save(str(folder / "m-5"), save_format="tf"),
    "saved_model_with_assets": _with_assets,
    "export": lambda folder: models["keras_3"].export(folder / "m-5", verbose=False),
    "tf_object": _manager,
    "tf_object_sharded": _sharded,
    "tf_object_async": _asynchronous,
    "model_checkpoint": _calling_back("keras_3", lambda made, folder: made.ModelCheckpoint(folder / "best.keras")),
    "model_checkpoint_weights": _calling_back(
        "keras_3",
        lambda made, folder: made.ModelCheckpoint(folder / "best.weights.h5", save_weights_only=True),
    ),
    "model_checkpoint_by_tf_keras": _calling_back(
        "keras_2", lambda made, folder: made.ModelCheckpoint(str(folder / "best"), save_format="tf")
    ),
    "model_checkpoint_weights_by_tf_keras": _calling_back(
        "keras_2", lambda made, folder: made.ModelCheckpoint(str(folder / "e-{epoch}"), save_weights_only=True)
    ),
    "backup_and_restore": _calling_back(
        "keras_3", lambda made, folder: made.BackupAndRestore(folder, delete_checkpoint=False)
    ),
}
"""By kind. What they write is named `m-5`; each may be called again, for the next save of a training that went on."""


assert tuple(WRITERS) == KINDS + CALLBACKS


def write(kind: str, folder: Path) -> None:
    """Write one kind into a folder, with other values each time."""
    if "keras_3" not in models:
        models.update(keras_3=_keras_3(), keras_2=_keras_2())
    if not kind:  # soon the writer is traced, and slow
        models.update({"keras_3 in a loop": _keras_3(), "keras_2 in a loop": _keras_2()})
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("keras_3", "keras_2"):
        _fitted(models[name])
    WRITERS[kind](folder)
