"""Compute a loss of PyTorch over all examples, from the losses of single items instead of the means of batches.

The number is the one that the criterion itself returns for the whole eval set as one batch. So it is divided by what
torch divides by: the sum of class weights for `CrossEntropyLoss(weight=…)`, and only positions that are not ignored
count. The order of arguments is that of torch, (predictions, y), unless the names of the parameters say the other one,
such as (y_true, y_pred).

`step` computes `TorchLoss` for each batch. `unreduced_loss` makes the criterion return one loss for each item, and
`output_losses` has a `TorchLoss` for each output of a model with several.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sidecar.evaluation.backends.torch.tensors import is_short_integer, leaves, part_of, to_numpy
from sidecar.evaluation.backends.torch.unreduced_loss import unreduced
from sidecar.evaluation.failures import EvaluationError, first_line, task_error
from sidecar.evaluation.first_batch import REPEATED_CALLS
from sidecar.evaluation.metrics.argument_names import first_kind
from sidecar.evaluation.metrics.average import Average
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult, value
from sidecar.evaluation.metrics.positions import counting
from sidecar.evaluation.repeatability import are_equal
from sidecar.evaluation.row_comparison import TOLERANCE, are_near, kept_by_size, rows_differ, told_apart
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum
from sidecar.evaluation.task import call
from sidecar.protocol.records import Value

_BY_CLASS: Final = (nn.CrossEntropyLoss, nn.NLLLoss)
_BY_ELEMENT: Final = (
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.HingeEmbeddingLoss,
    nn.HuberLoss,
    nn.KLDivLoss,
    nn.L1Loss,
    nn.MSELoss,
    nn.PoissonNLLLoss,
    nn.SmoothL1Loss,
    nn.SoftMarginLoss,
)
_OF_MORE_TENSORS: Final = {
    "CTCLoss": (
        "((batch[1], lengths_of_labels), (model(batch[0]), lengths_of_inputs))",
        "{}(p[0].transpose(0, 1), y[0], p[1], y[1]) / y[1].clamp(1)",
    ),
    "CosineEmbeddingLoss": ("(batch[2], (model(batch[0]), model(batch[1])))", "{}(p[0], p[1], y)"),
    "GaussianNLLLoss": ("(batch[1], model(batch[0]))", "{}(p[0], y, p[1])"),
    "MarginRankingLoss": ("(batch[2], (model(batch[0]), model(batch[1])))", "{}(p[0], p[1], y)"),
    "TripletMarginLoss": ("(batch[0], tuple(map(model, batch)))", "{}(p[0], p[1], p[2])"),
    "TripletMarginWithDistanceLoss": ("(batch[0], tuple(map(model, batch)))", "{}(p[0], p[1], p[2])"),
}
"""Criteria that take other tensors than predictions and labels: a step, and a call of one without a reduction."""

_PADDING: Final = -100  # the label that marks padding, by torch's default and in Hugging Face's collators
_TOLERANCE: Final = 1e-4  # between a float32 mean and the mean of its items, relative to the mean of their magnitudes
LOSS_ARRAYS: Final = 6
"""Number of arrays that a loss returns for a batch."""

NO_MEMORY: Final = "can't allocate memory"
"""Part of an error of torch's allocator for the CPU, which has no error type of its own."""


