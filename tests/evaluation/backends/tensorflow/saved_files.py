"""Files that Keras saved, and models to restore them into."""

import random

import numpy as np


def train(model):
    """Other values than at first, in statistics and optimizer too."""
    import tensorflow as tf

    model.compile("adam", "sparse_categorical_crossentropy", run_eagerly=True)  # one batch is not worth a trace
    model.fit(np.ones((8, 8, 8, 1), "float32"), np.zeros(8), verbose=0)
    for variable in model.weights:
        variable.assign(tf.random.stateless_uniform(variable.shape, (1, 2), dtype="float32") + 1.0)
    return model


def restored(model, path):
    from sidecar.evaluation.backends.tensorflow.restore import restore

    restore(model, str(path), None)
    return [np.asarray(each).tobytes() for each in model.weights]


def stolen(path, secret):
    """The first values of an HDF5 file are now those of another file, by external storage."""
    import h5py

    with h5py.File(path, "r+") as file:
        found = []
        file.visititems(lambda name, each: found.append(name) if getattr(each, "shape", ()) else None)
        shape, dtype = file[found[0]].shape, file[found[0]].dtype
        secret.write_bytes(np.full(shape, 7.25, dtype).tobytes())
        del file[found[0]]
        file.create_dataset(found[0], shape, dtype, external=[(str(secret), 0, secret.stat().st_size)])


def damaged(content, seed):
    """One to eight bytes are others, more of them where metadata lie."""
    choose, changed = random.Random(seed), bytearray(content)
    for _ in range(choose.choice((1, 2, 8))):
        at = choose.randrange(choose.choice((len(changed), min(4096, len(changed)))))
        new = choose.choice((choose.randbytes(1), bytes(8), b"\xff" * 8))
        changed[at : at + len(new)] = new[: len(changed) - at]
    return bytes(changed)
