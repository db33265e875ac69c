"""Measure with functions and metric objects that this program does not know, in turn on worker 0.

A function, such as one of scikit-learn, gets the labels and predictions of all examples at once. An object, such as one
of torcheval, ignite, Keras or `evaluate`, is updated with one batch after the other. Both give the number of a program
without workers. Imports numpy; libraries that the task has imported are found in `sys.modules`.
"""

import inspect
import random
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any, Final

import numpy as np

from sidecar.errors import TaskError
from sidecar.evaluation.data.structure import map_leaves
from sidecar.evaluation.failures import EvaluationError, following_from_code, task_error, without_advice
from sidecar.evaluation.metrics.argument_names import kind_of, parameters_of, told_apart
from sidecar.evaluation.metrics.in_turn import ResultsInTurn, held_by, numbers_of
from sidecar.evaluation.metrics.metric import EvalBatch, EvalSetInfo, MetricResult, value
from sidecar.evaluation.row_comparison import are_near
from sidecar.evaluation.states import GatheredBatches, SetStates
from sidecar.protocol.records import Goal
from sidecar.system.plain_text import shortened

_STATE: Final = "in turn"
_MAX_NUMBERS: Final = 50
_MAX_BYTES: Final = 2 << 30
"""Limit of the labels and predictions that a function gets at once."""

_WEIGHTS: Final = ("sample_weight", "sample_weights", "weights")
_TAKE_TENSORS: Final = ("torch", "torchmetrics", "torcheval", "torchvision", "ignite", "monai")
_TAKE_ARRAYS: Final = ("sklearn", "scipy", "numpy", "keras", "tf_keras", "tensorflow", "evaluate", "seqeval", "jax")
_RESETS: Final = ("reset_state", "reset_states", "reset")
_OF_SCORES: Final = ("handle a mix of", "continuous", "Expected array-like", "Integer types", "expected format")
"""Words in the messages of libraries whose function takes numbers of classes and was given scores."""

_BOTH: Final = 2
_IGNORED: Final = -100
"""The label that marks padding in libraries built on PyTorch."""

Given = tuple[Any, Any, Any]
"""Labels, predictions and weights (or None)."""


