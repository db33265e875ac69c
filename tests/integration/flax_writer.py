"""Write the digits, and two checkpoints of a Flax model, into a folder; print what a plain loop finds for each.

A program of its own: it runs where JAX is installed, which need not be where the tests run.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
from flax import serialization
from sklearn.datasets import load_digits

sys.path.insert(0, str(Path(__file__).parent / "tasks"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from flax_digits import MODEL

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
digits = load_digits()
x, y = (digits.data / 16).astype(np.float32), digits.target
np.savez(folder.parent / "digits.npz", x=x[1200:], y=y[1200:])
parameters = MODEL.init(jax.random.key(1), x[:1])


def loss(parameters):
    """Cross entropy of the training part."""
    chosen = MODEL.apply(parameters, x[:1200])[np.arange(1200), y[:1200]]
    return -jax.numpy.log(chosen + 1e-7).mean()


step = jax.jit(lambda p: jax.tree.map(lambda value, slope: value - 0.5 * slope, p, jax.grad(loss)(p)))
for number in (100, 200):
    for _ in range(100):
        parameters = step(parameters)
    (folder / f".flax-{number}").write_bytes(serialization.to_bytes(parameters))
    (folder / f".flax-{number}").rename(folder / f"flax-{number}.msgpack")
    found = np.asarray(MODEL.apply(parameters, x[1200:])).argmax(axis=1)
    print(json.dumps({"name": f"flax-{number}.msgpack", "accuracy": float((found == y[1200:]).mean())}))  # noqa: T201 - the test reads it
