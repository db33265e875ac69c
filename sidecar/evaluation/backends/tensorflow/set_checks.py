"""Check model, metrics and loss on some batches of one eval set, in the first evaluation of a process.

A number may be added up over batches and workers only if three things hold, and a step of one's own, a loss or a metric
may break each of them:

- A batch gives the same numbers again, after all other batches, and its first example alone at once. Otherwise
  something is drawn at random or kept. A trace that can keep nothing (`graph_memory`) gives the same.
- States add up, to the end of the set (`replay`).
- The numbers do not depend on how examples are divided into batches. Batches 0 to 7 of the set are evaluated
  whole and in halves by the ranks that own them, so the findings are the same for any number of ranks. If the trace
  keeps nothing and returns rows for examples of one shape, a few examples are evaluated first, and halves only if their
  rows differ. A finding becomes a note, or a refusal if the batches depend on the number of ranks.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import tensorflow as tf

from sidecar.evaluation.backends.tensorflow.data import examples_in
from sidecar.evaluation.backends.tensorflow.keras_metric import takes_probabilities
from sidecar.evaluation.backends.tensorflow.mergeability import (
    SIZE_ERRORS,
    divided,
    map_tensors,
    part_of,
    without_padding,
)
from sidecar.evaluation.backends.tensorflow.randomness import require_equal
from sidecar.evaluation.backends.tensorflow.replay import Replay, not_sums_to_end
from sidecar.evaluation.backends.tensorflow.step import Evaluation, Step
from sidecar.evaluation.batch_dependence import LOGITS, MODEL, UNTESTED
from sidecar.evaluation.data.batch_source import Batch
from sidecar.evaluation.first_batch import DIVIDED, REPEATED_CALLS, require_same_contents
from sidecar.evaluation.repeatability import AFTER_OTHERS, REPEATED
from sidecar.evaluation.row_comparison import few_of
from sidecar.evaluation.states import SetStates

_HALVED_FOR_SUMS: Final = (0, 1, 2, 4)
"""Numbers of the batches that are evaluated in halves if the step returns sums, such as states of metrics."""


class SetChecks:
    """Check the evaluations of one eval set on one rank.

    `name`: the name of the eval set. `first`: a batch that is the first one on all ranks, unless the set divides
    itself.
    """

    def __init__(self, name: str, first: Batch) -> None:
        self._name = name
        self.first = first
        self._is_checked_to_end = False
        self._replay: Replay | None = None
        self._kept: _Kept | None = None
        self._found: set[str] = set()  # what depends on the division into batches
        self._examples = 0
        self.seen = 0
        """The batches of this rank that were evaluated since `begin`."""
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Return whether an evaluation was checked to its end, so that the next ones are not checked."""
        return self._is_over

    def begin(self, step: Step) -> None:
        """Begin an evaluation. A later evaluation repeats what an interrupted one did not finish."""
        self.seen, self._examples, self._kept = 0, 0, None
        if self._replay is None or not self._is_over:
            self._replay = Replay(step.measurement.stateful_metrics)

    def add(
        self,
        step: Step,  # the step that evaluated it
        batch: Batch,  # the batch
        number: int | None,  # its number in the eval set, if it is known
        seed: Any,  # the seed of its evaluation
        carried: list[Any],  # the states of recurrent layers before it
        evaluated: Evaluation,  # the results
        outputs: list[Any],  # their outputs as arrays
    ) -> None:
        """Check an evaluated batch of this rank. Raises `EvaluationError` if it gives other numbers a second time."""
        place, self.seen = self.seen if number is None else number, self.seen + 1
        if not self._is_over:
            self._examples += examples_in(batch)
            if self._kept is None:
                self._kept = _Kept(step, batch, seed, carried, evaluated)
                self._kept.require_repeatable()
                self._found |= _taken_for_probabilities(step, evaluated)
            if place in DIVIDED and not (
                self._kept.is_repeatable and _few_rows_are_equal(step, place, batch, seed, carried, evaluated)
            ):
                self._found |= _dependent(step, batch, seed, carried, evaluated)
        assert self._replay is not None, "`begin` was called"
        self._replay.add(batch, partial(step.changes, outputs), partial(step.run_from, seed, carried))

    def finish(self, step: Step, states: SetStates, *, divides_itself: bool) -> set[str]:
        """End an evaluation, add the findings of this rank to the states, and return the metrics that do not add up.

        `step`: the step that evaluated the batches. `divides_itself`: whether the set has no first batch that all ranks
        share. Raises `EvaluationError` if the first batch gives other numbers than before.
        """
        assert self._replay is not None, "`begin` was called"
        found = self._replay.finish()
        if self._kept is not None:
            self._kept.require_same_after_others()
            if divides_itself:
                run_from = partial(step.run_from, self._kept.seed, self._kept.carried)
                metrics = step.measurement.stateful_metrics
                found |= not_sums_to_end(metrics, states, self._kept.batch, self._examples, run_from)
            self._kept = None
        self._is_over = True
        dependence = step.measurement.dependence
        dependence.add(self._name, self._found | step.measurement.of_batches)
        dependence.add_to(states, self._name)
        return found

    def start_over(self) -> None:
        """Check the next evaluation again: some metrics are updated in turn from then on."""
        self._is_over = False

    def not_sums_to_end(
        self, step: Step, seed_of: Callable[[Batch], Any], carried: list[Any], totals: SetStates, examples: int
    ) -> set[str]:
        """Return, once, the metrics that do not add up to the end of the set, see `replay.not_sums_to_end`."""
        was_checked, self._is_checked_to_end = self._is_checked_to_end, True
        metrics = step.measurement.stateful_metrics
        if was_checked or not metrics or not examples:
            return set()
        run_from = partial(step.run_from, seed_of(self.first), carried)
        return not_sums_to_end(metrics, totals, self.first, examples, run_from)


