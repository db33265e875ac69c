"""Define the `Task`, which the user writes. Imports no framework, so that `from sidecar import Task` is light.

Only worker processes import the task's module; the daemon knows its name: `module:attr` or `path/file.py:attr`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal, get_args

from sidecar.errors import TaskError
from sidecar.protocol.records import Goal
from sidecar.system.plain_text import shortened

MAX_EVAL_SETS: Final = 64
"""Limit of eval sets: ranks compare one fingerprint per eval set in a message of fixed size."""

NonfinitePolicy = Literal["count", "refuse", "allow"]
CheckPolicy = Literal["sample", "all"]


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
        nonfinite: Count examples with NaN or infinite inputs, labels or weights and warn of them ("count"), let them
            fail the evaluation ("refuse"), or let inputs have them, since NaN means "missing" to the model ("allow").
            Labels, weights and predictions are counted then, too. None: "allow" with `framework = "python"`, as trees
            and other models take missing values, else "count".
        check: How workers compare a dataset of PyTorch that has indices, before they evaluate: its list of batches and
            the contents of eight of them ("sample"), so that each worker reads its own examples only; or all contents
            ("all"), which each worker reads once. Other data is always compared as far as possible.
        groups: One key for each example in the order of the data, a function without arguments that returns them, or
            the name of a column of x or y, if examples are not independent: the patient, document or video of each.
            Intervals are then those of means over independent groups.
        slices: As `Task(slices=…)`, for this set alone, in addition to those. A value may also be an array or a list
            with one key for each example in the order of the data.
        show: As `Task(show=…)`, for this set alone.
        metrics: As `Task(metrics=…)`, for this set alone. A set with metrics or a loss of its own has none of the task.
        loss: As `Task(loss=…)`, for this set alone.
        step: As `Task(step=…)`, for this set alone.
    """

    source: Callable[..., Any]
    prepare: Callable[..., Any] | None = None
    examples: int | None = None
    every_nth: int = 1
    nonfinite: NonfinitePolicy | None = None
    check: CheckPolicy = "sample"
    groups: Any = None
    slices: Mapping[str, Any] = field(default_factory=dict)
    show: Callable[[Any, Any], Any] | None = None
    metrics: Callable[[], Sequence[Any]] | None = None
    loss: Any = None
    step: Callable[[Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        if not callable(self.source):
            raise TaskError(f"EvalSet(source=…) must be a function, found {shortened(self.source)}: write lambda: data")
        if self.prepare is not None and not callable(self.prepare):
            raise TaskError(f"EvalSet(prepare=…) must be a function of one element, found {shortened(self.prepare)}")
        if self.examples is not None and not _is_count(self.examples):
            raise TaskError(
                f"EvalSet(examples={shortened(self.examples)}) must be a number from 1, or None if it is unknown"
            )
        if not _is_count(self.every_nth):
            raise TaskError(
                f"EvalSet(every_nth={shortened(self.every_nth)}) must be a number from 1; 1 means every evaluation"
            )
        if self.nonfinite is not None and self.nonfinite not in get_args(NonfinitePolicy):
            raise TaskError(f"EvalSet(nonfinite={shortened(self.nonfinite)}) must be 'count', 'refuse' or 'allow'")
        if self.check not in get_args(CheckPolicy):
            raise TaskError(f"EvalSet(check={shortened(self.check)}) must be 'sample' or 'all'")
        _check_slices("EvalSet", self.slices)
        for name in ("metrics", "step", "show"):
            if (value := getattr(self, name)) is not None and not callable(value):
                raise TaskError(f"EvalSet({name}=…) must be a function, found {shortened(value)}: write lambda: …")

    @property
    def measures(self) -> bool:
        """Whether the set has metrics or a loss of its own."""
        return self.metrics is not None or self.loss is not None

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

    With TensorFlow or PyTorch the task builds a model, and checkpoints are restored into it:

        task = Task(
            build_model=lambda: keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), ...]),
            eval_sets={"test": lambda: (x_test, y_test)},
            metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            batch_size=256,
        )

    With PyTorch:

        task = Task(
            build_model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
            eval_sets={"test": lambda: TensorDataset(x_test, y_test)},
            metrics=lambda: [sidecar.metrics.Accuracy()],
            loss=nn.CrossEntropyLoss(),
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
        build_model: Returns a model of Keras, plain or compiled, or a `torch.nn.Module`. None: the task loads models,
            or every checkpoint is a SavedModel whose own graph is evaluated (the setting `trust_saved_graph`); then
            `metrics` or `loss` must be given.
        eval_sets: By name, a function that returns the data, or an `EvalSet`. Elements are (x, y) or
            (x, y, sample_weight), one example each unless `batch_size` is None. Without metrics and loss, elements are
            what the compiled model's `test_step` takes.
        metrics: Returns new metric objects. They measure each set that has none of its own.
        loss: A loss object, or a function of (y, y_pred) that returns one number per example. With PyTorch a criterion
            such as `nn.CrossEntropyLoss()`, or a function of (predictions, y): the order of arguments is that of the
            framework. Without metrics and loss, everything is measured that the compiled Keras model's `test_step`
            measures, or that a LightningModule logs in its `validation_step`.
        batch_size: Number of examples per batch; None: the data is already batched.
        checkpoint: With TensorFlow, maps the model to the root of the object graph, e.g.
            `lambda m: tf.train.Checkpoint(net=m)`. With PyTorch, the place of the model's values in the file, such as
            "ema" or "state.model", or a prefix of their names, such as "ema_model", or a function that takes the loaded
            file and returns them. None: it is found.
        predictions: True: every worker saves labels, predictions and weights of its own examples. Or a function of
            (x, y, predictions) of a batch that returns the columns to save, by name, one row for each example.
        restore: Takes (model, path) and replaces the whole restore, e.g. to read averaged weights.
        signature: Name of the SavedModel signature to evaluate; has an effect only if stored graphs are trusted.
        load: Takes the path of a checkpoint and returns a model of any type. For `framework = "python"`.
        predict: Takes (model, x), where x are the inputs of one batch as numpy arrays. Returns predictions as numpy
            arrays, or as objects that numpy converts, with one row for each example.
        step: Takes (model, batch) and returns (y, predictions) or (y, predictions, weights), for batches that are not
            (x, y): `lambda model, batch: (batch["labels"], model(**batch).logits)`. For `framework = "torch"`.
        ignore: Names of values in the checkpoint that the model lacks on purpose, such as `["lora_"]` or
            `["*.teacher.*"]`. Without this, a value of the model's place that the model has no variable for fails the
            evaluation. The result's notes name them. How names are compared: `sidecar.evaluation.name_patterns`.
        from_build_model: Names of values that the checkpoint lacks, and that keep the value which `build_model` gave
            them, such as `["body."]` for a pretrained part that training does not save. All workers must have the same
            ones. The result's notes name them.
        in_turn: True, or the names of metrics: worker 0 evaluates all batches in order, updates these metrics with one
            batch after the other, and other workers evaluate nothing of the set. Without this, it is done for metrics
            whose states of several workers cannot be merged, and the result's notes name them.
        evaluate: By name, a function that measures the restored model by itself, such as a test harness. It is called
            once per evaluation, and not tried out. A function of (model) runs on one worker and returns numbers by
            name, such as `{"acc": 0.6, "examples": 40}`. A function of (model, shard) runs on all workers, each with
            its `Shard`, and returns a total and a count by name: `{"acc": (hits, questions)}` gives their quotient over
            all workers. The result has the names like those of eval sets. `eval_sets` may be empty then.
        evaluate_timeout_seconds: The longest time that one call of such a function may take.
        goals: Whether larger or smaller numbers are better, "max" or "min", by EVAL_SET/METRIC, such as
            `{"harness/acc": "max"}`. It is needed for numbers that have no direction of their own: those of `evaluate`
            and of a `test_step`, and some metrics. "none": neither is better.
        slices: Parts of each eval set that are measured on their own in the same pass, by metrics that can be sliced:
            by name, a function of (x, y) of a batch as numpy arrays, or the name of a column of x or y. One bool for
            each example makes one slice, and one text or whole number makes a slice for each value, such as
            "country=de". A tuple of two of the names crosses them.
        show: Returns the input of one example as people should see it where evaluations are compared: a text, the bytes
            of a PNG or JPEG, or an array of pixels, such as `lambda x, y: x`; None: nothing. It takes (x, y) of the
            example as numpy arrays, and is called for examples whose prediction is wrong, or for all if the columns do
            not say that. It needs `predictions`. Each worker saves at most 1,000 inputs of a set, and 8 MiB.
        intervals: Whether `Sums` and metrics of Keras and torchmetrics have 95 % intervals that need their numbers for
            parts of the data. None: those that take at most 0.1 s and 5 % of the evaluation of a set; True: all;
            False: none.
    """

    build_model: Callable[[], Any] | None = None
    eval_sets: Mapping[str, Callable[..., Any] | EvalSet] = field(default_factory=dict)
    metrics: Callable[[], Sequence[Any]] | None = None
    loss: Any = None
    batch_size: int | None = None
    checkpoint: str | Callable[[Any], Any] | None = None
    restore: Callable[[Any, str], Any] | None = None
    predictions: bool | Callable[[Any, Any, Any], Any] = False
    signature: str = "serving_default"
    load: Callable[[str], Any] | None = None
    predict: Callable[[Any, Any], Any] | None = None
    step: Callable[[Any, Any], Any] | None = None
    ignore: Sequence[str] = ()
    from_build_model: Sequence[str] = ()
    in_turn: bool | Sequence[str] = False
    evaluate: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    evaluate_timeout_seconds: float = 4 * 3600.0
    goals: Mapping[str, Goal] = field(default_factory=dict)
    slices: Mapping[str, Any] = field(default_factory=dict)
    show: Callable[[Any, Any], Any] | None = None
    intervals: bool | None = None

    def __post_init__(self) -> None:
        self._check_functions()
        self._check_model()
        if not isinstance(self.in_turn, bool):
            _check_patterns("in_turn", self.in_turn, "names of metrics, such as in_turn=['ap'], or True for all")
        if self.intervals not in (None, True, False):
            raise TaskError(
                f"Task(intervals={shortened(self.intervals)}) must be True, False, or None for those that cost little"
            )
        for name in ("ignore", "from_build_model"):
            _check_patterns(name, getattr(self, name))
        if not isinstance(self.predictions, bool) and not callable(self.predictions):
            raise TaskError(
                "Task(predictions=…) must be True or a function of (x, y, predictions), found "
                f"{shortened(self.predictions)}"
            )
        self._check_sets()
        if not self.predictions and any(one.show is not None for one in self.sets().values()):
            raise TaskError(
                "Task(show=…) needs saved predictions, which tell the examples that changed: write predictions=True"
            )
        if self.batch_size is not None and not _is_count(self.batch_size):
            raise TaskError(
                f"Task(batch_size={shortened(self.batch_size)}) must be a number from 1, or None for batched data"
            )
        self._check_goals()
        self._check_slices()

    def _check_sets(self) -> None:
        """Check the eval sets. Raises `TaskError`."""
        least = 0 if self.evaluate else 1
        if not isinstance(self.eval_sets, Mapping) or not least <= len(self.eval_sets) <= MAX_EVAL_SETS:
            raise TaskError(
                f"Task(eval_sets=…) must map 1 to {MAX_EVAL_SETS} names to data, found {shortened(self.eval_sets)}"
            )
        for name, source in self.eval_sets.items():
            if not isinstance(name, str) or not name:
                raise TaskError(f"Task(eval_sets=…): a name must be a text of at least one character, found {name!r}")
            if not callable(source) and not isinstance(source, EvalSet):
                raise TaskError(
                    f"Task(eval_sets={{{name!r}: …}}) must be a function or an EvalSet, found {type(source).__name__}: "
                    f"write lambda: data, so that each worker makes its own"
                )
        if not self.evaluate and all(eval_set.every_nth > 1 for eval_set in self.sets().values()):
            raise TaskError(
                "Task(eval_sets=…): every set has every_nth above 1, so nothing would be measured for some "
                "checkpoints: leave every_nth out for one set"
            )

    def _check_slices(self) -> None:
        """Check the slices of all sets. Raises `TaskError`."""
        _check_slices("Task", self.slices)
        for name, slices in self.slices.items():
            if not callable(slices) and not isinstance(slices, str | tuple):
                raise TaskError(
                    f"Task(slices={{{name!r}: …}}) must be a function of (x, y) or the name of a column, found "
                    f"{type(slices).__name__}: keys of the examples of one set are for EvalSet(slices=…)"
                )

    def _check_goals(self) -> None:
        """Check that each goal is one of a set of this task. Raises `TaskError`."""
        if not isinstance(self.goals, Mapping):
            raise TaskError(
                f"Task(goals={shortened(self.goals)}) must map names to goals, such as {{'test/score': 'max'}}"
            )
        sets = [*self.eval_sets, *self.evaluate]
        for name, goal in self.goals.items():
            if goal not in get_args(Goal):
                raise TaskError(f"Task(goals={{{name!r}: {shortened(goal)}}}) must be 'max', 'min' or 'none'")
            if not isinstance(name, str) or not any(name.startswith(f"{one}/") for one in sets):
                raise TaskError(
                    f"Task(goals={{{name!r}: …}}) must be EVAL_SET/METRIC, such as {f'{sets[0]}/score'!r}; the sets "
                    f"are {', '.join(sets)}"
                )

    def _check_functions(self) -> None:
        """Check the functions that measure the model by themselves. Raises `TaskError`."""
        if not isinstance(self.evaluate, Mapping) or len(self.evaluate) > MAX_EVAL_SETS:
            raise TaskError(
                f"Task(evaluate=…) must map at most {MAX_EVAL_SETS} names to functions, found "
                f"{shortened(self.evaluate)}: write evaluate={{'harness': function}}"
            )
        for name, function in self.evaluate.items():
            if not isinstance(name, str) or not name or name in self.eval_sets:
                raise TaskError(f"Task(evaluate=…): a name must be a text that no eval set has, found {name!r}")
            if not callable(function):
                raise TaskError(f"Task(evaluate={{{name!r}: …}}) must be a function, found {shortened(function)}")
            takes_shard(function)
        if self.evaluate and self.build_model is None and self.load is None:
            raise TaskError("Task(evaluate=…) needs a model: give build_model, or load with framework = 'python'")
        seconds = self.evaluate_timeout_seconds
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0:
            raise TaskError(f"Task(evaluate_timeout_seconds={shortened(seconds)}) must be a number of seconds above 0")

    def _check_model(self) -> None:
        """Check the arguments that define the model, or that there is none. Raises `TaskError`."""
        for name in ("build_model", "metrics", "checkpoint", "restore", "load", "predict", "step", "show"):
            value = getattr(self, name)
            if not callable(value) and value is not None and not (name == "checkpoint" and isinstance(value, str)):
                raise TaskError(f"Task({name}=…) must be a function, found {shortened(value)}: write lambda: …")
        if not isinstance(self.signature, str) or not self.signature:
            raise TaskError(f"Task(signature={shortened(self.signature)}) must be the name of a SavedModel's signature")
        if self.load is not None or self.predict is not None:
            self._check_loaded_model()
            return
        if self.build_model is not None:
            return
        if not self._measures_all:
            raise TaskError(
                "Task(build_model=None) needs metrics or loss, since a stored graph has none: give one of them, or a "
                "function that returns the model"
            )
        for name in ("checkpoint", "restore", "ignore", "from_build_model"):
            if getattr(self, name):
                raise TaskError(f"Task({name}=…) is for the model of build_model, which is None: leave it out")

    def _check_loaded_model(self) -> None:
        """Check the arguments of a task that loads its models itself. Raises `TaskError`."""
        measures_itself = self.evaluate and not self.eval_sets and self.load is not None
        if not measures_itself and (self.load is None or self.predict is None):
            missing = "load" if self.load is None else "predict"
            raise TaskError(f"Task(load=…) and Task(predict=…) belong together: give {missing}, too")
        if not self._measures_all and not measures_itself:
            raise TaskError(
                "Task(load=…, predict=…) needs metrics: give a function that returns some of sidecar.metrics"
            )
        for name, eval_set in self.sets().items():
            if eval_set.loss is not None:
                raise TaskError(
                    f"Task(eval_sets={{{name!r}: EvalSet(loss=…)}}) is for models that are restored; with load and "
                    f"predict give metrics, such as sidecar.metrics.LogLoss()"
                )
        for name in ("build_model", "checkpoint", "restore", "loss", "step", "ignore", "from_build_model"):
            if getattr(self, name) not in (None, ()):
                raise TaskError(f"Task({name}=…) is for models that are restored; with load and predict leave it out")

    @property
    def _measures_all(self) -> bool:
        """Whether there are metrics or a loss for each eval set."""
        of_task = self.metrics is not None or self.loss is not None
        own = [isinstance(one, EvalSet) and one.measures for one in self.eval_sets.values()]
        return of_task or (bool(own) and all(own))

    def of_set(self, name: str) -> "Task":
        """Return the task with the metrics, loss and step that are for this eval set; itself if these are its own."""
        eval_set = self.sets()[name]
        if not eval_set.measures and eval_set.step is None:
            return self
        measured = {"metrics": eval_set.metrics, "loss": eval_set.loss} if eval_set.measures else {}
        return replace(self, **measured, step=eval_set.step or self.step)

    def require_no_steps(self, framework: str) -> None:
        """Raise `TaskError` for a `step`, which only PyTorch takes."""
        found = [f"EvalSet(step=…) of {name!r}" for name, each in self.sets().items() if each.step is not None]
        found += [] if self.step is None else ["Task(step=…)"]
        if found:
            raise TaskError(f"{found[-1]} needs framework = 'torch', found framework = {framework!r}")

    def wants_in_turn(self, metric: str) -> bool:
        """Return whether the task asks for this metric to be evaluated in turn."""
        return self.in_turn if isinstance(self.in_turn, bool) else metric in self.in_turn

    def require_in_turn(self, metrics: Sequence[str]) -> None:
        """Raise `TaskError` if `in_turn` names a metric that is not one of these."""
        unknown = [] if isinstance(self.in_turn, bool) else [name for name in self.in_turn if name not in metrics]
        if unknown:
            names = ", ".join(map(repr, metrics)) or "none"
            raise TaskError(f"Task(in_turn={unknown!r}): no metric has this name, the metrics are {names}")

    def sets(self, evaluated: int = 0) -> dict[str, EvalSet]:
        """Return the eval sets that take part after this number of evaluations, in the given order; at 0 all do."""
        longer = {
            name: source if isinstance(source, EvalSet) else EvalSet(source) for name, source in self.eval_sets.items()
        }
        if self.slices:
            longer = {name: replace(one, slices={**self.slices, **one.slices}) for name, one in longer.items()}
        if self.show is not None:
            longer = {name: replace(one, show=one.show or self.show) for name, one in longer.items()}
        return {name: eval_set for name, eval_set in longer.items() if evaluated % eval_set.every_nth == 0}


def does_nothing(function: Callable[..., Any]) -> bool:
    """Return whether a function cannot do anything, such as a `restore` that is `lambda *_: None`."""
    code = getattr(function, "__code__", None)
    return code is not None and not code.co_names and not code.co_freevars


def takes_shard(function: Callable[..., Any]) -> bool:
    """Return whether a function of `Task(evaluate=…)` takes (model, shard) instead of (model). Raises `TaskError`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin
        return False
    plain = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = sum(one.default is one.empty for one in plain)
    variadic = any(one.kind == one.VAR_POSITIONAL for one in parameters)
    if needed > 2 or not (plain or variadic):  # noqa: PLR2004 - model and shard
        raise TaskError(
            f"Task(evaluate=…): a function takes (model) or (model, shard), found "
            f"{getattr(function, '__name__', function)}{inspect.signature(function)}"
        )
    return needed == 2 or any(one.name == "shard" for one in plain[1:2])  # noqa: PLR2004


def _check_slices(owner: str, slices: Any) -> None:
    """Raise `TaskError` unless slices are functions, names of columns, pairs of names or keys, by name."""
    if not isinstance(slices, Mapping):
        raise TaskError(
            f"{owner}(slices={shortened(slices)}) must map names to functions, such as "
            "slices={'night': lambda x, y: …}"
        )
    for name, one in slices.items():
        is_pair = isinstance(one, tuple) and len(one) == 2 and all(isinstance(each, str) for each in one)  # noqa: PLR2004
        is_known = callable(one) or (isinstance(one, str) and one) or is_pair
        if not isinstance(name, str) or not name:
            raise TaskError(f"{owner}(slices=…): a name must be a text of at least one character, found {name!r}")
        if not is_known and (isinstance(one, str | tuple) or not hasattr(one, "__len__")):
            raise TaskError(
                f"{owner}(slices={{{name!r}: {shortened(one)}}}) must be a function of (x, y), the name of "
                "a column, or a tuple of two names of other slices"
            )


def _check_patterns(name: str, patterns: Any, content: str = "") -> None:
    """Raise `TaskError` unless the value is a list of texts that are not empty."""
    if isinstance(patterns, str) and patterns:
        raise TaskError(f"Task({name}={patterns!r}) must be a list: write {name}=[{patterns!r}]")
    if not isinstance(patterns, list | tuple) or not all(isinstance(pattern, str) and pattern for pattern in patterns):
        content = content or f"names, such as {name}=['body.']"
        raise TaskError(f"Task({name}={shortened(patterns)}) must be a list of {content}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user's. Raises `TaskError` if it does not take these arguments."""
    try:
        mismatch = _mismatch(function, len(arguments))
    except TypeError:  # an object that cannot be hashed
        mismatch = _mismatch.__wrapped__(function, len(arguments))
    if mismatch is not None:
        given = " and ".join(type(argument).__name__ for argument in arguments) or "no argument"
        raise TaskError(f"{name} is called with {given}, but its function does not match: {mismatch}")
    return function(*arguments)


@lru_cache(maxsize=256)
def _mismatch(function: Callable[..., Any], count: int) -> str | None:
    """Return why a function does not take this number of arguments; None if it does.

    It is asked for each batch, so answers are kept.
    """
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError as error:
        return str(error)
    except ValueError:
        pass  # a builtin without a signature raises its own error
    return None
