"""Measure what a LightningModule logs in its own `validation_step`, without a Trainer.

Source: pytorch-lightning 2.6 `core/module.py` (`log`) and `trainer/connectors/logger_connector/result.py`. Lightning is
never imported here. A logged number becomes the mean over all batches, weighted by their sizes, or a sum. A logged
metric of torchmetrics becomes the number of all examples: its states are those of all batches, added up as
`torchmetrics_states` says. At the end they are put back into the module's metrics, and `on_validation_epoch_end` is
called once, so that `self.accuracy.compute()` in it is right.
"""

import contextlib
import inspect
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sidecar.evaluation.backends.torch import repeatability
from sidecar.evaluation.backends.torch.dataset_source import LoadedBatch
from sidecar.evaluation.backends.torch.tensors import moved, types_of_device, types_of_outputs
from sidecar.evaluation.backends.torch.torchmetrics_members import is_torchmetric
from sidecar.evaluation.backends.torch.torchmetrics_metric import TorchMetric, has_own_class
from sidecar.evaluation.backends.torch.torchmetrics_scales import (
    Scales,
    of_two_scales,
    refuse_two_scales,
    scale_note,
    scale_of,
    takes_both,
)
from sidecar.evaluation.batch_dependence import UNTESTED
from sidecar.evaluation.data.batch_source import Batch, Division
from sidecar.evaluation.eval_loop import BatchOutput
from sidecar.evaluation.failures import EvaluationError, task_error
from sidecar.evaluation.first_batch import OfParts
from sidecar.evaluation.metrics.in_turn import ResultsInTurn
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult, value
from sidecar.evaluation.outputs import Output, join_results
from sidecar.evaluation.row_comparison import Divide, are_near, halves_of, tolerance_for
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum, named, within
from sidecar.evaluation.task import Task

_PACKAGES: Final = ("pytorch_lightning", "lightning", "lightning_fabric")
_NUMBERS: Final = "logged numbers"  # name of a state
_SCALES: Final = "scales of predictions"  # name of a state
_PROBABILITIES: Final = "update it with probabilities, such as torch.sigmoid(logits) or logits.softmax(1)"
_END: Final = "on_validation_epoch_end"
_REDUCTIONS: Final = {"mean": "mean", "avg": "mean", "sum": "sum"}
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NO_TRAINER: Final = "not attached to a `Trainer`"


_Updates = dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]]
"""The arguments of the updates of metrics, by the places of these in the module."""


def is_lightning(model: nn.Module) -> bool:
    """Return whether a model is a LightningModule, of either package."""
    return _base(model) is not None


@dataclass(slots=True)
class _Log:
    """Stand for `log` and `log_dict` of a module, and keep what they get: numbers with weights, and metrics."""

    size: int = 1
    numbers: dict[str, tuple[float, float]] = field(default_factory=dict)
    sums: set[str] = field(default_factory=set)
    metrics: dict[str, Any] = field(default_factory=dict)

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        """Take one value, as `LightningModule.log` does. Raises `EvaluationError` for what cannot be added up."""
        if is_torchmetric(value):
            if hasattr(value, "items"):
                self.log_dict(dict(value.items()), *args, **options)
            else:
                self.metrics[name] = value
            return
        if args or options.get("on_epoch") is False:
            raise _refused(f"logs {name!r} with {'arguments by position' if args else 'on_epoch=False'}: {_FORM}")
        function = options.get("reduce_fx", "mean")
        function = str(getattr(function, "__name__", function))  # such as torch.sum
        reduction = _REDUCTIONS.get(function)
        if reduction is None:
            raise _refused(f"logs {name!r} with reduce_fx={function!r}: {_FORM}")
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        if not isinstance(value, numbers.Real):
            raise _refused(f"logs {name!r} with {type(value).__name__}, which is not a number")
        if name in self.numbers:
            raise _refused(f"logs {name!r} twice for one batch")
        weight = float(options.get("batch_size") or self.size)
        if reduction == "sum":
            self.sums.add(name)
            weight = 1.0
        self.numbers[name] = float(value) * weight, weight

    def log_dict(self, dictionary: Mapping[str, Any], *args: Any, **options: Any) -> None:
        """Take several values, as `LightningModule.log_dict` does."""
        for name, one in dictionary.items():
            self.log(name, one, *args, **options)

    def begin(self, size: int) -> None:
        """Forget everything before a batch of so many examples."""
        self.size = size
        self.numbers.clear()
        self.metrics.clear()


