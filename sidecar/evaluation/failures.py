"""Turn a failure inside a worker into data: its kind, and a message for the user. Imports no framework."""

import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sidecar.errors import SidecarError
from sidecar.evaluation.remedy import Remedy
from sidecar.protocol.messages import Failed
from sidecar.protocol.records import Lasting
from sidecar.protocol.states import FailureKind, WorkerPhase
from sidecar.system.training_python import line_to_write

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_OURS: Final = (_PACKAGE / "evaluation", _PACKAGE / "system")  # without the demo, which counts as a user's task
_STANDARD: Final = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")})
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_MAX_MESSAGE: Final = 20_000
"""Limit of the characters of a message: a traceback through a graph can be very long, and the journal stores it."""

_OUR_LINES: Final = re.compile(
    rf'^[ \t]*File "{re.escape(str(_PACKAGE))}/(?:evaluation|system)/.*\n(?:[ \t]+(?!File ).*\n|[ \t]*\n)?',
    re.MULTILINE,
)
"""Frames of this program that TensorFlow writes into a message: `File "…", line 1, in step`, then a line of code."""

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
"""The kind of a failure with an unknown cause, by phase. In other phases only code of this program runs."""

_NO_REMEDY: Final = Remedy("", "")
_CODE_ERRORS: Final = (TypeError, AttributeError, NameError, NotImplementedError)

_WHILE: Final = {
    WorkerPhase.IMPORT: "the task was imported",
    WorkerPhase.BUILD: "the model was built and tried on a first batch",
    WorkerPhase.READ: "the data were read",
    WorkerPhase.RESTORE: "the checkpoint was restored",
    WorkerPhase.EVALUATE: "batches were evaluated",
    WorkerPhase.SAVE: "results were saved",
    WorkerPhase.CONCLUDE: "numbers were computed from the sums",
}

_REMEDIES: Final = (
    (
        re.compile(r"^SystemExit: 2$"),  # what argparse and click raise
        (
            "A training script that the task imports may ask for options of its command line: write above that import"
            ' `import sys; sys.argv = ["train.py", "--option", "value"]`'
        ),
    ),
    (
        re.compile(r"SymbolicTensor' object has no attribute 'numpy'|numpy\(\) is only available when eager"),
        "Steps are traced into a graph, where tensors have no values: use Keras' operations, or run_eagerly=True",
    ),
    (
        re.compile(r"Default process group has not been initialized"),
        (
            "A worker has none: leave DistributedSampler, all_reduce and the like out, since the sidecar divides the "
            "data and adds up numbers itself, or write above them: if torch.distributed.is_initialized():"
        ),
    ),
    (
        re.compile(r"^KeyError: '((?:LOCAL_)?(?:RANK|WORLD_SIZE))'"),
        (
            "A worker has no {size}, since the sidecar divides the data itself: give all examples, or write "
            'os.environ.get("RANK", "0") and os.environ.get("WORLD_SIZE", "1")'
        ),
    ),
    (
        re.compile(r"Cannot copy out of meta tensor"),
        "build_model returns tensors without values: leave torch.device('meta') and init_empty_weights() out of it",
    ),
    (
        re.compile(r"Calling (?:eval|train)\(\) is not supported"),
        (
            "A program of torch.export has no mode of eval(): let build_model return the module that was exported, "
            "whose names are the same"
        ),
    ),
    (
        re.compile(r"Weights only load failed|Unsupported global"),
        "If you trust the file, allow what it names with torch.serialization.add_safe_globals in the task's file",
    ),
    (
        re.compile(
            r"Got invalid dimensions for input: \S+ for the following indices\s+index: 0 Got: \d+ Expected: (\d+)"
            r"|Dimension mismatch\. Got \d+ but expected (\d+) for dimension 0"
        ),
        (
            "The model takes batches of {size} examples only: export it with a free first axis, such as "
            'dynamic_axes={{"input": {{0: "n"}}}}, or write Task(batch_size={size}) and fill up the last batch in '
            "predict: n = len(x); x = np.concatenate([x, np.repeat(x[-1:], {size} - n, 0)]), and return [:n]"
        ),
    ),
    (
        re.compile(r"Detected the following values in `target`:.*-100"),
        "Labels -100 mark what does not count: give the metric ignore_index=-100",
    ),
)

