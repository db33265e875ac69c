"""Keep the strategies of a task on the device of its worker process.

A task is often a copy of what trains: `strategy = tf.distribute.MirroredStrategy()`, `with strategy.scope(): …`. In a
group TensorFlow would take the devices of all worker processes for local ones, and crash (SIGSEGV) at the first
variable on another's; a second `MultiWorkerMirroredStrategy` in a process is an error. Evaluation needs neither: each
process evaluates batches of its own with a local model.
"""

from contextlib import ExitStack
from typing import Any, Final

import tensorflow as tf

_ROOTS: Final = (tf, tf.compat.v2, tf.compat.v1)  # `import tensorflow.compat.v2 as tf` has classes of its own
_REPLACED: Final = (
    *("MirroredStrategy", "MultiWorkerMirroredStrategy"),
    *("ParameterServerStrategy", "CentralStorageStrategy"),
)


class LocalStrategy(tf.distribute.OneDeviceStrategy):  # type: ignore[misc]
    """One replica on this process's first GPU, else on its CPU, whatever devices or cluster it is given."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        super().__init__("GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0")

    @property
    def cluster_resolver(self) -> Any:
        """That of no cluster: copied lines ask it for a task's type and index."""
        return tf.distribute.cluster_resolver.TFConfigClusterResolver()


def make_local() -> ExitStack:
    """Replace the strategies that look for other devices; closing what is returned undoes it."""
    undo = ExitStack()
    modules = [module for root in _ROOTS for module in (root.distribute, root.distribute.experimental)]
    for module, name in [(module, name) for module in modules for name in _REPLACED if hasattr(module, name)]:
        undo.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, LocalStrategy)
    return undo