@dataclass(slots=True)
class _SetLog:
    """Hold what the module logs for one eval set."""

    keys: tuple[str, ...] | None = None  # names of the logged numbers; None before the first batch
    # The metrics that a batch updates, by the name of their number
    metrics: dict[str, TorchMetric] = field(default_factory=dict)
    unlogged: set[str] = field(default_factory=set)  # the names of those that are not logged, but used at the end
    # A batch to call the hook for the end after, until its numbers prove to follow from metrics alone
    first: tuple[Any, int, int] | None = None
    # Copies of the metrics in turn, which keep all batches
    following: dict[str, TorchMetric] = field(default_factory=dict)


_FORM: Final = "log means (the default) or sums over an epoch, such as self.log('loss', loss, batch_size=len(x))"


class LightningStep:
    """Run `validation_step` on single batches, and add what it logs to states.

    Raises `EvaluationError` for a module whose numbers would not be those of all batches.
    """

    def __init__(self, task: Task, module: Any, device: torch.device) -> None:
        self._module, self._device = module, device
        if task.predictions:
            raise _refused("returns no predictions: leave Task(predictions=…) out, or give Task(step=…)")
        if not _overrides(module, "validation_step"):
            raise _refused("is missing: give the module one, or Task(metrics=…) or Task(loss=…)")
        if hasattr(module, "validation_epoch_end"):
            raise _refused(f"has a validation_epoch_end, which Lightning 2 does not call: write {_END}")
        for collection in module.modules():
            if hasattr(collection, "_enable_compute_groups"):  # a collection, whose metrics share states otherwise
                collection._enable_compute_groups = False  # noqa: SLF001
        self._log = _Log()
        module.log, module.log_dict = self._log.log, self._log.log_dict
        self._unused = {place: deepcopy(metric) for place, metric in _metrics_in(module) if has_own_class(metric)}
        self._sets = [_SetLog() for _ in task.eval_sets]
        self._found: dict[str, Any] = {}  # the metrics of the module, by their places
        self._has_several = len(task.eval_sets) > 1
        self.index = 0
        """Number of the eval set that the next call is about, which Lightning calls `dataloader_idx`."""
        self.mode: type[torch.inference_mode | torch.no_grad] = torch.inference_mode
        self.watch: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self.keeps = False
        """Has no effect: the logged numbers are all that `dependence` needs."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of everything that is measured in any set and may depend on batches."""
        return tuple(dict.fromkeys(name for each in self._sets for name in (*(each.keys or ()), *each.metrics)))

    @property
    def _here(self) -> _SetLog:
        return self._sets[self.index]

    def contents(self, arrays: list[NDArray[Any]]) -> dict[str, str]:
        """Return nothing: a metric of torchmetrics is tried on its own, and its states are part of the output."""
        del arrays
        return {}

    def dependence(self, output: BatchOutput, examples: int, divide: Divide | None, number: int) -> OfParts:
        """Return which logged numbers of a batch depend on its division into halves.

        The halves are validated as batch 0, so numbers that are made of `batch_idx` are found, too. `divide` returns
        the parts; None: the model draws random numbers, and parts would get other ones.
        """
        del number
        places = halves_of(examples)
        if divide is None or places is None:
            return OfParts(set())
        if not (halves := divide(places)):
            return OfParts({UNTESTED})
        whole = output.arrays
        try:
            with types_of_outputs(self._module) as types:
                parts = [self.run(*each, 0).arrays for each in halves]
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # noqa: BLE001 - a model may take batches of one size only
            return OfParts({UNTESTED})
        tolerance = tolerance_for([*types, *types_of_device(self._device)])
        logged, summed = self._means(whole[0]), self._means(np.sum([part[0] for part in parts], axis=0))
        found = {name for name, mean in logged.items() if not are_near(mean, summed[name], tolerance)}
        at = 1
        for name, metric in self._here.metrics.items():
            of_metric = slice(at, at + metric.width)
            if metric.differs(whole[of_metric], [part[of_metric] for part in parts], tolerance):
                found.add(name)
            at += metric.width
        return OfParts(found)

    def begin(self, *, is_first: bool) -> None:
        """Prepare an evaluation."""
        del is_first
        self._here.following = {name: self._here.metrics[name].following() for name in self.in_turn()}
        self._call_first_hooks()

    def _call_first_hooks(self) -> None:
        for hook in ("on_validation_start", "on_validation_epoch_start"):
            if _overrides(self._module, hook):
                self._call(hook)

    def in_turn(self) -> dict[str, str]:
        """Return the metrics that are updated in turn, with the reason."""
        return {name: metric.reason for name, metric in self._here.metrics.items() if metric.reason is not None}

    def update_in_turn(self, inputs: Any, seed: Callable[[], None]) -> None:
        """Update copies of the metrics in turn with one batch. `seed` seeds the generators for metrics that draw."""
        for name, (y, predictions) in inputs.items():
            self._here.following[name].update_in_turn(y, predictions, seed)

    def finish(self, states: SetStates, *, is_first: bool) -> None:
        """Put the results of the metrics in turn into the states if this is worker 0."""
        if self._here.following and is_first:
            results = {name: metric.compute(None) for name, metric in self._here.following.items()}
            ResultsInTurn(self.in_turn()).put(states, results)

    def begins_again(self, of_sets: Sequence[SetStates]) -> bool:
        """Return False: which metrics are updated in turn is known from the first batch."""
        del of_sets
        return False

    def run(self, batch: Batch, examples: int, number: int) -> BatchOutput:
        """Run one batch."""
        content = batch.content if isinstance(batch, LoadedBatch) else batch
        if self._module.training:
            self._module.eval()
        with self.mode():
            content = self._transferred(content)
            if self._here.keys is None:
                self._learn(content, examples, number)
            for metric in self._here.metrics.values():
                metric.reset()
            updates: _Updates = {}
            with _recorded(self._found, updates), self.watch:
                self._validate(content, examples, number)
        assert self._here.keys is not None
        if (logged := self._log.numbers.keys()) != set(self._here.keys):
            name = min(logged ^ set(self._here.keys))
            raise _refused(f"logs {name!r} for some batches only: log it for each batch")
        logged_numbers = np.array([self._log.numbers[name] for name in self._here.keys], np.float64).reshape(-1, 2)
        given = self._given(updates)
        scales = [count for name in self._taking_both for count in scale_of(given.get(name, (None, None))[1])]
        inputs = {name: given[name] for name in self.in_turn()}
        changes = [
            array
            for name, metric in self._here.metrics.items()
            for array in (metric.read() if metric.reason is None else metric.change(*inputs[name], None))
        ]
        return BatchOutput([logged_numbers, *changes, np.array(scales, np.int64)], [], {}, inputs)

    def _given(self, updates: _Updates) -> dict[str, tuple[Any, Any]]:
        """Return labels and predictions that one batch gave to the metrics in turn and to those of two scales, by name.

        Raises `EvaluationError` for metrics that other batches update.
        """
        names = {id(metric.metric): name for name, metric in self._here.metrics.items()}
        by_name = {names.get(id(self._found[place]), place): calls for place, calls in updates.items()}
        in_turn = self.in_turn()
        for name in sorted({*by_name, *in_turn} - (by_name.keys() & names.values())):
            raise _refused(f"updates the metric {name!r} for some batches only: update it for each batch")
        if several := [name for name in in_turn if len(by_name[name]) > 1]:
            raise _refused(
                f"updates the metric {several[0]!r} several times for one batch, and it {in_turn[several[0]]}: update "
                f"it once, with all predictions of the batch"
            )
        return {
            name: _labels_and_predictions(name, *by_name[name][0])
            for name in (*in_turn, *self._taking_both)
            if name in by_name
        }

    def predicted(self, batch: Batch, examples: int) -> BatchOutput:
        """Return what is logged for a batch, as the module gives no predictions."""
        return self.run(batch, examples, 0)

    @property
    def _taking_both(self) -> list[str]:
        """Names of the metrics that take a batch for probabilities if all of it is from 0 to 1, else for logits."""
        return [name for name, metric in self._here.metrics.items() if takes_both(metric.metric)]

    def _of_two_scales(self, states: SetStates) -> list[Scales]:
        return of_two_scales(self._taking_both, exact_sum(states, _SCALES).integers())

    def refuse(self, states: SetStates, eval_set: str, sharding: Division) -> None:
        """Raise `EvaluationError` for metrics that read batches in two ways, if these depend on the workers."""
        refuse_two_scales(self._of_two_scales(states), eval_set, sharding, _PROBABILITIES)

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states of the logged numbers and of all metrics."""
        states: SetStates = {_NUMBERS: ExactSum((len(self._here.keys or ()), 2), "float64")}
        states[_SCALES] = ExactSum((2 * len(self._taking_both),), "int64")
        for name, metric in self._here.metrics.items():
            states |= named(name, metric.new_states(info.shard))
        return states | ResultsInTurn(self.in_turn()).states(info.shard)

    def add(self, states: SetStates, arrays: list[list[NDArray[Any]]], firsts: Sequence[int | None]) -> None:
        """Add several batches; each item of `arrays` is a list with one array per batch."""
        exact_sum(states, _NUMBERS).add_all(np.stack(arrays[0]))
        exact_sum(states, _SCALES).add_all(np.stack(arrays[-1]))
        at = 1
        for name, metric in self._here.metrics.items():
            metric.add(within(states, name), arrays[at : at + metric.width], firsts)
            at += metric.width

    def compute(self, states: SetStates) -> MetricResult:
        """Return all logged numbers, after `on_validation_epoch_end` was called with the metrics of all batches."""
        means = self._means(exact_sum(states, _NUMBERS).round())
        results: list[tuple[str, Output, MetricResult]] = [
            ("log", None, MetricResult({name: value(number, "none") for name, number in means.items()}, {}))
        ]
        with torch.no_grad():
            results.append((_END, None, self._at_the_end(states)))
        in_turn = ResultsInTurn(self.in_turn())
        of_turn = in_turn.results(states)
        results += [
            (name, None, of_turn[name] if name in of_turn else metric.compute(within(states, name)))
            for name, metric in self._here.metrics.items()
            if name not in self._here.unlogged and (metric.reason is None or name in of_turn)
        ]
        joined = join_results(results)
        scales = (scale_note(found, _PROBABILITIES) for found in self._of_two_scales(states))
        return MetricResult(joined.values, joined.classes, (*joined.notes, *in_turn.notes(states), *scales))

    def _means(self, totals: NDArray[np.float64]) -> dict[str, float]:
        """Return the logged numbers by name for sums (m, 2) of values and weights."""
        return {
            name: float(total) if name in self._log.sums else float(total) / float(weight)
            for name, (total, weight) in zip(self._here.keys or (), totals, strict=True)
        }

    def _at_the_end(self, states: SetStates) -> MetricResult:
        """Call the module's hooks for the end of an evaluation, and return what they log."""
        if not _overrides(self._module, _END):
            return MetricResult({}, {})
        found = {name: value(number, "none") for name, number in self._logged_at_the_end(states).items()}
        classes: dict[str, Any] = {}
        for name, metric in self._log.metrics.items():
            own = next((one for one in self._here.metrics.values() if one.metric is metric), None)
            if own is None:
                raise _refused(f"logs {name!r} in {_END}, a metric that no batch updates")
            result = own.renamed(name).compute(within(states, own.name))
            found |= result.values
            classes |= result.classes
        return MetricResult(found, classes)

    def _logged_at_the_end(self, states: SetStates) -> dict[str, float]:
        """Return the numbers that the hook logs. Raises `EvaluationError` if they do not follow from metrics alone.

        So the first time it is called again, without a batch in between and after one, and must log the same from the
        same metrics.
        """

        def logged() -> dict[str, float]:
            for name, metric in self._here.metrics.items():
                metric.load(within(states, name))
            self._log.begin(1)
            self._call(_END)
            return {name: total / weight for name, (total, weight) in self._log.numbers.items()}

        found = logged()
        if self._here.first is None:
            return found
        for between in ((), (self._here.first,)):
            try:
                self._call_first_hooks()
                for batch in between:
                    self._validate(*batch)
                again = logged()
            except EvaluationError:
                raise
            except Exception:  # noqa: BLE001 - code of a user, such as a division by the length of a list
                again = {}
            if differing := [name for name, number in found.items() if not are_near(number, again.get(name, math.nan))]:
                raise _refused(
                    f"keeps something from batch to batch from which {_END} makes {differing[0]!r}, and it holds the "
                    f"batches of one worker only: log numbers, or update a metric of torchmetrics in validation_step, "
                    f"such as MeanMetric, and compute it in {_END}"
                )
        self._here.first = None
        return found

    def _learn(self, content: Any, examples: int, number: int) -> None:
        """Run a first batch, and find out which metrics it updates and under which names they are logged."""
        found = self._found = dict(_metrics_in(self._module))
        updates: _Updates = {}
        before = repeatability.attributes(self._module)
        with _recorded(found, updates):
            self._validate(content, examples, number)
        measuring = tuple(f"{place}." for place, part in self._module.named_modules() if is_torchmetric(part))
        kept = [
            name
            for name in repeatability.changed_attributes(self._module, before)
            if not name.startswith(("_", *measuring))
        ]
        has_end = _overrides(self._module, _END)
        self._here.first = (content, examples, number) if has_end else None
        if kept and has_end:
            raise _refused(
                f"keeps {kept[0]!r} from batch to batch, which holds the batches of one worker only when {_END} is "
                f"called: log numbers, or update a metric of torchmetrics in validation_step and compute it in {_END}"
            )
        updated = {id(found[place]) for place in updates}
        others = ({id(one.metric) for one in each.metrics.values()} for each in self._sets if each.keys is not None)
        if has_end and any(other != updated for other in others):
            raise _refused(
                f"updates other metrics for each eval set, and {_END}, which is called for one set after the other, "
                f"would find some of them empty: log them in validation_step and leave {_END} out"
            )
        names = {id(metric): name for name, metric in self._log.metrics.items()}
        for place, ((arguments, options), *_) in updates.items():
            name = names.get(id(found[place]), place)
            self._here.metrics[name] = metric = TorchMetric(name, None, found[place], self._device)
            metric.try_out(*_labels_and_predictions(metric.name, arguments, options), self._unused.get(place))
            if metric.reason is not None and has_end:
                raise _refused(
                    f"updates the metric {name!r}, which {metric.reason}, so only worker 0 has all of its batches and "
                    f"{_END} cannot use it: log it in validation_step and leave {_END} out, or give Task(metrics=…)"
                )
            if id(found[place]) not in names:
                self._here.unlogged.add(name)
        if lost := [name for name, metric in self._log.metrics.items() if name not in self._here.metrics]:
            raise _refused(f"logs the metric {lost[0]!r}, but does not update it, or logs it under two names")
        self._here.keys = tuple(self._log.numbers)
        if not self._here.keys and not self._here.metrics:
            raise _refused("logs nothing: call self.log(…) in it, or update metrics of torchmetrics")

    def _transferred(self, content: Any) -> Any:
        """Return a batch on the device, after the module's hooks for that: some of them scale or pad inputs."""
        if _overrides(self._module, "on_before_batch_transfer"):
            content = self._call("on_before_batch_transfer", moved(content, torch.device("cpu")), self.index)
        if _overrides(self._module, "transfer_batch_to_device"):
            content = self._call(
                "transfer_batch_to_device", moved(content, torch.device("cpu")), self._device, self.index
            )
        else:
            content = moved(content, self._device)
        if _overrides(self._module, "on_after_batch_transfer"):
            content = self._call("on_after_batch_transfer", content, self.index)
        return content

    def _validate(self, content: Any, examples: int, number: int) -> None:
        """Call `validation_step`, and the hooks before and after it, as Lightning's loop does."""
        self._log.begin(examples)
        if _overrides(self._module, "on_validation_batch_start"):
            self._call_for_batch("on_validation_batch_start", (), content, number)
        outputs = self._call_for_batch("validation_step", (), content, number)
        if _overrides(self._module, "on_validation_batch_end"):
            self._call_for_batch("on_validation_batch_end", (outputs,), content, number)

    def _call_for_batch(self, name: str, before: tuple[Any, ...], content: Any, number: int) -> Any:
        """Call a method for one batch, with those of (batch, batch_idx, dataloader_idx) that Lightning gives it.

        Source: pytorch-lightning 2.6 `loops/evaluation_loop.py` and `utilities/signature_utils.py`. A method with a
        second parameter gets the number of the batch, whatever the parameter's name. The number of the eval set is for
        methods that ask for it, if there are several sets or there is no default.
        """
        parameters = inspect.signature(getattr(self._module, name)).parameters
        if "dataloader_iter" in parameters:
            return self._call(name, iter([(content, number, self.index)]))
        positional = [one for one in parameters.values() if one.kind in _POSITIONAL][len(before) :]
        others = {one.name: one for one in parameters.values() if one.kind == inspect.Parameter.KEYWORD_ONLY}
        takes_any = any(one.kind == inspect.Parameter.VAR_POSITIONAL for one in parameters.values())
        third = positional[2] if len(positional) > 2 else others.get("dataloader_idx")  # noqa: PLR2004
        arguments = [content]
        if len(positional) > 1 or takes_any:
            is_index = len(positional) == 2 and positional[1].name == "dataloader_idx"  # noqa: PLR2004
            arguments.append(self.index if is_index else number)
        needs_index = third is not None and (self._has_several or third.default is third.empty)
        if (len(positional) > 2 and needs_index) or (takes_any and self._has_several):  # noqa: PLR2004
            arguments.append(self.index)
        by_name = {"batch_idx": number} if "batch_idx" in others else {}
        if "batch" in others:
            arguments, by_name = [], {**by_name, "batch": content}
        if "dataloader_idx" in others and needs_index:
            by_name["dataloader_idx"] = self.index
        return self._call(name, *before, *arguments, **by_name)

    def _call(self, name: str, *arguments: Any, **by_name: Any) -> Any:
        """Call a method of the module."""
        with _without_trainer(name):
            return getattr(self._module, name)(*arguments, **by_name)


