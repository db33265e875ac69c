"""Define the `Task`, which the user writes. Imports no framework, so that `from sidecar import Task` is light.

Only worker processes import the task's module; the daemon knows its name: `module:attr` or `path/file.py:attr`.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, get_args

from sidecar.errors import TaskError

MAX_EVAL_SETS: Final = 64
"""Limit of eval sets: ranks compare one fingerprint per eval set in a message of fixed size."""

NonfinitePolicy = Literal["count", "refuse"]


@dataclass(frozen=True, slots=True)
class EvalSet:
    """Describe data in two steps: `source` yields cheap elements, and each worker prepares only its own batches.

    For example, the worker that evaluates an image also decodes it:

        EvalSet(lambda: (paths, labels), prepare=lambda path, y: (decode(path), y), examples=10_000)

    Args:
        source: A function without arguments, or with a `Shard` if it divides the data itself. It returns numpy arrays,
            a dataset or an iterator of elements (paths, indices, records), one example each. `sidecar.data` has sources
            for files.
        prepare: Maps one element to (x, y) or (x, y, sample_weight), as for `tf.data.Dataset.map`; or to any structure
            that the compiled model's own `test_step` takes.
        examples: Number of examples, if known; another number fails the evaluation.
        every_nth: Take part in every nth successful evaluation, beginning with the first one of this code. The gauges
            of the last one remain, and `sidecar_eval_set_checkpoint_step` shows the checkpoint that they belong to.
        nonfinite: Count examples with NaN or infinite inputs, labels or weights ("count"), or let them fail the
            evaluation ("refuse"). Examples with such predictions are always counted.
    """

    source: Callable[..., Any]
    prepare: Callable[..., Any] | None = None
    examples: int | None = None
    every_nth: int = 1
    nonfinite: NonfinitePolicy = "count"

    def __post_init__(self) -> None:
        if not callable(self.source):
            raise TaskError(f"EvalSet(source=…) must be a function, found {self.source!r}: write lambda: data")
        if self.prepare is not None and not callable(self.prepare):
            raise TaskError(f"EvalSet(prepare=…) must be a function of one element, found {self.prepare!r}")
        if self.examples is not None and not _is_count(self.examples):
            raise TaskError(f"EvalSet(examples={self.examples!r}) must be a number from 1, or None if it is unknown")
        if not _is_count(self.every_nth):
            raise TaskError(f"EvalSet(every_nth={self.every_nth!r}) must be a number from 1; 1 means every evaluation")
        if self.nonfinite not in get_args(NonfinitePolicy):
            raise TaskError(f"EvalSet(nonfinite={self.nonfinite!r}) must be 'count' or 'refuse'")

    @property
    def shards_itself(self) -> bool:
        """Whether `source` takes a `Shard`: it has a parameter without default, or one named `shard`."""
        try:
            parameters = inspect.signature(self.source).parameters.values()
        except ValueError:  # a builtin
            return False
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return any(
            parameter.name == "shard" or (parameter.default is parameter.empty and parameter.kind not in variadic)
            for parameter in parameters
        )


@dataclass(frozen=True, slots=True)
class Task:
    """Describe how to evaluate a checkpoint, by a model, data and metrics.

    With TensorFlow (`framework = "tensorflow"`, the default) the task builds a model, and checkpoints are restored into
    it:

        task = Task(
            build_model=lambda: keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), ...]),
            eval_sets={"test": lambda: (x_test, y_test)},
            metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            batch_size=256,
        )

    With `framework = "python"` the task loads a model and predicts with it, so any library can be used:

        task = Task(
            load=joblib.load,
            predict=lambda model, x: model.predict_proba(x),
            eval_sets={"test": lambda: (x_test, y_test)},
            metrics=lambda: [sidecar.metrics.Accuracy()],
            batch_size=256,
        )

    Args:
        build_model: Returns a model, plain or compiled. None: the task loads models, or every checkpoint is a
            SavedModel whose own graph is evaluated (the setting `trust_saved_graph`); then `metrics` or `loss` must be
            given.
        eval_sets: By name, a function that returns the data, or an `EvalSet`. Elements are (x, y) or
            (x, y, sample_weight), one example each unless `batch_size` is None. Without metrics and loss, elements are
            what the compiled model's `test_step` takes.
        metrics: Returns new metric objects.
        loss: A loss object, or a function of (y, y_pred) that returns one number per example. Without metrics and loss,
            everything is measured that the compiled model's `test_step` measures.
        batch_size: Number of examples per batch; None: the data is already batched.
        checkpoint: Maps the model to the root of the object graph, e.g. `lambda m: tf.train.Checkpoint(net=m)`. None:
            the root is found.
        predictions: True: every worker saves labels, predictions and weights of its own examples. Or a function of
            (x, y, predictions) of a batch that returns the columns to save, by name, one row for each example.
        restore: Takes (model, path) and replaces the whole restore, e.g. to read averaged weights.
        signature: Name of the SavedModel signature to evaluate; has an effect only if stored graphs are trusted.
        load: Takes the path of a checkpoint and returns a model of any type. For `framework = "python"`.
        predict: Takes (model, x), where x are the inputs of one batch as numpy arrays. Returns predictions as numpy
            arrays, or as objects that numpy converts, with one row for each example.
    """

    build_model: Callable[[], Any] | None = None
    eval_sets: Mapping[str, Callable[..., Any] | EvalSet] = field(default_factory=dict)
    metrics: Callable[[], Sequence[Any]] | None = None
    loss: Any = None
    batch_size: int | None = None
    checkpoint: Callable[[Any], Any] | None = None
    restore: Callable[[Any, str], Any] | None = None
    predictions: bool | Callable[[Any, Any, Any], Any] = False
    signature: str = "serving_default"
    load: Callable[[str], Any] | None = None
    predict: Callable[[Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        self._check_model()
        if not isinstance(self.predictions, bool) and not callable(self.predictions):
            raise TaskError(
                f"Task(predictions=…) must be True or a function of (x, y, predictions), found {self.predictions!r}"
            )
        if not isinstance(self.eval_sets, Mapping) or not 0 < len(self.eval_sets) <= MAX_EVAL_SETS:
            raise TaskError(f"Task(eval_sets=…) must map 1 to {MAX_EVAL_SETS} names to data, found {self.eval_sets!r}")
        for name, source in self.eval_sets.items():
            if not isinstance(name, str) or not name:
                raise TaskError(f"Task(eval_sets=…): a name must be a text of at least one character, found {name!r}")
            if not callable(source) and not isinstance(source, EvalSet):
                raise TaskError(
                    f"Task(eval_sets={{{name!r}: …}}) must be a function or an EvalSet, found {type(source).__name__}: "
                    f"write lambda: data, so that each worker makes its own"
                )
        if all(eval_set.every_nth > 1 for eval_set in self.sets().values()):
            raise TaskError(
                "Task(eval_sets=…): every set has every_nth above 1, so nothing would be measured for some "
                "checkpoints: leave every_nth out for one set"
            )
        if self.batch_size is not None and not _is_count(self.batch_size):
            raise TaskError(f"Task(batch_size={self.batch_size!r}) must be a number from 1, or None for batched data")

    def _check_model(self) -> None:
        """Check the arguments that define the model, or that there is none. Raises `TaskError`."""
        for name in ("build_model", "metrics", "checkpoint", "restore", "load", "predict"):
            value = getattr(self, name)
            if not callable(value) and value is not None:
                raise TaskError(f"Task({name}=…) must be a function, found {value!r}: write lambda: …")
        if not isinstance(self.signature, str) or not self.signature:
            raise TaskError(f"Task(signature={self.signature!r}) must be the name of a SavedModel's signature")
        if self.load is not None or self.predict is not None:
            self._check_loaded_model()
            return
        if self.build_model is not None:
            return
        if self.metrics is None and self.loss is None:
            raise TaskError(
                "Task(build_model=None) needs metrics or loss, since a stored graph has none: give one of them, or a "
                "function that returns the model"
            )
        for name in ("checkpoint", "restore"):
            if getattr(self, name) is not None:
                raise TaskError(f"Task({name}=…) is for the model of build_model, which is None: leave it out")

    def _check_loaded_model(self) -> None:
        """Check the arguments of a task that loads its models itself. Raises `TaskError`."""
        if self.load is None or self.predict is None:
            missing = "load" if self.load is None else "predict"
            raise TaskError(f"Task(load=…) and Task(predict=…) belong together: give {missing}, too")
        if self.metrics is None:
            raise TaskError(
                "Task(load=…, predict=…) needs metrics: give a function that returns some of sidecar.metrics"
            )
        for name in ("build_model", "checkpoint", "restore", "loss"):
            if getattr(self, name) is not None:
                raise TaskError(f"Task({name}=…) is for TensorFlow's models; with load and predict leave it out")

    def sets(self, evaluated: int = 0) -> dict[str, EvalSet]:
        """Return the eval sets that take part after this number of evaluations, in the given order; at 0 all do."""
        longer = {
            name: source if isinstance(source, EvalSet) else EvalSet(source) for name, source in self.eval_sets.items()
        }
        return {name: eval_set for name, eval_set in longer.items() if evaluated % eval_set.every_nth == 0}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A task and the digest of the code that made it."""

    task: Task
    digest: str


