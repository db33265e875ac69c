"""Hold the eval sets of a task on one rank, and choose those that take part in an evaluation."""

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Generic, TypeVar

from sidecar.errors import TaskError
from sidecar.evaluation.backend import Stream, Tick
from sidecar.evaluation.data.batch_source import Batch, BatchSource
from sidecar.evaluation.data.cache import CacheBudget
from sidecar.evaluation.data.reader import EvalSetReader
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.metrics.metric import EvalSetInfo
from sidecar.evaluation.metrics.sliced import BY_SLICE
from sidecar.evaluation.repeatability import generators
from sidecar.evaluation.states import ExactSum, SetStates
from sidecar.evaluation.task import EvalSet, NonfinitePolicy, Task

OpenSource = Callable[[str, EvalSet], BatchSource]
"""A function that opens the data of an eval set, given its name."""

Reader = TypeVar("Reader", bound=EvalSetReader)


def open_readers(
    task: Task, shard: Shard, open_source: OpenSource, *, cache_bytes: int, nonfinite: NonfinitePolicy = "count"
) -> list[EvalSetReader]:
    """Return a reader for each eval set of a task. A set that draws random numbers is opened twice, and compared.

    `cache_bytes`: the most bytes of batches that stay in memory, over all eval sets. `nonfinite`: what
    `EvalSet(nonfinite=None)` means. Raises `EvaluationError` if an eval set is empty, or its data cannot be evaluated.
    """
    reader = partial(EvalSetReader, shard=shard, budget=CacheBudget(cache_bytes), nonfinite=nonfinite)
    readers = []
    for name, eval_set in task.sets().items():
        before = generators()
        source = open_source(name, eval_set)
        other = open_source(name, eval_set) if generators() != before else None
        readers.append(reader(name, eval_set, other or source))
        if other is not None:
            readers[-1].require_same_sample(source)
    return readers


class EvalSets(Generic[Reader]):
    """Read the eval sets of a task on one rank. `readers`: one for each eval set."""

    def __init__(self, task: Task, shard: Shard, readers: Sequence[Reader]) -> None:
        self._task, self._shard, self._readers = task, shard, readers
        self._is_whole = True
        self.chosen = readers
        """The eval sets that take part in the present evaluation."""

    def expect_weights(self, remedy: str, first: Mapping[str, Batch], names: Container[str]) -> None:
        """Take the third part of each batch as weights of examples: see `EvalSetReader.expect_weights`.

        `first` has the first batch of each set after `prepare`, by the name of the set. `names`: the sets of which it
        is true.
        """
        for reader in self._readers:
            if reader.name in names:
                reader.expect_weights(remedy, first.get(reader.name))

    def read(self, tick: Tick, evaluated: int = 0, most: int | None = None) -> tuple[Stream, ...]:
        """Choose the eval sets that take part, and read those that have not been read yet: at most `most` batches."""
        self._is_whole = most is None
        names = self._task.sets(evaluated)
        self.chosen = [reader for reader in self._readers if reader.name in names]
        return tuple(reader.read(tick, most) for reader in self.chosen)

    def differs(self) -> bool:
        """Return whether a sample of the data differs from what was read."""
        return any(reader.differs() for reader in self._readers)

    def leave_to_first(self, in_turn: Callable[[str], Mapping[str, str]]) -> bool:
        """Let worker 0 evaluate the chosen sets with metrics that are updated in turn; the others remain divided.

        `in_turn` returns these metrics with the reason of each, given the name of the set. Return whether any set
        changes to that. Raises `EvaluationError` for a set that divides itself.
        """
        changed = [(reader, found) for reader in self.chosen if (found := in_turn(reader.name))]
        changed = [(reader, found) for reader, found in changed if not reader.is_left_to_first]
        for reader, found in changed:
            name, reason = next(iter(found.items()))
            reason = reason or "is in Task(in_turn=…)"
            reader.leave_to_first(f"the metric {name!r} {reason}, so it must be evaluated in turn")
        return bool(changed)

    def info(self, reader: Reader) -> EvalSetInfo:
        """Return what is known about an eval set before it is evaluated. Raises `TaskError` for other groups."""
        if reader.slices is not None:
            reader.slices.begin(reader.examples, is_whole=self._is_whole)
        return EvalSetInfo(reader.examples, self._shard, reader.groups, reader.slices, self._task.intervals)

    def layout(self, new_states: Callable[[Reader], SetStates]) -> str:
        """Return names, kinds and sizes of the states of all chosen eval sets, and digests of their groups and slices.

        It is the same for any number of ranks: rows are told of sums alone, since other states have some for each rank.

        Raises `TaskError` for a set with slices none of whose metrics can have them.
        """
        states = [
            (reader.name, name, type(state).__name__, state.rows if isinstance(state, ExactSum) else 0, state.width)
            for reader in self.chosen
            for name, state in sorted(new_states(reader).items())
        ]
        for reader in self.chosen:
            if reader.slices is not None:
                if not any(of == reader.name and name.endswith(f"/{BY_SLICE}") for of, name, *_ in states):
                    raise TaskError(
                        f"Task(slices=…) of {reader.name!r}: no metric of the set has numbers by slice: give some of "
                        f"sidecar.metrics, such as Accuracy(), Mean(…) or MSE()"
                    )
                states.append((reader.name, BY_SLICE, reader.slices.digest(), 0, 0))
        groups = [
            (reader.name, sha256(reader.groups.tobytes()).hexdigest())
            for reader in self.chosen
            if reader.groups is not None
        ]
        return repr((states, groups) if groups else states)
