"""Run batches of a model of PyTorch so that the result of a batch depends on the weights and the batch alone.

How that is achieved, and what is refused, is described in the modules `repeatability`.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
import torch
from torch import nn

from sidecar.evaluation.backend import Keep, Tick
from sidecar.evaluation.backends.torch import repeatability
from sidecar.evaluation.backends.torch.dataset_source import LoadedBatch
from sidecar.evaluation.backends.torch.lightning import LightningStep, is_lightning
from sidecar.evaluation.backends.torch.step import Step
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.reader import EvalSetReader
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.eval_loop import LEFT_OUT, BatchOutput, evaluate_set
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult
from sidecar.evaluation.repeatability import AFTER_OTHERS, NOTE, REPEATED
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum
from sidecar.evaluation.task import Task, call

_DRAWN: Final = "batches with random numbers"  # name of a state


class BatchRunner:
    """Evaluate eval sets with one model on one device.

    Attributes:
        model: The model of the task.
        step: Runs the model on one batch.
        weights_digest: Waits for the digest of the restored values, from which random numbers are seeded.
    """

    def __init__(self, task: Task, device: torch.device) -> None:
        self._task, self._device = task, device
        self.model = built(task).to(device)
        self.step = step_for(task, self.model, device)
        self._of_compilation = repeatability.switch_off_compilation(self.model)
        self.weights_digest: Callable[[], str] = lambda: ""
        self._draws: set[str] = set()  # eval sets for which the model draws random numbers, on this rank
        self._repeated: set[str] = set()  # eval sets whose first batch was evaluated several times
        self._suspects: tuple[str, ...] = ()  # attributes of the model that a forward pass changes
        self._fresh: nn.Module | None = None  # a new model with the restored values, to compare its outputs

    def try_out(self, batches: list[tuple[Batch, int]]) -> None:
        """Run the new model on a first batch of each eval set, given with its number of examples."""
        before = repeatability.attributes(self.model)
        for batch, examples in batches:
            self.step.try_out(batch, examples)
        self._suspects = repeatability.changed_attributes(self.model, before)
        self.model.requires_grad_(requires_grad=False)

    def note_restored(self) -> None:
        """Prepare the restored model, before its values are hashed and saved in other threads."""
        self.model.requires_grad_(requires_grad=False)
        self._fresh = self._new_with_these_values() if self._suspects else None
        self.model.eval()  # some modules merge weights now

    def _new_with_these_values(self) -> nn.Module | None:
        """Return a new model with the values of the present one; None if a forward pass has to make some parts."""
        fresh = built(self._task).to(self._device)
        try:
            fresh.load_state_dict(self.model.state_dict())
        except RuntimeError:
            self._suspects = ()
            return None
        return fresh.requires_grad_(requires_grad=False)

    def states(self, info: EvalSetInfo) -> SetStates:
        """Return new states of one eval set."""
        return self.step.states(info) | {_DRAWN: ExactSum((), "int64"), LEFT_OUT: ExactSum((), "int64")}

    def compute(self, states: SetStates) -> MetricResult:
        """Return the numbers of one eval set, with notes about random numbers and compilation."""
        numbers = self.step.compute(states)
        drawn = (NOTE,) if int(exact_sum(states, _DRAWN).integers()) else ()
        return MetricResult(numbers.values, numbers.classes, (*numbers.notes, *drawn, *self._of_compilation))

    def evaluate(self, reader: EvalSetReader, states: SetStates, shard: Shard, tick: Tick, keep: Keep) -> SetStates:
        """Add the batches of this rank to new states. Raises `EvaluationError` for a model that is not repeatable."""
        self.model.eval()
        self.step.begin()
        drawn = left_out = 0
        before = repeatability.versions(self.model)
        first_own: tuple[Batch, int | bytes, int, BatchOutput] | None = None

        def run(batch: Batch, number: int, first: int | None) -> BatchOutput:
            nonlocal first_own, drawn, left_out
            place = reader.digest(batch) if first is None else number
            output, has_drawn = self._run(reader, batch, place, number)
            drawn += has_drawn
            left_out += batch.left_out if isinstance(batch, LoadedBatch) else 0
            if first_own is None and reader.name not in self._repeated:
                first_own = batch, place, number, output
                self._require_equal(output, self._run(reader, batch, place, number)[0], REPEATED)
                self._compare_with_fresh(reader, batch, place, number, output)
            return output

        evaluated = evaluate_set(
            reader,
            states,
            run=run,
            add=partial(self.step.add, states),
            finish=lambda: None,
            shard=shard,
            tick=tick,
            keep=keep,
        )
        repeatability.require_unchanged(self.model, before)
        if first_own is not None:
            batch, place, number, output = first_own
            self._require_equal(output, self._run(reader, batch, place, number)[0], AFTER_OTHERS)
            self._repeated.add(reader.name)
        exact_sum(evaluated, _DRAWN).add(np.int64(drawn))
        exact_sum(evaluated, LEFT_OUT).add(np.int64(left_out))
        return evaluated

    def _compare_with_fresh(
        self, reader: EvalSetReader, batch: Batch, place: int | bytes, number: int, output: BatchOutput
    ) -> None:
        """Raise `EvaluationError` if outputs depend on what the model computed from earlier weights."""
        if self._fresh is None:
            return
        used, self.step = self.step, step_for(self._task, self._fresh, self._device)
        try:
            self.step.mode = used.mode
            other, _ = self._run(reader, batch, place, number)
        finally:
            self.step = used
        if self._device.type == "cpu":
            repeatability.require_independent(output.arrays, other.arrays, self._suspects)
        self._suspects, self._fresh = (), None

    def _run(self, reader: EvalSetReader, batch: Batch, place: int | bytes, number: int) -> tuple[BatchOutput, bool]:
        """Run one batch, and return whether the model drew random numbers. Then these were seeded."""
        examples = reader.examples_in(batch)
        if reader.name not in self._draws:
            before = repeatability.generators()
            output = self.step.run(batch, examples, number)
            if repeatability.generators() == before:
                return output, False
            self._draws.add(reader.name)
        repeatability.seed(self.weights_digest(), reader.name, place)
        seeded = repeatability.generators()
        output = self.step.run(batch, examples, number)
        return output, repeatability.generators() != seeded

    def _require_equal(self, one: BatchOutput, other: BatchOutput, when: str) -> None:
        if self._device.type == "cpu":  # kernels of a GPU may add in any order
            repeatability.require_equal(one.arrays, other.arrays, when)


def step_for(task: Task, model: nn.Module, device: torch.device) -> Step | LightningStep:
    """Return what measures batches: the task's metrics and loss, or the model's own `validation_step`."""
    if task.metrics is not None or task.loss is not None:
        return Step(task, model, device)
    if task.step is None and is_lightning(model):
        return LightningStep(task, model, device)
    raise EvaluationError(
        "task_error",
        "framework = 'torch' needs Task(metrics=…) or Task(loss=…), or nothing would be measured; only a "
        "LightningModule measures by itself, in its validation_step",
    )


def built(task: Task) -> nn.Module:
    """Return the task's model. Its first values do not matter, but they must be the same on all ranks."""
    assert task.build_model is not None, "the dispatcher checks it"
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - the generator that a task may use
    random.seed(0)
    model = call("Task(build_model=…)", task.build_model)
    if not isinstance(model, nn.Module):
        raise EvaluationError(
            "task_error", f"Task(build_model=…) must return a torch.nn.Module, found {type(model).__name__}"
        )
    return model
