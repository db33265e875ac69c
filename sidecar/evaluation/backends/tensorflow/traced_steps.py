"""Create the steps of a task: one for each structure of batches, for its model or for a stored graph in its place.

An eval set with metrics or a loss of its own has its own steps.

A step is traced once per process. A new step is created only if the tables in the layers of the model have changed, or
if another stored graph is loaded.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2
from sidecar.evaluation.backends.tensorflow.measure import chosen
from sidecar.evaluation.backends.tensorflow.model import complete
from sidecar.evaluation.backends.tensorflow.saved_graph import SavedGraph
from sidecar.evaluation.backends.tensorflow.step import Step
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.outputs import by_output
from sidecar.evaluation.task import Task

_Key = tuple[str, str]
"""Name an eval set with metrics or a loss of its own, else an empty text; and the structure of its batches."""


class TracedSteps:
    """Create and find the steps of one task by the structure of their batches.

    `task`: the task that the steps evaluate. `model`: the built model of the task; `None` if only stored graphs are
    evaluated. `set_back`: sets back what the task's code keeps, before each trace.
    """

    def __init__(self, task: Task, model: Any, set_back: Callable[[], None]) -> None:
        self._task, self._model, self.set_back = task, model, set_back
        self._autograph = _wants_autograph(task, model)
        self._first_batches: dict[_Key, tuple[Batch, Any]] = {}  # with their specs
        self._of_model: dict[_Key, Step] = {}
        self._of_graph: dict[_Key, Step] | None = None
        self._dropped_traces = 0
        self._no_sums: set[str] = set()  # metrics that proved in an evaluation not to be sums

    @property
    def traces(self) -> int:
        """Return the number of times that steps have been traced."""
        return self._dropped_traces + _traces(self._of_model) + _traces(self._of_graph or {})

    @property
    def can_be_renewed(self) -> bool:
        """Return whether the first batches are still in memory; new steps are tried on them."""
        return bool(self._first_batches)

    def add(self, eval_set: str, first: Batch, spec: Any) -> None:
        """Create the step of the model for batches of this structure, unless it exists, and complete the model.

        `first`: a batch of this structure. `spec`: the structure, as nested `tf.TypeSpec`s.
        """
        key = self._key(eval_set, spec)
        self._first_batches.setdefault(key, (first, spec))
        if self._model is not None and key not in self._of_model:
            self._of_model[key] = self._step(self._model, key)
            complete(self._model, first)

    def step_for(self, eval_set: str, spec: Any) -> Step:
        """Return the step for batches of this structure: of the stored graph if one is loaded, else of the model."""
        return self._in_use[self._key(eval_set, spec)]

    def require_in_turn(self) -> None:
        """Raise `TaskError` if `Task(in_turn=…)` names a metric that no set has."""
        names = [name for step in self._in_use.values() for name in step.measurement.names]
        self._task.require_in_turn(list(dict.fromkeys(names)))

    def put_in_turn(self, names: Iterable[str]) -> None:
        """Update these metrics in turn from now on, in the steps for all structures of batches."""
        self._no_sums.update(names)
        for step in [*self._of_model.values(), *(self._of_graph or {}).values()]:
            if late := [name for name in names if name in step.measurement.stateful_metrics]:
                step.put_in_turn(late)

    def renew(self) -> None:
        """Create the steps of the model again, because a trace keeps the tables with which it was traced."""
        self._dropped_traces += _traces(self._of_model)
        self._of_model = {key: self._step(self._model, key) for key in self._of_model}

    def use_graph(self, graph: SavedGraph, specs: Mapping[str, Any]) -> None:
        """Evaluate a stored graph, in place of the model, on batches of these structures, given by eval set."""
        self._of_graph = {}
        for eval_set, spec in specs.items():
            key = self._key(eval_set, spec)
            if key not in self._of_graph:
                self._of_graph[key] = self._step(graph, key)
        self.require_in_turn()

    def drop_graph(self) -> None:
        """Release the steps of the stored graph, and evaluate the model again."""
        self._dropped_traces += _traces(self._of_graph or {})
        self._of_graph = None

    def forget_first_batches(self) -> None:
        """Free the memory of the first batches; afterwards no step can be created."""
        self._first_batches = {}

    @property
    def _in_use(self) -> dict[_Key, Step]:
        """Return the steps of the stored graph if one is loaded, else those of the model."""
        return self._of_model if self._of_graph is None else self._of_graph

    def _key(self, eval_set: str, spec: Any) -> _Key:
        return eval_set if self._task.of_set(eval_set) is not self._task else "", repr(spec)

    def _step(self, model: Any, key: _Key) -> Step:
        """Create a step of a model, or of a stored graph, and try it on the first batch of its structure."""
        first, spec = self._first_batches[key]
        task = self._task.of_set(key[0]) if key[0] else self._task
        return Step(task, model, first, spec, self.set_back, autograph=self._autograph, found=self._no_sums)


def _traces(steps: dict[_Key, Step]) -> int:
    return sum(step.traces for step in steps.values())


def _wants_autograph(task: Task, model: Any) -> bool:
    """Return whether to trace with AutoGraph: tf_keras does so by default, Keras 3 does not."""
    if model is not None:
        return is_keras_2(model)
    tasks = {id(one): one for one in map(task.of_set, task.eval_sets)}.values()
    losses = [loss for one in tasks for loss in by_output(one.loss).values()]
    metrics = [metric for one in tasks for _, metric in chosen(one)]
    return any(is_keras_2(metric) for metric in [*losses, *metrics])