class _Kept:
    """Keep the first batch of a rank, and its numbers, while the others are evaluated."""

    def __init__(self, step: Step, batch: Batch, seed: Any, carried: list[Any], evaluated: Evaluation) -> None:
        self._step, self.batch, self.seed, self.carried = step, batch, seed, carried
        self._evaluated, self._contents = evaluated, step.measurement.contents(step.outputs_of(evaluated))
        self._example = map_tensors(partial(part_of, 0, 1), batch)
        self.is_repeatable = step.keeps_nothing and not any(self._contents.values())
        """Whether no code of a user runs that could keep anything from batch to batch."""
        try:
            self._alone = None if step.recurrent or self.is_repeatable else self._run(self._example)
        except SIZE_ERRORS:  # the model accepts whole batches only
            self._alone = None

    def _run(self, batch: Batch) -> Evaluation:
        return self._step.run(batch, self._step.start, self.seed, self.carried)

    def require_repeatable(self) -> None:
        """Raise `EvaluationError` if a second evaluation gives other numbers: of one example, if the model takes it."""
        if self.is_repeatable:
            return
        if self._alone is None:
            require_equal(self._evaluated.arrays(), self._run(self.batch).arrays(), REPEATED)
        else:
            require_equal(self._alone.arrays(), self._run(self._example).arrays(), REPEATED)

    def require_same_after_others(self) -> None:
        """Raise `EvaluationError` if model or metrics give other numbers than before the other batches."""
        if self.is_repeatable:
            return
        again = self._run(self.batch)
        require_equal(self._evaluated.arrays(), again.arrays(), AFTER_OTHERS)
        for _ in range(REPEATED_CALLS):
            require_same_contents(self._contents, self._step.measurement.contents(self._step.outputs_of(again)))
            if self._alone is not None:
                require_equal(self._alone.arrays(), self._run(self._example).arrays(), AFTER_OTHERS)


def _are_alike(spec: Any) -> bool:
    """Return whether examples have one shape and hold no texts, which a model may pad.

    `spec`: the structure of batches, as nested `tf.TypeSpec`s.
    """
    leaves = [leaf for leaf in tf.nest.flatten(spec) if leaf is not None]
    return all(
        isinstance(leaf, tf.TensorSpec) and leaf.dtype != tf.string and leaf.shape[1:].is_fully_defined()
        for leaf in leaves
    )


def _taken_for_probabilities(step: Step, evaluated: Evaluation) -> set[str]:
    """Return `LOGITS` if a metric takes the only output for probabilities, and some of its numbers are none."""
    metrics = [of_keras.metric for of_keras in step.measurement.stateful_metrics.values()]
    rows = evaluated.rows() or []
    if len(rows) != 1 or not any(map(takes_probabilities, metrics)):
        return set()
    return {LOGITS} if bool(((rows[0] < 0) | (rows[0] > 1)).any()) else set()


def _few_rows_are_equal(
    step: Step, number: int, batch: Batch, seed: Any, carried: list[Any], evaluated: Evaluation
) -> bool:
    """Return whether a few examples of a batch alone give the rows that they give in it, so that halves show no more.

    `number`: that of the batch. False if that is not known, as for results that are not rows.
    """
    if step.recurrent or not _are_alike(step.spec):
        return False
    if number in _HALVED_FOR_SUMS and not step.gives_rows(evaluated):
        return False
    places = few_of(examples_in(batch), max(number, 1))
    if places is None:
        return False
    (place,) = places
    few = map_tensors(partial(part_of, place.start, place.stop - place.start), batch)
    try:
        return step.has_rows_of(place, evaluated, step.run(few, step.start, seed, carried))
    except SIZE_ERRORS:  # the model accepts whole batches only
        return False


def _dependent(step: Step, batch: Batch, seed: Any, carried: list[Any], evaluated: Evaluation) -> set[str]:
    """Return what depends on the division into batches: names of metrics, or `MODEL` for the predictions."""
    run = partial(step.run, start=step.start, seed=seed, carried=carried)
    whole, *halves = divided(batch)
    if step.recurrent:  # the step takes batches of one size
        return step.dependent_given_predictions(whole, halves, evaluated) if examples_in(batch) > 1 else set()
    try:
        of_whole = evaluated if examples_in(batch) > 1 else run(whole)
        of_halves = [run(half) for half in halves]
    except SIZE_ERRORS:  # the model accepts whole batches only
        found = step.dependent_given_predictions(whole, halves, evaluated) if examples_in(batch) > 1 else set()
        return found | {UNTESTED}
    found = step.dependent(whole, halves, of_whole, of_halves)
    if found or step.measurement.randomness.is_drawn:
        return found
    shorter = [without_padding(half, step.spec) for half in halves]
    if all(short is None for short in shorter):
        return found
    try:
        of_shorter = [
            of_half if short is None else run(short) for short, of_half in zip(shorter, of_halves, strict=True)
        ]
    except SIZE_ERRORS:  # the model accepts inputs of one length only, so they are padded to it
        return found
    return {MODEL} if step.differ([examples_in(half) for half in halves], of_halves, of_shorter) else found
