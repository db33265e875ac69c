"""Watch checkpoints, evaluate each with a group of workers, and export exact metrics.

This module exports the names that a task needs, and imports no framework. The only public API is this module,
`sidecar.metrics`, `sidecar.data`, `sidecar.results`, `sidecar.sinks`, `sidecar.early_stop` and `sidecar.keras`:
everything else may change with any release.
"""

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.task import EvalSet, Task
from sidecar.version import __version__

__all__ = ["EvalSet", "Shard", "Task", "__version__"]
