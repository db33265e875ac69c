"""Run batches of a model of PyTorch so that the result of a batch depends on the weights and the batch alone.

How that is achieved, and what is refused, is described in the modules `repeatability`.
"""

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parameter import is_lazy

from sidecar.errors import TaskError
from sidecar.evaluation.backend import SaveRows, Tick
from sidecar.evaluation.backends.torch import repeatability
from sidecar.evaluation.backends.torch.dataset_source import LoadedBatch
from sidecar.evaluation.backends.torch.lightning import LightningStep, is_lightning, prepare, read_checkpoint
from sidecar.evaluation.backends.torch.outside_modules import Watch, kept_by, modules_in, require_repeated
from sidecar.evaluation.backends.torch.step import Step
from sidecar.evaluation.backends.torch.stored_settings import StoredSettings
from sidecar.evaluation.backends.torch.tensors import part_of, types_of_device, types_of_outputs, values_in
from sidecar.evaluation.backends.torch.torchmetrics_members import is_torchmetric
from sidecar.evaluation.batch_dependence import BatchDependence
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.reader import EvalSetReader
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.eval_loop import LEFT_OUT, BatchOutput, evaluate_set
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.finished_batches import FinishedBatches
from sidecar.evaluation.first_batch import FIRST_EXAMPLE, FirstBatch, OfParts, tried
from sidecar.evaluation.measurement import chosen
from sidecar.evaluation.metrics.metric import EvalSetInfo, MetricResult
from sidecar.evaluation.name_patterns import matches
from sidecar.evaluation.repeatability import RandomDraws, SeededStep, digest_of, without_seeds
from sidecar.evaluation.row_comparison import rows_differ, tolerance_for
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum
from sidecar.evaluation.task import Task, call
from sidecar.system.plain_text import listed

if TYPE_CHECKING:
    from sidecar.evaluation.backends.torch.division import Division

_BUILT_TWICE_BYTES: Final = 1 << 30
"""Largest model that is built twice to find numbers which `build_model` draws."""

_Arrays = list[NDArray[Any]]

_Both = Callable[..., tuple[_Arrays, _Arrays, float]]
"""`BatchRunner._both` of a batch: a function of another model, and of `few`."""

Parts = Callable[[Batch, int, Sequence[slice]], Sequence[tuple[Batch, int]]]
"""A function that returns parts of a batch, which has this number, with their sizes; none if it cannot be divided."""


