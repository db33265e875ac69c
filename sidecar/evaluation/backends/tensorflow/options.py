"""Read the settings that only TensorFlow's backend uses, as they travel in `Join.options` and `Check.options`."""

from dataclasses import dataclass

from sidecar.codec import from_json
from sidecar.workers.messages import Check, Join


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of TensorFlow's backend. What a message does not name has its default."""

    collectives: str = "ring"  # auto | ring | nccl
    always_cluster: bool = False  # form a cluster for a group of one, too
    trust_saved_graph: bool = False  # evaluate what a SavedModel stores, not the task's model with its weights
    gpu_memory_mb: int | None = None  # None: as much as is needed, growing


def options_of(message: Join | Check) -> Options:
    """Return the options in a message; raises `RecordError` for a value of another type."""
    return from_json(Options, message.options)