def call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user's. Raises `TaskError` if it does not take these arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        given = " and ".join(type(argument).__name__ for argument in arguments) or "no argument"
        raise TaskError(f"{name} is called with {given}, but its function does not match: {error}") from None
    except ValueError:
        pass  # a builtin without a signature raises its own error
    return function(*arguments)


def load(reference: str, search_path: str) -> LoadedTask:
    """Import `module:attr` or `path/file.py:attr` and call it if it is a function.

    Raises:
        TaskError: The task does not exist, or is not a `Task`. Errors of the user's code are not caught.
    """
    location, separator, attribute = reference.rpartition(":")
    if not separator or not location or not attribute:
        raise TaskError(f"task {reference!r}: write module:attr or path/file.py:attr")
    if location.endswith(".py"):
        module = _import_file(Path(search_path, Path(location).expanduser()), reference)
    else:
        module = _import_module(location, search_path, reference)
    try:
        value = getattr(module, attribute)
    except AttributeError:
        names = sorted(name for name in vars(module) if not name.startswith("_"))
        raise TaskError(
            f"task {reference!r}: {location} has no {attribute!r}; it defines {', '.join(names) or 'nothing'}"
        ) from None
    task = value if isinstance(value, Task) else call(f"task {reference!r}", value) if callable(value) else value
    if not isinstance(task, Task):
        raise TaskError(
            f"task {reference!r}: expected a sidecar.Task or a function that returns one, "
            f"found {type(task).__name__} {str(task)[:80]!r}"
        )
    return LoadedTask(task, _digest(module, attribute))


