"""Measure with a metric of torchmetrics, and refuse one whose number would depend on how batches are divided.

torchmetrics is never imported here: only a task that imported it can have a metric of it.
"""

import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from sidecar.evaluation.backends.torch.repeatability import generators
from sidecar.evaluation.backends.torch.tensors import bits_of, is_short_integer, leaves, map_leaves
from sidecar.evaluation.backends.torch.torchmetrics_states import MetricStates
from sidecar.evaluation.data.digest import digest_of
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.data.structure import form_of
from sidecar.evaluation.failures import CannotBeMergedError, EvaluationError, task_error
from sidecar.evaluation.metrics.in_turn import held_by
from sidecar.evaluation.metrics.metric import MetricResult, value
from sidecar.evaluation.outputs import Output, pick
from sidecar.evaluation.rank_evaluation import MAX_CLASSES
from sidecar.evaluation.states import SetStates
from sidecar.protocol.records import Goal
from sidecar.system.plain_text import listed

_GOALS: Final[dict[bool | None, Goal]] = {True: "max", False: "min", None: "none"}
_LABELS: Final = frozenset({"target", "targets", "label", "labels", "y", "y_true"})
_SETTINGS: Final = {"compute_on_cpu": False, "dist_sync_on_step": False, "process_group": None, "dist_sync_fn": None}
_IN_TURN: Final = {"Running": "is a window over the last batches", "BootStrapper": "draws random samples"}
_REFUSED: Final = {
    "MetricTracker": "follows a metric over several evaluations: give the metric itself",
    "MinMaxMetric": "keeps the best and the worst number of several evaluations: give the metric itself",
}
_NOT_COVERED: Final = re.compile(
    "(Binary|Multilabel)(Precision|Recall|Specificity|NegativePredictiveValue)"
    "|.*(AveragePrecision|EER|At(Fixed)?(Precision|Recall|Specificity|Sensitivity))"
)
"""Classes of ratios of counts that may be few, of average precision, and of numbers at a threshold that is chosen."""

_IGNORED: Final = -100
"""The label that losses of PyTorch leave out, and that marks padding in libraries built on it."""

_COMPUTING: Final = "torchmetrics.regression."
"""The beginning of modules whose metrics subtract and square predictions and labels in the type that these have."""

_TOLERANCE: Final = 1e-4
_PARTS: Final = 3  # of a first batch; some formulas for merged states are wrong from three on

_DOUBLINGS: Final = 17  # of a first batch, to find metrics that stop adding

_TWO_UPDATES: Final = (
    "class Both({kind}): update = lambda self, preds, target: "
    "({kind}.update(self, target, real=True), {kind}.update(self, preds, real=False))[0]"
)
"""A metric such as the Frechet inception distance, for batches whose labels are the real images."""

_NESTED: Final = "collections.abc.Sequence[collections.abc.Sequence[str]]"  # an annotation: references by text

Numbers = dict[str, float | dict[str, float]]
"""The numbers of a metric by name, where several numbers of one name are given by class or place."""


