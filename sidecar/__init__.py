"""A sidecar evaluator: watches checkpoints, evaluates each with a group of workers, exports exact metrics.

This face of the package is what a task needs, and imports no framework.
"""

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.task import EvalSet, Task
from sidecar.version import __version__

__all__ = ["EvalSet", "Shard", "Task", "__version__"]
