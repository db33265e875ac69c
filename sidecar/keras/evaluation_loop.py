"""Evaluate checkpoints as they appear: wait, restore, evaluate, report, and know when to stop.

`SidecarEvaluator` builds the loop. Imports no framework: the evaluation and the watch are given to it.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.inspect import stem_of
from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.errors import EvaluationFailedError
from sidecar.evaluation.failures import EvaluationError
from sidecar.keras.checkpoint_watch import CheckpointWatch
from sidecar.protocol.states import FailureKind
from sidecar.system.clock import Clock
from sidecar.system.plain_text import one_line

LOG: Final = logging.getLogger("tensorflow")
"""The logger to which the evaluator of Keras 2 wrote. TensorFlow shows its warnings; `setLevel("INFO")` shows all."""

_FIRST_RETRY_SECONDS: Final = 1.0  # doubled each time, so that three retries take seven seconds
_LONGEST_RETRY_SECONDS: Final = 30.0
_LAST_NUMBER: Final = re.compile(r"(?:^|-)([0-9]{1,18})\Z")
_ITERATIONS: Final = ("optimizer", "variable")  # sources of a step that count the optimizer's updates


@dataclass(frozen=True, slots=True)
class EvaluatedCheckpoint:
    """Hold the result of one evaluation.

    Attributes:
        checkpoint: Name of the checkpoint in the checkpoint directory.
        step: The optimizer's iterations if the checkpoint holds them, else the number in its name; None without both.
        examples: Number of examples that were evaluated; None if Keras itself evaluated (`exact=False`).
        metrics: The final numbers, by name.
    """

    checkpoint: str
    step: int | None
    examples: int | None
    metrics: Mapping[str, float]


class Evaluation(Protocol):
    """Restore one checkpoint after the other into a model, and evaluate the model."""

    def restore(self, found: DiscoveredCheckpoint, path: str) -> None:
        """Restore a checkpoint. Raises `EvaluationError`."""

    def evaluate(self, found: DiscoveredCheckpoint, tick: Callable[[], None]) -> tuple[int | None, dict[str, float]]:
        """Evaluate, and return the number of examples and the metrics. `tick` is called after every batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRules:
    """Hold the user's choices for a loop. They are arguments of `SidecarEvaluator` with the same meaning."""

    max_evaluations: int | None = None
    interval_seconds: float = 1.0
    timeout_seconds: float = 30.0
    stop_idle_seconds: float | None = None
    max_retries: int = 3


