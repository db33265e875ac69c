"""Compute the loss as Keras defines it, from the losses of single examples instead of the means of batches."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from sidecar.evaluation.backends.tensorflow.data import array_of
from sidecar.evaluation.backends.tensorflow.keras_metric import undefined
from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2, is_written_by_keras
from sidecar.evaluation.backends.tensorflow.measured_metric import (
    joined,
    places_of,
    require_weights_for_mask,
    taking,
    without_short_integers,
)
from sidecar.evaluation.backends.tensorflow.metrics_in_turn import mask_of
from sidecar.evaluation.backends.tensorflow.rounding import is_near
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.intervals import Interval
from sidecar.evaluation.metrics import sliced
from sidecar.evaluation.metrics.argument_names import first_kind, parameters_of
from sidecar.evaluation.metrics.average import Average
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult, value
from sidecar.evaluation.outputs import Output, by_output, pick, pick_weights, shown
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum, named, within
from sidecar.system.plain_text import shortened

_ADDED: Final = "added"
_ADDED_TOLERANCE: Final = 0.01  # between losses that layers add for a batch and for its halves; types of 16 bits round
_DIVISOR: Final = "divisor"  # name of the state that sums the weights


class KerasLoss:
    """Compute Σ w·l / N plus the losses that the built model adds and, if there are weights, Σ w·l / Σ w as well.

    N counts single losses: examples, or positions of a sequence. Masked positions do not count. The losses of several
    outputs are published, and so is their sum. A loss that is one number for a batch, such as the mean over its tokens
    or a sum, is weighted by the number of examples in the batch, as in Keras.
    """

    def __init__(self, loss: Any, model: Any, *, weighted: bool) -> None:
        self._model = model
        self._outputs = {
            output: _OutputLoss(output_loss, weighted=weighted) for output, output_loss in by_output(loss).items()
        }
        self._can_be_sliced = False
        self._adds_by_batch = False  # whether `differ` found losses added for a batch that are not those for its halves

    @property
    def outputs(self) -> list[Output]:
        """Return the outputs that have a loss."""
        return list(self._outputs)

    @property
    def is_of_batches(self) -> bool:
        """Return whether the loss of any output is one number for a batch; known after the first `step`."""
        return any(loss.is_of_batches for loss in self._outputs.values())

    def try_out(self, y: Any, predictions: Any, weights: Any, examples: int) -> None:
        """Try the losses on a first batch, and find those that are one number for a batch, or have no slices."""
        for output, loss in self._outputs.items():
            loss.try_out(pick(y, output), pick(predictions, output), pick_weights(weights, output), examples)
        self._can_be_sliced = all(loss.has_rows for loss in self._outputs.values())

    def depends_on_batches(
        self, whole: tuple[Any, Any, Any], halves: Sequence[tuple[Any, Any, Any]], sizes: Sequence[int]
    ) -> bool:
        """Return whether the losses of a batch (y, predictions, weights) differ from those of halves of these sizes."""
        for output, loss in self._outputs.items():
            of_whole, *of_halves = (
                loss.step(pick(y, output), pick(predictions, output), pick_weights(weights, output), size)["losses"]
                for (y, predictions, weights), size in zip((whole, *halves), (sum(sizes), *sizes), strict=True)
            )
            if loss.is_of_batches or _differ(of_whole, of_halves):
                return True
        return self._adds_by_batch

    def differ(self, whole: Mapping[str, Any], halves: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether what `step` returned for a batch differs from what it returned for its halves."""
        if _ADDED in whole:
            output, first = next(iter(self._outputs.items()))
            sizes = [first.counts({name: [part] for name, part in half[_state(output)].items()})[0] for half in halves]
            mean = np.average([half[_ADDED] for half in halves], weights=sizes) if sum(sizes) else whole[_ADDED]
            self._adds_by_batch |= not is_near(whole[_ADDED], mean, _ADDED_TOLERANCE)
        return (
            self.is_of_batches
            or self._adds_by_batch
            or any(
                _differ(whole[_state(output)]["losses"], [half[_state(output)]["losses"] for half in halves])
                for output in self._outputs
            )
        )

    def step(self, y: Any, predictions: Any, weights: Any, examples: Any) -> dict[str, Any]:
        """Compute within the traced step the single losses of a batch by output, and the losses that the model adds.

        `examples` is the number of examples in the batch.
        """
        outputs: dict[str, Any] = {
            _state(output): loss.step(
                pick(y, output), pick(predictions, output), pick_weights(weights, output), examples
            )
            for output, loss in self._outputs.items()
        }
        if self._model.losses:  # regularization, and the losses that layers added in this call
            added = [tf.cast(tf.convert_to_tensor(loss), tf.float32) for loss in self._model.losses]
            outputs[_ADDED] = tf.add_n(added)
        return outputs

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return the empty states of all outputs, and those of slices if values are those of examples."""
        states: SetStates = {_ADDED: ExactSum((), "float64")}
        for output, loss in self._outputs.items():
            states |= named(_state(output), loss.states(info))
        return states | (sliced.states_by_slice(self.states, info) if self._can_be_sliced else {})

    def add(
        self, states: SetStates, outputs: dict[str, Any], examples: Sequence[int], firsts: Sequence[int | None]
    ) -> None:
        """Add the outputs of `step` for several batches: a list with one array per batch for each tensor.

        `examples` has the number of examples in each batch, and `firsts` that of its first one in the whole set.
        """
        self._add(states, outputs, examples, firsts)
        if sliced.BY_SLICE not in states:
            return
        places = sliced.joined_places(firsts, examples)
        joint = {output: _joint(outputs[_state(output)]) for output in self._outputs}
        added = np.repeat(np.stack(outputs[_ADDED]).astype(np.float64), examples) if _ADDED in outputs else None
        sliced.require_rows("loss", len(places), {len(part["losses"]) for part in joint.values()})
        for of_slices, _, chosen in sliced.parts_of(states, places):
            for output, loss in self._outputs.items():
                part = {name: [array if array.ndim == 0 else array[chosen]] for name, array in joint[output].items()}
                loss.add(within(of_slices, _state(output)), part, [len(chosen)], [places[chosen]])
            if added is not None:
                exact_sum(of_slices, _ADDED).add_each(added[chosen])

    def _add(
        self, states: SetStates, outputs: dict[str, Any], examples: Sequence[int], firsts: Sequence[int | None]
    ) -> None:
        for output, loss in self._outputs.items():
            loss.add(within(states, _state(output)), outputs[_state(output)], examples, firsts)
        if _ADDED in outputs:
            output, first = next(iter(self._outputs.items()))
            counts = first.counts(outputs[_state(output)])
            exact_sum(states, _ADDED).add_each(np.stack(outputs[_ADDED]).astype(np.float64) * counts)  # exact: 24 bits

    def compute(self, states: SetStates) -> MetricResult:
        """Return `loss`, with an interval if examples have no weights; with `loss_weighted_mean` if they have."""
        return sliced.with_slices(self._compute(states), states, self._compute)

    def _compute(self, states: SetStates) -> MetricResult:
        parts = {output: (loss, within(states, _state(output))) for output, loss in self._outputs.items()}
        (first, first_states) = next(iter(parts.values()))
        count = first.count(first_states)
        added = float(exact_sum(states, _ADDED).round()) / count if count else 0.0
        means = {output: loss.mean(of_loss) for output, (loss, of_loss) in parts.items()}
        numbers = {"loss": math.fsum([added, *means.values()])}
        if first.weighted and not any(loss.is_of_batches for loss, _ in parts.values()):
            weighted_means = [loss.by_weight(of_loss) for loss, of_loss in parts.values()]
            numbers["loss_weighted_mean"] = math.fsum([added, *weighted_means])
        if len(parts) > 1:
            numbers |= {shown(output, "loss"): mean for output, mean in means.items()}
        interval: Interval = (None, None)
        if len(parts) == 1 and not first.weighted:
            lower, upper = first.interval(first_states)
            interval = (None, None) if lower is None or upper is None else (lower + added, upper + added)
        notes = (note for loss, of_loss in parts.values() for note in loss.notes(of_loss))
        return MetricResult(
            {
                name: value(number, "min", interval if name == "loss" else (None, None))
                for name, number in numbers.items()
            },
            notes=tuple(dict.fromkeys(notes)),
        )


class _OutputLoss:
    """Compute the loss of one output: single values and their weights, or one value for each batch."""

    def __init__(self, loss: Any, *, weighted: bool) -> None:
        if first_kind(loss) == 1:
            names, name = ", ".join(list(parameters_of(loss))[:2]), getattr(loss, "__name__", type(loss).__name__)
            raise task_error(
                f"Task(loss={name}) is a function of ({names}), and Keras passes the labels first: write "
                f"Task(loss=lambda y_true, y_pred: {name}(y_pred, y_true))"
            )
        reduction = getattr(loss, "reduction", None)
        self.is_of_batches = reduction == "sum"  # the first batch may set it, too
        self.divides_by_weight = reduction == "mean_with_sample_weight"
        self.is_unreduced = hasattr(loss, "reduction") and reduction in (None, "none")
        self.weighted = weighted
        self.has_rows = False  # whether there is one value for each example
        self._loss = loss
        self._single = _single_losses(loss)
        self._values = Average("float32")

    def try_out(self, y: Any, predictions: Any, weights: Any, examples: int) -> None:
        """Compute a first batch; a loss that divides in its own way is taken as one number for a batch."""
        with taking("Task(loss=…)", self._loss, y, predictions, weights):
            outputs = self.step(y, predictions, weights, examples)
        self.has_rows = not self.is_of_batches and array_of(outputs["losses"]).shape == (examples,)
        if self.is_of_batches or self.is_unreduced or not hasattr(self._loss, "reduction"):
            return
        if is_written_by_keras(type(self._loss).__call__):
            return
        ours = self._values.states() | {_DIVISOR: ExactSum((), "float32")}
        self.add(ours, tf.nest.map_structure(lambda tensor: [array_of(tensor)], outputs))
        theirs = array_of(_called(self._loss, y, predictions, weights))
        self.is_of_batches = theirs.shape != () or not is_near(theirs, np.asarray(self.mean(ours)))
        self.has_rows &= not self.is_of_batches

    def step(self, y: Any, predictions: Any, weights: Any, examples: Any) -> dict[str, Any]:
        if self.is_of_batches:
            return self._of_batch(y, predictions, weights, examples)
        if hasattr(self._loss, "reduction") and not is_keras_2(self._loss):
            require_weights_for_mask(weights, predictions)
        found = self._single(y, predictions, weights)
        if isinstance(found, tuple | list | Mapping):
            raise task_error(
                f"Task(loss=…) must return one tensor with a value for each example, found a {type(found).__name__} of "
                f"{len(found)}: return one of them, or their sum"
            )
        losses = tf.cast(tf.convert_to_tensor(found), tf.float32)
        if losses.shape.rank == 0 or _are_of_columns(
            losses, predictions
        ):  # found on the first batch, before any states
            self.is_of_batches = True
            return self._of_batch(y, predictions, weights, examples)
        outputs = {"losses": losses}
        if weights is not None:
            outputs["weights"] = _broadcast(tf.cast(weights, tf.float32), losses)
        mask = mask_of(predictions)
        if mask is not None and mask.shape.rank == losses.shape.rank:
            outputs = {name: tf.boolean_mask(tensor, mask) for name, tensor in outputs.items()}
        size = tf.size(losses, out_type=tf.int64)  # with masked positions
        return outputs | {"one_per_example": tf.equal(size, tf.cast(examples, tf.int64))}

    def _of_batch(self, y: Any, predictions: Any, weights: Any, examples: Any) -> dict[str, Any]:
        """Return the value of a batch and the number of its examples, by which Keras weights it."""
        if hasattr(self._loss, "reduction"):
            value = _called(self._loss, y, predictions, weights)
        else:
            value = tf.convert_to_tensor(self._loss(*without_short_integers(y, predictions)))
            if weights is not None:
                value *= tf.reduce_mean(tf.cast(weights, value.dtype))
        value = tf.cast(tf.convert_to_tensor(value), tf.float32)
        if value.shape.rank != 0:
            raise task_error(f"Task(loss=…) returns an array {value.shape} for a batch")
        return {"losses": value, "examples": tf.cast(examples, tf.int64)}

    def states(self, info: EvalSetInfo) -> SetStates:
        if self.is_of_batches:
            return {"total": ExactSum((), "float64"), "count": ExactSum((), "int64")}
        return self._values.states(info) | ({_DIVISOR: ExactSum((), "float32")} if self.weighted else {})

    def add(
        self,
        states: SetStates,
        outputs: dict[str, Any],
        examples: Sequence[int] = (),
        firsts: Sequence[int | NDArray[np.intp] | None] = (),
    ) -> None:
        if self.is_of_batches:
            sizes = np.stack(outputs["examples"]).astype(np.int64)
            exact_sum(states, "count").add(sizes.sum())
            with np.errstate(all="ignore"):  # exact: 24 bits and 29
                exact_sum(states, "total").add_each(np.stack(outputs["losses"]).astype(np.float64) * sizes)
            return
        are_single = all(map(bool, outputs["one_per_example"]))
        places = places_of(outputs["losses"], examples, firsts) if are_single and examples else None
        self._values.add(states, joined(outputs["losses"]), one_per_example=are_single, places=places)
        if "weights" in outputs:
            exact_sum(states, _DIVISOR).add_each(np.concatenate([weights.ravel() for weights in outputs["weights"]]))

    def counts(self, outputs: dict[str, Any]) -> list[int]:
        """Return the number of losses in each batch."""
        if self.is_of_batches:
            return [int(examples) for examples in outputs["examples"]]
        return [losses.size for losses in outputs["losses"]]

    def count(self, states: SetStates) -> int:
        return self._values.count(states)

    def by_weight(self, states: SetStates) -> float:
        weight = float(exact_sum(states, _DIVISOR).round())
        return self._values.total(states) / weight if weight else math.nan

    def mean(self, states: SetStates) -> float:
        if self.is_of_batches:
            count = self._values.count(states)
            return self._values.total(states) / count if count else math.nan
        if self.weighted and self.divides_by_weight:
            return self.by_weight(states)
        return self._values.mean(states)

    def interval(self, states: SetStates) -> Interval:
        return (None, None) if self.is_of_batches else self._values.interval(states)

    def notes(self, states: SetStates) -> tuple[str, ...]:
        """Return notes about numbers that differ from those of Keras on purpose."""
        if self.weighted and self.divides_by_weight:
            if not exact_sum(states, _DIVISOR).round():
                return undefined(["loss"])
            return ("loss is Σ w·l / Σ w over all examples; Keras takes the mean of that over its batches",)
        if self.is_unreduced:
            return (
                "loss is the mean over all examples; with reduction 'none' Keras weights a batch by its size squared",
            )
        return ()


def _are_of_columns(losses: Any, predictions: Any) -> bool:
    """Return whether losses are known to be other than one for each row, such as those along axis 0.

    Rows may be flat: those of predictions (8, 4, 4, 3) are 8, 32, 128 or 384.
    """
    if not isinstance(predictions, tf.Tensor) or None in (*losses.shape[:1], *predictions.shape):
        return False
    return bool(predictions.shape.rank) and losses.shape[0] not in accumulate(predictions.shape, operator.mul)


def _state(output: Output) -> str:
    """Return the prefix of the state names of an output."""
    return "all" if output is None else f"of {output}"


def _joint(outputs: Mapping[str, Sequence[NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return the single losses of several batches, and their weights, as those of one batch."""
    return {
        name: np.array(all(map(bool, parts))) if name == "one_per_example" else np.concatenate(list(parts))
        for name, parts in outputs.items()
    }


