"""Evaluate a model of PyTorch: build it once, restore each checkpoint into it, and run the batches of this rank."""

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from sidecar.evaluation.backend import Keep, States, Stream, Tick, forget
from sidecar.evaluation.backends.torch import repeatability
from sidecar.evaluation.backends.torch.dataset_source import DatasetSource, open_source
from sidecar.evaluation.backends.torch.restore import load, restore
from sidecar.evaluation.backends.torch.step import Step
from sidecar.evaluation.backends.torch.tensors import bits_of
from sidecar.evaluation.data.array_source import ArraySource
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.digest import digest_of, feed
from sidecar.evaluation.data.reader import EvalSetReader
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.eval_loop import BatchOutput, evaluate_set
from sidecar.evaluation.eval_sets import EvalSets
from sidecar.evaluation.failures import EvaluationError, following_from_code
from sidecar.evaluation.metrics.metric import MetricResult
from sidecar.evaluation.path_alias import is_gone
from sidecar.evaluation.states import ExactSum, SetStates, exact_sum
from sidecar.evaluation.task import EvalSet, Task, call

WEIGHTS: Final = "weights.pt"
"""Name of the state dict in the folder of a worker; `torch.load` reads it."""

_DRAWN: Final = "batches with random numbers"  # name of a state


class TorchEvaluator:
    """Implement `sidecar.evaluation.backend.Evaluator` for a task of PyTorch.

    The model is tried on a first batch when it is built: lazy modules make their variables, and a wrong task fails
    before the first checkpoint. Batches are evaluated in the mode of `eval()`, without gradients.
    """

    def __init__(self, task: Task, shard: Shard, *, cache_bytes: int, device: torch.device) -> None:
        self._task, self._shard, self._device = task, shard, device
        self._sources: dict[str, ArraySource | DatasetSource] = {}
        self._sets = EvalSets(task, shard, self._open, cache_bytes=cache_bytes)
        with following_from_code():
            self.model = _built(task).to(device)
            self._step = Step(task, self.model, device)
        self._of_compilation = repeatability.switch_off_compilation(self.model)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="in-parallel")  # for work that needs no data
        self._notes: tuple[str, ...] = ()
        self._weights_digest: Callable[[], str] = lambda: ""
        self._draws: set[str] = set()  # eval sets for which the model draws random numbers, on this rank
        self._repeated: set[str] = set()  # eval sets whose first batch was evaluated several times
        self.traces, self.builds, self.loads_graphs = 0, 1, False
        before = repeatability.attributes(self.model)
        with following_from_code(RuntimeError):
            self._try_first_batches()
        self._suspects = repeatability.changed_attributes(self.model, before)
        self._fresh: nn.Module | None = None  # a new model with the restored values, to compare its outputs
        self.model.requires_grad_(requires_grad=False)

    def read(self, tick: Tick, evaluated: int = 0) -> tuple[Stream, ...]:
        """Choose the eval sets that take part, and read those that have not been read yet."""
        return self._sets.read(tick, evaluated)

    def restore(self, path: str) -> Callable[[], None]:
        """Begin to load the checkpoint; the returned function restores the model, or calls the task's `restore`."""
        if self._task.restore is not None:
            return partial(self._let_task_restore, self._task.restore, path)
        loading = self._thread.submit(load, path)

        def use() -> None:
            self.model.train()  # some modules merge weights in the mode of eval(), and undo it in that of train()
            with _vanished_if_gone(path):
                self._notes = restore(self.model, loading.result(), self._task.checkpoint)
            self._make_fresh()

        return use

    def _let_task_restore(self, function: Callable[[Any, str], Any], path: str) -> None:
        self.model.train()
        with _vanished_if_gone(path), torch.no_grad():
            call("Task(restore=…)", function, self.model, path)
        self._make_fresh()

    def _make_fresh(self) -> None:
        """Make a new model with the restored values if a forward pass changes attributes of the model, once."""
        self.model.requires_grad_(requires_grad=False)
        if not self._suspects or self._fresh is not None:
            return
        fresh = _built(self._task).to(self._device)
        try:
            fresh.load_state_dict(self.model.state_dict())
        except RuntimeError:  # a forward pass has made some of the parts
            self._suspects = ()
            return
        self._fresh = fresh.requires_grad_(requires_grad=False)

    def digest(self) -> Callable[[], str]:
        """Begin to hash name, type, shape and value of all variables of the model."""
        values = {name: value for name, value in self.model.state_dict().items() if isinstance(value, torch.Tensor)}
        self._weights_digest = self._thread.submit(_digest, values).result
        return self._weights_digest

    def outside(self) -> Mapping[str, str]:
        """Return digests of the buffers that a state dict does not hold."""
        saved = self.model.state_dict().keys()
        return {name: _digest({name: value}) for name, value in self.model.named_buffers() if name not in saved}

    def layout(self) -> str:
        """Return names, kinds and sizes of all states."""
        return self._sets.layout(self._states)

    def evaluate(self, tick: Tick, keep: Keep = forget) -> States:
        """Sum metric states over the batches of this rank, and pass on the rows that the task saves."""
        return {reader.name: self._evaluate(reader, tick, keep) for reader in self._sets.chosen}

    def save_weights(self, folder: Path) -> None:
        """Write the model's state dict to `weights.pt`."""
        with (folder / WEIGHTS).open("xb") as file:  # torch's own writer raises RuntimeError for a full disk
            torch.save(self.model.state_dict(), file)

    def compute(self, reduced: States) -> Mapping[str, MetricResult]:
        """Return the final numbers, by eval set."""
        return {reader.name: self._compute(reader, reduced[reader.name]) for reader in self._sets.chosen}

    def _open(self, name: str, eval_set: EvalSet) -> ArraySource | DatasetSource:
        source = open_source(name, eval_set, batch_size=self._task.batch_size, shard=self._shard)
        self._sources[name] = source
        return source

    def _try_first_batches(self) -> None:
        """Evaluate the first batch of each eval set with the new model. The results are not used.

        Batches after `prepare` are never compared with those of other ranks, so the first one is prepared twice.
        """
        for name, source in self._sources.items():
            if (first := next(source.first_prepared(), None)) is None:
                continue
            again = next(source.first_prepared(), None) if self._task.sets()[name].prepare else first
            if again is None or digest_of(source.arrays(again)) != digest_of(source.arrays(first)):
                raise EvaluationError(
                    "stream_differs",
                    f"eval set {name!r}: EvalSet(prepare=…) returns other values for the same examples each time: "
                    f"leave random transforms, such as crops and flips, out of an evaluation",
                )
            self._step.try_out(first, source.examples_in(first))

    def _evaluate(self, reader: EvalSetReader, tick: Tick, keep: Keep) -> SetStates:
        self.model.eval()
        states, drawn = self._states(reader), 0
        before = repeatability.versions(self.model)
        first_own: tuple[Batch, int | bytes, BatchOutput] | None = None

        def run(batch: Batch, number: int, first: int | None) -> BatchOutput:
            nonlocal first_own, drawn
            place = reader.digest(batch) if first is None else number
            output, has_drawn = self._run(reader, batch, place)
            drawn += has_drawn
            if first_own is None and reader.name not in self._repeated:
                first_own = batch, place, output
                self._require_equal(output, self._run(reader, batch, place)[0], "twice")
                self._compare_with_fresh(reader, batch, place, output)
            return output

        evaluated = evaluate_set(
            reader,
            states,
            run=run,
            add=partial(self._step.add, states),
            finish=lambda: None,
            shard=self._shard,
            tick=tick,
            keep=keep,
        )
        repeatability.require_unchanged(self.model, before)
        if first_own is not None:
            batch, place, output = first_own
            self._require_equal(output, self._run(reader, batch, place)[0], "again after all others")
            self._repeated.add(reader.name)
        exact_sum(evaluated, _DRAWN).add(np.int64(drawn))
        return evaluated

    def _compare_with_fresh(self, reader: EvalSetReader, batch: Batch, place: int | bytes, output: BatchOutput) -> None:
        """Raise `EvaluationError` if outputs depend on what the model computed from earlier weights."""
        if self._fresh is None:
            return
        used, self._step = self._step, Step(self._task, self._fresh, self._device)
        try:
            self._step.mode = used.mode
            other, _ = self._run(reader, batch, place)
        finally:
            self._step = used
        if self._device.type == "cpu":
            repeatability.require_independent(output.arrays, other.arrays, self._suspects)
        self._suspects, self._fresh = (), None

    def _run(self, reader: EvalSetReader, batch: Batch, place: int | bytes) -> tuple[BatchOutput, bool]:
        """Run one batch, and return whether the model drew random numbers. Then these were seeded."""
        examples = reader.examples_in(batch)
        if reader.name not in self._draws:
            before = repeatability.generators()
            output = self._step.run(batch, examples)
            if repeatability.generators() == before:
                return output, False
            self._draws.add(reader.name)
        repeatability.seed(self._weights_digest(), reader.name, place)
        seeded = repeatability.generators()
        output = self._step.run(batch, examples)
        return output, repeatability.generators() != seeded

    def _require_equal(self, one: BatchOutput, other: BatchOutput, when: str) -> None:
        if self._device.type == "cpu":  # kernels of a GPU may add in any order
            repeatability.require_equal(one.arrays, other.arrays, when)

    def _compute(self, reader: EvalSetReader, states: SetStates) -> MetricResult:
        numbers = self._step.compute(states)
        source = self._sources[reader.name]
        notes = source.notes if isinstance(source, DatasetSource) else ()
        drawn = (repeatability.NOTE,) if int(exact_sum(states, _DRAWN).integers()) else ()
        return replace(numbers, notes=(*numbers.notes, *notes, *drawn, *self._notes, *self._of_compilation))

    def _states(self, reader: EvalSetReader) -> SetStates:
        return self._step.states(self._sets.info(reader)) | {_DRAWN: ExactSum((), "int64")}


def _built(task: Task) -> nn.Module:
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


def _digest(values: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in values.items():
        digest.update(f"{name}\0".encode(errors="surrogateescape"))
        feed(digest.update, bits_of(value))
    return digest.hexdigest()


@contextlib.contextmanager
def _vanished_if_gone(path: str) -> Iterator[None]:
    """Raise `EvaluationError` (`vanished`) for an error of the block if the checkpoint is gone."""
    try:
        yield
    except Exception as error:
        if is_gone(path):
            raise EvaluationError("vanished", f"{path} is gone: {error}") from error
        raise
