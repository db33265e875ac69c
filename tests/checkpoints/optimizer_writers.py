"""Files of Keras 3 and tf_keras with optimizers of all kinds, after eight steps of training. Run by real_writer.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")


def write(folder: Path) -> None:
    """Write every file; all but those named in the last two functions hold step 8."""
    import tf_keras

    folder.mkdir(parents=True)
    for library, name in ((keras, "keras"), (tf_keras, "tf_keras")):
        optimizers: dict[str, Callable[[], Any]] = {
            "adam": library.optimizers.Adam,
            "sgd": library.optimizers.SGD,
            "wrapped": library.optimizers.Adam,
        }
        if library is tf_keras:
            optimizers |= {"legacy": library.optimizers.legacy.Adam, "legacy_wrapped": library.optimizers.legacy.Adam}
        for kind, make in optimizers.items():
            _write(library, folder, f"{name}_{kind}", make)
    model = _fitted(keras, keras.optimizers.Adam)
    model.save_weights(folder / "keras_sharded.weights.json", max_shard_size=1e-6)
    _write_two_optimizers(folder)
    _write_newer_layout(folder)


def _fitted(library: Any, make: Callable[[], Any], *, wrapped: bool = False) -> Any:
    library.mixed_precision.set_global_policy("mixed_float16" if wrapped else "float32")
    layers = library.layers
    model = library.Sequential([layers.Input((4,)), layers.Dense(60), layers.Dense(1, dtype="float32")])
    model.compile(make(), "mse")  # which wraps it in a LossScaleOptimizer for float16
    model.fit(X, X[:, :1], batch_size=8, epochs=2, verbose=0)
    library.mixed_precision.set_global_policy("float32")
    return model


def _write(library: Any, folder: Path, name: str, make: Callable[[], Any]) -> None:
    model = _fitted(library, make, wrapped="wrapped" in name)
    model.save(str(folder / f"{name}.h5"))
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(folder / name))
    if "legacy" not in name:  # whose count tf_keras does not save in these
        model.save(str(folder / f"{name}.keras"))
        model.save_weights(str(folder / f"{name}.weights.h5"))
    if library is not keras:
        model.save(str(folder / f"{name}_saved"), save_format="tf")


def _write_two_optimizers(folder: Path) -> None:
    """A GAN as people write it: `compile` makes an optimizer that nobody uses, theirs have made 3 and 7 steps."""

    class Gan(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.critic = keras.layers.Dense(1), keras.layers.Dense(1)
            self.generator_optimizer, self.critic_optimizer = keras.optimizers.Adam(), keras.optimizers.SGD()

        def call(self, x: Any) -> Any:
            return self.critic(self.generator(x))

    gan = Gan()
    gan.compile(loss="mse")
    gan(X)
    for optimizer, layer, steps in (
        (gan.generator_optimizer, gan.generator, 3),
        (gan.critic_optimizer, gan.critic, 7),
    ):
        for _ in range(steps):
            optimizer.apply([np.ones(each.shape) for each in layer.trainable_variables], layer.trainable_variables)
    gan.save_weights(str(folder / "gan.weights.h5"))
    tf.train.Checkpoint(model=gan).write(str(folder / "gan"))


def _write_newer_layout(folder: Path) -> None:
    """As newer HDF5 libraries do by default: links in the headers of groups, and of large groups elsewhere."""
    for name, count in (("few", 2), ("many", 20)):
        with h5py.File(folder / f"{name}.weights.h5", "w", libver=("v108", "v108")) as file:
            file["optimizer/vars/0"] = np.int64(8)
            for number in range(1, count):
                file[f"optimizer/vars/{number}"] = np.ones(3)
