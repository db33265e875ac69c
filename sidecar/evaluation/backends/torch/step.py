"""Run the model on one batch, and return what metrics, loss and saved columns need."""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sidecar.evaluation.backends.torch import repeatability
from sidecar.evaluation.backends.torch.batch_objects import parts_of_object
from sidecar.evaluation.backends.torch.dataset_source import LoadedBatch
from sidecar.evaluation.backends.torch.loss import NO_MEMORY
from sidecar.evaluation.backends.torch.output_losses import OutputLosses
from sidecar.evaluation.backends.torch.ragged import LABELS
from sidecar.evaluation.backends.torch.tensors import (
    finite_rows,
    leaves,
    map_leaves,
    moved,
    to_numpy,
    types_of_device,
    types_of_outputs,
    widened,
)
from sidecar.evaluation.backends.torch.torchmetrics_members import TorchMetrics, is_torchmetric
from sidecar.evaluation.backends.torch.torchmetrics_scales import (
    PROBABILITIES,
    Scales,
    of_two_scales,
    refuse_two_scales,
    scale_note,
)
from sidecar.evaluation.batch_dependence import LABELS as LABELS_OF_STEP
from sidecar.evaluation.batch_dependence import MODEL, ORDER, UNTESTED
from sidecar.evaluation.data.batch_source import Batch, Division
from sidecar.evaluation.data.elements import describe, unpack
from sidecar.evaluation.data.third_part import naming_weights
from sidecar.evaluation.eval_loop import BatchOutput
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.first_batch import OfParts
from sidecar.evaluation.measurement import Measurement, chosen, is_list_of_rows, rows_note
from sidecar.evaluation.metrics.in_turn import ResultsInTurn
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult
from sidecar.evaluation.npy_table import plain_column
from sidecar.evaluation.outputs import join_results
from sidecar.evaluation.predictions_columns import PredictionsColumns
from sidecar.evaluation.row_comparison import (
    Divide,
    few_of,
    halves_of,
    have_alike_rows,
    is_telling,
    rows_at,
    rows_differ,
    tolerance_for,
)
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum, named, within
from sidecar.evaluation.task import Task, call

_CAUSAL: Final = ("ForCausalLM", "LMHeadModel")  # ends of the names of classes in transformers
_DECODING: Final = ("ForConditionalGeneration", "EncoderDecoderModel", "ForSpeechSeq2Seq")
_LOSS: Final = "loss"
_ROWS: Final = "rows of batches"  # name of a state: numbers of rows and of examples, and of batches where they differ
_EXAMPLES: Final = 1  # place of the number of examples in it
_PARTS: Final = 3  # of a batch (x, y, sample_weight)
_COMPARED_BYTES: Final = 256 << 20  # of larger predictions, only the loss and the metrics are compared


_Arrays = list[list[NDArray[Any]]]


