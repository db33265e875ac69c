"""Watch checkpoints, evaluate each with a group of workers, and export exact metrics.

This module exports the names that a task needs, and imports no framework. The only public API is this module,
`sidecar.metrics`, `sidecar.data`, `sidecar.results`, `sidecar.sinks`, `sidecar.early_stop`, `sidecar.keras` and
`sidecar.lm`: everything else may change with any release.

The folders, from top to bottom. Each imports only what is below it; `make lint` checks that.

- `commands`: what a person types: options, commands, the demo
- `keras`: `SidecarEvaluator`, which runs in users' own programs
- `lm`: eval sets for language models, which tasks of users import in worker processes
- `daemon`: one node: its loop, its state, its storage thread, its worker processes
- `publishing`: show results to people and to programs
- `retention`: which copies stay on disk: pins, exports, saves
- `checkpoints`: find checkpoints, and decide whether they are whole
- `policy`: who evaluates what, and when; pure
- `coordination`: agree by files that are created once
- `evaluation`: the worker process and its backends
- `settings`: declare, read and check settings
- `protocol`: what nodes and processes say to each other
- `system`: touch files, time, addresses and terminals safely
"""

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.task import EvalSet, Task
from sidecar.version import version as _version

__all__ = ["EvalSet", "Shard", "Task", "__version__"]

__version__: str


def __getattr__(name: str) -> str:
    """Return `__version__` when it is asked for: a clone has to ask git, and few processes need it."""
    if name == "__version__":
        return _version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
