"""Name what a sink of another package needs; its entry point is in the group `sidecar.sinks`.

See the how-to guide *Write a sink*.
"""

from sidecar.publishing.sinks.sink import Evaluation, Sink, SinkRefusedError, SinkUnavailableError

__all__ = ["Evaluation", "Sink", "SinkRefusedError", "SinkUnavailableError"]
