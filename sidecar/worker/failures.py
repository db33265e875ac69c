"""How a failure inside a worker becomes data: its kind, and the words the user sees. Imports no framework."""

import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

from sidecar.errors import SidecarError
from sidecar.group.messages import Failed

_OURS: Final = Path(__file__).resolve().parents[1]
_MAX_MESSAGE: Final = 20_000
"""Characters of a message: a traceback through a graph can be endless, and it is stored for ever."""

_KIND_BY_PHASE: Final = {
    "join": "join",
    "import": "task_error",
    "build": "task_error",
    "read": "task_error",
    "restore": "mismatch",
    "evaluate": "task_error",
    "save": "storage",
    "hello": "member_lost",
    "reduce": "member_lost",
}
"""Whose fault it is when something unexpected is raised there."""


class EvaluationError(Exception):
    """A failure whose cause this code understands; `kind` is one of `records.KINDS`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def as_failed(error: BaseException, *, phase: str, plan: int | None, rank: int | None) -> Failed:
    """The report of an exception: one sentence where we know the cause, the user's own traceback where we do not."""
    if isinstance(error, EvaluationError):
        kind, message = error.kind, str(error)
    elif isinstance(error, SidecarError):
        kind, message = "task_error", str(error)
    elif isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
        kind, message = "out_of_memory", f"out of memory: {error}"
    else:
        kind, message = _KIND_BY_PHASE.get(phase, "worker_died"), _user_traceback(error)
    return Failed(kind, message[-_MAX_MESSAGE:], plan=plan, rank=rank, phase=phase)


def _user_traceback(error: BaseException) -> str:
    """The traceback from the first frame that is not ours: the user's code and what it called."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and Path(frame.tb_frame.f_code.co_filename).is_relative_to(_OURS):
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame or error.__traceback__)).rstrip()