class InTurn:
    """Measure with any function of labels and predictions, or with a metric object of another library.

    Worker 0 evaluates all batches of an eval set, in order, and the other workers none of it. The number is that of a
    program without workers:

        InTurn(lambda y, predictions: balanced_accuracy_score(y, predictions.argmax(1)), name="balanced", goal="max")

    Args:
        measure: A function of the labels and predictions of all examples, as numpy arrays (n, …), or as lists if the
            task gives lists. It returns a number, or several by name. Its parameters are told apart by their names,
            such as `y_true` and `y_pred`, or `preds` and `target`; one named `sample_weight` gets the weights. Or an
            object with `update` and `compute`, `update_state` and `result`, or `add_batch` and `compute`, which is
            updated with each batch.
        name: Name of the metric, and of its number if there is only one. None: that of the function or class.
        goal: "max" if larger numbers are better, "min" if smaller ones are, "none" if neither. None: that of functions
            of scikit-learn by their names, otherwise "none".
    """

    def __init__(self, measure: Any, *, name: str | None = None, goal: Goal | None = None) -> None:
        if isinstance(measure, type) or not (callable(measure) or is_object(measure)):
            given = shortened(measure)
            raise TaskError(f"InTurn takes a function of (y, predictions) or a metric object, found {given}")
        if callable(scored := getattr(measure, "_score_func", None)):  # of make_scorer
            raise TaskError(
                f"InTurn takes a function of labels and predictions, found a scorer, which takes a model: write "
                f"{getattr(scored, '__name__', 'its function')}"
            )
        found = name or _name_of(measure)
        if not found:
            raise TaskError(
                f"InTurn needs a name for {shortened(measure)}: write InTurn(lambda y, predictions: …, "
                f"name='my_metric')"
            )
        self.name = found
        self._measure, self._is_object = measure, is_object(measure)
        self._goal: Goal = goal or _goal_of(measure, found)
        self._label = f"metric {found!r}"
        self._arguments = self._bound()
        self._converted: Callable[[Any], Any] | None = None  # for what it takes, once it was tried

    @property
    def reason(self) -> str:
        """Why the metric is evaluated in turn; completes a sentence that begins with its name."""
        return "keeps states of its own" if self._is_object else "is a function of all examples at once"

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return a new state, which keeps the batches until they are complete."""
        return {_STATE: _Following(info.shard, self)}

    def add(self, states: SetStates, batch: EvalBatch) -> None:
        """Add one batch after those before. Raises `TaskError` for a function that does not take it."""
        following = states[_STATE]
        assert isinstance(following, _Following), "states() made it"
        y, predictions = batch.given
        given = y, predictions, batch.weights
        if batch.weights is not None and not self._takes_weights:
            raise TaskError(
                f"{self._label}: the data have weights, or labels that the loss ignores, and it takes none: write "
                f"InTurn(lambda y, predictions, sample_weight: …, name={self.name!r})"
            )
        if self._converted is None:
            with following_from_code():
                self._converted = self._tried(given)
        following.follow(given)

    def compute(self, states: SetStates) -> MetricResult:
        """Return the numbers; none before worker 0 has seen all batches."""
        gathered = {_STATE: states[_STATE]}
        return ResultsInTurn({self.name: ""}).results(gathered).get(self.name, MetricResult({}))

    def begin(self) -> Any:
        """Return the object that is updated in one evaluation; a function remembers nothing."""
        if not self._is_object:
            return None
        try:
            own = deepcopy(self._measure)
        except Exception:  # noqa: BLE001 - an object may hold files, locks or graphs
            own = self._measure
        reset = next((method for name in _RESETS if callable(method := getattr(own, name, None))), None)
        if reset is not None:
            reset()
        elif own is self._measure:
            raise TaskError(
                f"{self._label} can be neither copied nor reset, so each evaluation would count the batches of those "
                f"before: give {type(own).__name__} a method reset() that sets what __init__ sets"
            )
        return own

    def update(self, own: Any, given: Given, number: int) -> None:
        """Update an object with one batch, which has this number."""
        assert self._converted is not None, "add() tried it"
        self._update(own, given, self._converted, number)

    def result(self, own: Any, batches: Sequence[Given]) -> MetricResult:
        """Return the numbers of an object after its updates, or those of a function for all batches.

        Raises `EvaluationError` if there are none, or others the second time.
        """
        assert self._converted is not None, "add() tried it"
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            if self._is_object:
                numbers = self._computed(own)
            else:
                whole = self._joined(batches)
                numbers = self._called(whole, self._converted)
                self._require_same(numbers, self._called(whole, self._converted))
        notes = tuple(dict.fromkeys(f"{self._label}: {warning.message}"[:300] for warning in warned))
        if not self._is_object and (ignored := _count_ignored(whole[0])):
            notes += (f"{self._label} counts {ignored:,} labels of {_IGNORED} like any others: leave them out in it",)
        return MetricResult({name: value(number, self._goal) for name, number in numbers.items()}, {}, notes)

    def _tried(self, given: Given) -> Callable[[Any], Any]:
        """Try a first batch, and return what converts arrays for the metric: to tensors, or not at all."""
        root = _root_of(self._measure)
        torch = sys.modules.get("torch")
        ways: list[Callable[[Any], Any]] = [_as_it_is]
        if torch is not None and hasattr(torch, "as_tensor") and root not in _TAKE_ARRAYS:
            ways = [_as_tensors] if root in _TAKE_TENSORS else [_as_it_is, _as_tensors]
        found: list[tuple[Callable[[Any], Any], Any]] = []
        failed: list[tuple[Callable[[Any], Any], EvaluationError]] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a batch may lack a class
            for way in ways:
                try:
                    numbers = self._numbers_of(given, way)
                    with suppress(EvaluationError):  # a part may lack a class
                        self._numbers_of(_half(given), way)  # a mean of the same batch twice would hide it
                    self._require_same(numbers, self._numbers_of(given, way))
                    found.append((way, numbers))
                except EvaluationError as error:
                    failed.append((way, error))
        if len(found) == _BOTH and not _are_alike(found[0][1], found[1][1]):
            raise TaskError(
                f"{self._label} gives {found[0][1]} for arrays of numpy and {found[1][1]} for tensors of the first "
                f"batch: convert them in it, such as torch.as_tensor(predictions) or np.asarray(predictions)"
            )
        possible = [way for way, error in failed if not _is_lasting(error)]
        if not found and not possible:
            raise failed[0][1]
        return found[0][0] if found else possible[0]

    def _require_same(self, numbers: dict[str, float], again: dict[str, float]) -> None:
        if repr(again) != repr(numbers):
            raise task_error(
                f"{self._label} gives other numbers for the same examples the second time: it keeps something outside "
                f"of itself, or draws from a generator of its own"
            )

    def _numbers_of(self, given: Given, way: Callable[[Any], Any]) -> dict[str, float]:
        """Return the numbers of a single batch. Raises `EvaluationError`."""
        if not self._is_object:
            return self._called(self._joined([given]), way)
        before = _held_by_class(self._measure)
        own = self.begin()
        new = held_by(own) if own is self._measure else {}
        self._update(own, given, way, 0)
        numbers = self._computed(own)
        if own is self._measure and (
            left := [name for name, held in held_by(self.begin()).items() if new.get(name) != held]
        ):
            raise task_error(
                f"{self._label} keeps {', '.join(map(repr, left))} when it is reset, so each evaluation would count "
                f"the batches of those before: let its reset() set what __init__ sets"
            )
        if kept := [name for name, content in _held_by_class(self._measure).items() if before.get(name) != content]:
            raise task_error(
                f"{self._label} keeps {', '.join(map(repr, kept))} in its class, so each evaluation would count the "
                f"batches of those before: set it in __init__"
            )
        return numbers

    def _update(self, own: Any, given: Given, way: Callable[[Any], Any], number: int) -> None:
        positional, named = self._arguments(*map_given(way, given))
        with _seeded(self.name, number):
            try:
                getattr(own, _updates(own))(*positional, **named)
            except MemoryError:
                raise
            except Exception as error:
                raise self._failed(error, given) from error

    def _called(self, whole: Given, way: Callable[[Any], Any]) -> dict[str, float]:
        positional, named = self._arguments(*map_given(way, whole))
        with _seeded(self.name, 0):
            try:
                returned = self._measure(*positional, **named)
            except MemoryError:
                raise
            except Exception as error:
                raise self._failed(error, whole) from error
        numbers = self._published(returned)
        examples = _length(whole[1])
        if len(numbers) == examples > 1 and not isinstance(returned, Mapping) and self._is_by_example(whole, way):
            raise task_error(
                f"{self._label} returns a value for each example: write {self._as_mean}, which divides the examples "
                f"among workers"
            )
        return numbers

    def _is_by_example(self, whole: Given, way: Callable[[Any], Any]) -> bool:
        positional, named = self._arguments(*map_given(way, (None if part is None else part[:1] for part in whole)))
        try:
            return bool(np.asarray(_plain(self._measure(*positional, **named))).size == 1)
        except Exception:  # noqa: BLE001 - code of a user, for one example
            return False

    def _computed(self, own: Any) -> dict[str, float]:
        with _seeded(self.name, -1):
            try:
                returned = own.result() if hasattr(own, "result") and hasattr(own, "update_state") else own.compute()
            except MemoryError:
                raise
            except Exception as error:
                raise task_error(f"{self._label} cannot compute its result: {_text(error)}") from error
        return self._published(returned)

    def _published(self, returned: Any) -> dict[str, float]:
        """Return numbers by name. Raises `EvaluationError` for anything else, and for more than can be published."""
        try:
            return numbers_of(self._label, self.name, _plain(returned), _MAX_NUMBERS)
        except (TypeError, ValueError) as error:
            if isinstance(returned, np.ndarray) and returned.ndim and hasattr(_inner(self._measure), "__name__"):
                advice = f"for a value of each example write {self._as_mean}"
            elif not isinstance(returned, tuple | list) or self._is_object:
                advice = "return a number, or numbers by name"
            else:
                advice = (
                    f"return those that you look at by name, "
                    f"InTurn(lambda y, predictions: {{'first': {self._call()}[0]}}, name={self.name!r})"
                )
            raise task_error(f"{_text(error)}: {advice}") from None

    def _joined(self, batches: Sequence[Given]) -> Given:
        """Return the labels, predictions and weights of all batches. Raises `EvaluationError` for other shapes."""
        y, predictions, weights = (
            self._one(what, list(parts)) for what, parts in zip(_PARTS, zip(*batches, strict=True), strict=True)
        )
        return y, predictions, weights

    def _one(self, what: str, parts: list[Any]) -> Any:
        if parts[0] is None:
            return None
        if isinstance(parts[0], list):
            return [item for part in parts for item in part]
        forms = list(dict.fromkeys(f"{part.dtype} {('n', *part.shape[1:])}" for part in parts))
        if len(forms) > 1:
            raise task_error(
                f"{self._label} needs {what} of all batches in one array, and they are {forms[0]} and {forms[1]}: let "
                f"all batches have one form, or return one value for each example"
            )
        return np.concatenate(parts)

    @property
    def _takes_weights(self) -> bool:
        return any(name in _WEIGHTS for name in parameters_of(self._called_function))

    @property
    def _called_function(self) -> Any:
        return getattr(self._measure, _updates(self._measure)) if self._is_object else self._measure

    @property
    def _as_mean(self) -> str:
        """The line of a metric that averages the values of a function."""
        return f"sidecar.metrics.Mean(lambda y, predictions: {self._call()}, name={self.name!r})"

    def _call(self, predictions: str = "predictions", more: str = "") -> str:
        """Return the call of a function, in the order of its parameters."""
        function = str(getattr(_inner(self._measure), "__name__", self.name)).replace("<lambda>", "function")
        names = [name for name in parameters_of(self._called_function) if name not in _WEIGHTS][:_BOTH]
        is_reversed = len(names) == _BOTH and told_apart(*names).get(names[0]) == 1
        arguments = f"{predictions}, y" if is_reversed else f"y, {predictions}"
        return f"{function}({arguments}{more})"

    def _bound(self) -> Callable[[Any, Any, Any], tuple[list[Any], dict[str, Any]]]:
        """Return what makes the arguments of a call from labels, predictions and weights.

        Raises `TaskError` if the names of the parameters do not tell them apart.
        """
        parameters = parameters_of(self._called_function)
        plain = [one for one in parameters.values() if one.name not in _WEIGHTS]
        needed = [one.name for one in plain if one.default is one.empty]
        first = [one.name for one in plain if one.name in needed or one.kind is not one.KEYWORD_ONLY][:_BOTH]
        if {"predictions", "references"} <= parameters.keys():
            kinds = {"predictions": 1, "references": 0}
        elif len(needed) == 1 and _root_of(self._measure) == "ignite":
            return lambda y, predictions, _: ([(predictions, y)], {})
        elif len(needed) > _BOTH:
            kinds = {}
        elif len(first) == _BOTH and (first[1] in needed or kind_of(first[1]) is not None):
            kinds = told_apart(*first)
        else:
            kinds = {name: 1 for name in first[:1] if kind_of(name) == 1}
        if not kinds:
            raise TaskError(self._not_told_apart(needed or first))
        weight = next((name for name in parameters if name in _WEIGHTS), None)

        def arguments(y: Any, predictions: Any, weights: Any) -> tuple[list[Any], dict[str, Any]]:
            positional: list[Any] = []
            named: dict[str, Any] = {}
            for name, kind in kinds.items():
                part = (y, predictions)[kind]
                if parameters[name].kind is inspect.Parameter.KEYWORD_ONLY or name in ("predictions", "references"):
                    named[name] = part
                else:
                    positional.append(part)
            if weight is not None and (weights is not None or parameters[weight].default is inspect.Parameter.empty):
                named[weight] = weights
            return positional, named

        return arguments

    def _not_told_apart(self, needed: list[str]) -> str:
        if self._is_object:
            kind = type(self._measure).__name__
            line = (
                f"class Ordered({kind}): {_updates(self._measure)} = lambda self, y_true, y_pred: "
                f"{kind}.{_updates(self._measure)}(self, y_true, y_pred)"
            )
            return (
                f"{self._label}: {_updates(self._measure)}({', '.join(needed)}) does not say which is the label and "
                f"which the prediction: name them y_true and y_pred, such as {line}"
            )
        more = "".join(f", {name}=…" for name in needed[2:])
        line = f"sidecar.metrics.InTurn(lambda y, predictions: {self._call(more=more)}, name={self.name!r})"
        if len(needed) > _BOTH and told_apart(*needed[:_BOTH]):
            return f"{self._label} needs {', '.join(needed[2:])} in addition to labels and predictions: write {line}"
        return (
            f"{self._label} is a function of ({', '.join(needed)}), which does not say what is the label and what the "
            f"prediction: write {line}, with the arguments in its order"
        )

    def _failed(self, error: Exception, given: Given) -> EvaluationError:
        y, predictions, _ = given
        text, is_scores = _text(error), _has_scores(predictions)
        advice = ""
        if is_scores and (self._is_object or any(words in text for words in _OF_SCORES)):
            decided = "predictions.argmax(1)" if is_scores == "classes" else "predictions.ravel() > 0.5"
            if hasattr(self._measure, "add_batch"):
                call = f"metric.compute(predictions={decided}, references=y)"
            elif self._is_object:
                call = ""
            else:
                call = self._call(decided)
            advice = (
                f": it needs classes, and gets scores: write "
                f"sidecar.metrics.InTurn(lambda y, predictions: {call}, name={self.name!r})"
                if call
                else ""
            )
        return task_error(
            f"{self._label} fails for labels {_form(y)} and predictions {_form(predictions)}: {text}{advice}"
        )


class _Following(GatheredBatches):
    """Keep what a metric needs of each batch, and at the end its numbers, which are neutral on other workers."""

    def __init__(self, shard: Any, metric: InTurn | None = None) -> None:
        super().__init__(shard)
        self._metric = metric
        self._own: Any = None
        self._given: list[Given] = []
        self._seen = self._size = 0

    def follow(self, given: Given) -> None:
        """Update the metric with a batch, or keep the batch for a function."""
        metric = self._metric
        assert metric is not None, "only a new state follows batches"
        if not self._seen:
            self._own = metric.begin()
        if self._own is not None:
            metric.update(self._own, given, self._seen)
        else:
            kept = map_given(_copied, given)
            self._given.append(kept)
            self._size += sum(part.nbytes for part in kept if isinstance(part, np.ndarray))
            if self._size > _MAX_BYTES:
                raise task_error(
                    f"metric {metric.name!r} needs the labels and predictions of all examples at once, which are more "
                    f"than {_MAX_BYTES >> 30} GiB: let the model or Task(step=…) return less for each example, such as "
                    f"predictions.argmax(1), or write it as sidecar.metrics.Sums(…)"
                )
        self._seen += 1

    def conclude(self) -> None:
        """Compute the numbers, if this worker has seen the batches."""
        if self._seen and self._metric is not None:
            name = self._metric.name
            result = self._metric.result(self._own, self._given)
            ResultsInTurn({name: ""}).put({_STATE: self}, {name: result})
        self._own, self._given, self._seen, self._size = None, [], 0, 0


_PARTS: Final = ("labels", "predictions", "weights")


def conclude(states: SetStates) -> None:
    """Compute the numbers of the metrics in turn among the states of this worker, once it has evaluated its batches."""
    for state in states.values():
        if isinstance(state, _Following):
            state.conclude()


def is_object(metric: Any) -> bool:
    """Return whether a metric is an object that is updated with batches."""
    return not isinstance(metric, type) and any(
        callable(getattr(metric, update, None)) and callable(getattr(metric, result, None))
        for update, result in (("update_state", "result"), ("add_batch", "compute"), ("update", "compute"))
    )


def as_in_turn(metric: Any) -> Any:
    """Return a function or an object of another library as `InTurn`, and anything else as it is.

    Raises `TaskError` for a function whose parameters or name do not say enough.
    """
    if isinstance(metric, type | InTurn) or not (callable(metric) or is_object(metric)):
        return metric
    return InTurn(metric)


def map_given(function: Callable[[Any], Any], given: Any) -> Given:
    """Return labels, predictions and weights with a function applied to each; None stays None."""
    y, predictions, weights = (None if part is None else function(part) for part in given)
    return y, predictions, weights


def _half(given: Given) -> Given:
    """Return the first half of a batch; all of it if it cannot be divided."""
    size = _length(given[1]) // 2
    try:
        return map_given(lambda part: part[:size], given) if size else given
    except (TypeError, KeyError):  # several outputs by name
        return given


def _is_lasting(error: EvaluationError) -> bool:
    """Return whether an error of the first batch is one of all batches, and not of too few examples or classes."""
    cause = error.__cause__
    if cause is None or isinstance(cause, TypeError | AttributeError | NameError | NotImplementedError):
        return True
    return isinstance(cause, ValueError) and any(words in str(cause) for words in _OF_SCORES)


def _root_of(measure: Any) -> str:
    """Return the name of the library that a function or the class of an object is from."""
    return str(getattr(_inner(measure), "__module__", None)).partition(".")[0]


def _updates(metric: Any) -> str:
    return next(name for name in ("update_state", "add_batch", "update") if hasattr(metric, name))


def _inner(measure: Any) -> Any:
    while isinstance(measure, partial):
        measure = measure.func
    return measure


def _name_of(measure: Any) -> str:
    inner = _inner(measure)
    name = getattr(measure, "name", None)
    if isinstance(name, str) and name:
        return name
    found = str(getattr(inner, "__name__", type(inner).__name__.lower()))
    return "" if found == "<lambda>" else found


def _goal_of(measure: Any, name: str) -> Goal:
    """Return the goal that an object declares, or that the name of a function of scikit-learn says."""
    if isinstance(declared := getattr(measure, "higher_is_better", None), bool):
        return "max" if declared else "min"
    if str(getattr(_inner(measure), "__module__", "")).startswith("sklearn."):
        return "max" if name.endswith("_score") else "min" if name.endswith(("_loss", "_error")) else "none"
    return "none"


def _as_it_is(part: Any) -> Any:
    return _copied(part)


def _copied(part: Any) -> Any:
    return np.array(part) if isinstance(part, np.ndarray) else list(part) if isinstance(part, list) else part


def _as_tensors(part: Any) -> Any:
    torch = sys.modules["torch"]

    def tensor(leaf: Any) -> Any:
        is_numbers = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf"
        return torch.as_tensor(np.array(leaf)) if is_numbers else leaf

    if isinstance(part, list):
        return [map_leaves(tensor, item) for item in part]
    return tensor(part)


def _plain(returned: Any) -> Any:
    """Return a result without tensors on a device, gradients and lazy values."""
    if isinstance(returned, Mapping):
        flat: dict[str, Any] = {}
        for name, part in returned.items():
            plain = _plain(part)
            named = (
                {f"{name}_{inner}": one for inner, one in plain.items()} if isinstance(plain, dict) else {name: plain}
            )
            if twice := named.keys() & flat.keys():
                raise ValueError(f"it returns two numbers with the name {min(twice)!r}")
            flat |= named
        return flat
    if hasattr(returned, "detach"):
        return np.asarray(returned.detach().cpu().double().numpy())
    if hasattr(returned, "numpy"):
        return np.asarray(returned.numpy())
    if isinstance(returned, Fraction | Decimal):
        return float(returned)
    if isinstance(returned, tuple | list):
        return [_plain(part) for part in returned]
    return returned


def _are_alike(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return one.keys() == other.keys() and all(are_near(number, other[name]) for name, number in one.items())


def _held_by_class(metric: Any) -> dict[str, str]:
    """Return a description of the lists, numbers and arrays in the classes of an object, by name."""
    found: dict[str, str] = {}
    for kind in reversed(type(metric).__mro__[:-1]):
        found |= {f"{kind.__name__}.{name}": content for name, content in held_by(kind).items() if content}
    return found


def _count_ignored(y: Any) -> int:
    is_of_classes = isinstance(y, np.ndarray) and y.dtype.kind == "i"
    return int(np.count_nonzero(y == _IGNORED)) if is_of_classes and (y >= 0).any() and not (y < _IGNORED).any() else 0


def _length(part: Any) -> int:
    return len(part) if hasattr(part, "__len__") else 0


def _has_scores(predictions: Any) -> str:
    """Return "classes" for scores of classes (n, classes), "one" for one float per example, and else an empty text."""
    if not isinstance(predictions, np.ndarray) or predictions.dtype.kind != "f":
        return ""
    is_one = predictions.ndim == 1 or (predictions.ndim == _BOTH and predictions.shape[1] == 1)
    return "one" if is_one else "classes" if predictions.ndim == _BOTH else ""


def _form(part: Any) -> str:
    if isinstance(part, np.ndarray):
        return f"{part.dtype} {part.shape}"
    return f"a list of {len(part)}" if isinstance(part, list) else type(part).__name__


def _text(error: Exception) -> str:
    return without_advice(" ".join(f"{error}".split()))[:300] or type(error).__name__


@contextmanager
def _seeded(name: str, number: int) -> Iterator[None]:
    """Seed the generators of numpy, Python and torch for the block, and give them back as they were."""
    torch: Any = sys.modules.get("torch")
    torch = torch if hasattr(torch, "get_rng_state") else None  # it may be in the middle of its import
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002 - generators that it may use
    of_torch = torch.get_rng_state() if torch else None
    of_devices = torch.cuda.get_rng_state_all() if torch and torch.cuda.is_initialized() else None
    seed = zlib.crc32(f"{name} {number}".encode())
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    if torch:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)
        if torch:
            torch.set_rng_state(of_torch)
        if of_devices is not None:
            torch.cuda.set_rng_state_all(of_devices)
