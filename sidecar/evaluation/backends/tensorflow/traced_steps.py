"""Create the steps of a task: one for each structure of batches, for its model or for a stored graph in its place.

A step is traced once per process. A new step is created only if the tables in the layers of the model have changed, or
if another stored graph is loaded.
"""

from collections.abc import Iterable
from typing import Any

from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2
from sidecar.evaluation.backends.tensorflow.measure import chosen
from sidecar.evaluation.backends.tensorflow.model import complete
from sidecar.evaluation.backends.tensorflow.saved_graph import SavedGraph
from sidecar.evaluation.backends.tensorflow.step import Step
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.outputs import by_output
from sidecar.evaluation.task import Task


class TracedSteps:
    """Create and find the steps of one task by the structure of their batches.

    `task`: the task that the steps evaluate. `model`: the built model of the task; `None` if only stored graphs are
    evaluated.
    """

    def __init__(self, task: Task, model: Any) -> None:
        self._task, self._model = task, model
        self._autograph = _wants_autograph(task, model)
        self._first_batches: dict[str, tuple[Batch, Any]] = {}  # with their specs
        self._of_model: dict[str, Step] = {}
        self._of_graph: dict[str, Step] | None = None
        self._dropped_traces = 0
        self._found: set[str] = set()  # metrics that proved to be no sums

    @property
    def traces(self) -> int:
        """Return the number of times that steps have been traced."""
        return self._dropped_traces + _traces(self._of_model) + _traces(self._of_graph or {})

    @property
    def can_be_renewed(self) -> bool:
        """Return whether the first batches are still in memory; new steps are tried on them."""
        return bool(self._first_batches)

    def add(self, first: Batch, spec: Any) -> None:
        """Create the step of the model for batches of this structure, unless it exists, and complete the model.

        `first`: a batch of this structure. `spec`: the structure, as nested `tf.TypeSpec`s.
        """
        structure = repr(spec)
        self._first_batches.setdefault(structure, (first, spec))
        if self._model is not None and structure not in self._of_model:
            self._of_model[structure] = self._step(self._model, structure)
            complete(self._model, first)

    def step_for(self, spec: Any) -> Step:
        """Return the step for batches of this structure: of the stored graph if one is loaded, else of the model."""
        return (self._of_model if self._of_graph is None else self._of_graph)[repr(spec)]

    def put_in_turn(self, names: Iterable[str]) -> None:
        """Update these metrics in turn from now on, in the steps for all structures of batches."""
        self._found.update(names)
        for step in [*self._of_model.values(), *(self._of_graph or {}).values()]:
            if late := [name for name in names if name in step.measurement.stateful_metrics]:
                step.put_in_turn(late)

    def renew(self) -> None:
        """Create the steps of the model again, because a trace keeps the tables with which it was traced."""
        self._dropped_traces += _traces(self._of_model)
        self._of_model = {structure: self._step(self._model, structure) for structure in self._of_model}

    def use_graph(self, graph: SavedGraph, specs: Iterable[Any]) -> None:
        """Evaluate a stored graph, in place of the model, on batches of these structures."""
        self._of_graph = {}
        for structure in map(repr, specs):
            if structure not in self._of_graph:
                self._of_graph[structure] = self._step(graph, structure)

    def drop_graph(self) -> None:
        """Release the steps of the stored graph, and evaluate the model again."""
        self._dropped_traces += _traces(self._of_graph or {})
        self._of_graph = None

    def forget_first_batches(self) -> None:
        """Free the memory of the first batches; afterwards no step can be created."""
        self._first_batches = {}

    def _step(self, model: Any, structure: str) -> Step:
        first, spec = self._first_batches[structure]
        return Step(self._task, model, first, spec, autograph=self._autograph, found=self._found)


def _traces(steps: dict[str, Step]) -> int:
    return sum(step.traces for step in steps.values())


def _wants_autograph(task: Task, model: Any) -> bool:
    """Return whether to trace with AutoGraph: tf_keras does so by default, Keras 3 does not."""
    if model is not None:
        return is_keras_2(model)
    measured = [*by_output(task.loss).values(), *(metric for _, metric in chosen(task))]
    return any(is_keras_2(metric) for metric in measured)