_NO_MODULE: Final = re.compile(r"No module named '([^'.]+)")

_BESIDE: Final = (
    "A checkpoint is loaded from a folder that holds its own files alone: write the full path of any other file into "
    "the task, such as Path(__file__).parent / 'vocab.json'"
)

_ADVICE: Final = re.compile(
    r"weights_only|add_safe_globals|arbitrary code|you have two options|Do it only if you|safe_mode=False"
    r"|enable_unsafe_deserialization"
)
"""Words of sentences in which libraries advise to load files in a way that runs their code."""

COPY_AGAIN: Final = "if it is cut off or damaged, copy or save it again"
"""The remedy for a file that a library cannot read."""

_FRAMES: Final = re.compile(r'^Detected at node.*\n|^[ \t]*File ".*(?:\n[ \t]+(?!File ).*)?', re.MULTILINE)
_MAX_CHAIN: Final = 20
_AUTOGRAPH: Final = "in user code:"
_MAX_CHARACTERS: Final = 300  # of the text of an exception; Keras may write the values of a batch into it


class EvaluationError(Exception):
    """A failure whose cause is known.

    `kind` is the value of a `FailureKind`, `lost` a rank that does not answer, `sides` groups of ranks that disagree.
    The text is the message and the remedy for the author of a task; `for_model` has that for a program with its own
    model.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        remedy: Remedy = _NO_REMEDY,
        lost: int | None = None,
        sides: Iterable[Iterable[int]] = (),
    ) -> None:
        super().__init__(message + remedy.for_task)
        self.kind, self.lost, self.sides = FailureKind(kind), lost, tuple(map(tuple, sides))
        self._message, self._remedy = message, remedy

    @property
    def for_model(self) -> str:
        """Return the text for a program that evaluates a model of its own."""
        return self._message + self._remedy.for_model

    def with_path(self, path: str, name: str) -> "EvaluationError":
        """Return the same error with another name in the place of a path."""
        message, remedy = self._message.replace(path, name), self._remedy.replace(path, name)
        return EvaluationError(self.kind, message, remedy=remedy, lost=self.lost, sides=self.sides)


def task_error(message: str, *, remedy: Remedy = _NO_REMEDY) -> EvaluationError:
    """Return the failure that the author of the task can correct."""
    return EvaluationError("task_error", message, remedy=remedy)


def mismatch(message: str, *, remedy: Remedy = _NO_REMEDY) -> EvaluationError:
    """Return the failure of a checkpoint that does not fit the model, or is not what it was."""
    return EvaluationError("mismatch", message, remedy=remedy)


class CannotBeMergedError(EvaluationError):
    """A metric whose states of several workers cannot become one, so that it is evaluated in turn instead.

    `reason` completes a sentence that begins with the metric: `does not start from zero`.
    """

    def __init__(self, label: str, reason: str) -> None:
        super().__init__("task_error", f"{label} {reason}")
        self.reason = reason


@contextmanager
def doing(activity: str) -> Iterator[None]:
    """Let the report of an error of the block say what ran then: `raised while <activity>`."""
    try:
        yield
    except (Exception, SystemExit) as error:
        error.activity = activity  # type: ignore[union-attr]
        raise


@contextmanager
def following_from_code(*others: type[Exception]) -> Iterator[None]:
    """Mark errors of the block as lasting if they follow from the task's code and the shapes of its data.

    These are errors that this program raises for a wrong task, errors of Python that depend on code only, and errors of
    the other types given. Errors that a file, a network or a machine can cause are not marked.
    """
    try:
        yield
    except Exception as error:
        refused = isinstance(error, SidecarError) or (
            isinstance(error, EvaluationError) and error.kind == FailureKind.TASK_ERROR
        )
        if refused or isinstance(error, (*_CODE_ERRORS, *others)):
            error.lasting = "task"  # type: ignore[attr-defined]
        raise


def as_failed(
    error: BaseException,
    *,
    phase: WorkerPhase,
    plan: int | None,
    rank: int | None,
    out_of_memory: tuple[type[Exception], ...] = (),
    path: str | None = None,
) -> Failed:
    """Return the report of an exception: one sentence if its cause is known, else the traceback of the user's code.

    `out_of_memory` lists the errors of the framework that mean a lack of memory. `path` is that of the checkpoint.
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
            f"a metric adds up whole numbers that are too large for an exact sum ({error}): check labels and weights "
            f"for values such as 1e30"
        )
    else:
        kind = _KIND_BY_PHASE.get(phase, FailureKind.WORKER_DIED)
        message = f"{_sentence(error, phase, path)}\n{_without_advice_in(_user_traceback(error), error)}"
    lost, sides = (error.lost, error.sides) if isinstance(error, EvaluationError) else (None, ())
    lasting: Lasting | None = getattr(error, "lasting", None)
    if phase == WorkerPhase.RESTORE and kind == FailureKind.MISMATCH:
        lasting = "checkpoint"  # the file is complete and equal on all nodes, but does not match the model
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


