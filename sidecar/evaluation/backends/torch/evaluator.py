"""Evaluate a model of PyTorch: build it once, restore each checkpoint into it, and run the batches of this rank."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray

from sidecar.evaluation.backend import (
    FROM_THE_BEGINNING,
    Resumption,
    SaveRows,
    States,
    Stream,
    Tick,
    discard_rows,
)
from sidecar.evaluation.backends.torch.batch_runner import BatchRunner
from sidecar.evaluation.backends.torch.dataset_source import DatasetSource, LoadedBatch, open_source
from sidecar.evaluation.backends.torch.large_blocks import large_blocks_returned
from sidecar.evaluation.backends.torch.lightning import read_checkpoint
from sidecar.evaluation.backends.torch.pretrained import (
    explain,
    is_adapter,
    is_of_peft,
    is_of_transformers,
    load_by_transformers,
    restore_adapter,
)
from sidecar.evaluation.backends.torch.restore import fits, restore
from sidecar.evaluation.backends.torch.step import remedy_of, takes_weights
from sidecar.evaluation.backends.torch.tensors import bits_of, leaves, part_of, values_in
from sidecar.evaluation.backends.torch.weight_files import Stored, load
from sidecar.evaluation.backends.torch.weight_sets import Kept, values_of
from sidecar.evaluation.data.array_source import ArraySource
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.data.digest import digest_of, feed
from sidecar.evaluation.data.reader import EvalSetReader
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.eval_loop import EXAMPLES, LEFT_OUT
from sidecar.evaluation.eval_sets import EvalSets, open_readers
from sidecar.evaluation.failures import EvaluationError, following_from_code, mismatch
from sidecar.evaluation.kept_values import KeptValues
from sidecar.evaluation.metrics.metric import MetricResult
from sidecar.evaluation.output_comparison import no_outputs, summary
from sidecar.evaluation.path_alias import require_present
from sidecar.evaluation.states import SetStates, exact_sum
from sidecar.evaluation.task import EvalSet, Task, call, does_nothing

if TYPE_CHECKING:
    from sidecar.evaluation.backends.torch.division import Division

WEIGHTS: Final = "weights.pt"
"""Name of the state dict in the folder of a worker; `torch.load` reads it."""


class TorchEvaluator:
    """Implement `sidecar.evaluation.backend.Evaluator` for a task of PyTorch.

    The model is tried on a first batch when it is built: lazy modules make their variables, and a wrong task fails
    before the first checkpoint. Batches are evaluated in the mode of `eval()`, without gradients.
    """

    @classmethod
    def build(
        cls, task: Task, shard: Shard, *, cache_bytes: int, device: torch.device, division: "Division | None" = None
    ) -> Self:
        """Open the data, build the model, and try it on the first batch of each eval set.

        `division`: the processes of this worker that divide the model; None: this process holds it.
        """
        sources: dict[str, ArraySource | DatasetSource] = {}

        def opened(name: str, eval_set: EvalSet) -> ArraySource | DatasetSource:
            sources[name] = open_source(name, eval_set, batch_size=task.batch_size, shard=shard)
            return sources[name]

        readers = open_readers(task, shard, opened, cache_bytes=cache_bytes)
        with following_from_code():
            if division is not None:
                division.require_divisible(task)
            with large_blocks_returned(is_needed=division is None):
                runner = BatchRunner(task, device, division)
        evaluator = cls(task, shard, EvalSets(task, shard, readers), sources, runner, division)
        evaluator.try_out()
        return evaluator

    def __init__(
        self,
        task: Task,
        shard: Shard,
        sets: EvalSets[EvalSetReader],
        sources: Mapping[str, ArraySource | DatasetSource],
        runner: BatchRunner,
        division: "Division | None",
    ) -> None:
        self._task, self._shard, self._sets, self._sources, self._runner = task, shard, sets, sources, runner
        self.model, self._division = runner.model, division
        self._set_back = KeptValues(task, *{type(module) for module in self.model.modules()}).set_back
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="in-parallel")  # for work that needs no data
        self._notes: tuple[str, ...] = ()
        self.traces, self.builds, self.loads_graphs = 0, 1, False
        self.outputs_are_new = True

    @property
    def weights_bytes(self) -> int:
        """Number of bytes of the state dict's tensors."""
        return sum(values_in(value) * value.element_size() for _, value in _tensors_of(values_of(self.model)))

    @property
    def gpu_bytes(self) -> int:
        """Most bytes of the GPU's memory that torch reserved."""
        return torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0

    def try_out(self) -> None:
        """Try the model on the first batch of each eval set. It is the first call of any other method."""
        task = self._task
        with following_from_code(RuntimeError):
            first = self._first_batches()
            weighted = [name for name in task.eval_sets if takes_weights(task.of_set(name))]
            remedy = next((remedy_of(batch) for name, (batch, _) in first.items() if name in weighted), "")
            self._sets.expect_weights(remedy, {name: batch for name, (batch, _) in first.items()}, weighted)
            self._runner.try_out(first, self._set_back)
            self._sets.leave_to_first(self._runner.in_turn)
        self._kept = Kept.of(self.model, task.from_build_model)

    def read(self, tick: Tick, evaluated: int = 0, most: int | None = None) -> tuple[Stream, ...]:
        """Choose the eval sets that take part, and read those that have not been read yet."""
        streams = self._sets.read(tick, evaluated, most)
        if self._division is not None:
            self._division.require_same(repr(streams), "read different data")
        return streams

    def differs(self, changed: bool) -> bool:
        """Return whether files have `changed`, or a sample of the data differs from what was read."""
        differs = changed or self._sets.differs()
        return differs if self._division is None else self._division.decided(differs)

    def restore(self, path: str) -> Callable[[], None]:
        """Begin to load the checkpoint; the returned function restores the model, or calls the task's `restore`."""
        self._set_back()
        if self._task.restore is not None:
            return partial(self._let_task_restore, self._task.restore, path)
        loading = self._thread.submit(load, path)

        def use() -> None:
            self.model.train()  # some modules merge weights in the mode of eval(), and undo it in that of train()
            with large_blocks_returned(is_needed=self._division is None):
                with _vanished_if_gone(path):
                    stored = loading.result()
                    content = read_checkpoint(self.model, stored.content)
                    self._notes = self._restored(path, replace(stored, content=content))
                    self._runner.note_settings(stored.content, Path(path))
                self._runner.note_restored(stored.content)

        return use

    def _restored(self, path: str, stored: Stored) -> tuple[str, ...]:
        """Restore the model from what was loaded, and return notes."""
        task, folder = self._task, Path(path)
        is_loaded_by_name = task.checkpoint is None and folder.is_dir() and not is_adapter(folder)
        if self._division is not None and is_adapter(folder):
            raise mismatch(f"{folder.name} is an adapter, which needs processes_per_worker = 1")
        if task.checkpoint is None and is_of_peft(self.model) and is_adapter(folder):
            restore_adapter(self.model, folder)
            return ()
        if (
            is_loaded_by_name
            and is_of_transformers(self.model)
            and not fits(self.model, stored, self._kept, task.ignore)
        ):
            if self._division is not None:
                raise mismatch(
                    f"{folder.name} has other names than the model, and only from_pretrained knows them, which loads "
                    f"it whole: save it with torch.distributed.checkpoint, or write processes_per_worker = 1"
                )
            stored = Stored(
                load_by_transformers(self.model, folder, from_build_model=task.from_build_model, ignore=task.ignore)
            )
        return explain(
            folder, lambda: restore(self.model, stored, task.checkpoint, kept=self._kept, ignore=task.ignore)
        )

    def _let_task_restore(self, function: Callable[[Any, str], Any], path: str) -> None:
        self.model.train()
        if not does_nothing(function):
            self._runner.note_built()
        with _vanished_if_gone(path), torch.no_grad():
            returned = call("Task(restore=…)", function, self.model, path)
        self._notes = self._runner.require_replaced(returned) or self._notes
        self._runner.note_restored()

    def digest(self) -> Callable[[], str]:
        """Begin to hash name, type, shape and value of all variables of the model."""
        values = dict(_tensors_of(values_of(self.model)))
        weights_digest = self._thread.submit(self._digest_of_all, values).result
        self._runner.seed_with(weights_digest)
        return weights_digest

    def _digest_of_all(self, values: Mapping[str, torch.Tensor]) -> str:
        own = _digest(values)
        return own if self._division is None else self._division.digest(own)

    def outside(self) -> Mapping[str, str]:
        """Return digests of the buffers that a state dict does not hold."""
        saved = values_of(self.model).keys()
        return {name: _digest({name: value}) for name, value in self.model.named_buffers() if name not in saved}

    def outputs(self) -> NDArray[np.float64]:
        """Return a summary of the predictions for the first batch of each set that all ranks read alike."""
        outputs = no_outputs()
        for place, reader in enumerate(self._sets.chosen):
            batch = None if reader.sharding == "own" else next(self._sources[reader.name].first_prepared(), None)
            if batch is not None:
                outputs[place] = summary(self._runner.outputs(reader, batch))
        return outputs

    def layout(self) -> str:
        """Return names, kinds and sizes of all states."""
        return self._sets.layout(self._states)

    def evaluate(
        self, tick: Tick, keep: SaveRows = discard_rows, resumption: Resumption = FROM_THE_BEGINNING
    ) -> States:
        """Sum metric states over the batches of this rank, and pass on the rows that the task saves."""
        states = {}
        for reader in self._sets.chosen:
            parts, taken = partial(self._parts, reader), resumption.taken.get(reader.name)
            finished, states_of = resumption.batches.get(reader.name), self._states(reader)
            found = self._runner.evaluate(reader, states_of, self._shard, tick, keep, parts, taken, finished)
            states[reader.name] = resumption.kept(reader.name, found)
        return states

    def restored_model(self) -> Any:
        """Return the restored model, in the mode of `eval()`."""
        return self.model.eval()

    def begins_again(self, reduced: States) -> bool:
        """Put metrics in turn that have proved to be no sums, and return whether any number needs that."""
        found = self._runner.begins_again({reader.name: reduced[reader.name] for reader in self._sets.chosen})
        with following_from_code():
            return self._sets.leave_to_first(self._runner.in_turn) or found

    def save_weights(self, folder: Path) -> None:
        """Write the model's state dict to `weights.pt`."""
        with (folder / WEIGHTS).open("xb") as file:  # torch's own writer raises RuntimeError for a full disk
            torch.save(self.model.state_dict(), file)

    def compute(self, reduced: States) -> Mapping[str, MetricResult]:
        """Return the final numbers, by eval set."""
        given = (reader for reader in self._sets.chosen if reader.name in reduced)
        return {reader.name: self._compute(reader, reduced[reader.name]) for reader in given}

    def _first_batches(self) -> dict[str, tuple[Batch, int]]:
        """Return the first batch of each eval set by name, with its number of examples.

        Batches after `prepare` are never compared with those of other ranks, so the first one is prepared twice.
        """
        batches = {}
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
            batches[name] = first, source.examples_in(first)
        return batches

    def _parts(
        self, reader: EvalSetReader, batch: Batch, number: int, places: Sequence[slice]
    ) -> list[tuple[Batch, int]]:
        """Return parts of a batch with their sizes; an empty list if it cannot be divided.

        Collated anew if possible: parts of a padded batch would keep the padding of the whole.
        """
        source, examples = self._sources[reader.name], reader.examples_in(batch)
        made = source.collated_parts(number, places, examples) if isinstance(source, DatasetSource) else None
        if made is None:
            content = batch.content if isinstance(batch, LoadedBatch) else batch
            sizes = [len(range(examples)[place]) for place in places]
            try:
                contents = [part_of(content, place, examples) for place in places]
            except ValueError:
                return []
            is_loaded = isinstance(batch, LoadedBatch)
            made = [LoadedBatch(*each) if is_loaded else each[0] for each in zip(contents, sizes, strict=True)]
        return [(part, source.examples_in(part)) for part in made]

    def _compute(self, reader: EvalSetReader, states: SetStates) -> MetricResult:
        numbers = self._runner.compute(reader, states)
        source = self._sources[reader.name]
        notes = source.notes if isinstance(source, DatasetSource) else ()
        if left_out := int(exact_sum(states, LEFT_OUT).integers()):
            rows = int(exact_sum(states, EXAMPLES).integers())
            left = f"collate_fn returns {rows:,} rows for {rows + left_out:,} examples of the dataset"
            notes += (f"{left}: the rows are counted and evaluated, and what it leaves out is not",)
        if reader.third_part is not None:
            notes += reader.third_part.notes
        if self._runner.settings is not None:
            notes += self._runner.settings.notes
        return replace(numbers, notes=(*numbers.notes, *notes, *self._notes))

    def _states(self, reader: EvalSetReader) -> SetStates:
        return self._runner.states(reader.name, self._sets.info(reader))


def _tensors_of(values: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a state dict by name, also those in the tuples that quantized layers save."""
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            yield name, value
        else:
            inner = [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]
            yield from ((f"{name}.{number}", leaf) for number, leaf in enumerate(inner))


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
        require_present(path, error)
        raise