class TorchLoss:
    """Compute Σ w·l / Σ w over the items of all batches; an item is an example, a position or an element.

    `loss`: `Task.loss`: a module such as `nn.CrossEntropyLoss()`, a function of `torch.nn.functional`, or a function of
    (predictions, y) that returns one value for each example or position.
    """

    def __init__(self, loss: Any, device: torch.device) -> None:
        self._single, self._whole, reduction = unreduced(loss)
        for function in (self._single, self._whole):
            if isinstance(function, nn.Module):
                function.to(device)  # it may have class weights
        self._name = getattr(loss, "__name__", None) or type(loss).__name__
        self._is_module = isinstance(loss, nn.Module)
        self._takes_labels_first = not _is_of_torch(self._single) and first_kind(loss) == 0
        self.adds_up = type(self._single) in (*_BY_CLASS, *_BY_ELEMENT)
        """Whether it is a class of torch, whose values are known to depend on single items alone."""
        self._is_sum, self._is_of_examples = reduction == "sum", reduction == "batchmean"
        self._average = Average()
        self._class_weights: torch.Tensor | None = self._single.weight if isinstance(self._single, _BY_CLASS) else None
        self._ignored: int | None = self._single.ignore_index if isinstance(self._single, _BY_CLASS) else None
        self.compares_whole = True
        """Whether a loss of one's own is called as it is, too, and compared with its single values."""

    def states(self, info: EvalSetInfo | None = None) -> SetStates:
        """Return new states."""
        return self._average.states(info) | {
            "examples": ExactSum((), "float32"),
            "divisor": ExactSum((), "float64"),
            "ignored": ExactSum((2,), "int64"),
        }

    def arrays(self, y: Any, predictions: Any, weights: Any, examples: int | None = None) -> list[NDArray[Any]]:
        """Return `LOSS_ARRAYS` arrays of one batch.

        These are losses (m,) as float64 and their weights (m,) as float32, without items of weight 0; the number of
        each one's example in the batch (m,), or nothing if that is unknown; what the sum is divided by; and the numbers
        of ignored and of all items. `examples` is the number of examples in the batch, if rows may be anything else.
        Raises `EvaluationError` if the loss does not return one value for each item, or if a mean of the batch is
        another number than the mean of these values.
        """
        if not isinstance(predictions, torch.Tensor) or not isinstance(y, torch.Tensor):
            return self._of_structures(y, predictions, weights, examples)
        if not predictions.ndim:
            raise _without_rows(predictions)
        if predictions.layout != torch.strided and not predictions.is_nested:
            predictions = predictions.to_dense()
        if predictions.dtype in (torch.bfloat16, torch.float16):
            predictions = predictions.float()  # as under autocast: the loss of an item has more digits than they
        elif is_short_integer(predictions.dtype):  # differences of 8 bits would wrap around, without an error
            predictions = predictions.double() if _is_of_torch(self._single) else predictions.long()
        if isinstance(self._single, _BY_CLASS):
            predictions, y = _classes_second(predictions, y)
        elif isinstance(self._single, _BY_ELEMENT) and self._whole is None and predictions.shape != y.shape:
            raise _mismatched(predictions, y)
        losses = self._called(predictions, y)
        if not isinstance(losses, torch.Tensor) or losses.ndim == 0 or len(losses) != len(predictions):
            shape = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
            is_reduced = shape == () or isinstance(losses, tuple)
            single = (
                f"; if it is a mean over examples, write loss=lambda predictions, y: torch.stack([criterion(p[None], "
                f"t[None]){'[0]' if shape else ''} for p, t in zip(predictions, y)])"
            )
            raise task_error(
                f"Task(loss=…) must return one value for each of {len(predictions)} examples, found {shape}: a mean of "
                f"a batch cannot be added up exactly. Give a loss of torch, or a function that does not reduce"
                + (single if is_reduced else "")
            )
        if losses.numel() > max(predictions.numel(), y.numel()):
            raise _mismatched(predictions, y)
        return self._arrays_of(losses, y, predictions, weights, examples)

    def _called(self, predictions: torch.Tensor, y: torch.Tensor) -> Any:
        """Return what the loss returns. Raises `EvaluationError` if a loss of torch does not take these tensors."""
        try:
            return call("Task(loss=…)", self._single, *self._ordered(predictions, y))
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            if not _is_refusal(self._single, error):
                raise
            if error_of_tensors := _of_more_tensors(self._single):
                raise error_of_tensors from error
            raise task_error(
                f"Task(loss=…) does not take labels {_described(y)} and predictions {_described(predictions)}: "
                f"{first_line(error):.200}"
            ) from error

    def _ordered(self, predictions: Any, y: Any) -> tuple[Any, Any]:
        return (y, predictions) if self._takes_labels_first else (predictions, y)

    def _of_structures(self, y: Any, predictions: Any, weights: Any, examples: int | None) -> list[NDArray[Any]]:
        """Return the arrays of a function that takes outputs or labels with several parts, such as dicts."""
        if error_of_tensors := _of_more_tensors(self._single):
            raise error_of_tensors
        if isinstance(self._single, (*_BY_CLASS, *_BY_ELEMENT)):
            raise _of_several(y, predictions)
        rows = next((len(leaf) for leaf in leaves([y, predictions]) if isinstance(leaf, torch.Tensor) and leaf.ndim), 0)
        try:
            losses = call("Task(loss=…)", self._single, *self._ordered(predictions, y))
        except (AttributeError, TypeError) as error:
            raise _of_several(y, predictions) from error
        if not isinstance(losses, torch.Tensor) or losses.ndim == 0 or len(losses) not in (rows, examples):
            found = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
            raise task_error(
                f"Task(loss=…) must return one value for each of {examples or rows} examples, found {found}: a mean of "
                f"a batch cannot be added up exactly. Do not reduce, or give a loss for each output, such as "
                f"loss={{'kind': nn.CrossEntropyLoss(), 'size': nn.MSELoss()}}"
            )
        return self._arrays_of(losses, y, predictions, weights, examples)

    def _arrays_of(
        self, losses: torch.Tensor, y: Any, predictions: Any, weights: Any, examples: int | None
    ) -> list[NDArray[Any]]:
        if self.compares_whole and self._whole is not None:
            self._require_usual_divisor(self._whole, losses, y, predictions)
        items, given = to_numpy(losses).astype(np.float64), _as_weights(weights)
        of_examples = self._examples(len(items), given)
        counted = counting("loss", self.without_ignored(y, given), items.shape, items, examples=examples)
        divisors = np.zeros(0)
        if self._class_weights is not None:
            divisors = self._divisors(self._class_weights, losses, y)[counted.places] * counted.weights
        rows = np.zeros(0, np.intp) if counted.examples is None else counted.examples
        ignored = self._count_ignored(y), items.size
        return [
            *(counted.arrays[0], counted.weights, rows, of_examples, divisors),
            np.array(ignored, np.int64),
        ]

    def depends_on_batches(
        self, y: Any, predictions: Any, weights: Any, halves: Sequence[slice], examples: int
    ) -> bool | None:
        """Return whether values of the loss for halves of the predictions differ from those for the whole batch.

        None: the batch cannot be divided, since its rows are not examples.
        """
        try:
            parts = _parts_of((y, predictions, weights), halves, examples)
        except ValueError:
            return None
        whole = self.arrays(y, predictions, weights, examples)
        try:
            of_parts = [self.arrays(*part) for part in parts]
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - code of a user, which took the whole batch
            return True
        return self.differ(whole, of_parts)

    def require_same(self, y: Any, predictions: Any, weights: Any, examples: int) -> None:
        """Raise `EvaluationError` for a loss of one's own that keeps something from call to call. It must draw nothing.

        Both ends of the batch must not have the same values if a smaller part of the last one has others.
        """
        if _is_of_torch(self._single):
            return
        whole = self.arrays(y, predictions, weights, examples)
        for _ in range(REPEATED_CALLS):
            if not are_equal(whole, self.arrays(y, predictions, weights, examples)):
                raise task_error(
                    f"Task(loss={self._name}) gives other numbers when it is called again for the same batch: it keeps "
                    f"something from call to call. Compute each loss from its labels and predictions alone"
                )
        begin, _, end = told_apart(examples)
        try:
            parts = _parts_of((y, predictions, weights), (begin, end, slice(end.start + 1, end.stop)), examples)
            of_begin, of_end, of_rest = (self.arrays(*part)[0] for part in parts)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - rows may not be examples, or code of a user takes whole batches only
            return
        if of_rest.size and are_equal([of_begin], [of_end]) and rows_differ([of_end[-len(of_rest) :]], [[of_rest]]):
            raise kept_by_size(f"Task(loss={self._name})")

    def differ(
        self, whole: Sequence[NDArray[Any]], halves: Sequence[Sequence[NDArray[Any]]], tolerance: float = TOLERANCE
    ) -> bool:
        """Return whether what `arrays` returned for halves is not a division of what it returned for the whole."""
        losses, weights, _, examples, divisors, _ = zip(whole, *halves, strict=True)
        return any(
            rows_differ([part[0]], [[half] for half in part[1:]], tolerance) for part in (losses, weights, divisors)
        ) or not are_near(examples[0].sum(), sum(half.sum() for half in examples[1:]))

    def add(
        self,
        states: SetStates,
        arrays: list[list[NDArray[Any]]],
        firsts: Sequence[int | NDArray[np.intp] | None],
    ) -> None:
        """Add several batches; each item of `arrays` is a list with one array per batch.

        `firsts` has the number of the first example of each batch, or, for states by slice, those of all examples.
        """
        for first, losses, weights, rows, examples, divisors, ignored in zip(firsts, *arrays, strict=True):
            plain = None if (weights == 1).all() else weights
            are_known, are_single = len(rows) == len(losses), bool((np.diff(rows) > 0).all())
            places = None
            if first is not None and are_known:
                places = first[rows] if isinstance(first, np.ndarray) else first + rows
            alone = are_known and are_single
            self._average.add(states, losses, plain, one_per_example=alone, places=places, rows=rows)
            exact_sum(states, "examples").add_each(examples)
            if len(divisors):
                exact_sum(states, "divisor").add_each(divisors, rows)
            if not isinstance(first, np.ndarray):  # a note about the whole set counts ignored positions
                exact_sum(states, "ignored").add(ignored)

    def compute(self, states: SetStates) -> MetricResult:
        """Return the loss; NaN if the sum of weights is 0. A note says how many labels the loss ignores."""
        return MetricResult({"loss": self._value(states)}, notes=self._notes(states))

    def _value(self, states: SetStates) -> Value:
        total = self._average.total(states)
        if self._is_sum:
            return value(total, "min")
        if not self._is_of_examples and self._class_weights is None:
            return value(self._average.mean(states), "min", self._average.interval(states))
        divisor = float(exact_sum(states, "examples" if self._is_of_examples else "divisor").round())
        return value(total / divisor if divisor else math.nan, "min")

    def _notes(self, states: SetStates) -> tuple[str, ...]:
        """Return a note about labels that the loss ignores; none about -100, which marks padding as a rule."""
        ignored, count = (int(number) for number in exact_sum(states, "ignored").integers())
        if not ignored or self._ignored == _PADDING:
            return ()
        left_out = f"{ignored:,} of {count:,} positions have the label {self._ignored} = ignore_index of the loss"
        return (f"{left_out}: neither the loss nor a metric of sidecar.metrics counts them",)

    def _count_ignored(self, y: Any) -> int:
        if self._ignored is None or not isinstance(y, torch.Tensor) or y.is_floating_point():
            return 0
        return int((y == self._ignored).sum())

    def _require_usual_divisor(self, whole: Callable[..., Any], losses: torch.Tensor, y: Any, predictions: Any) -> None:
        """Raise `EvaluationError` if a loss of one's own for a batch is not what its single values are summed up to."""
        returned = call("Task(loss=…)", whole, *self._ordered(predictions, y))
        if not isinstance(returned, torch.Tensor) or returned.numel() != 1:
            return  # it does not reduce
        items = to_numpy(losses).astype(np.float64).reshape(-1)
        divisors = np.ones(len(items))
        if self._class_weights is not None:
            divisors = self._divisors(self._class_weights, losses, y)
        if self._ignored is not None and not y.is_floating_point():
            divisors = divisors * (y != self._ignored).cpu().numpy().reshape(-1)
        divisor = 1.0 if self._is_sum else len(losses) if self._is_of_examples else divisors.sum()
        with np.errstate(all="ignore"):
            summed, own = float(items.sum() / divisor), float(returned.item())
            scale = float(np.abs(items).sum() / divisor)
        if abs(summed - own) <= _TOLERANCE * scale or not (math.isfinite(summed) or math.isfinite(own)):
            return
        kind = "sum" if self._is_sum else "mean"
        arguments = ", ".join(self._ordered("predictions", "y"))
        single = (
            f"{self._name}(reduction='none')"
            if self._is_module
            else f"lambda predictions, y: {self._name}({arguments}, reduction='none')"
        )
        raise task_error(
            f"Task(loss={self._name}) is {own:.6g} for a batch, and the {kind} of its single values is {summed:.6g}. "
            f"It divides by something of its own, which cannot be added up over batches. Add up both parts as a "
            f"metric: Sums(lambda y, predictions: {{'loss': …, 'divisor': …}}, lambda totals: totals['loss'] / "
            f"totals['divisor'], name='loss', goal='min') of sidecar.metrics; or write loss={single} for the mean of "
            f"the single values"
        )

    def without_ignored(self, y: Any, weights: Any) -> Any:
        """Return weights in which positions that the loss ignores have the weight 0, so that no metric counts them."""
        if self._ignored is None or not isinstance(y, torch.Tensor) or y.is_floating_point():
            return weights
        counted = y != self._ignored
        if bool(counted.all()):
            return weights
        given = _as_weights(weights)
        plain = counted.cpu().numpy().astype(np.float32)
        return plain if given is None else plain * _aligned(given, plain)

    def _examples(self, count: int, weights: NDArray[Any] | None) -> NDArray[np.float32]:
        """Return what a sum of losses is divided by for `batchmean`: the weights of the examples."""
        if weights is None or not self._is_of_examples:
            return np.array([count], np.float32)
        if weights.shape != (count,):
            raise task_error(
                f"reduction='batchmean' divides by the number of examples: give one weight for each of {count}, found "
                f"{weights.shape}"
            )
        return weights.astype(np.float32)

    def _divisors(self, class_weights: torch.Tensor, losses: torch.Tensor, y: torch.Tensor) -> NDArray[np.float64]:
        """Return what a mean adds to its divisor for each loss, as a flat array.

        Losses of a class of weight 0 may be above 0: label smoothing spreads a part of them over all classes.
        """
        if y.is_floating_point():
            return np.ones(losses.numel())
        return to_numpy(class_weights[torch.where(y == self._ignored, 0, y)]).astype(np.float64).reshape(-1)


