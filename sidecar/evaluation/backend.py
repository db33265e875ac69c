"""Define what a framework must offer: three protocols, and the table of the frameworks that there are.

Imports no framework: the table names modules, and only the one that is asked for is imported.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.metrics.metric import MetricResult
from sidecar.evaluation.states import State
from sidecar.evaluation.task import Task
from sidecar.records import Sharding
from sidecar.workers.messages import Check, Evaluate, Join

BACKENDS: Final = {
    "tensorflow": "sidecar.evaluation.backends.tensorflow",
    "python": "sidecar.evaluation.backends.python",
}
"""Framework to the module that defines `make() -> Backend`."""

Int64s = NDArray[np.int64]
Tick = Callable[[], None]
"""Called after every batch that was read or evaluated: a sign of life."""


@dataclass(frozen=True, slots=True)
class Stream:
    """An eval set as one rank read it: equal on all ranks, or their results do not belong together."""

    eval_set: str
    fingerprint: str  # hex digest of the contents of all batches in order, or of the list of files; empty for `own`
    batches: int
    examples: int
    own_batches: int
    own_examples: int
    expected: int | None = None  # examples, if the task says how many there are
    refuses_nonfinite: bool = False  # in inputs, labels and weights
    sharding: Sharding = "batches"  # by `files` or `own` nothing is read beforehand: the counts above are 0


States = dict[str, dict[str, State]]
"""By eval set and state name: what this rank's batches came to, or all ranks' once reduced."""


TIMED: Final = ("restore", "evaluate", "save", "reduce")
"""Phases whose seconds travel with the states; `reduce` is the hello alone, since the sum is still to come."""


@dataclass(frozen=True, slots=True)
class RankReport:
    """The contribution of one rank to an evaluation, when all of its saves are durable.

    Attributes:
        states: Of its own batches.
        variables: Digest of what it restored.
        seconds: How long it took for each phase of `TIMED`.
    """

    states: States
    variables: str
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Reduced:
    """The contributions of all ranks, the same on each.

    Attributes:
        states: Of all batches.
        slowest: How long each phase took on the slowest rank.
    """

    states: States
    slowest: dict[str, float]


class Collective(Protocol):
    """The ranks of one group, able to exchange integers and to add up their states."""

    def begin(self, command: Evaluate) -> None:
        """Prepare for the evaluation of one plan."""
        ...

    def sum(self, mine: Int64s) -> Int64s:
        """Return the element-wise sum of a vector that has the same length on each rank; wait until all are there."""
        ...

    def reduce(self, join: Join, report: RankReport) -> Reduced:
        """Add up the states of all ranks; called once all saves of this rank are durable, and blocks until all are.

        Raises `EvaluationError` (`mismatch`) if ranks restored different values.
        """
        ...


@dataclass(frozen=True, slots=True)
class Rows:
    """Hold the columns that a task saves for the examples of one batch. Each column has one row per example."""

    first: int | None  # place of the first one in the whole eval set, if known; the others follow it
    examples: int
    columns: Mapping[str, NDArray[Any]]


Keep = Callable[[str, Rows], None]
"""Called with an eval set's name and rows, in the order of the data, while the set is evaluated."""


def forget(eval_set: str, rows: Rows) -> None:
    """Keep nothing."""


class Evaluator(Protocol):
    """A built task: what stays warm between checkpoints."""

    @property
    def traces(self) -> int:
        """How often a step was traced so far."""
        ...

    @property
    def builds(self) -> int:
        """How often a model was built so far."""
        ...

    @property
    def loads_graphs(self) -> bool:
        """Whether `restore` may load a graph, whose objects must be freed with the checkpoint."""
        ...

    def read(self, tick: Tick, evaluated: int = 0) -> tuple[Stream, ...]:
        """Choose the eval sets that take part after so many evaluations: all else here is about them alone.

        Each is read and fingerprinted once, when it first takes part; later calls return what that found.
        """
        ...

    def restore(self, path: str) -> Callable[[], None]:
        """Begin to bind every variable to the checkpoint, or to load the graph that it stores, in parallel to `read`.

        What it returns ends that, and raises naming what is missing; nothing else may be called before.
        """
        ...

    def digest(self) -> Callable[[], str]:
        """Begin to hash the present values of all variables, in parallel to `evaluate`; returns what waits for it.

        That returns the hex digest.
        """
        ...

    def outside(self) -> Mapping[str, str]:
        """Return digests of what the model depends on outside its variables, such as vocabularies, by their names.

        Equal on all ranks, or they do not evaluate the same model.
        """
        ...

    def layout(self) -> str:
        """Describe the states that `evaluate` will return: equal on all ranks, or they cannot be added up."""
        ...

    def evaluate(self, tick: Tick, keep: Keep = forget) -> States:
        """Sum metric states over this rank's own batches; identity states where it has none."""
        ...

    def save_weights(self, folder: Path) -> None:
        """Write the model's variables into the folder; raises `OSError` if it cannot be written.

        Called in a thread of its own, in parallel to `evaluate`; the caller makes the files durable.
        """
        ...

    def compute(self, reduced: States) -> Mapping[str, MetricResult]:
        """Return the final numbers, by eval set."""
        ...


class Backend(Protocol):
    """One framework."""

    version: str
    out_of_memory: tuple[type[Exception], ...]  # the framework's errors that mean so, next to Python's MemoryError

    def join(self, join: Join) -> Collective:
        """Form the group. Nothing of the task may have been imported."""
        ...

    def build(self, task: Task, shard: Shard, join: Join) -> Evaluator:
        """Build the model on a first batch."""
        ...

    def profile(self, told: Join | Check) -> dict[str, str]:
        """Return the numeric profile: everything that must be equal for results to be equal to the bit."""
        ...


def backend(framework: str) -> Backend:
    """Import a framework and return its backend."""
    if framework not in BACKENDS:
        raise EvaluationError("join", f"framework {framework!r}: known are {', '.join(BACKENDS)}")
    module: Any = importlib.import_module(BACKENDS[framework])
    made: Backend = module.make()
    return made