def first_line(error: Exception) -> str:
    """Return the first line of an error's message; without a message, the name of its class."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def without_advice(text: str) -> str:
    """Return a text of a library without its advice to load files in a way that runs their code, if it has any."""
    if _ADVICE.search(text) is None:
        return text
    sentences = re.split(r"(?<=[.!?:;])\s+|\n+", text)
    return " ".join(one.strip() for one in sentences if one.strip() and _ADVICE.search(one) is None)


def _without_advice_in(message: str, error: BaseException) -> str:
    """Return a message in which the texts of an error and of those that led to it give no such advice."""
    part: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if part is None:
            break
        if text := str(part):
            message = message.replace(text, without_advice(text))
        part = part.__cause__ or part.__context__
    return message


def _sentence(error: BaseException, phase: WorkerPhase, path: str | None) -> str:
    """Return the line above a traceback: the error, the phase in which it was raised, and a remedy if one is known."""
    told = _without_advice_in(str(error), error)
    lines = [line.strip() for line in _FRAMES.sub("", told).splitlines() if line.strip()]
    if lines[:1] == [_AUTOGRAPH]:  # a complete traceback; its last line is the error
        text = lines[-1] if len(lines) > 1 else type(error).__name__
    else:
        text = f"{type(error).__name__}{': ' * bool(lines)}{' '.join(lines)}"
    activity = getattr(error, "activity", None) or _WHILE.get(phase, phase)
    shortened = text[:_MAX_CHARACTERS] + "…" * (len(text) > _MAX_CHARACTERS)
    remedy = getattr(error, "remedy", None) or _remedy_for(text)
    remedy = f" {remedy}." if remedy else ""
    if path is not None and f"{Path(path).parent}/" in text.replace(path, ""):
        remedy = f" {_BESIDE}."
    return f"{shortened} (raised while {activity}).{remedy} The traceback says where:"


def _remedy_for(text: str) -> str:
    if missing := _NO_MODULE.search(text):
        line = line_to_write(missing[1])
        return line[0].upper() + line[1:]
    for pattern, remedy in _REMEDIES:
        if found := pattern.search(text):
            sizes = [size for size in found.groups() if size]
            return remedy.format(size=sizes[0]) if sizes else remedy
    return ""


def _user_traceback(error: BaseException) -> str:
    """Return the traceback without the frames of this program, as if the user had called their code directly."""
    whole = traceback.TracebackException.from_exception(error)
    if whole.stack and all(_is_ours(frame) for frame in whole.stack):
        return "".join(whole.format()).rstrip()  # an error of this program, for its developers
    part: traceback.TracebackException | None = whole
    while part is not None:
        part.stack = traceback.StackSummary.from_list(_of_the_user(part.stack))
        part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
    return _OUR_LINES.sub("", "".join(whole.format())).rstrip()


def _of_the_user(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Return the frames from the first one in a file of the user on; without one, all frames outside this program."""
    frames = [frame for frame in stack if not _is_ours(frame)]
    first = next((index for index, frame in enumerate(frames) if _is_user(frame)), 0)
    return frames[first:]


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return any(Path(frame.filename).is_relative_to(folder) for folder in _OURS)


def _is_user(frame: traceback.FrameSummary) -> bool:
    path = Path(frame.filename)
    if path.is_relative_to(_PACKAGE):
        return not _is_ours(frame)
    is_library = not _INSTALLED.isdisjoint(path.parts) or any(path.is_relative_to(folder) for folder in _STANDARD)
    return path.is_absolute() and not is_library and not path.name.startswith("__autograph_generated_file")