class TorchMetric:
    """Give one metric of torchmetrics mergeable states and final numbers.

    The metric is tried on the first batch that it gets, and on its parts. `name`: that of the metric and of its number.
    `output`: the output of the model that it measures; None for the only one. Raises `EvaluationError` if several
    workers cannot evaluate it.
    """

    def __init__(self, name: str, output: Output, metric: Any, device: torch.device) -> None:
        self.name, self.output = name, output
        self._label = f"metric {name!r} ({type(metric).__name__})"
        self.metric = metric.to(device)
        self.reason: str | None = None
        """Why the metric is updated in turn; None if its states are merged."""
        self._states: MetricStates | None = None
        self._draws = self._is_tried = self._resets_well = False
        try:
            for part in metric.modules():
                self._require_usual(part)
            self._states = MetricStates(self._label, self.metric)
        except CannotBeMergedError as error:
            self.reason = error.reason

    @property
    def width(self) -> int:
        """Number of arrays that `change` returns."""
        return self._merged_states.width if self.reason is None else 1

    @property
    def _merged_states(self) -> MetricStates:
        assert self._states is not None, "a metric in turn has none"
        return self._states

    def put_in_turn(self, reason: str) -> None:
        """Update the metric in turn from now on. `reason`: completes a sentence that begins with its name."""
        self.reason = reason

    def change(self, y: Any, predictions: Any, weights: Any) -> list[NDArray[Any]]:
        """Return what one batch adds to the states."""
        if weights is not None:
            raise self._refused("takes no weights of examples: use a metric of sidecar.metrics, or give no weights")
        y, predictions = self.inputs(y, predictions)
        with torch.inference_mode():
            if not self._is_tried:
                self.try_out(y, predictions)
            if self.reason is not None:
                return [np.frombuffer(_digest((y, predictions)), np.uint8)]
            self._update((y, predictions))
            return self.read()

    def inputs(self, y: Any, predictions: Any) -> tuple[Any, Any]:
        """Return the labels and predictions that the metric measures."""
        if self.output is None:
            return y, predictions
        return pick(y, self.output), pick(predictions, self.output)

    def try_out(self, y: Any, predictions: Any, unused: Any = None) -> None:
        """Try the metric on a first batch, and put it in turn if the states of several batches cannot be merged.

        `unused`: a copy of the metric from before its first batch; None if it has had none.
        Raises `EvaluationError` for a metric that cannot be updated with this batch.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a part of a batch may lack a class
            before = generators()
            try:
                if self.reason is None:
                    self._try_out(y, predictions, self.metric if unused is None else unused)
                else:
                    self._update((y, predictions))
            except CannotBeMergedError as error:
                self.reason = error.reason
            self._draws = generators() != before
        self._is_tried = True

    def begin(self) -> None:
        """Forget all batches, before batches in turn."""
        self.metric.reset()

    def update_in_turn(self, y: Any, predictions: Any, seed: Callable[[], None]) -> None:
        """Update the metric with one batch after those before. `seed` seeds the generators, if the metric draws.

        Raises `EvaluationError` for a metric whose `reset` does not forget the batches before.
        """
        with torch.inference_mode():
            if not self._resets_well:
                self._require_reset((y, predictions))
            if self._draws:
                seed()
            self._update_again(y, predictions)

    def _require_reset(self, batch: tuple[Any, Any]) -> None:
        """Compare what the metric holds and returns before and after batches that a reset has to forget."""
        before = self._held()
        size = len(next(_rows(batch[1]), ())) // 2
        half = _part(batch, 0, size) if size > 1 else batch  # LAPACK may end the process for a single example
        numbers, _, again = map(self._numbers_alone, (batch, half, batch))
        self.metric.reset()
        if kept := [name for name, content in self._held().items() if content != before.get(name)]:
            raise self._refused(
                f"keeps {listed([repr(name) for name in kept])} when it is reset, so each evaluation would count the "
                f"batches of those before: make it a state with add_state(…), or set it again in reset()"
            )
        if not self._draws and None not in (numbers, again) and numbers != again:
            raise self._refused(
                "gives another number for the first batch after others: it keeps something that reset() does not "
                "empty, so each evaluation would count the batches of those before"
            )
        self._resets_well = True

    def _numbers_alone(self, batch: tuple[Any, Any]) -> str | None:
        """Return the numbers for a batch after a reset as a text; None if a single batch is not enough for them."""
        self.metric.reset()
        try:
            self._update_again(*batch)
            return repr(self._numbers())
        except EvaluationError:
            return None

    def _held(self) -> dict[str, str]:
        """Return a description of all attributes of the metric and of those that it wraps, by name."""
        return {
            f"{place}.{name}" if place else name: content
            for place, part in self.metric.named_modules()
            for name, content in held_by(part).items()
        }

    def reset(self) -> None:
        """Forget all batches."""
        self.metric.reset()

    def read(self) -> list[NDArray[Any]]:
        """Return what was added to the states since the last reset."""
        return self._merged_states.read()

    def load(self, states: SetStates) -> None:
        """Put merged states into the metric, so that `compute` of torchmetrics returns the number of all batches."""
        self._merged_states.load(states)

    def renamed(self, name: str) -> "TorchMetric":
        """Return the same metric with another name for its number."""
        other = copy(self)
        other.name = name
        return other

    def following(self) -> "TorchMetric":
        """Return a copy with an object of its own, which is reset."""
        other = copy(self)
        other.metric = deepcopy(self.metric)
        other.metric.reset()
        return other

    def new_states(self, shard: Shard) -> SetStates:
        """Return empty states."""
        return self._merged_states.new(shard) if self.reason is None else {}

    def add(self, states: SetStates, read: list[list[NDArray[Any]]], firsts: Any) -> None:
        """Add the changes by several batches; each item of `read` is a list with one array per batch."""
        if self.reason is None:
            self._merged_states.add(states, read, firsts)

    def compute(self, states: SetStates | None) -> MetricResult:
        """Return the numbers that torchmetrics computes, with its warnings as notes.

        They come from the merged states or, if these are None, from the batches in turn.
        """
        with torch.inference_mode(), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            if states is not None:
                self._merged_states.load(states)
            numbers = self._numbers()
            self.metric.reset()
        goal = _GOALS.get(getattr(self.metric, "higher_is_better", None), "none")
        values = {name: value(number, goal) for name, number in numbers.items() if isinstance(number, float)}
        classes = {
            name: {key: value(number, goal) for key, number in several.items()}
            for name, several in numbers.items()
            if isinstance(several, dict)
        }
        notes = tuple(dict.fromkeys(f"{self._label}: {warning.message}" for warning in warned))
        return MetricResult(values, classes, notes)

    @property
    def may_have_interval(self) -> bool:
        """Return whether intervals from a sample of the examples cover the number: no extreme, not in turn.

        Less than 93 % or more than 97 % of those of `_NOT_COVERED` contain the truth.
        """
        is_merged = self.reason is None and not self._merged_states.has_extremes
        return is_merged and not any(map(_NOT_COVERED.fullmatch, self._kinds))

    @property
    def is_area(self) -> bool:
        """Return whether the number is an area under a curve of scores."""
        return any(kind.endswith("AUROC") for kind in self._kinds)

    @property
    def _kinds(self) -> Iterator[str]:
        """Yield the names of the classes of torchmetrics that the metric, or one that it wraps, is of."""
        for kind in {kind for part in self.metric.modules() for kind in type(part).__mro__}:
            if kind.__module__.startswith("torchmetrics."):
                yield kind.__name__

    @property
    def counts(self) -> bool:
        """Return whether the states count, so that several batches may be one."""
        return self.reason is None and self._merged_states.are_counts

    def add_part(self, states: SetStates, y: NDArray[Any], predictions: NDArray[Any]) -> None:
        """Add examples of a batch to states."""
        tensors = [torch.from_numpy(part).to(self.metric.device) for part in (y, predictions)]
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a part may lack a class
            self._update((tensors[0], tensors[1]))
            self.add(states, [[array] for array in self.read()], [None])

    def numbers_of(self, arrays: Sequence[NDArray[Any]], times: int = 1) -> dict[str, float]:
        """Return the numbers for labels and predictions as one batch, which comes so many times."""
        y, predictions = (torch.from_numpy(np.array(array)).to(self.metric.device) for array in arrays)
        with torch.inference_mode():
            try:
                numbers = self._number_of(lambda: self._update(*[(y, predictions)] * times))
            finally:
                self.metric.reset()
        return {name: number for name, number in numbers.items() if isinstance(number, float)}

    def differs(
        self, whole: list[NDArray[Any]], halves: Sequence[list[NDArray[Any]]], tolerance: float = _TOLERANCE
    ) -> bool:
        """Return whether the numbers from what `read` returned for a batch are not those for its halves, merged."""
        if self.reason is not None:  # all of its batches are on one worker
            return False
        numbers: list[Numbers] = []
        try:
            with torch.inference_mode(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for parts in ([whole], halves):
                    states = self.new_states(Shard(0, 1))
                    for at, part in enumerate(parts):
                        self.add(states, [[array] for array in part], [at])
                    numbers.append(self._number_of(partial(self._merged_states.load, states)))
        except EvaluationError:  # a batch may lack a class
            return False
        finally:
            self.metric.reset()
        return not _are_near(numbers[0], numbers[1], tolerance)

    def _require_usual(self, part: Any) -> None:
        """Raise `EvaluationError` for classes and settings that are not for a number of all batches."""
        for kind in type(part).__mro__:
            if kind.__name__ in _IN_TURN and kind.__module__.startswith("torchmetrics."):
                raise CannotBeMergedError(self._label, _IN_TURN[kind.__name__])
            if kind.__name__ in _REFUSED and kind.__module__.startswith("torchmetrics."):
                raise self._refused(_REFUSED[kind.__name__])
        for name, usual in _SETTINGS.items():
            if getattr(part, name, usual) != usual:
                raise self._refused(f"has {name}={getattr(part, name)!r}: leave it out, since workers add up states")

    def _update(self, *batches: tuple[Any, Any]) -> None:
        """Reset the metric, and update it with batches."""
        self.metric.reset()
        for y, predictions in batches:
            self._update_again(y, predictions)

    def _update_again(self, y: Any, predictions: Any) -> None:
        arguments, named = self._arguments(y, predictions)
        try:
            self.metric.update(*arguments, **named)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise self._refused(
                f"cannot be updated with predictions {_form(predictions)} and labels {_form(y)}: "
                f"{' '.join(str(error).split()):.300}{self._advice_on_ignored(y)}"
            ) from error

    def _advice_on_ignored(self, y: Any) -> str:
        """Return what to write if labels hold the number that marks what does not count, and the metric counts all."""
        is_marked = any(
            isinstance(leaf, torch.Tensor) and not leaf.is_floating_point() and bool((leaf == _IGNORED).any())
            for leaf in leaves(y)
        )
        if not is_marked or getattr(self.metric, "ignore_index", None) is not None:
            return ""
        line = f"{type(self.metric).__name__}(…, ignore_index={_IGNORED})"
        return f". Labels {_IGNORED} mark what does not count: write {line}"

    def _arguments(self, y: Any, predictions: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of `update`: (predictions, y), the predictions alone, or the parts of y by name."""
        y, predictions = self._as_numbers(y), self._as_numbers(predictions)
        measured = getattr(self.metric, "base_metric", self.metric)  # a window passes everything on to its metric
        parameters = list(inspect.signature(measured.update).parameters.values())
        plain = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        if len(plain) < len(parameters) and not plain:
            return [predictions, y], {}
        if plain and plain[0].name in _LABELS:
            raise self._refused(
                f"has update({', '.join(one.name for one in plain)}), but it is called with (predictions, labels), "
                f"as torchmetrics does: exchange its parameters"
            )
        if len(plain) > 1 and _is_flat(y) and str(plain[1].annotation) == _NESTED:
            raise self._refused(
                "takes a list of reference texts for each text, and would take the characters of one text for its "
                "references: let Task(step=…) return [[text] for text in y] as its labels"
            )
        if isinstance(y, Mapping) and y.keys() <= {one.name for one in plain[1:]}:
            return [predictions], dict(y)
        if len(plain) > 1 and plain[1].name == "real":
            raise self._refused(
                f"takes real and made images in two updates, update(target, real=True) and update(preds, real=False): "
                f"list Both(…) with your arguments, where the labels are the real images, and write "
                f"{_TWO_UPDATES.format(kind=type(self.metric).__name__)}"
            )
        needed = sum(one.default is one.empty for one in plain)
        if needed > 2:  # noqa: PLR2004 - predictions and labels
            names = ", ".join(f"{one.name!r}: …" for one in plain[1:needed])
            raise self._refused(f"needs {needed} arguments: let Task(step=…) return its labels as {{{names}}}")
        return [predictions, y][: max(needed, 1)], {}

    def _as_numbers(self, structure: Any) -> Any:
        """Return integers of few bits as floats if the metric computes with them: they would wrap around in it."""
        if not any(type(part).__module__.startswith(_COMPUTING) for part in self.metric.modules()):
            return structure
        return map_leaves(
            lambda leaf: leaf.float() if isinstance(leaf, torch.Tensor) and is_short_integer(leaf.dtype) else leaf,
            structure,
        )

    def _try_out(self, y: Any, predictions: Any, unused: Any) -> None:
        whole = y, predictions
        before = generators()
        self._require_states_alone(unused, whole)
        self._update(whole)
        self._merged_states.use_present_shapes()
        size = len(next(_rows(predictions), ()))
        count = min(_PARTS, size)
        ends = [size * number // count for number in range(1, count + 1)] if count else []
        parts = [_part(whole, start, end) for start, end in pairwise([0, *ends])] if count > 1 else [whole] * _PARTS
        try:
            in_turn = self._number_of(lambda: self._update(*parts))
        except EvaluationError:  # it may need a class or a number of examples that a part lacks
            parts = [whole] * _PARTS
            in_turn = self._number_of(lambda: self._update(*parts))
        after_merge = self._after_merge(parts)
        if generators() != before:
            raise CannotBeMergedError(self._label, "draws random numbers")
        if not _are_near(in_turn, after_merge):
            raise CannotBeMergedError(
                self._label,
                f"gives {_shown(in_turn)} for batches in turn, but {_shown(after_merge)} from their merged states",
            )
        self._require_adding(whole)
        if parts[0] is whole:
            return
        # A covariance of one example is NaN, and LAPACK may end the process when it computes eigenvalues of that.
        few = 1 if ends[0] > 1 else count - 1
        if ends[few - 1] > 1:
            self._compare_with_fewer(in_turn, self._number_of(lambda: self._update(*parts[:few])))
        if not _are_near(in_turn, at_once := self._number_of(lambda: self._update(whole))):
            raise CannotBeMergedError(
                self._label,
                f"gives {_shown(at_once)} for the first batch, but {_shown(in_turn)} for its parts in turn, so its "
                f"number depends on how examples are divided into batches",
            )

    def _require_states_alone(self, unused: Any, batch: tuple[Any, Any]) -> None:
        """Raise `CannotBeMergedError` for a class of one's own that keeps something of its batches in attributes, too.

        Copies of the unused metric that are updated with the batch and with two parts of other sizes show that.
        """
        size = len(next(_rows(batch[1]), ()))
        if not has_own_class(unused) or size <= 1:
            return
        held, metric, third = [], self.metric, -(-size // _PARTS)
        try:
            for part in (batch, _part(batch, 0, third), _part(batch, third, size)):
                self.metric = deepcopy(unused)
                self._update(part)
                held.append(self._held())
        except EvaluationError:  # it may need a class that a part lacks
            return
        finally:
            self.metric = metric
        states = {
            f"{place}.{name}" if place else name
            for place, part in unused.named_modules()
            for name in getattr(part, "_defaults", ())
        }
        names = held[0].keys() - states
        if kept := [name for name in names if any(other.get(name) != held[0][name] for other in held[1:])]:
            raise CannotBeMergedError(
                self._label, f"keeps {listed([repr(name) for name in sorted(kept)])} outside of the states of add_state"
            )

    def _require_adding(self, batch: tuple[Any, Any]) -> None:
        """Raise `CannotBeMergedError` for a metric that stops adding late, such as one of the first 600 examples.

        It is updated from the states that the batch would leave behind if it came 1, 2, 4, … times.
        """
        states = self._merged_states
        self._update(batch)
        change = states.read()
        for times in (2**power for power in range(_DOUBLINGS)):
            self.metric.reset()
            if not states.load_repeated(change, times):
                break
            self._update_again(*batch)
            if (name := states.not_added(change, times)) is not None:
                raise CannotBeMergedError(
                    self._label, f"does not add up what it sees from batch to batch, as its state {name!r} shows"
                )

    def _compare_with_fewer(self, numbers: Numbers, of_fewer: Numbers) -> None:
        """Raise `EvaluationError` unless a part of the examples has the same numbers by name."""
        if of_fewer.keys() != numbers.keys():
            raise CannotBeMergedError(self._label, "returns numbers whose names depend on the data")
        if len(_flat(of_fewer)) != len(_flat(numbers)):
            raise self._refused("returns more numbers for more examples: choose a metric with an average or an area")

    def _after_merge(self, parts: list[tuple[Any, Any]]) -> Numbers:
        """Return the numbers from the merged states of several batches."""
        changes = []
        for part in parts:
            self._update(part)
            changes.append([[array] for array in self._merged_states.read()])
        merged = self.new_states(Shard(0, 1))
        for number, change in enumerate(changes):
            self.add(merged, change, [number])
        try:
            return self._number_of(lambda: self._merged_states.load(merged))
        except EvaluationError as error:
            reason = str(error).removeprefix(f"{self._label} ")
            raise CannotBeMergedError(self._label, f"{reason} (from the merged states of several batches)") from error

    def _number_of(self, prepare: Callable[[], None]) -> Numbers:
        prepare()
        return self._numbers()

    def _numbers(self) -> Numbers:
        """Return the result of `compute`. Raises `EvaluationError` if it fails or is not a few numbers."""
        try:
            result = self.metric.compute()
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            reason = f"cannot compute its result: {' '.join(str(error).split()):.300}"
            raise CannotBeMergedError(self._label, reason) from error
        numbers: Numbers = {}
        for name, part in self._named(result):
            array = np.asarray(part.detach().cpu().double() if isinstance(part, torch.Tensor) else part)
            if array.dtype.kind not in "biuf":
                raise self._refused(f"returns {name!r} of {_form(part)}, which is not a number")
            if array.size > MAX_CLASSES:
                raise self._refused(
                    f"returns {array.size} numbers of {name!r}, and at most {MAX_CLASSES} can be published: choose a "
                    f"metric with an average or an area"
                )
            if array.ndim:
                numbers[name] = {"_".join(map(str, at)): float(array[at]) for at in np.ndindex(array.shape)}
            else:
                numbers[name] = float(array)
        return numbers

    def _named(self, result: Any) -> Iterator[tuple[str, Any]]:
        """Yield the parts of a result by name, as `MetricCollection` names them."""
        if isinstance(result, Mapping):
            yield from result.items()
        elif isinstance(result, tuple | list):
            yield from ((f"{self.name}_{index}", part) for index, part in enumerate(result))
        else:
            yield self.name, result

    def _refused(self, reason: str) -> EvaluationError:
        return task_error(f"{self._label} {reason}")


def has_own_class(metric: Any) -> bool:
    """Return whether a metric, or one that it wraps, is of a class that is not torchmetrics' own."""
    return any(
        hasattr(part, "_defaults") and not type(part).__module__.startswith("torchmetrics.")
        for part in metric.modules()
    )


def _digest(structure: Any) -> bytes:
    """Return the digest of tensors, texts and numbers, to compare two evaluations of a batch."""
    return digest_of(
        bits_of(leaf) if isinstance(leaf, torch.Tensor) else np.array([f"{leaf!r:.1000}"], object)
        for leaf in leaves(structure)
    )


def _is_flat(y: Any) -> bool:
    """Return whether labels are a list with one text for each example."""
    return isinstance(y, list | tuple) and bool(y) and all(isinstance(one, str) for one in y)


def _rows(structure: Any) -> Iterator[Any]:
    """Yield the parts of a batch that have a row for each example: tensors, and lists of anything else."""
    if isinstance(structure, Mapping):
        for part in structure.values():
            yield from _rows(part)
    elif isinstance(structure, tuple):
        for part in structure:
            yield from _rows(part)
    elif isinstance(structure, list) or (isinstance(structure, torch.Tensor | np.ndarray) and structure.ndim):
        yield structure


def _part(structure: Any, start: int, end: int) -> Any:
    """Return some examples of a batch."""
    if isinstance(structure, Mapping):
        return {name: _part(part, start, end) for name, part in structure.items()}
    if isinstance(structure, tuple):
        return tuple(_part(part, start, end) for part in structure)
    return structure[start:end] if any(True for _ in _rows(structure)) else structure


def _form(structure: Any) -> str:
    """Describe types and shapes of a structure, such as float32 (16, 3)."""
    return form_of(structure, _form_of_leaf)


def _form_of_leaf(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor | np.ndarray):
        return f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}"
    return type(leaf).__name__ + (f" of {len(leaf)}" if isinstance(leaf, list) else "")


def _are_near(one: Numbers, other: Numbers, tolerance: float = _TOLERANCE) -> bool:
    numbers, others = _flat(one), _flat(other)
    return numbers.keys() == others.keys() and all(
        math.isclose(number, others[name], rel_tol=tolerance, abs_tol=_TOLERANCE**2)
        or (math.isnan(number) and math.isnan(others[name]))
        for name, number in numbers.items()
    )


def _flat(numbers: Numbers) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, number in numbers.items():
        found |= {f"{name} {key}": one for key, one in number.items()} if isinstance(number, dict) else {name: number}
    return found


def _shown(numbers: Numbers) -> str:
    named = [f"{number:.6g}" for number in _flat(numbers).values()]
    return ", ".join(named[:3]) + (", …" if len(named) > 3 else "")  # noqa: PLR2004
