"""Give workers of TensorFlow their environment."""

import pytest
from daemon.workers.environments import made

from sidecar.evaluation.backends.tensorflow.traits import KERAS_BACKEND_OF_TRAINING


@pytest.mark.parametrize("where", ["of the daemon", "worker_env"])
def test_keras_computes_with_the_framework_of_the_worker(where):
    """A worker of TensorFlow learns what training computes with; one of Python computes with it, too."""
    base, changes = ({"KERAS_BACKEND": "jax"}, {}) if where == "of the daemon" else ({}, {"KERAS_BACKEND": "jax"})
    environment = made(base, changes=changes)
    assert (environment["KERAS_BACKEND"], environment[KERAS_BACKEND_OF_TRAINING]) == ("tensorflow", "jax")
    assert KERAS_BACKEND_OF_TRAINING not in made({"KERAS_BACKEND": "tensorflow"})
    assert made(base, framework="python", changes=changes)["KERAS_BACKEND"] == "jax"