class BatchRunner:
    """Evaluate eval sets with one model on one device.

    Attributes:
        model: The model of the task.
        step: Runs the model on one batch of the eval set that is evaluated.
    """

    def __init__(self, task: Task, device: torch.device, division: "Division | None" = None) -> None:
        self._task, self._device, self._division = task, device, division
        _seed(0)
        self.model = self._built()
        # of `build_model`, which a checkpoint may lack; generators of its own leave no trace in the global ones
        is_small = _size_of(self.model) <= _BUILT_TWICE_BYTES
        self._may_hold_draws = is_small and bool(task.eval_sets) and task.restore is None
        is_compared = is_small and bool(task.eval_sets) and division is None
        self._built_values: dict[str, bytes] | None = None if is_compared else {}  # digests, for Task(restore=…)
        self._built_places: dict[str, tuple[int, int]] = {}
        self._steps = _steps_for(task, self.model, device)
        self._require_nothing_outside()
        self.step = next(iter(self._steps.values()))
        self._of_compilation = repeatability.switch_off_compilation(self.model)
        self._draws = RandomDraws(repeatability.seed, repeatability.generators)
        self._first_batch: FirstBatch | None = None
        self._suspects: tuple[str, ...] = ()  # attributes of the model that a forward pass changes
        self.settings = StoredSettings(self.model) if is_compared else None
        """Those of the checkpoint."""
        self._fresh: nn.Module | None = None  # a new model with the restored values, to compare its outputs

    def _built(self, seed: int = 0) -> nn.Module:
        """Return a new model of the task on the device, or the part of it for this process.

        That with a seed is only compared, and gets the values of the model.
        """
        build = partial(built, self._task, seed)
        if self._division is None:
            return build().to(self._device)
        return self._division.divided(build, self._device, has_values=not seed)

    def _require_nothing_outside(self) -> None:
        """Raise `EvaluationError` for random numbers in metrics, which no checkpoint holds."""
        for name, step in self._steps.items():
            of_set = self._task.of_set(name) if name else self._task
            networks = list(modules_in(step.metrics).values()) if isinstance(step, Step) else []
            if isinstance(step, Step) and networks and _size_of(nn.ModuleList(networks)) <= _BUILT_TWICE_BYTES:
                _seed(1)
                require_repeated(step.metrics, [metric for _, metric in chosen(of_set, is_torchmetric)])
                _seed(0)

    def try_out(self, batches: Mapping[str, tuple[Batch, int]], set_back: Callable[[], None]) -> None:
        """Run the new model on a first batch of each eval set, given by name with its number of examples.

        `set_back`: gives what the task's code keeps the values that it had before.
        """
        before = repeatability.attributes(self.model)
        for eval_set, (batch, examples) in batches.items():
            self._enter(eval_set)
            watch = Watch(self.model) if self._division is None else None  # processes divide parameters
            self._try_out(batch, examples, watch)
            if watch is not None:
                watch.require_restored(self._task.of_set(eval_set))
                if kept := watch.kept():
                    error = kept_by(self._task.of_set(eval_set), kept[0])  # names a place that is set back next
                    if not self._is_made_anew(kept, batch, examples, watch, set_back):
                        raise error
        self._suspects = repeatability.changed_attributes(self.model, before)
        names = [name for step in self._steps.values() for name in step.names]
        if any(isinstance(step, Step) for step in self._steps.values()):
            self._task.require_in_turn(list(dict.fromkeys(names)))
        self._first_batch = FirstBatch(BatchDependence(names), self._require_equal)

    def _enter(self, eval_set: str) -> None:
        """Let the next calls of the step be about this eval set, which may be measured in its own way."""
        self.step = self._steps[eval_set]
        if isinstance(self.step, LightningStep):
            self.step.index = list(self._task.eval_sets).index(eval_set)

    def in_turn(self, eval_set: str) -> dict[str, str]:
        """Return the metrics of an eval set that are updated in turn, with the reason of each."""
        self._enter(eval_set)
        return self.step.in_turn()

    def _try_out(self, batch: Batch, examples: int, watch: Watch | None) -> None:
        """Run the step on a first batch, and choose its mode.

        The model may still make variables, which must not be tensors of the inference mode.
        """
        chosen = self.step.mode
        self._run_watched(torch.no_grad, batch, examples, watch)
        try:
            self._run_watched(chosen, batch, examples, watch)
        except RuntimeError:  # gradients of inputs cannot be computed in the inference mode
            self._run_watched(torch.no_grad, batch, examples, watch)

    def _is_made_anew(
        self, kept: Sequence[Any], batch: Batch, examples: int, watch: Watch, set_back: Callable[[], None]
    ) -> bool:
        """Return whether the step makes what it keeps anew, once set back, and the same of whichever examples."""
        set_back()
        is_loaded = isinstance(batch, LoadedBatch)
        try:
            part = part_of(batch.content if is_loaded else batch, FIRST_EXAMPLE, examples)
            self._run_watched(self.step.mode, LoadedBatch(part, 1) if is_loaded else part, 1, watch)
        except (RuntimeError, TaskError, ValueError):  # it cannot be divided
            return False
        self._run_watched(self.step.mode, batch, examples, watch)
        again = watch.kept()
        set_back()
        both = zip(kept, again, strict=False)
        alike = (one.shape == other.shape and torch.allclose(*map(_as_float64, (one, other))) for one, other in both)
        return examples > 1 and len(again) == len(kept) and all(alike)

    def _run_watched(
        self,
        mode: type[torch.inference_mode | torch.no_grad],
        batch: Batch,
        examples: int,
        watch: Watch | None,
    ) -> None:
        self.step.mode = mode
        if watch is not None:
            watch.run += 1
        self.step.watch = watch or contextlib.nullcontext()
        try:
            self.step.run(batch, examples, 0)
        finally:
            self.step.watch = contextlib.nullcontext()

    def begins_again(self, of_sets: Mapping[str, SetStates]) -> bool:
        """Return whether a metric has proved to be no sum in a set, so that the evaluation must be done again."""
        by_step: dict[Step | LightningStep, list[SetStates]] = {}
        for eval_set, states in of_sets.items():
            by_step.setdefault(self._steps[eval_set], []).append(states)
        found = [step.begins_again(states) for step, states in by_step.items()]  # each notes what it finds
        return any(found)

    def note_built(self) -> None:
        """Remember the values that `build_model` made. Call it before `Task(restore=…)` is called the first time."""
        if self._built_values is None:
            self._built_values = repeatability.digests(self.model)
            self._built_places = repeatability.places(self.model)

    def require_replaced(self, returned: Any) -> tuple[str, ...]:
        """Return a note on random values that `Task(restore=…)` left and the task names in `from_build_model`.

        `returned`: what it returned, which is not used. Raises `EvaluationError` for other values: a second model has
        other ones; and if nothing was written into the model. Nothing is looked at after a success.
        """
        before = self._built_values or {}
        after = repeatability.digests(self.model) if before else {}
        now, places = repeatability.places(self.model), self._built_places  # a file may hold these very values
        left = [
            name for name, value in before.items() if after.get(name) == value and places.get(name) == now.get(name)
        ]
        if left and len(left) == len(before):
            raise repeatability.not_restored(returned)
        random_ones = self._drawn_anew(left, before) if left else []
        refused = [name for name in random_ones if not matches(name, self._task.from_build_model)]
        if refused:
            raise repeatability.left_by_restore(refused, before.keys() - set(refused))
        self._built_values = {}
        if not random_ones:
            return ()
        return (f"random values of build_model, which Task(restore=…) left (from_build_model): {listed(random_ones)}",)

    def _drawn_anew(self, names: Sequence[str], before: Mapping[str, bytes]) -> list[str]:
        """Return those of the names that have other values in a second model, whatever seed `build_model` sets."""
        _seed(1)
        try:
            with without_seeds((torch, "manual_seed"), (torch.random, "manual_seed"), (torch.cuda, "manual_seed_all")):
                other = repeatability.digests(self._built(seed=1))
        except (RuntimeError, TaskError):  # of a function that can be called only once, too
            return []
        return [name for name in names if other.get(name, before[name]) != before[name]]

    def note_settings(self, content: Any, path: Path) -> None:
        """Note the settings that a checkpoint was saved with. The first batch shows whether they matter."""

        def give_values(other: nn.Module) -> None:
            prepare(other)
            self._give_values(other.to(self._device), content)

        if self.settings is not None:
            self.settings.see(content, path, give_values)

    def note_restored(self, content: Any = None) -> None:
        """Prepare the restored model, before its values are hashed and saved in other threads."""
        self._fresh = self._new_with_these_values(content) if self._suspects or self._may_hold_draws else None
        self.model.eval()  # some modules merge weights now

    def _new_with_these_values(self, content: Any) -> nn.Module | None:
        """Return a new model with the values of the present one; None if a forward pass has to make some parts.

        It is built with other random numbers than the present one.
        """
        try:
            return self._give_values(self._built(seed=1), content)
        except (RuntimeError, TaskError):  # of a function that can be called only once, too
            self._suspects, self._may_hold_draws = (), False
            return None

    def _give_values(self, other: nn.Module, content: Any) -> nn.Module:
        is_divided = self._division is not None  # then there is no memory for values that are the same
        other.load_state_dict(self.model.state_dict(), assign=is_divided)
        read_checkpoint(other, content)
        return other.eval()

    @property
    def first_batch(self) -> FirstBatch:
        """Return the findings of the first batches so far."""
        assert self._first_batch is not None, "try_out() made it"
        return self._first_batch

    def seed_with(self, weights_digest: Callable[[], str]) -> None:
        """Seed random numbers from now on with the digest that this function waits for."""
        self._draws.weights_digest = weights_digest
        for eval_set in self._task.sets().values():
            step: Any = eval_set.step
            if isinstance(step, SeededStep):
                step.seed_with(weights_digest)

    def states(self, eval_set: str, info: EvalSetInfo) -> SetStates:
        """Return new states of one eval set."""
        self._enter(eval_set)
        left_out: SetStates = {LEFT_OUT: ExactSum((), "int64")}
        return self.step.states(info) | self._draws.states(eval_set) | self.first_batch.dependence.states() | left_out

    def compute(self, reader: EvalSetReader, states: SetStates) -> MetricResult:
        """Return the numbers of one eval set, with notes about batches, random numbers and compilation.

        Raises `EvaluationError` for numbers that depend on batches which depend on the number of workers.
        """
        self._enter(reader.name)
        dependence = self.first_batch.dependence
        has_keys = reader.groups is not None or bool(reader.slices)
        dependence.refuse(states, reader.name, reader.sharding, has_keys=has_keys)
        self._draws.refuse(states, reader.name, reader.sharding)
        self.step.refuse(states, reader.name, reader.sharding)
        numbers = self.step.compute(states)
        notes = *numbers.notes, *dependence.notes(states), *self._draws.notes(states), *self._of_compilation
        return replace(numbers, notes=notes)

    def evaluate(
        self,
        reader: EvalSetReader,
        states: SetStates,
        shard: Shard,
        tick: Tick,
        keep: SaveRows,
        parts: Parts,
        taken: SetStates | None = None,
        finished: FinishedBatches | None = None,
    ) -> SetStates:
        """Add the batches of this rank to new states; with `taken`, which an attempt before found, those instead.

        Batches that are `finished` are not run, apart from the first one.

        In a process that follows the leader of its worker, the model runs on all of them, and the states stay new.

        Raises `EvaluationError` for a model that is not repeatable.
        """
        self.model.eval()
        self._enter(reader.name)
        self.step.begin(is_first=not self.first_batch.is_repeated(reader.name))
        finished = finished or FinishedBatches()
        finished.complete = partial(self._add_found, reader.name)
        is_in_turn = bool(self.step.in_turn())
        before = repeatability.versions(self.model)
        first_batch = self.first_batch.of(reader.name, reader.batches, shard.world_size, self.step.contents)
        compare_first: Callable[[], None] | None = None

        def run(batch: Batch, number: int, first: int | None) -> BatchOutput:
            nonlocal compare_first
            place = reader.digest(batch) if first is None else number
            run_again = partial(self._run, reader, batch, place, number)
            self.step.keeps = first_batch.divides_next(number)
            output = run_again()
            self.step.keeps = False
            if isinstance(batch, LoadedBatch) and not finished.is_compared(number):
                exact_sum(states, LEFT_OUT).add(np.int64(batch.left_out))
            given = *output.arrays, *output.columns.values()
            finished.see(number, partial(digest_of, given), needs_more=is_in_turn)
            examples = reader.examples_in(batch)
            divide = partial(self._find_dependence, reader, batch, output, parts)
            predict = partial(self._predict_part, reader, batch, place)
            first_batch.see(output, number, examples, again=run_again, parts=divide, predict=predict)
            both = partial(self._both, reader, batch, place, number, output)
            if self.settings is not None:
                self.settings.compare(partial(_differs, both))
            if compare_first is None:  # the model was tried on this batch, and may keep the same of it
                compare_first = partial(self._compare_with_fresh, both)
            else:
                self._compare_with_fresh(both)
            return output

        seeds = count()

        def update_in_turn(inputs: Any) -> None:
            place = f"{reader.name} in turn"
            digest = self._draws.weights_digest
            self.step.update_in_turn(inputs, lambda: repeatability.seed(digest(), place, next(seeds)))

        def finish() -> None:
            if compare_first is not None:
                compare_first()  # it was the only one
            self._fresh, self._may_hold_draws = None, False  # ranks without a batch leave this to others
            repeatability.require_unchanged(self.model, before)
            first_batch.finish(states)
            if self._has_states:
                self.step.finish(states, is_first=shard.rank == 0)

        evaluated = evaluate_set(
            reader,
            states,
            run=run,
            add=partial(self.step.add, states) if self._has_states else lambda *_: None,
            finish=finish,
            shard=shard,
            tick=tick,
            keep=keep,
            update_in_turn=update_in_turn if self._has_states else None,
            taken=taken,
            finished=finished,
        )
        self._draws.add_to(evaluated, reader.name)
        return evaluated

    def _add_found(self, eval_set: str, states: SetStates) -> None:
        """Add to states what the batches of this rank so far have shown, which is else added at the end."""
        self._draws.add_to(states, eval_set)
        self.first_batch.dependence.add_to(states, eval_set)
        if isinstance(self.step, Step):
            self.step.add_found(states)

    @property
    def _has_states(self) -> bool:
        """Whether states are made of the outputs of this process."""
        return self._division is None or self._division.leads

    def outputs(self, reader: EvalSetReader, batch: Batch) -> list[NDArray[Any]]:
        """Return what the model computes for the first batch of an eval set, to compare it with that of other ranks."""
        self.model.eval()
        self._enter(reader.name)
        return self._draws.run(reader.name, 0, partial(self.step.predicted, batch, reader.examples_in(batch))).arrays

    def _predict_part(self, reader: EvalSetReader, batch: Batch, place: int | bytes, places: slice) -> BatchOutput:
        """Let the model predict for some examples of a batch alone."""
        is_loaded, examples = isinstance(batch, LoadedBatch), reader.examples_in(batch)
        content, size = batch.content if is_loaded else batch, len(range(examples)[places])

        def run() -> BatchOutput:
            part = part_of(content, places, examples)
            return self.step.predicted(LoadedBatch(part, size) if is_loaded else part, size)

        return self._draws.run(reader.name, place, run)

    def _find_dependence(
        self, reader: EvalSetReader, batch: Batch, output: BatchOutput, parts: Parts, number: int
    ) -> OfParts:
        divide = None if self._draws.is_drawn(reader.name) else partial(parts, batch, number)
        return self.step.dependence(output, reader.examples_in(batch), divide, number)

    def _compare_with_fresh(self, both: _Both) -> None:
        """Raise `EvaluationError` if outputs depend on what the model computed from earlier weights, or drew before.

        One example is enough for the latter.
        """
        if self._fresh is None:
            return
        one, fresh, tolerance = both(self._fresh, few=not self._suspects)
        if self._suspects and self._device.type == "cpu":
            repeatability.require_independent(one, fresh, self._suspects)
        elif rows_differ(one, [fresh], tolerance):
            raise repeatability.drawn_when_built(self.model, self._fresh)
        self._suspects, self._may_hold_draws, self._fresh = (), False, None

    def _both(
        self,
        reader: EvalSetReader,
        batch: Batch,
        place: int | bytes,
        number: int,
        output: BatchOutput,
        other: nn.Module,
        *,
        few: bool,
    ) -> tuple[_Arrays, _Arrays, float]:
        """Return what the model and another one compute for a batch, or for `few` examples, and how much may differ."""
        run = partial(self._run, reader, batch, place, number)
        with types_of_outputs(self.model) as types:
            if few and not isinstance(self.step, LightningStep):
                predict = partial(self._predict_part, reader, batch, place)
                if (alone := tried(predict, FIRST_EXAMPLE)) is not None:
                    run, output = partial(predict, FIRST_EXAMPLE), alone
        used, self.step = self.step, step_for(self._task.of_set(reader.name), other, self._device)
        try:
            self.step.mode = used.mode
            if isinstance(self.step, LightningStep) and isinstance(used, LightningStep):
                self.step.index = used.index
                self.step.begin(is_first=True)
            elif isinstance(self.step, Step) and isinstance(used, Step):
                self.step.read_as(used)
            of_other = run()
        finally:
            self.step = used
        one, two = ([np.atleast_1d(array) for array in each.arrays] for each in (output, of_other))
        return one, two, tolerance_for([*types, *types_of_device(self._device)])

    def _run(self, reader: EvalSetReader, batch: Batch, place: int | bytes, number: int) -> BatchOutput:
        """Run one batch. Random numbers are seeded if the model draws any."""
        run = partial(self.step.run, batch, reader.examples_in(batch), number)
        return self._draws.run(reader.name, place, run)

    def _require_equal(self, one: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]], when: str) -> None:
        if self._device.type == "cpu":  # kernels of a GPU may add in any order
            repeatability.require_equal(list(one), list(other), when)