def joined_losses(arrays: Sequence[list[NDArray[Any]]], examples: Sequence[int]) -> list[NDArray[Any]]:
    """Return what `TorchLoss.arrays` returned for batches of so many examples as if these were one batch."""
    losses, weights, rows, of_examples, divisors, ignored = arrays
    offsets = np.cumsum([0, *examples])
    return [
        *(np.concatenate(part) for part in (losses, weights)),
        np.concatenate([of_batch + offset for of_batch, offset in zip(rows, offsets, strict=False)]),
        np.concatenate(
            [each if len(each) == count else np.ones(count) for each, count in zip(of_examples, examples, strict=True)]
        ).astype(np.float32),
        np.concatenate(divisors),
        np.sum(ignored, axis=0),
    ]


def part_of_loss(arrays: Sequence[NDArray[Any]], chosen: NDArray[np.intp], examples: int) -> list[NDArray[Any]]:
    """Return of what `joined_losses` returned, for so many examples, the part of the chosen ones, in their order."""
    losses, weights, rows, of_examples, divisors, ignored = arrays
    number = np.full(examples, -1)
    number[chosen] = np.arange(len(chosen))
    kept = number[rows] >= 0
    of_items = [losses[kept], weights[kept], number[rows[kept]]]
    return [*of_items, of_examples[chosen], divisors[kept] if len(divisors) else divisors, ignored]


