"""Recognise the version of Keras that saved a checkpoint, to advise a user whose model is of the other version."""

import contextlib
import json
import zipfile
from typing import Any, Final

import h5py

from sidecar.evaluation.remedy import Remedy

_SIGNS: Final = {
    2: {"layer_with_weights-0", "layer-0", "keras_api"},
    3: {"_kernel", "_functional", "_trainable_variables", "_trainable_variables_indices", "_losses_override"},
}
"""Names of children that only this version of Keras gives to objects in a TensorFlow checkpoint."""

_NO_PART: Final = ("optimizer", "save_counter")  # children of a checkpoint that do not belong to a model
_MAX_BYTES: Final = 1 << 16  # of an archive's metadata


def by_graph(graph: Any) -> int | None:
    """Return the version of Keras that saved an object graph, 2 or 3; None if the graph does not show it."""
    names = {child.local_name for node in graph.nodes for child in node.children}
    return next((keras for keras, signs in _SIGNS.items() if signs & names), None)


def by_file(path: str) -> int | None:
    """Return the version of Keras that wrote a file; None if the file does not show it, such as a `.weights.h5`.

    The caller has checked that the file is complete.
    """
    with contextlib.suppress(OSError, KeyError, ValueError, zipfile.BadZipFile):
        if path.endswith(".keras"):
            with zipfile.ZipFile(path) as archive, archive.open("metadata.json") as file:
                return int(str(json.loads(file.read(_MAX_BYTES))["keras_version"]).partition(".")[0])
        with h5py.File(path, "r", locking=False) as file:
            if "keras_version" in file.attrs:
                version = file.attrs["keras_version"]
                return int((version.decode() if isinstance(version, bytes) else str(version)).partition(".")[0])
    return None


def holds_no_model(graph: Any) -> bool:
    """Return whether an object graph has no variables except those of optimizers and counters."""
    waiting = [child.node_id for child in graph.nodes[0].children if child.local_name not in _NO_PART]
    seen: set[int] = set()
    while waiting:
        if (node := waiting.pop()) not in seen:
            seen.add(node)
            if any(attribute.checkpoint_key for attribute in graph.nodes[node].attributes):
                return False
            waiting += [child.node_id for child in graph.nodes[node].children]
    return True


def advice(saved_by: int | None, *, model_of: int) -> Remedy | None:
    """Return the remedy for a checkpoint of one version of Keras and a model of the other; None in any other case."""
    if saved_by == 2 and model_of == 3:  # noqa: PLR2004 - Keras 2, Keras 3
        legacy = '`import os; os.environ["TF_USE_LEGACY_KERAS"] = "1"`'
        return "It was saved by Keras 2 (tf_keras), the model is of Keras 3. " + Remedy(
            f"If the task builds it with tf.keras, begin its file with {legacy}, or write `worker_env = "
            '{ TF_USE_LEGACY_KERAS = "1" }` into sidecar.toml; else let build_model use tf_keras',
            f"If it is built with tf.keras, begin the program with {legacy}; else make the model with tf_keras",
        )
    if saved_by == 3 and model_of == 2:  # noqa: PLR2004 - as above
        return "It was saved by Keras 3, the model is of Keras 2 (tf_keras). " + Remedy(
            "If the task builds it with tf.keras, write `worker_env = { TF_USE_LEGACY_KERAS = false }` into "
            "sidecar.toml, and remove that name from the task's file; else let build_model use keras",
            "If it is built with tf.keras, unset TF_USE_LEGACY_KERAS; else make the model with keras",
        )
    return None