def _as_float64(value: torch.Tensor | NDArray[Any]) -> torch.Tensor:
    return torch.as_tensor(value).to("cpu", torch.float64)


def _differs(both: _Both, other: nn.Module) -> bool:
    """Return whether another model computes something else for a batch, given `BatchRunner._both` of that batch."""
    one, two, tolerance = both(other, few=False)
    return rows_differ(one, [two], tolerance)


def _steps_for(task: Task, model: nn.Module, device: torch.device) -> dict[str, Step | LightningStep]:
    """Return what measures batches of each eval set. Sets without anything of their own share one."""
    shared: list[Step | LightningStep] = []
    steps: dict[str, Step | LightningStep] = {}
    for name in task.eval_sets or [""]:
        of_set = task.of_set(name) if name else task
        step = shared[0] if of_set is task and shared else step_for(of_set, model, device)
        shared += [step] if of_set is task else []
        steps[name] = step
    return steps


def step_for(task: Task, model: nn.Module, device: torch.device) -> Step | LightningStep:
    """Return what measures batches: the task's metrics and loss, or the model's own `validation_step`."""
    if task.metrics is not None or task.loss is not None or not task.eval_sets:
        return Step(task, model, device)
    if task.step is None and is_lightning(model):
        return LightningStep(task, model, device)
    raise task_error(
        "framework = 'torch' needs Task(metrics=…) or Task(loss=…), or nothing would be measured; only a "
        "LightningModule measures by itself, in its validation_step"
    )


def built(task: Task, seed: int = 0) -> nn.Module:
    """Return the task's model. Its first values do not matter, but they must be the same on all ranks."""
    assert task.build_model is not None, "the dispatcher checks it"
    _seed(seed)
    model = call("Task(build_model=…)", task.build_model)
    if not isinstance(model, nn.Module):
        raise task_error(f"Task(build_model=…) must return a torch.nn.Module, found {type(model).__name__}")
    prepare(model)
    return model


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the generator that a task may use
    random.seed(seed)


def _size_of(model: nn.Module) -> int:
    tensors = (each for each in (*model.parameters(), *model.buffers()) if not is_lazy(each))
    return sum(values_in(each) * each.element_size() for each in tensors)
