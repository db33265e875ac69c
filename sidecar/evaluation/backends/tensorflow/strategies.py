"""Replace the distribution strategies that a task creates by one that uses only the device of its worker process.

A task is often a copy of the training script: `strategy = tf.distribute.MirroredStrategy()`, `with strategy.scope():
…`. In a group, TensorFlow would take the devices of all worker processes for local ones, and crash (SIGSEGV) at the
first variable on a device of another process. A second `MultiWorkerMirroredStrategy` in a process is an error.
Evaluation needs no strategy: each process evaluates its share of the batches with a local model.
"""

from contextlib import ExitStack
from typing import Any, Final

import tensorflow as tf

_ROOTS: Final = (tf, tf.compat.v2, tf.compat.v1)  # `import tensorflow.compat.v2 as tf` has separate classes
_REPLACED: Final = (
    *("MirroredStrategy", "MultiWorkerMirroredStrategy"),
    *("ParameterServerStrategy", "CentralStorageStrategy"),
)


class LocalStrategy(tf.distribute.OneDeviceStrategy):  # type: ignore[misc]
    """Run one replica on the first GPU of this process, or its CPU, and ignore all devices and clusters given."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        super().__init__("GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0")

    @property
    def cluster_resolver(self) -> Any:
        """Return a resolver without a cluster, because training scripts ask it for the type and index of a task."""
        return tf.distribute.cluster_resolver.TFConfigClusterResolver()


def make_local() -> ExitStack:
    """Replace the strategies that use other devices; closing the returned stack restores them."""
    undo = ExitStack()
    modules = [module for root in _ROOTS for module in (root.distribute, root.distribute.experimental)]
    for module, name in [(module, name) for module in modules for name in _REPLACED if hasattr(module, name)]:
        undo.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, LocalStrategy)
    return undo