def require_framework(task: Task, framework: str) -> None:
    """Raise `TaskError` if the task is written for another value of the setting `framework`."""
    if task.load is not None and framework != "python":
        raise TaskError(f"Task(load=…, predict=…) needs framework = 'python', found framework = {framework!r}")
    if task.load is None and framework == "python":
        raise TaskError(
            "framework = 'python' needs Task(load=…), a function of a path that returns a model, and Task(predict=…), "
            "a function of (model, x) that returns predictions"
        )


def _import_file(path: Path, reference: str) -> ModuleType:
    if not path.is_file():
        raise TaskError(f"task {reference!r}: there is no file {path}")
    _search_first(str(path.parent))  # as for a script, modules next to it can be imported
    # Modules next to it can import it by its own name; but a task file keras.py must not replace Keras.
    name = f"sidecar_task_{path.stem}" if path.stem in sys.modules else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _search_first(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _import_module(name: str, search_path: str, reference: str) -> ModuleType:
    _search_first(search_path)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise  # the task's own import failed: the traceback of the user's code says more
        raise TaskError(
            f"task {reference!r}: there is no module {error.name!r} in {search_path} or installed for {sys.executable}"
        ) from None


def _digest(module: ModuleType, attribute: str) -> str:
    """Return the digest of the task's file and of every imported module next to or below it that is not installed."""
    digest = hashlib.sha256(attribute.encode())
    file = getattr(module, "__file__", None)
    if file is None:
        return digest.hexdigest()
    root = Path(file).resolve().parent
    for path in sorted(_modules_below(root) | {Path(file).resolve()}):
        digest.update(f"\0{path.relative_to(root)}\0".encode(errors="surrogateescape"))
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _modules_below(root: Path) -> set[Path]:
    """Return the files of loaded modules below the root that are not installed.

    A framework has thousands of modules, so only those in folders below the root, and links, are resolved.
    """
    standard = Path(sysconfig.get_path("stdlib")).resolve()  # below the root when a container's task lies at /

    def is_own(path: Path) -> bool:
        return path.is_relative_to(root) and "site-packages" not in path.parts and not path.is_relative_to(standard)

    loaded = (getattr(other, "__file__", None) for other in list(sys.modules.values()))
    paths = [Path(name) for name in loaded if isinstance(name, str) and name.endswith(".py")]
    in_own_folder = {folder: is_own(folder.resolve()) for folder in {path.parent for path in paths}}
    candidates = {path.resolve() for path in paths if in_own_folder[path.parent] or path.is_symlink()}
    return {path for path in candidates if is_own(path)}