class EvaluationLoop:
    """Evaluate the checkpoints that `watch` finds until the rules say stop, and report each result."""

    def __init__(
        self,
        watch: CheckpointWatch,
        evaluation: Evaluation,
        rules: LoopRules,
        *,
        clock: Clock,
        sleep: Callable[[float], None],
        report: Callable[[EvaluatedCheckpoint], None],
    ) -> None:
        self._watch, self._evaluation, self._rules = watch, evaluation, rules
        self._clock, self._sleep, self._report = clock, sleep, report
        self._evaluated = 0
        self._idle_since = clock.now()
        self._told_at = clock.now()

    def run(self) -> None:
        """Run until the last checkpoint was evaluated, or none came for `stop_idle_seconds`.

        Raises `EvaluationFailedError` if the first checkpoint does not fit the model, or the last one cannot be
        evaluated, and `EvaluationError` if the data or the metrics cannot be evaluated.
        """
        while True:
            found = self._watch.next()
            for settlement in self._watch.given_up():
                self._skip(settlement.name, number_in(settlement.name), settlement.reason)
            if found is None:
                if self._is_idle():
                    return
                self._sleep(self._rules.interval_seconds)
                continue
            if self._process(found):
                LOG.info("Last checkpoint evaluated. SidecarEvaluator stops.")
                return
            self._idle_since = self._told_at = self._clock.now()

    def _process(self, found: DiscoveredCheckpoint) -> bool:
        """Evaluate one checkpoint or skip it, and return whether it is the last one."""
        name, number = found.checkpoint.name, number_in(found.checkpoint.name, found.checkpoint.format)
        failure = self._restore(found)
        if failure is not None:
            self._watch.finish(found, is_evaluated=False)
            if failure.kind == FailureKind.MISMATCH and self._evaluated == 0:
                raise EvaluationFailedError(
                    f"{one_line(name)} does not fit the model, and it is the first checkpoint to be evaluated, so the "
                    f"model is taken to be wrong: {one_line(str(failure))}"
                )
            self._skip(name, number, str(failure))
            return False
        path = one_line(self._watch.path(found))
        LOG.info("Evaluation starts: Model weights loaded from latest checkpoint file %s", path)
        examples, metrics = self._evaluation.evaluate(found, self._watch.glance)
        shown = " ".join(f"{key}={value}" for key, value in metrics.items())
        LOG.info("End of evaluation. Metrics: %s", shown)
        self._watch.finish(found, is_evaluated=True)
        self._evaluated += 1
        self._report(EvaluatedCheckpoint(name, found.checkpoint.step, examples, metrics))
        most = self._rules.max_evaluations
        return most is not None and 0 < most <= (self._evaluated if number is None else number)

    def _restore(self, found: DiscoveredCheckpoint) -> EvaluationError | None:
        """Restore a checkpoint, if need be several times, and return the failure of the last attempt."""
        delay = _FIRST_RETRY_SECONDS
        for attempt in range(1 + self._rules.max_retries):
            path = self._watch.path(found)
            try:
                self._evaluation.restore(found, path)
                if self._watch.is_unchanged(found):
                    return None
                failure = EvaluationError("corrupt", "its files were replaced while they were read")
            except EvaluationError as error:  # users know the name, not the path of the pin, which is temporary
                failure = EvaluationError(error.kind, str(error).replace(path, found.checkpoint.name))
            if failure.kind in (FailureKind.VANISHED, FailureKind.MISMATCH):
                return failure  # it is gone, or of another model: a retry cannot help
            if attempt < self._rules.max_retries:
                LOG.warning(
                    "SidecarEvaluator encountered an error when loading the checkpoint at %s. Retrying. Error: %s: %s",
                    one_line(path),
                    failure.kind,
                    one_line(str(failure)),
                )
                self._sleep(delay)
                delay = min(2 * delay, _LONGEST_RETRY_SECONDS)
        return failure

    def _skip(self, name: str, number: int | None, why: str) -> None:
        """Say that a checkpoint is skipped. Raises `EvaluationFailedError` if no other checkpoint would follow it."""
        most = self._rules.max_evaluations
        if most and number is not None and number >= most:
            raise EvaluationFailedError(f"{one_line(name)}, the last checkpoint, cannot be evaluated: {one_line(why)}")
        LOG.error("SidecarEvaluator skips %s: %s", one_line(name), one_line(why))

    def _is_idle(self) -> bool:
        """Return whether to stop because no checkpoint comes; now and then tell the user if there never was one."""
        now = self._clock.now()
        idle = self._rules.stop_idle_seconds
        if idle is not None and now - self._idle_since >= idle:
            LOG.info("No new checkpoint for %g seconds. SidecarEvaluator stops.", idle)
            return True
        if self._evaluated == 0 and now - self._told_at >= self._rules.timeout_seconds:
            self._told_at = now
            LOG.warning(
                "No checkpoints appear to be found after %g seconds. Please check if you are properly using a "
                "`keras.callbacks.ModelCheckpoint` or a `tf.train.CheckpointManager` to save checkpoints by the "
                "training. %s",
                now - self._idle_since,
                self._watch.problem(),
            )
        return False


def iterations_of(found: DiscoveredCheckpoint) -> int | None:
    """Return the optimizer's iterations that a checkpoint holds; None if it holds none."""
    return found.checkpoint.step if found.checkpoint.step_source in _ITERATIONS else None


def number_in(name: str, format_name: str | None = None) -> int | None:
    """Return the number at the end of a checkpoint's name, after `-` or alone: 7 of `ckpt-7`, `e-07.keras` and `7`."""
    formats = FORMATS.values() if format_name is None else [FORMATS[format_name]]
    stem = name
    for format_ in formats:
        if (shorter := stem_of(name, format_)) != name:
            stem = shorter
    match = _LAST_NUMBER.search(stem.rpartition("/")[2])
    return None if match is None else int(match[1])
