"""Describe plain Python, where the task loads its models, to the daemon and the commands."""

from typing import Final

from sidecar.errors import TaskError
from sidecar.evaluation.framework_traits import FrameworkTraits
from sidecar.evaluation.task import Task
from sidecar.system.plain_text import shortened


def _require(task: Task) -> None:
    task.require_no_steps("python")
    if isinstance(task.checkpoint, str):
        raise TaskError(
            f"Task(checkpoint={shortened(task.checkpoint)}) must be a function of the model with framework = 'python'"
        )
    if task.load is None:
        raise TaskError(
            "framework = 'python' needs Task(load=…), a function of a path that returns a model, and Task(predict=…), "
            "a function of (model, x) that returns predictions"
        )


TRAITS: Final = FrameworkTraits(
    name="python",
    loads_by_task=True,
    listens=False,  # ranks meet in shared storage
    formats=None,
    require=_require,
)
