"""Describe TensorFlow to the daemon and the commands. Imports no framework."""

from typing import Final

from sidecar.errors import TaskError
from sidecar.evaluation.framework_traits import FrameworkTraits
from sidecar.evaluation.task import Task
from sidecar.system.plain_text import shortened

KERAS_BACKEND_OF_TRAINING: Final = "TRAINING_KERAS_BACKEND"
"""The variable in which a worker finds KERAS_BACKEND, if that names another backend of Keras 3.

TensorFlow imports Keras, which then reads KERAS_BACKEND, so the worker could not change the variable in time.
"""

_TEMPLATE: Final = """\
\"\"\"Define how `sidecar` evaluates checkpoints. Only worker processes import this file.\"\"\"

import keras
import numpy as np

from sidecar import Task
{imported}

{builder}def test_set():
    # Return arrays (x, y), or a tf.data.Dataset with one example (x, y) per element.
    raise NotImplementedError("{file}: return your test set in test_set()")


def task():
    return Task(
        build_model=build_model,
        eval_sets={{"test": test_set}},
        metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        loss=keras.losses.SparseCategoricalCrossentropy(),
        batch_size=64,
    )
"""


def _require(task: Task) -> None:
    task.require_no_steps("tensorflow")
    if isinstance(task.checkpoint, str):
        raise TaskError(
            f"Task(checkpoint={shortened(task.checkpoint)}) must be a function of the model with "
            "framework = 'tensorflow'"
        )
    if task.load is not None:
        raise TaskError("Task(load=…, predict=…) needs framework = 'python', found framework = 'tensorflow'")


TRAITS: Final = FrameworkTraits(
    name="tensorflow",
    detected_by=("tensorflow", "keras", "tf_keras", "keras_hub", "keras_cv", "keras_nlp"),
    detected_alone="tensorflow",
    environment={
        "KERAS_BACKEND": "tensorflow",  # a node's ~/.keras/keras.json must not select the backend of a group
        "TF_CPP_MIN_LOG_LEVEL": "1",  # start-up messages would bury the user's own output in the worker's log
    },
    required={"TF_GRPC_REUSE_PORT": "1"},  # the daemon holds the worker's port with SO_REUSEPORT
    kept={"KERAS_BACKEND": KERAS_BACKEND_OF_TRAINING},
    options=("collectives", "always_cluster", "trust_saved_graph", "gpu_memory_mb"),
    threads_by_environment=False,  # its own functions say how many threads it may use
    formats=("tf_object", "keras", "hdf5", "keras_shards", "orbax", "saved_model"),
    template=_TEMPLATE,
    require=_require,
)