def _mismatched(predictions: torch.Tensor, y: torch.Tensor) -> EvaluationError:
    return task_error(
        f"predictions {tuple(predictions.shape)} and labels {tuple(y.shape)} of Task(loss=…) need the same shape: "
        f"torch would combine each row with others. Let Task(step=…) return predictions.squeeze(-1), or other labels"
    )


def _is_refusal(loss: Any, error: Exception) -> bool:
    """Return whether a loss of torch refuses its arguments. The error of a user's function has a traceback of use."""
    is_of_memory = isinstance(error, torch.OutOfMemoryError) or NO_MEMORY in str(error)
    return _is_of_torch(loss) and not is_of_memory


def _is_of_torch(loss: Any) -> bool:
    return type(loss).__module__.partition(".")[0] == "torch"


def _parts_of(batch: tuple[Any, Any, Any], places: Sequence[slice], examples: int) -> list[tuple[Any, ...]]:
    """Return labels, predictions and weights of parts of a batch, and the size of each. Raises `ValueError`."""
    return [(*(part_of(part, place, examples) for part in batch), len(range(examples)[place])) for place in places]


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _of_several(y: Any, predictions: Any) -> EvaluationError:
    """Return the error about a criterion of torch that gets labels or outputs with several parts."""
    several = next((part for part in (y, predictions) if isinstance(part, Mapping) and part), None)
    if isinstance(y, torch.Tensor) and isinstance(predictions, Mapping | tuple | list) and predictions:
        first = next(iter(predictions)) if isinstance(predictions, Mapping) else 0
        remedy = f"choose an output with Task(step=lambda model, batch: (batch[1], model(batch[0])[{first!r}]))"
    elif several is not None:
        parts = ", ".join(f"{name!r}: …" for name in several)
        remedy = f"give a loss for each output, such as loss={{{parts}}}, or let Task(step=…) return one tensor of each"
    else:
        remedy = "let Task(step=…) return these, or give a loss for each output by its number, such as loss={0: …}"
    return task_error(
        f"Task(loss=…) takes one tensor of predictions and one of labels, found {type(predictions).__name__} and "
        f"{type(y).__name__}: {remedy}"
    )


