"""Compute the losses of all outputs of a model, and their sum, as Keras names them.

`Task(loss={"kind": nn.CrossEntropyLoss(), "size": nn.MSELoss()})` gives the numbers `loss`, which is the sum,
`kind_loss` and `size_loss`. Each part is computed as `loss` says. A single loss is the loss of the only output.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sidecar.evaluation.backends.torch.loss import LOSS_ARRAYS, TorchLoss, joined_losses, part_of_loss
from sidecar.evaluation.batch_dependence import UNTESTED
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.metrics import sliced
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult, value
from sidecar.evaluation.outputs import Output, by_output, pick, pick_weights, shown
from sidecar.evaluation.states import SetStates, named, within
from sidecar.system.plain_text import shortened


class OutputLosses:
    """Compute the loss of each output that `Task.loss` names, or of the only one.

    Raises `EvaluationError` for a dict without losses, and for what is not a loss.
    """

    def __init__(self, loss: Any, device: torch.device) -> None:
        given = dict(enumerate(loss)) if isinstance(loss, list | tuple) else by_output(loss)
        self._losses: dict[Output, TorchLoss] = {
            output: TorchLoss(one, device) for output, one in given.items() if one is not None
        }
        if not self._losses:
            raise task_error(
                f"Task(loss={shortened(loss)}) has no loss: give one for at least one output, or leave it out"
            )

    @property
    def width(self) -> int:
        """Number of arrays that `arrays` returns."""
        return LOSS_ARRAYS * len(self._losses)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the losses of all outputs."""
        return tuple(self._name(output) for output in self._losses)

    @property
    def add_up(self) -> bool:
        """Return whether all losses are classes of torch whose values are known to depend on single items alone."""
        return all(loss.adds_up for loss in self._losses.values())

    def compare_whole(self, is_compared: bool) -> None:
        """Choose whether losses of one's own are also called as they are: see `TorchLoss`."""
        for loss in self._losses.values():
            loss.compares_whole = is_compared

    def depending(self, y: Any, predictions: Any, weights: Any, halves: Sequence[slice], examples: int) -> set[str]:
        """Return the names of losses whose values for halves of the predictions differ; `UNTESTED` if unknown."""
        found = {
            self._name(output): loss.depends_on_batches(*_picked(output, y, predictions, weights), halves, examples)
            for output, loss in self._losses.items()
        }
        return {UNTESTED if depends is None else name for name, depends in found.items() if depends is not False}

    def require_same(self, y: Any, predictions: Any, weights: Any, examples: int) -> None:
        """Raise `EvaluationError` if a loss of one's own keeps something from call to call."""
        for output, loss in self._losses.items():
            loss.require_same(*_picked(output, y, predictions, weights), examples)

    def differing(self, whole: list[NDArray[Any]], halves: Sequence[list[NDArray[Any]]], tolerance: float) -> set[str]:
        """Return the names of losses for which `arrays` of halves are not a division of those of the whole batch."""
        found = set()
        for number, (output, loss) in enumerate(self._losses.items()):
            own = slice(LOSS_ARRAYS * number, LOSS_ARRAYS * (number + 1))
            if loss.differ(whole[own], [half[own] for half in halves], tolerance):
                found.add(self._name(output))
        return found

    def _name(self, output: Output) -> str:
        return "loss" if len(self._losses) == 1 else shown(output, "loss")

    def states(self, info: EvalSetInfo | None = None) -> SetStates:
        """Return new states; with `info`, those of slices, too."""
        states: SetStates = {}
        for output, loss in self._losses.items():
            states |= loss.states(info) if output is None else named(_state(output), loss.states(info))
        return states if info is None else states | sliced.states_by_slice(self.states, info)

    def arrays(self, y: Any, predictions: Any, weights: Any, examples: int) -> list[NDArray[Any]]:
        """Return what one batch adds, always in the same order: see `TorchLoss.arrays`."""
        return [
            array
            for output, loss in self._losses.items()
            for array in loss.arrays(*_picked(output, y, predictions, weights), examples)
        ]

    def add(
        self,
        states: SetStates,
        arrays: list[list[NDArray[Any]]],
        firsts: Sequence[int | None],
        examples: Sequence[int],
    ) -> None:
        """Add several batches of so many examples; each item of `arrays` is a list with one array per batch."""
        self._add(states, arrays, firsts)
        if sliced.BY_SLICE not in states:
            return
        losses = [joined_losses(arrays[at : at + LOSS_ARRAYS], examples) for at in range(0, self.width, LOSS_ARRAYS)]
        places = sliced.joined_places(firsts, examples)
        rows = {len(each[0]) if len(each[0]) != len(each[2]) else len(places) for each in losses}
        sliced.require_rows("loss", len(places), rows)
        for of_slices, _, chosen in sliced.parts_of(states, places):
            part = [[array] for each in losses for array in part_of_loss(each, chosen, len(places))]
            self._add(of_slices, part, [places[chosen]])

    def _add(
        self,
        states: SetStates,
        arrays: list[list[NDArray[Any]]],
        firsts: Sequence[int | NDArray[np.intp] | None],
    ) -> None:
        for number, (output, loss) in enumerate(self._losses.items()):
            own = arrays[LOSS_ARRAYS * number : LOSS_ARRAYS * (number + 1)]
            loss.add(states if output is None else within(states, _state(output)), own, firsts)

    def compute(self, states: SetStates) -> MetricResult:
        """Return `loss`, also by slice; for several outputs their sum, without an interval, and the loss of each."""
        return sliced.with_slices(self._compute(states), states, self._compute)

    def _compute(self, states: SetStates) -> MetricResult:
        if set(self._losses) == {None}:
            return self._losses[None].compute(states)
        results = {output: loss.compute(within(states, _state(output))) for output, loss in self._losses.items()}
        notes = tuple(dict.fromkeys(note for result in results.values() for note in result.notes))
        if len(results) == 1:
            return MetricResult(next(iter(results.values())).values, notes=notes)
        values = {shown(output, "loss"): result.values["loss"] for output, result in results.items()}
        parts = [float.fromhex(part.hex) for part in values.values()]
        total = math.fsum(parts) if all(map(math.isfinite, parts)) else sum(parts)
        return MetricResult({"loss": value(total, "min")} | values, notes=notes)

    def without_ignored(self, y: Any, weights: Any) -> Any:
        """Return weights, by output if there are several, in which positions that a loss ignores have the weight 0."""
        if set(self._losses) == {None}:
            return self._losses[None].without_ignored(y, weights)
        outputs: list[Output] = (
            list(y) if isinstance(y, Mapping) else list(range(len(y))) if isinstance(y, list | tuple) else []
        )
        by_key: dict[Output, Any] = {}
        for output in outputs:
            own = weights if weights is None or _lacks(weights, output) else pick_weights(weights, output)
            loss = self._losses.get(output)
            by_key[output] = own if loss is None else loss.without_ignored(pick(y, output), own)
        given = (weights.get(key) if isinstance(weights, Mapping) else weights for key in by_key)
        return weights if all(one is other for one, other in zip(by_key.values(), given, strict=True)) else by_key


def _picked(output: Output, y: Any, predictions: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Return labels, predictions and weights of one output; all of them if a loss takes all outputs together."""
    if output is None:
        return y, predictions, weights
    return pick(y, output), pick(predictions, output), pick_weights(weights, output)


def _lacks(weights: Any, output: Output) -> bool:
    return isinstance(weights, Mapping) and output not in weights


def _state(output: Output) -> str:
    """Return the prefix of the names of an output's states."""
    return f"of {output}"
