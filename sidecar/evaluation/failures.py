"""Turn a failure inside a worker into data: its kind, and the words for the user. Imports no framework."""

import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sidecar.errors import SidecarError
from sidecar.records import Lasting
from sidecar.states import FailureKind, WorkerPhase
from sidecar.workers.messages import Failed

_OURS: Final = Path(__file__).resolve().parent  # sidecar/demo, next to it, is a user's task like any other
_STANDARD: Final = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")})
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_MAX_MESSAGE: Final = 20_000
"""Characters of a message: a traceback through a graph can be endless, and it is stored for ever."""

_OUR_LINES: Final = re.compile(
    rf'^[ \t]*File "{re.escape(str(_OURS))}/.*\n(?:[ \t]+(?!File ).*\n|[ \t]*\n)?', re.MULTILINE
)
"""Frames that TensorFlow writes into the text of a message: `File "…", line 1, in step`, then the line of code."""

_KIND_BY_PHASE: Final = {
    WorkerPhase.JOIN: FailureKind.JOIN,
    WorkerPhase.IMPORT: FailureKind.TASK_ERROR,
    WorkerPhase.BUILD: FailureKind.TASK_ERROR,
    WorkerPhase.READ: FailureKind.TASK_ERROR,
    WorkerPhase.RESTORE: FailureKind.TASK_ERROR,
    WorkerPhase.EVALUATE: FailureKind.TASK_ERROR,
    WorkerPhase.CONCLUDE: FailureKind.TASK_ERROR,
    WorkerPhase.SAVE: FailureKind.STORAGE,
}
"""Whose fault it is when something that we do not know is raised there; elsewhere only our own code runs."""


_OF_CODE: Final = (TypeError, AttributeError, NameError, NotImplementedError)


_WHILE: Final = {
    WorkerPhase.IMPORT: "the task was imported",
    WorkerPhase.BUILD: "the model was built and tried on a first batch",
    WorkerPhase.READ: "the data were read",
    WorkerPhase.RESTORE: "the checkpoint was restored",
    WorkerPhase.EVALUATE: "batches were evaluated",
    WorkerPhase.SAVE: "results were saved",
    WorkerPhase.CONCLUDE: "numbers were made of the sums",
}

_REMEDIES: Final = (
    (
        re.compile(r"SymbolicTensor' object has no attribute 'numpy'|numpy\(\) is only available when eager"),
        "Steps are traced into a graph, where tensors have no values: use Keras' operations, or run_eagerly=True",
    ),
    (
        re.compile(r"No module named"),
        f"Install it for {sys.executable}, or name the Python of the training environment with worker_python",
    ),
)

_FRAMES: Final = re.compile(r'^Detected at node.*\n|^[ \t]*File ".*(?:\n[ \t]+(?!File ).*)?', re.MULTILINE)
_AUTOGRAPH: Final = "in user code:"
_MAX_WORDS: Final = 300  # of what an exception says, which Keras may fill with the values of a batch


class EvaluationError(Exception):
    """A failure whose cause this code understands; `kind` is the word of a `FailureKind`, `lost` a rank that is gone.

    `sides`: ranks grouped by what they said, where that differs.
    """

    def __init__(
        self, kind: str, message: str, *, lost: int | None = None, sides: Iterable[Iterable[int]] = ()
    ) -> None:
        super().__init__(message)
        self.kind, self.lost, self.sides = FailureKind(kind), lost, tuple(map(tuple, sides))


@contextmanager
def following_from_code(*also: type[Exception]) -> Iterator[None]:
    """Mark mistakes that are raised within as lasting: they follow from the task's code and the shapes of its data.

    That is what this program refuses, errors that Python raises for code alone, and those of the other types given.
    Whatever a file, a network or a machine has a part in is not among them.
    """
    try:
        yield
    except Exception as error:
        refused = isinstance(error, SidecarError) or (
            isinstance(error, EvaluationError) and error.kind == FailureKind.TASK_ERROR
        )
        if refused or isinstance(error, (*_OF_CODE, *also)):
            error.lasting = "task"  # type: ignore[attr-defined]
        raise


