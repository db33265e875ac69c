"""A sidecar evaluator: watches checkpoints, evaluates each with a group of workers, exports exact metrics.

This face of the package is what a task needs, and imports no framework.
"""

from sidecar.version import __version__
from sidecar.worker.shard import Shard
from sidecar.worker.task import EvalSet, Task

__all__ = ["EvalSet", "Shard", "Task", "__version__"]