def prepare(model: nn.Module) -> None:
    """Let a LightningModule make the rest of itself, as a Trainer does before it validates."""
    if not is_lightning(model) or isinstance(vars(model).get("_trainer"), Progress):
        return
    module: Any = model
    module._trainer = Progress()  # noqa: SLF001 - where Lightning looks for it
    with _without_trainer("setup"):
        for hook, arguments in (("setup", ("validate",)), ("configure_model", ())):
            if _overrides(model, hook):
                getattr(model, hook)(*arguments)


def read_checkpoint(model: nn.Module, content: Any) -> Any:
    """Let a LightningModule take what it wants from the content of a checkpoint, and return the content to restore."""
    if not is_lightning(model) or not isinstance(content, Mapping):
        return content
    module: Any = model
    module._trainer.read(content)  # noqa: SLF001 - `prepare` put it there
    if "state_dict" in content and _overrides(model, "on_load_checkpoint"):
        content = dict(content)
        with _without_trainer("on_load_checkpoint"):
            module.on_load_checkpoint(content)
    return content


@contextlib.contextmanager
def _without_trainer(name: str) -> Iterator[None]:
    """Raise `EvaluationError` if the block, which calls a method of the module, asks for a Trainer."""
    try:
        yield
    except RuntimeError as error:
        if _NO_TRAINER in str(error):
            raise _refused(
                f"needs a Trainer in {name}, and there is none in an evaluation: do not use self.trainer and "
                f"self.all_gather there; numbers are added up over all workers anyway"
            ) from error
        raise