def _differ(of_whole: Any, of_halves: Sequence[Any]) -> bool:
    parts = [array_of(losses).ravel() for losses in of_halves]
    return not is_near(array_of(of_whole).ravel(), np.concatenate(parts))


def _single_losses(loss: Any) -> Callable[[Any, Any, Any], Any]:
    """Return a function that computes the weighted loss of each example, from a loss object or a function."""
    if hasattr(loss, "reduction"):
        single = object.__new__(type(loss))  # `copy` would make one of Keras from its get_config, which may lack a part
        single.__dict__.update(vars(loss))
        single.reduction = "none"
        return lambda y, predictions, weights: _called(single, y, predictions, weights)
    if not callable(loss):
        raise task_error(f"Task(loss={shortened(loss)}) must be a loss object or a function of (y, y_pred)")

    def apply(y: Any, predictions: Any, weights: Any) -> Any:
        losses = tf.convert_to_tensor(loss(*without_short_integers(y, predictions)))
        return losses if weights is None else losses * _broadcast(tf.cast(weights, losses.dtype), losses)

    return apply


def _called(loss: Any, y: Any, predictions: Any, weights: Any) -> Any:
    """Call a loss object; one of the user may take no weights."""
    return loss(y, predictions) if weights is None else loss(y, predictions, sample_weight=weights)


def _broadcast(weights: Any, losses: Any) -> Any:
    """Return one weight per loss: the weight of an example applies to all its positions."""
    while weights.shape.rank < losses.shape.rank:
        weights = weights[..., tf.newaxis]
    if weights.shape.rank > losses.shape.rank:
        weights = tf.squeeze(weights, -1)  # (N, 1) for losses (N,), as Keras does
    return tf.broadcast_to(weights, tf.shape(losses))
