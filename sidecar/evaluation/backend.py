"""Define the interface of a framework, in three protocols.

Imports no framework: `backend` imports only the requested one. See `framework_traits` for the parts of a backend.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from sidecar.errors import SettingsError
from sidecar.evaluation.data.batch_source import Division
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.finished_batches import FinishedBatches
from sidecar.evaluation.framework_traits import package_of
from sidecar.evaluation.metrics.metric import MetricResult
from sidecar.evaluation.states import SetStates, State
from sidecar.evaluation.task import Task
from sidecar.protocol.example_inputs import Input
from sidecar.protocol.messages import Check, Evaluate, Join

Int64s = NDArray[np.int64]
Tick = Callable[[], None]
"""A function that is called after every batch that was read or evaluated, as a sign of life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The description of an eval set as one rank read it. Ranks can evaluate together only if all have an equal one."""

    eval_set: str
    fingerprint: str  # hex digest of all batches in order, or of what all ranks can compare; empty for `own`
    batches: int
    examples: int
    own_batches: int
    expected: int | None = None  # number of examples according to the task
    refuses_nonfinite: bool = False  # fail if inputs, labels or weights are not finite
    sharding: Division = "batches"  # `files` and `own` are not read in advance: the counts are 0

    sampled: int | None = None  # batches whose contents all ranks compare if the set is divided by `index`
    notes: tuple[str, ...] = ()  # sentences about the data, for people who read the numbers

    @property
    def is_counted(self) -> bool:
        """Whether the numbers of batches and examples are known before the evaluation."""
        return self.sharding in ("batches", "index")


States = dict[str, dict[str, State]]
"""States by eval set and name: of the batches of this rank or, after the reduction, of all ranks."""

TIMED: Final = ("restore", "evaluate", "save", "reduce")
"""Phases whose seconds are sent with the states. `reduce` covers only the hello, because the sum comes later."""


@dataclass(frozen=True, slots=True)
class RankReport:
    """The contribution of one rank to an evaluation, once all of its saves are durable.

    Attributes:
        states: States of the batches of this rank.
        variables: Digest of the restored values.
        seconds: Seconds that this rank took for each phase of `TIMED`.
    """

    states: States
    variables: str
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Reduced:
    """The contributions of all ranks, the same on each.

    Attributes:
        states: States of all batches.
        slowest: Seconds of each phase on the slowest rank.
    """

    states: States
    slowest: dict[str, float]


class Collective(Protocol):
    """The connection of the ranks of one group, to exchange integers and to add up states."""

    def begin(self, command: Evaluate) -> None:
        """Prepare for the evaluation of one plan."""

    def sum(self, vector: Int64s) -> Int64s:
        """Return the element-wise sum of the vectors of all ranks, which are equally long; wait for all ranks."""

    def reduce(self, join: Join, report: RankReport) -> Reduced:
        """Add up the states of all ranks. Call it once all saves of this rank are durable; it waits for all ranks.

        Raises `EvaluationError` (`mismatch`) if ranks restored different values.
        """


@dataclass(frozen=True, slots=True)
class Rows:
    """The columns that a task saves for the examples of one batch. Each column has one row per example."""

    first: int | None  # number of the first example in the whole eval set, if known; the others follow it
    examples: int
    columns: Mapping[str, NDArray[Any]]
    groups: NDArray[np.int64] | None = None  # number of the group of each example, if the set has groups
    inputs: Mapping[int, Input] = field(default_factory=dict)  # what `Task(show=…)` returned, by number in the set


SaveRows = Callable[[str, Rows], None]
"""A function that takes the name of an eval set and rows to save, in the order of the data."""


def discard_rows(eval_set: str, rows: Rows) -> None:
    """Discard the rows."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """Say which eval sets an attempt before has finished, and take the states of those that this one finishes.

    Attributes:
        taken: By set that is not evaluated again: states to which those of this rank are merged; empty for none.
        batches: By set: the batches that need not be run, and what keeps those of this evaluation.
        keep: Called with each set that was evaluated, and its states.
    """

    taken: Mapping[str, SetStates] = field(default_factory=dict)
    batches: Mapping[str, FinishedBatches] = field(default_factory=dict)
    keep: Callable[[str, SetStates], None] = lambda _, states: None  # noqa: ARG005

    def kept(self, eval_set: str, states: SetStates) -> SetStates:
        """Keep the states of a set if it was evaluated, and return them."""
        if eval_set not in self.taken:
            self.keep(eval_set, states)
        return states


FROM_THE_BEGINNING: Final = Resumption()


class Evaluator(Protocol):
    """A built task. It stays in memory between checkpoints."""

    @property
    def traces(self) -> int:
        """Number of times that a step has been traced."""

    @property
    def builds(self) -> int:
        """Number of times that a model has been built."""

    @property
    def weights_bytes(self) -> int:
        """Number of bytes of the restored weights: about what `save_weights` writes."""

    @property
    def gpu_bytes(self) -> int:
        """Most bytes of a GPU's memory that this process had at once; 0 without a GPU."""

    outputs_are_new: bool
    """Whether the outputs of all ranks for a first batch have to be compared, as the task was built since."""

    @property
    def loads_graphs(self) -> bool:
        """Whether `restore` may load a graph, whose objects must be freed with the checkpoint."""

    def read(self, tick: Tick, evaluated: int = 0, most: int | None = None) -> tuple[Stream, ...]:
        """Choose the eval sets that take part after this number of evaluations, and return their streams.

        The other methods apply to these eval sets only. Each set is read and fingerprinted once, when it first takes
        part; later calls return the same stream. With `most`, which is then the same in every call, only so many
        batches of each set count, and the others are not read.
        """

    def differs(self, changed: bool) -> bool:
        """Return whether files of the data have `changed`, or a sample of the data differs from what was read.

        Then the task is built anew. It costs at most a fiftieth of the time of the evaluations so far.
        """

    def restore(self, path: str) -> Callable[[], None]:
        """Begin to restore the variables from the checkpoint, or to load its stored graph, in parallel to `read`.

        Return a function that completes this, and raises an error that names what is missing. Call no other method
        before it.
        """

    def digest(self) -> Callable[[], str]:
        """Begin to hash the present values of all variables, in parallel to `evaluate`.

        Return a function that waits for the hash and returns the hex digest.
        """

    def outside(self) -> Mapping[str, str]:
        """Return digests of everything outside the variables that the model depends on, such as vocabularies, by name.

        The ranks evaluate the same model only if these are equal on all ranks.
        """

    def outputs(self) -> NDArray[np.float64]:
        """Return what `output_comparison` compares, computed by the restored model for the first batch of each set."""

    def layout(self) -> str:
        """Describe the states that `evaluate` will return. They can be added up only if this is equal on all ranks."""

    def evaluate(
        self, tick: Tick, keep: SaveRows = discard_rows, resumption: Resumption = FROM_THE_BEGINNING
    ) -> States:
        """Sum metric states over the batches of this rank; the states are neutral if it has none."""

    def restored_model(self) -> Any:
        """Return the restored model, for the functions of `Task(evaluate=…)`."""

    def begins_again(self, reduced: States) -> bool:
        """Return whether the evaluation must be repeated, because a metric proved to depend on the order of batches.

        In the repetition the metric is updated batch by batch, from the first to the last.
        The answer is the same on all ranks, since they all have the states of all batches.
        """

    def save_weights(self, folder: Path) -> None:
        """Write the model's variables into the folder; raises `OSError` if it cannot be written.

        This runs in a separate thread, in parallel to `evaluate`. The caller makes the files durable.
        """

    def compute(self, reduced: States) -> Mapping[str, MetricResult]:
        """Return the final numbers, by eval set. Only some sets may be there, before the others are evaluated."""


class Backend(Protocol):
    """The interface of one framework."""

    version: str
    out_of_memory: tuple[type[Exception], ...]  # errors of the framework, in addition to MemoryError

    def join(self, join: Join) -> Collective:
        """Form the group. Call it before the task is imported."""

    def build(self, task: Task, shard: Shard, join: Join) -> Evaluator:
        """Build the task: open its data, and try its model on a first batch."""

    def profile(self, command: Join | Check) -> dict[str, str]:
        """Return the numeric profile. Results are equal to the bit only if all its entries are equal."""


def backend(framework: str) -> Backend:
    """Import a framework and return its backend. Raises `EvaluationError` for an unknown framework."""
    try:
        package = package_of(framework)
    except SettingsError as error:
        raise EvaluationError("join", str(error)) from error
    module: Any = importlib.import_module(f"{package}.backend")
    made: Backend = module.make()
    return made
