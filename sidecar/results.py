"""Read the results of a run, and the saves of its workers: `from sidecar import results; results.history("ckpts")`.

Part of the public API. This module needs numpy and no framework, so it can run on any machine with the files.
"""

import os
from pathlib import Path
from typing import Any

from sidecar.system.required_packages import requiring

with requiring("numpy", by="sidecar.results"):
    from sidecar.evaluation.artifact_reader import Evaluation, read

__all__ = ["Evaluation", "compare", "history", "read"]


def history(
    checkpoint_dir: str | os.PathLike[str], run: str | None = None, *, state_dir: str | os.PathLike[str] | None = None
) -> list[dict[str, Any]]:
    """Return one record for each number of each evaluation, oldest first: the columns of `sidecar export`.

    `pandas.DataFrame(history("ckpts"))` and `polars.DataFrame(…)` make a table of them.

    Args:
        checkpoint_dir: Directory in which training saves its checkpoints, as the sidecar has it.
        run: Name of the run, if the sidecar has the setting `run`. Default: the name of the directory.
        state_dir: The sidecar's setting `state_dir`, a directory. Default: `.sidecar` in the checkpoint directory.

    Raises:
        SidecarError: There is no run, or its records cannot be read.
    """
    from sidecar.publishing.run_records import RunRecords  # noqa: PLC0415 - not needed to read saves

    return RunRecords(_state_of(checkpoint_dir, run, state_dir)).history()


def compare(
    checkpoint_dir: str | os.PathLike[str],
    old: str,
    new: str,
    run: str | None = None,
    *,
    state_dir: str | os.PathLike[str] | None = None,
    best_metric: str | None = None,
) -> list[dict[str, Any]]:
    """Return one record for each number that two evaluations have, with the difference of `new` from `old`.

    A record has `metric`, `label` (of a class or slice), `old`, `new`, `difference` with its 95 % interval `lower` and
    `upper`, the `rule` by which it was found, `verdict` (`better`, `worse` or an empty text), `detectable` (the
    difference that is seen in 80 % of all cases), the numbers of the examples that were `fixed` and `broken`, whether
    right or wrong is known of each example (`changes_known`), their `inputs` (by number, the `text` or `image` that
    `Task(show=…)` returned), and a `note`: those of `sidecar compare`.

    Args:
        checkpoint_dir: As in `history`.
        old: Name or step of a checkpoint, `best` or `newest`.
        new: Likewise.
        run: As in `history`.
        state_dir: As in `history`.
        best_metric: EVAL_SET/METRIC that `best` is about. Default: the first one with a direction.

    Raises:
        SidecarError: An evaluation is not there, or records cannot be read.
    """
    from sidecar.publishing.run_records import RunRecords  # noqa: PLC0415 - not needed to read saves

    return RunRecords(_state_of(checkpoint_dir, run, state_dir)).compare(str(old), str(new), best_metric)


def _state_of(
    checkpoint_dir: str | os.PathLike[str], run: str | None, state_dir: str | os.PathLike[str] | None
) -> Path:
    directory = Path(checkpoint_dir).expanduser().absolute()
    parent = directory / ".sidecar" if state_dir is None else Path(state_dir).expanduser().absolute()
    return parent / (directory.resolve().name if run is None else run)