class Step:
    """Evaluate single batches with a model on one device, and add the results to states."""

    def __init__(self, task: Task, model: nn.Module, device: torch.device) -> None:
        self._task, self._model, self._device = task, model, device
        self._loss = None if task.loss is None else OutputLosses(task.loss, device)
        metrics = chosen(task, is_torchmetric)
        self.metrics = [metric for _, metric in metrics]
        """The metrics that the task returned; functions of other libraries are `InTurn`."""
        self._measurement = Measurement(pair for pair in metrics if not is_torchmetric(pair[1]))
        self._torchmetrics = TorchMetrics(
            [pair for pair in metrics if is_torchmetric(pair[1])], device, task.wants_in_turn
        )
        self._columns = PredictionsColumns(task.predictions, _column) if task.predictions else None
        has_own_metrics = any(not is_torchmetric(metric) for _, metric in metrics)
        self._needs_arrays = has_own_metrics or self._columns is not None
        self.mode: type[torch.inference_mode | torch.no_grad] = torch.inference_mode
        """Mode in which batches are evaluated. A step that computes gradients needs that of `no_grad`."""
        self.watch: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        """Entered while code of the task runs."""
        self.keeps = False
        """Whether `run` keeps labels and predictions for `dependence`."""
        self._kept: tuple[Any, Any, Any] | None = None  # labels, predictions and weights
        self._remedy = ""  # what to write if the third part of a batch is no weight; empty without a third part

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of everything that is measured here and may depend on batches."""
        loss = () if self._loss is None else self._loss.names
        return *loss, *self._torchmetrics.names, *self._measurement.names

    def read_as(self, other: "Step") -> None:
        """Read of a batch what another step reads, so that their outputs can be compared."""
        self._torchmetrics.most_bytes = other._torchmetrics.most_bytes  # noqa: SLF001 - of the same class

    def begin(self, *, is_first: bool) -> None:
        """Prepare an evaluation. In the first one of an eval set, a loss of one's own is compared with its parts."""
        self._torchmetrics.begin()
        if self._loss is not None:
            self._loss.compare_whole(is_first)

    def in_turn(self) -> dict[str, str]:
        """Return the metrics that are updated in turn, with the reason; empty if the task asks for it."""
        return self._torchmetrics.reasons | self._wanted

    @property
    def _wanted(self) -> dict[str, str]:
        """The metrics in turn that are not of torchmetrics, with the reason; empty if the task asks for it."""
        wanted = {name: "" for name in self._measurement.names if self._task.wants_in_turn(name)}
        return wanted | self._measurement.in_turn

    def update_in_turn(self, inputs: Any, seed: Callable[[], None]) -> None:
        """Update the metrics in turn with one batch. `seed` seeds the generators for metrics that draw."""
        self._torchmetrics.update_in_turn(inputs, seed)

    def add_found(self, states: SetStates) -> None:
        """Add what batches so far have shown, which no state of a batch says."""
        self._torchmetrics.add_found(states)

    def finish(self, states: SetStates, *, is_first: bool) -> None:
        """Put what the evaluation of all batches of this rank has shown into the states."""
        self._torchmetrics.conclude(states, is_first=is_first)

    def begins_again(self, of_sets: Sequence[SetStates]) -> bool:
        """Return whether a metric has proved to be no sum in a set, so that the evaluation must be done again."""
        return self._torchmetrics.begins_again(of_sets)

    def run(self, batch: Batch, examples: int, number: int) -> BatchOutput:
        """Run the model on one batch of so many examples. `number`: that of the batch, which does not matter."""
        del number
        self._remedy = two_inputs_of(batch) if takes_weights(self._task) else ""
        with naming_weights(lambda: self._remedy):
            output, *measured = self._run(batch, examples)
        self._kept = (measured[0], measured[1], measured[2]) if self.keeps else None
        return output

    def predicted(self, batch: Batch, examples: int) -> BatchOutput:
        """Return the predictions for a batch, or what metrics and the loss need of it if these cannot be compared."""
        content = moved(batch.content if isinstance(batch, LoadedBatch) else batch, self._device)
        with self.mode():
            _, predictions, _ = labels_and_predictions(self._task, self._model, content)
            compared = _compared(predictions)
        return self.run(batch, examples, 0) if compared is None else BatchOutput(compared, [], {})

    def contents(self, arrays: list[NDArray[Any]]) -> dict[str, str]:
        """Return the states of each metric for one batch, as texts."""
        with naming_weights(lambda: self._remedy):
            return self._measurement.contents(arrays[self._places[-1]])

    def dependence(self, output: BatchOutput, examples: int, divide: Divide | None, number: int) -> OfParts:
        """Return what depends on the division of the batch that `run` kept, given its number.

        Parts of the predictions are compared with predictions for a few examples of the batch; if these
        are not rows of the whole, the numbers for the halves with those for the whole. `divide` returns the parts;
        None: the model draws random numbers, and parts would get other ones.
        """
        assert self._kept is not None, "`keeps` was set"
        (y, predictions, weights), self._kept = self._kept, None
        found = self._measurement.depending(output.arrays[self._places[-1]])
        halves, few = halves_of(examples), few_of(examples, number)
        if self._loss is not None and halves and not (number and self._loss.add_up):
            before = repeatability.generators()
            with self.mode():
                of_loss = self._loss.depending(y, predictions, weights, halves, examples)
                if repeatability.generators() == before:  # else a half draws other numbers
                    self._loss.require_same(y, predictions, weights, examples)
                    found |= of_loss
        compared = _compared(predictions)
        is_known = compared is None or is_telling(compared)
        if divide is None or halves is None or few is None:
            return OfParts(found, is_known)
        of_step = _labels(y, weights)
        are_rows = compared is not None and UNTESTED not in found
        for places in (few, halves) if are_rows and few != halves else (halves,):
            with types_of_outputs(self._model) as types:
                outputs, rows, labels = self._of_parts(divide(places))
            if not outputs and places != halves:  # the loss may not know what the axes of so few are
                continue
            if not outputs:
                return OfParts(found | {UNTESTED}, is_known)
            tolerance = tolerance_for([*types, *types_of_device(self._device)])
            of_labels = rows_at(of_step, places, examples)
            of_model = rows_at(compared, places, examples) if are_rows and compared is not None else None
            if of_labels and have_alike_rows(of_labels, labels) and rows_differ(of_labels, labels, tolerance):
                found.add(LABELS_OF_STEP)
                of_halves = labels if places == halves else self._of_parts(divide(halves))[2]
                if _are_reordered(of_step, of_halves, halves):
                    found.add(ORDER)
            if of_model is not None and have_alike_rows(of_model, rows):
                differs = rows_differ(of_model, rows, tolerance) or (
                    number == 0 and self._differs_alone(compared or [], examples, divide, tolerance)
                )
                return OfParts(found | ({MODEL} if differs else set()), is_known, are_compared=True)
        return OfParts((found - {UNTESTED}) | self._differing(output.arrays, outputs, tolerance), is_known)

    def _differs_alone(self, compared: list[NDArray[Any]], examples: int, divide: Divide, tolerance: float) -> bool:
        """Return whether the first example has other predictions alone: parts may be padded as the whole batch is."""
        places = (slice(0, 1),)
        _, alone, _ = self._of_parts(divide(places))
        whole = rows_at(compared, places, examples)
        return bool(alone and whole and have_alike_rows(whole, alone) and rows_differ(whole, alone, tolerance))

    def _of_parts(self, parts: Sequence[tuple[Batch, int]]) -> tuple[_Arrays, _Arrays, _Arrays]:
        """Return outputs, predictions, and labels with weights of parts of a batch.

        The lists are empty if the model does not take parts.
        """
        outputs: _Arrays = []
        rows: _Arrays = []
        labels: _Arrays = []
        try:
            for part, size in parts:
                output, y, predictions, weights = self._run(part, size)
                outputs.append(output.arrays)
                rows.append(_compared(predictions) or [])
                labels.append(_labels(y, weights))
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # noqa: BLE001 - a model may take batches of one size only
            return [], [], []
        return outputs, rows, labels

    def _differing(self, whole: list[NDArray[Any]], halves: Sequence[list[NDArray[Any]]], tolerance: float) -> set[str]:
        """Return the names of what differs for halves whose predictions have another form, such as another length."""
        of_loss, of_torchmetrics, of_own = self._places
        found = self._measurement.differing(whole[of_own], [half[of_own] for half in halves])
        found |= self._torchmetrics.differing(
            whole[of_torchmetrics], [half[of_torchmetrics] for half in halves], tolerance
        )
        if self._loss is not None:
            found |= self._loss.differing(whole[of_loss], [half[of_loss] for half in halves], tolerance)
        return found

    @property
    def _places(self) -> tuple[slice, slice, slice]:
        """Places of the arrays of the loss, torchmetrics and `sidecar.metrics` in an output. Rows are counted first."""
        loss = 1 + (0 if self._loss is None else self._loss.width)
        torchmetrics = loss + self._torchmetrics.width
        return slice(1, loss), slice(loss, torchmetrics), slice(torchmetrics, None)

    def _run(self, batch: Batch, examples: int) -> tuple[BatchOutput, Any, Any, Any]:
        """Return the output for one batch, and its labels, predictions and weights."""
        content = moved(batch.content if isinstance(batch, LoadedBatch) else batch, self._device)
        if self._model.training:  # the task may have changed it
            self._model.eval()
        try:
            with self.mode(), self.watch:
                y, predictions, weights = labels_and_predictions(self._task, self._model, content)
                if self._measurement.takes_one_output:
                    _require_one_output(y, predictions, examples)
                rows = _rows(y, predictions, examples)
                finite = finite_rows(predictions)
                loss = [] if self._loss is None else self._loss.arrays(y, predictions, weights, examples)
                arrays = [_as_numpy(part) if self._needs_arrays else None for part in (y, predictions, weights)]
                counted = weights if self._loss is None else self._loss.without_ignored(y, weights)
        except RuntimeError as error:
            if NO_MEMORY in str(error):
                raise MemoryError(str(error)) from error
            if "type" in str(error) and (advice := _advice_on_types(self._model, content)):
                raise task_error(f"{advice}: {next(iter(str(error).splitlines()))}") from error
            raise
        columns = {}
        if self._columns is not None:
            with self.watch:
                columns = self._columns.columns((_as_numpy(_inputs(content)), arrays[0], arrays[2]), arrays[1])
        if all(rows.all() for rows in finite):
            finite = []
        measured = self._measurement.arrays(arrays[0], arrays[1], _as_numpy(counted), examples)
        scales = self._torchmetrics.within_0_and_1(y, predictions)
        of_rows = np.array([rows, examples, rows != examples, *scales], np.int64)
        of_torchmetrics = self._torchmetrics.arrays(y, predictions, weights, examples)
        in_turn = self._torchmetrics.inputs(y, predictions)
        output = BatchOutput([of_rows, *loss, *of_torchmetrics, *measured], finite, columns, in_turn)
        return output, y, predictions, weights

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states of the loss and of all metrics."""
        states = self._torchmetrics.states(info) | self._measurement.states(info)
        states[_ROWS] = ExactSum((3 + 2 * len(self._torchmetrics.taking_both),), "int64")
        return states if self._loss is None else named(_LOSS, self._loss.states(info)) | states

    def add(self, states: SetStates, arrays: list[list[NDArray[Any]]], firsts: Sequence[int | None]) -> None:
        """Add several batches; each item of `arrays` is a list with one array per batch."""
        for of_rows in arrays[0]:
            exact_sum(states, _ROWS).add(of_rows)
        of_loss, of_torchmetrics, of_own = self._places
        with naming_weights(lambda: self._remedy):
            if self._loss is not None:
                examples = [int(of_rows[_EXAMPLES]) for of_rows in arrays[0]]
                self._loss.add(within(states, _LOSS), arrays[of_loss], firsts, examples)
            self._torchmetrics.add(states, arrays[of_torchmetrics], firsts)
            self._measurement.add(states, arrays[of_own], firsts)

    def refuse(self, states: SetStates, eval_set: str, sharding: Division) -> None:
        """Raise `EvaluationError` for metrics that read batches in two ways, if these depend on the workers."""
        refuse_two_scales(self._of_two_scales(states), eval_set, sharding, PROBABILITIES)

    def _of_two_scales(self, states: SetStates) -> list[Scales]:
        return of_two_scales(self._torchmetrics.taking_both, exact_sum(states, _ROWS).integers()[3:])

    def compute(self, states: SetStates) -> MetricResult:
        """Return the loss and the numbers of all metrics."""
        results = [("torchmetrics", self._torchmetrics.compute(states)), ("metrics", self._measurement.compute(states))]
        if self._loss is not None:
            results.insert(0, (_LOSS, self._loss.compute(within(states, _LOSS))))
        joined = join_results((name, None, result) for name, result in results)
        rows, examples, has_others, *_ = exact_sum(states, _ROWS).integers()
        scales = (scale_note(found, PROBABILITIES) for found in self._of_two_scales(states))
        of_rows = rows_note(int(rows), int(examples), int(has_others))
        notes = *joined.notes, *ResultsInTurn(self._wanted).notes({}), *scales, *of_rows
        return replace(joined, notes=notes)


def _compared(predictions: Any) -> list[NDArray[Any]] | None:
    """Return the predictions that are compared by rows; None if they are too large or hold anything else.

    They are copies, because a model may reuse its outputs.
    """
    tensors = list(leaves(predictions))
    if not all(isinstance(leaf, torch.Tensor) and leaf.ndim and not leaf.is_nested for leaf in tensors):
        return None
    if sum(leaf.numel() * leaf.element_size() for leaf in tensors) > _COMPARED_BYTES:
        return None
    return [np.array(to_numpy(leaf)) for leaf in tensors]


def _labels(y: Any, weights: Any) -> list[NDArray[Any]]:
    """Return the tensors and arrays of labels and weights."""
    found = [leaf for leaf in leaves((y, weights)) if isinstance(leaf, torch.Tensor | np.ndarray) and leaf.ndim]
    return [to_numpy(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in found]


def _are_reordered(whole: list[NDArray[Any]], halves: Sequence[list[NDArray[Any]]], places: Sequence[slice]) -> bool:
    """Return whether the labels of the halves of a batch, at these places, are those of the whole in another order."""
    if len(halves) != len(places) or not all(halves):
        return False
    y, parts = whole[0], [half[0] for half in halves]
    are_there = Counter(row.tobytes() for row in y) == Counter(row.tobytes() for part in parts for row in part)
    return are_there and any(y[place].tobytes() != part.tobytes() for place, part in zip(places, parts, strict=True))


def takes_weights(task: Task) -> bool:
    """Return whether the third part of a batch is taken as the weight of its examples."""
    return task.step is None and (task.metrics is not None or task.loss is not None)


def remedy_of(batch: Batch) -> str:
    """Return what to write if the third part of a batch is no weight and of no use."""
    return f"give Task(step=lambda model, batch: (batch[1], {_call(_third_part_of(batch))})) to leave it out"


def two_inputs_of(batch: Batch) -> str:
    """Return what to write if the third part of a batch is its label, or of no use; empty without a third part."""
    content = _third_part_of(batch)
    if content is None:
        return ""
    return (
        f"for two inputs and a label give Task(step=lambda model, batch: (batch[2], model(batch[0], batch[1]))), to "
        f"leave it out Task(step=lambda model, batch: (batch[1], {_call(content)}))"
    )


def _third_part_of(batch: Batch) -> Any:
    """Return the content of a batch of three parts; None for another one."""
    content = batch.content if isinstance(batch, LoadedBatch) else batch
    return content if isinstance(content, tuple | list) and len(content) == _PARTS else None


def _call(content: Any) -> str:
    x = None if content is None else content[0]
    return f"model({'*' if isinstance(x, tuple | list) else '**' if isinstance(x, Mapping) else ''}batch[0])"


def labels_and_predictions(task: Task, model: Any, batch: Any) -> tuple[Any, Any, Any]:
    """Return labels, predictions and weights (or None) of a batch.

    Without `Task(step=…)`, a batch is (x, y) or (x, y, sample_weight), and the predictions are `model(x)`; an x of
    several parts is passed as arguments. A mapping with `labels`, as collators of Hugging Face make it, is passed by
    name without its labels. Predictions with `logits` are these.
    """
    if task.step is not None:
        returned = call("Task(step=…)", task.step, model, batch)
        if not isinstance(returned, tuple) or len(returned) not in (2, 3):
            raise task_error(
                f"Task(step=…) must return (y, predictions) or (y, predictions, weights), found {describe(returned)}"
            )
        y, predictions, weights = (*returned, None)[:3]
        return y, _outputs(predictions), weights
    if isinstance(batch, Mapping):
        if LABELS not in batch:
            raise task_error(
                f"batches are mappings of {', '.join(map(str, batch))}, without {LABELS!r}: give Task(step=…), a "
                f"function of (model, batch) that returns (y, predictions)"
            )
        _require_aligned(model)
        rest = {name: part for name, part in batch.items() if name != LABELS}
        return batch[LABELS], _logits(model(**rest)), None
    parts = unpack(tuple(batch) if isinstance(batch, list) else batch)
    if parts is None or parts[1] is None:
        batch = tuple(batch) if isinstance(batch, list) else batch
        is_own = not isinstance(batch, tuple | list | torch.Tensor | np.ndarray)
        example = "Task(step=lambda model, batch: (batch.y, model(batch)))" if hasattr(batch, "y") else "Task(step=…)"
        raise task_error(
            f"batches must be (x, y), (x, y, sample_weight) or a mapping with {LABELS!r}, found "
            f"{type(batch).__qualname__ if is_own else describe(batch)}: give {example}, a function of (model, batch) "
            f"that returns (y, predictions)"
        )
    x, y, weights = parts
    if isinstance(x, tuple | list):
        return y, _logits(model(*x)), weights
    return y, _logits(model(**x) if isinstance(x, Mapping) else model(x)), weights


def _require_aligned(model: nn.Module) -> None:
    """Raise `EvaluationError` for a language model of Hugging Face whose logits are not those for its labels.

    The logits of a causal one at a position are for the next position's label, and a model with a decoder gets the
    labels as the inputs of that. Both happen only inside, with the labels. Nothing in the shapes shows that.
    """
    names = {type(part).__name__: part for part in model.modules() if type(part).__name__.endswith(_CAUSAL + _DECODING)}
    if not names:
        return
    kind, part = next(iter(names.items()))
    if getattr(getattr(part, "config", None), "is_encoder_decoder", False):
        raise task_error(
            f"{kind} makes the inputs of its decoder from the labels, so it must get them: give "
            f"Task(step=lambda model, batch: (batch['labels'], model(**batch).logits))"
        )
    raise task_error(
        f"{kind} predicts the next token, so labels and logits must be shifted: give "
        f"Task(step=lambda model, batch: (batch['labels'][:, 1:], model(**batch).logits[:, :-1]))"
    )


def _logits(predictions: Any) -> Any:
    return _outputs(predictions.logits if hasattr(predictions, "logits") else predictions)


def _outputs(predictions: Any) -> Any:
    """Return the outputs in a data class, or in another object that holds tensors, by name."""
    if isinstance(predictions, Mapping | tuple | list | torch.Tensor | np.ndarray):
        is_wide = all(widened(leaf) is leaf for leaf in leaves(predictions))
        return predictions if is_wide else map_leaves(widened, predictions)
    if dataclasses.is_dataclass(predictions) and not isinstance(predictions, type):
        return {field.name: getattr(predictions, field.name) for field in dataclasses.fields(predictions)}
    return parts_of_object(predictions) or predictions


def _advice_on_types(model: nn.Module, content: Any) -> str:
    """Return advice on a batch with floats of another type than the model's; an empty text if there are none."""
    of_model = {value.dtype for value in model.parameters() if value.is_floating_point()}
    tensors = [leaf for leaf in leaves(content) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    of_batch = {leaf.dtype for leaf in tensors} - of_model
    if not of_model or not of_batch:
        return ""
    found, needed = (
        " and ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds)) for kinds in (of_batch, of_model)
    )
    return (
        f"a batch holds {found} and the model {needed}: convert the data, such as x.float() in the dataset or "
        f"x.astype('float32') for arrays of numpy, which are float64 by default"
    )


def _inputs(content: Any) -> Any:
    """Return the inputs in a batch, for a function of (x, y, predictions); of a mapping, all of it."""
    return content[0] if isinstance(content, tuple | list) else content


def _as_numpy(structure: Any) -> Any:
    """Return copies of all tensors as arrays: they stay in memory for a while, and a model may reuse its outputs."""
    return map_leaves(lambda leaf: np.array(to_numpy(leaf)) if isinstance(leaf, torch.Tensor) else leaf, structure)


def _require_one_output(y: Any, predictions: Any, examples: int) -> None:
    """Raise `EvaluationError` for several outputs and one tensor of labels, with the line that chooses an output."""
    is_one = not isinstance(predictions, Mapping | tuple | list) or is_list_of_rows(predictions, examples)
    if is_one or not isinstance(y, torch.Tensor | np.ndarray) or not predictions:
        return
    names = list(predictions) if isinstance(predictions, Mapping) else list(range(len(predictions)))
    raise task_error(
        f"the model returns several outputs, {', '.join(map(repr, names))}, and there is one tensor of labels: choose "
        f"one with Task(step=lambda model, batch: (batch[1], model(batch[0])[{names[0]!r}]))"
    )


def _rows(y: Any, predictions: Any, examples: int) -> int:
    """Return the number of rows of labels and predictions: examples or, for example, the nodes of their graphs.

    Raises `EvaluationError` for predictions that are one array with another number of rows than labels and examples.
    """
    if not isinstance(predictions, np.ndarray | torch.Tensor):
        return examples
    if not predictions.ndim:
        raise task_error(
            f"predictions are one number for a batch of {examples} examples: let the model, or Task(step=…), return "
            f"one row for each example"
        )
    rows, of_labels = len(predictions), _length(y)
    if rows not in (examples, of_labels):
        advice = "" if of_labels in (None, examples) else f", and {of_labels} labels: return one label for each row"
        raise task_error(
            f"predictions must have one row for each of {examples} examples, found {tuple(predictions.shape)}{advice}"
        )
    return rows


def _length(y: Any) -> int | None:
    if isinstance(y, np.ndarray | torch.Tensor):
        return len(y) if y.ndim else None
    return len(y) if isinstance(y, list) else None


def _column(name: str, column: Any) -> NDArray[Any]:
    return plain_column(name, to_numpy(column) if isinstance(column, torch.Tensor) else np.asarray(column))
