"""Read the settings that only the TensorFlow backend uses, from `Join.options` and `Check.options`."""

from dataclasses import dataclass

from sidecar.protocol.codec import from_json
from sidecar.protocol.messages import Check, Join


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the TensorFlow backend. A setting that the message lacks has its default."""

    collectives: str = "ring"  # auto | ring | nccl
    always_cluster: bool = False  # form a cluster even for a group of one
    trust_saved_graph: bool = False  # evaluate the graph of a SavedModel, not the task's model with its weights
    gpu_memory_mb: int | None = None  # None: take memory as it is needed


def options_of(message: Join | Check) -> Options:
    """Return the options in a message. Raise `RecordError` for a value of another type."""
    return from_json(Options, message.options)