def _of_more_tensors(loss: Any) -> EvaluationError | None:
    """Return the error about a criterion of torch that takes more than predictions and labels; None for others."""
    kind = type(loss).__name__
    if not _is_of_torch(loss) or kind not in _OF_MORE_TENSORS:
        return None
    step, call_of = _OF_MORE_TENSORS[kind]
    called = call_of.format(f"nn.{kind}(reduction='none')")
    return task_error(
        f"Task(loss={kind}(…)) takes more than predictions and labels: let the step return its tensors, such as "
        f"Task(step=lambda model, batch: {step}), and write loss=lambda p, y: {called}, with the settings of {kind}"
    )


def _without_rows(predictions: torch.Tensor) -> EvaluationError:
    return task_error(
        f"predictions are one number for a batch, {predictions.dtype} of shape (): let the model, or Task(step=…), "
        f"return one row for each example"
    )


def _classes_second(predictions: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return predictions with the classes in the second axis, as torch takes them; (n, …, classes) is accepted, too.

    Raises `EvaluationError` if both readings are possible.
    """
    if predictions.ndim != y.ndim + 1 or y.is_floating_point() or y.ndim < 2:  # noqa: PLR2004 - one axis behind the examples
        return predictions, y
    is_second = predictions.shape[:1] + predictions.shape[2:] == y.shape
    is_last = predictions.shape[:-1] == y.shape
    if is_second and is_last:
        raise task_error(
            f"predictions {tuple(predictions.shape)} for labels {tuple(y.shape)} can be read in two ways: if "
            f"classes are in the last axis, let Task(step=…) return predictions.unsqueeze(-2) and labels.unsqueeze(-1)"
        )
    return (predictions.movedim(-1, 1) if is_last else predictions), y


def _as_weights(weights: Any) -> NDArray[Any] | None:
    if weights is None:
        return None
    return to_numpy(weights) if isinstance(weights, torch.Tensor) else np.asarray(weights)


def _aligned(weights: NDArray[Any], items: NDArray[Any]) -> NDArray[Any]:
    """Return weights that are multiplied with items (n, …): the weight of an example applies to all its items."""
    while weights.ndim > items.ndim and weights.shape[-1] == 1:
        weights = weights[..., 0]
    return weights.reshape(*weights.shape, *(1,) * (items.ndim - weights.ndim))
