"""Evaluate with TensorFlow: the collectives use a separate cluster, and models of Keras 3 or tf_keras are local.

`MultiWorkerMirroredStrategy` is used only for its all-reduce. The model and its variables are plain local objects, so
neither the broken Keras `evaluate` under this strategy nor its replica-aware metric variables are involved.
"""

import os
import sys
from collections import Counter

import tensorflow as tf

from sidecar.evaluation.backend import Backend, Collective, Evaluator
from sidecar.evaluation.backends.tensorflow.collective import MirroredCollective
from sidecar.evaluation.backends.tensorflow.evaluator import KerasEvaluator
from sidecar.evaluation.backends.tensorflow.keras_2 import follow_the_task
from sidecar.evaluation.backends.tensorflow.keras_backend import explained, other_backend
from sidecar.evaluation.backends.tensorflow.libraries import KERASES
from sidecar.evaluation.backends.tensorflow.options import options_of
from sidecar.evaluation.backends.tensorflow.pipeline_files import separate_files
from sidecar.evaluation.backends.tensorflow.shuffling import make_readers_repeatable, make_repeatable
from sidecar.evaluation.backends.tensorflow.strategies import make_local
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.instruction_set import instruction_set
from sidecar.evaluation.reduction import LocalCollective
from sidecar.evaluation.task import Task
from sidecar.protocol.messages import Check, Join


class TensorFlowBackend:
    """Implement `sidecar.evaluation.backend.Backend` with TensorFlow and Keras."""

    version: str = tf.__version__
    out_of_memory: tuple[type[Exception], ...] = (tf.errors.ResourceExhaustedError,)

    def join(self, join: Join) -> Collective:
        """Set threads and devices, which TensorFlow fixes at its first operation, then form the cluster."""
        options = options_of(join)
        tf.config.threading.set_intra_op_parallelism_threads(join.threads)
        tf.config.threading.set_inter_op_parallelism_threads(max(2, join.threads))  # 1 can deadlock a collective
        for device in tf.config.list_physical_devices("GPU"):
            _limit_memory(device, options.gpu_memory_mb)
        alone = len(join.members) == 1 and not options.always_cluster
        collective = LocalCollective() if alone else MirroredCollective(join)
        import keras

        make_repeatable(keras)
        if len(join.members) > 1:
            separate_files()
        follow_the_task(make_readers_repeatable)
        make_local()  # after the collective is made, because it uses one of the strategies replaced here
        return collective

    def build(self, task: Task, shard: Shard, join: Join) -> Evaluator:
        """Build the task: read a first batch and call the model on it, without tracing anything yet."""
        with explained(other_backend()):
            return KerasEvaluator.build(
                task,
                shard,
                threads=join.threads,
                cache_bytes=join.cache_bytes,
                trust_saved_graph=options_of(join).trust_saved_graph,
            )

    def profile(self, command: Join | Check) -> dict[str, str]:
        """Return versions, device, instruction set and every setting that may change the bits of a result."""
        import keras

        gpus = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices("GPU")]
        devices = Counter(str(gpu.get("device_name", "GPU")) for gpu in gpus)
        return {
            "device": ", ".join(f"{count} x {name}" for name, count in sorted(devices.items())) or "CPU",
            "framework": f"tensorflow {tf.__version__}",
            "keras": ", ".join(f"{name} {sys.modules[name].__version__}" for name in KERASES if name in sys.modules),
            "floatx": keras.config.floatx(),  # from ~/.keras/keras.json, which may differ between nodes
            "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
            "xla": os.environ.get("TF_XLA_FLAGS", "off"),
            "tf32": str(tf.config.experimental.tensor_float_32_execution_enabled()) if gpus else "off",
            "threads": str(command.threads),
            "trust_saved_graph": str(options_of(command).trust_saved_graph).lower(),  # stored graphs may differ
            "isa": instruction_set(),  # last, because it is the longest
        }


def make() -> Backend:
    """Return the TensorFlow backend; importing this module has already imported TensorFlow."""
    return TensorFlowBackend()


def _limit_memory(device: object, megabytes: int | None) -> None:
    """Take GPU memory only as it is needed, or at most this much, and leave the rest to training on the same GPU."""
    if megabytes is None:
        tf.config.experimental.set_memory_growth(device, True)
    else:
        tf.config.set_logical_device_configuration(
            device, [tf.config.LogicalDeviceConfiguration(memory_limit=megabytes)]
        )