def _base(model: nn.Module) -> type | None:
    return next(
        (
            kind
            for kind in type(model).__mro__
            if kind.__name__ == "LightningModule" and kind.__module__.partition(".")[0] in _PACKAGES
        ),
        None,
    )


def _overrides(module: nn.Module, name: str) -> bool:
    """Return whether a module has a method of its own in place of Lightning's, which does nothing."""
    own, base = getattr(type(module), name, None), getattr(_base(module), name, None)
    return own is not None and own is not base and getattr(own, "__module__", "").partition(".")[0] not in _PACKAGES


def _metrics_in(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield place and metric for each metric of torchmetrics that is not a part of another one."""
    inside: tuple[str, ...] = ()
    for place, part in module.named_modules():
        if (
            is_torchmetric(part)
            and not hasattr(part, "_enable_compute_groups")
            and not place.startswith(inside or "\0")
        ):
            inside = (*inside, f"{place}.")
            yield place, part


class Progress:
    """Stand for the Trainer of a module: it knows how far training was, and refuses everything else."""

    logger, loggers, sanity_checking, global_rank, local_rank = None, (), False, 0, 0

    def __init__(self) -> None:
        self.current_epoch = self.global_step = 0

    def read(self, content: Any) -> None:
        """Take both numbers from the content of a checkpoint, as Lightning writes them; 0 if they are not there."""
        given = content if isinstance(content, Mapping) else {}
        self.current_epoch, self.global_step = (
            number if isinstance(number := given.get(name), int) else 0 for name in ("epoch", "global_step")
        )

    def __getattr__(self, name: str) -> Any:
        """Raise the error of a module without a Trainer."""
        if name.startswith("__"):  # of protocols such as that of copies
            raise AttributeError(name)
        raise RuntimeError(_NO_TRAINER)


class _recorded:  # noqa: N801 - a context manager
    """Note the arguments with which metrics are updated in a block, by their places."""

    def __init__(self, found: Mapping[str, Any], updates: _Updates) -> None:
        self._found, self._updates = found, updates
        self._originals = {place: metric.update for place, metric in found.items()}

    def __enter__(self) -> None:
        for place, metric in self._found.items():
            metric.update = self._noting(place, self._originals[place])

    def __exit__(self, *error: object) -> None:
        for place, metric in self._found.items():
            metric.update = self._originals[place]

    def _noting(self, place: str, update: Callable[..., None]) -> Callable[..., None]:
        def note(*arguments: Any, **options: Any) -> None:
            calls = self._updates.setdefault(place, [])
            # torchmetrics' own `forward` may update a metric twice with the same tensors
            if not calls or list(map(id, calls[-1][0])) != list(map(id, arguments)) or options != calls[-1][1]:
                calls.append((arguments, options))
            update(*arguments, **options)

        return note


def _labels_and_predictions(name: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return (y, predictions) of an update, to try the metric out on. Raises `EvaluationError` for other arguments."""
    if len(arguments) in (1, 2) and not options:
        return (*arguments, None)[1], arguments[0]
    if not arguments and options.keys() == {"preds", "target"}:
        return options["target"], options["preds"]
    raise _refused(
        f"updates the metric {name!r} with {len(arguments)} arguments and {', '.join(options) or 'none by name'}: "
        f"update it with (predictions, labels), so that it can be tried out on parts of a batch"
    )


def _refused(reason: str) -> EvaluationError:
    return task_error(f"the module's validation_step {reason}")
