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

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.task import EvalSet, Task
from sidecar.protocol.save_notice import notify
from sidecar.version import version as _version

if TYPE_CHECKING:
    from sidecar.commands.daemon_process import Daemon

__all__ = ["Daemon", "EvalSet", "Shard", "Task", "__version__", "evaluate", "notify"]

__version__: str


def evaluate(
    task: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    *,
    save_dir: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Evaluate one checkpoint now, in worker processes of this machine, and return its result.

    It is `sidecar eval` for programs and notebooks: the same worker processes, bounds and bits, and no journal. For
    example, in a notebook that has written `my_eval.py`:

        found = sidecar.evaluate("my_eval.py:task", "ckpts/epoch-03.pt", replicas=2)
        found["metrics"]["test"]["accuracy"]["value"]

    Args:
        task: The task, as `path/file.py:attr` or `module:attr`.
        checkpoint: The path of a checkpoint, or a directory, whose newest checkpoint is evaluated.
        save_dir: The directory in which each worker saves a folder. Default: in the state directory of the run.
        settings: Any settings, such as `replicas` or `framework`. Others come from the environment, and from
            `sidecar.toml` in the current directory.

    Returns:
        Plain values, those of `sidecar eval --json`: `metrics` by eval set and name, each with `value`, `hex`, `lower`
        and `upper`; `examples` by eval set; `checkpoint`, `step`, `notes`, `saves` and others.

    Raises:
        SettingsError: A setting is wrong, or there is no such checkpoint.
        EvaluationFailedError: The evaluation failed; the message names the logs of the worker processes.
        TaskError: The task cannot be imported.
    """
    from sidecar.commands.evaluate import evaluate_record  # noqa: PLC0415 - few programs need it

    flags: Mapping[str, Any] = settings | {"task": os.fspath(task)}
    return evaluate_record(flags, Path(checkpoint), None if save_dir is None else Path(save_dir))


def __getattr__(name: str) -> Any:
    """Return `__version__`, for which a clone asks git, or `Daemon`, when it is asked for: few processes need them."""
    if name == "__version__":
        return _version()
    if name == "Daemon":
        from sidecar.commands.daemon_process import Daemon  # noqa: PLC0415 - see above

        return Daemon
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