def as_failed(
    error: BaseException,
    *,
    phase: WorkerPhase,
    plan: int | None,
    rank: int | None,
    out_of_memory: tuple[type[Exception], ...] = (),
) -> Failed:
    """Return the report of an exception: one sentence if its cause is known, else the user's own traceback.

    `out_of_memory`: the framework's errors that mean so.
    """
    if isinstance(error, EvaluationError):
        kind, message = error.kind, str(error)
    elif isinstance(error, SidecarError):
        kind, message = FailureKind.TASK_ERROR, str(error)
    elif isinstance(error, (MemoryError, *out_of_memory)):
        kind, message = FailureKind.OUT_OF_MEMORY, f"out of memory: {error}"
    elif isinstance(error, OverflowError) and _is_ours(traceback.extract_tb(error.__traceback__)[-1]):
        kind = FailureKind.TASK_ERROR
        message = (
            f"a metric adds up whole numbers that are too large for an exact sum ({error}): labels or weights are "
            f"out of all proportion, such as 1e30"
        )
    else:
        kind = _KIND_BY_PHASE.get(phase, FailureKind.WORKER_DIED)
        message = f"{_sentence(error, phase)}\n{_user_traceback(error)}"
    lost, sides = (error.lost, error.sides) if isinstance(error, EvaluationError) else (None, ())
    lasting: Lasting | None = getattr(error, "lasting", None)
    if phase == WorkerPhase.RESTORE and kind == FailureKind.MISMATCH:
        lasting = "checkpoint"  # a whole file, the same on all nodes, does not fit a model that code made
    return Failed(
        kind=kind,
        message=message[-_MAX_MESSAGE:],
        plan=plan,
        rank=rank,
        phase=phase,
        lost=lost,
        sides=sides,
        lasting=lasting,
    )


def _sentence(error: BaseException, phase: WorkerPhase) -> str:
    """Return what was raised, while what was done, and the remedy where it is known: above a traceback."""
    lines = [line.strip() for line in _FRAMES.sub("", str(error)).splitlines() if line.strip()]
    if lines[:1] == [_AUTOGRAPH]:  # a whole traceback, whose last line is what was raised
        said = lines[-1] if len(lines) > 1 else type(error).__name__
    else:
        said = f"{type(error).__name__}{': ' * bool(lines)}{' '.join(lines)}"
    words = said[:_MAX_WORDS] + "…" * (len(said) > _MAX_WORDS)
    remedy = next((f" {remedy}." for pattern, remedy in _REMEDIES if pattern.search(said)), "")
    return f"{words} (raised while {_WHILE.get(phase, phase)}).{remedy} Where, says the traceback:"


def _user_traceback(error: BaseException) -> str:
    """Return the traceback as if the user had called their own code: without the frames of this program."""
    whole = traceback.TracebackException.from_exception(error)
    if whole.stack and all(_is_ours(frame) for frame in whole.stack):
        return "".join(whole.format()).rstrip()  # nobody else's code took part: this is for whoever mends ours
    part: traceback.TracebackException | None = whole
    while part is not None:
        part.stack = traceback.StackSummary.from_list(_of_the_user(part.stack))
        part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
    return _OUR_LINES.sub("", "".join(whole.format())).rstrip()


def _of_the_user(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Select the frames from the first one in the user's own files; if there is none, all but those of this program."""
    frames = [frame for frame in stack if not _is_ours(frame)]
    first = next((index for index, frame in enumerate(frames) if _is_user(frame)), 0)
    return frames[first:]


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return Path(frame.filename).is_relative_to(_OURS)


def _is_user(frame: traceback.FrameSummary) -> bool:
    path = Path(frame.filename)
    if path.is_relative_to(_OURS.parent):
        return not path.is_relative_to(_OURS)
    is_library = not _INSTALLED.isdisjoint(path.parts) or any(path.is_relative_to(each) for each in _STANDARD)
    return path.is_absolute() and not is_library and not path.name.startswith("__autograph_generated_file")
