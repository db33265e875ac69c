"""Deliver each result of a run to other programs, once and in order, beside the daemon's loop.

The names here are for sinks that other packages provide, as entry points of the group `sidecar.sinks`.
"""

from sidecar.sinks.sink import Evaluation, Sink, SinkRefusedError, SinkUnavailableError

__all__ = ["Evaluation", "Sink", "SinkRefusedError", "SinkUnavailableError"]
