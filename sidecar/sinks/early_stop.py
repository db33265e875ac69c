"""Write the signal to stop training, once a metric has not improved for a number of evaluations.

It is a sink: a fold over the evaluations in the order of the journal, in the daemon of the publishing node. So another
node, or this one after a restart, decides the same. `sidecar.early_stop` reads the signal in the training job.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sidecar.clock import timestamp
from sidecar.codec import dumps
from sidecar.coordination.storage import Storage
from sidecar.coordination.totals import number_of
from sidecar.coordination.unique_names import create_and_read
from sidecar.early_stop import FILE, StopSignal
from sidecar.plain_text import number, one_line
from sidecar.records import shown_step
from sidecar.sinks.best_so_far import BestSoFar, better_by, value_of
from sidecar.sinks.sink import Evaluation, Event


@dataclass(slots=True, kw_only=True)
class EarlyStop:
    """Give the signal after `patience` evaluations in a row that were not better than the best one before them.

    A person withdraws the signal by deleting its file. It is given again after `patience` further evaluations without
    an improvement.

    Args:
        storage: The run's state directory.
        log: The daemon's log.
        patience: The number of evaluations without an improvement.
        metric: EVAL_SET/METRIC; None: the first one with a direction that the task lists.
        min_delta: The least difference that counts as an improvement is more than this.
    """

    takes: ClassVar[frozenset[type]] = frozenset({Evaluation})

    storage: Storage
    log: Any
    patience: int
    metric: str | None = None
    min_delta: float = 0.0
    name: str = "early_stop"
    signalled: bool = False
    """Whether the file is there, as of the newest evaluation. Other threads read this."""
    _best: BestSoFar = field(init=False)
    _noted: int = 0  # the newest plan whose evaluation was compared
    _is_due: bool = False  # whether that one gives the signal

    def __post_init__(self) -> None:
        self._best = BestSoFar(self.metric, better_by(self.min_delta))

    def resume(self, past: Iterable[Evaluation], /) -> None:
        """Compare the evaluations of the past. None of them gives a signal any more."""
        self._best = BestSoFar(self.metric, better_by(self.min_delta))
        self._noted = 0
        for evaluation in past:
            self._note(evaluation)
        self.signalled = self.storage.read(FILE) is not None

    def write(self, event: Event, /) -> None:
        """Compare an evaluation, and give the signal if it is time. Raises `StorageError` if it cannot be written."""
        assert isinstance(event, Evaluation)  # it takes no other
        if event.plan != self._noted:
            self._note(event)
        self.signalled = self.storage.read(FILE) is not None
        if self._is_due and not self.signalled:
            self._give(event)

    def close(self) -> None:
        """Do nothing: a request to storage cannot be broken off."""

    def _note(self, evaluation: Evaluation) -> None:
        before, self._noted = self._best.since, evaluation.plan
        self._best.note(evaluation)
        self._is_due = self._best.since > before and self._best.since % self.patience == 0

    def _give(self, evaluation: Evaluation) -> None:
        """Create the file, durable before it is visible, unless another node did meanwhile."""
        signal = self._signal(evaluation)
        data = dumps(signal)
        self.signalled = True
        if create_and_read(self.storage, FILE, data) == data:
            self.log.warning(
                "early_stop_signalled",
                reason=signal.reason,
                metric=signal.metric,
                checkpoint=evaluation.checkpoint.name,
                step=evaluation.checkpoint.step,
            )

    def _signal(self, evaluation: Evaluation) -> StopSignal:
        assert self._best.metric_compared is not None  # else nothing could be due
        checkpoint, (eval_set, name) = evaluation.checkpoint, self._best.metric_compared
        metric, since = f"{eval_set}/{name}", self._best.since
        reason = f"{metric} has not improved for {since} evaluations"
        best = None
        if self._best.best is not None:
            _, record = self._best.best
            value = value_of(record, (eval_set, name))
            assert value is not None  # else it would not be the best one
            best = number_of(value)
            at = shown_step(record.checkpoint.step, record.checkpoint.step_source)
            reason += f", since {number(best)} at {record.checkpoint.name} (step {at})"
        known = None if self._best.best is None else self._best.best[1].checkpoint
        return StopSignal(
            reason=one_line(reason),
            metric=metric,
            best=best if best is not None and math.isfinite(best) else None,
            best_step=None if known is None else known.step,
            best_checkpoint="" if known is None else one_line(known.name),
            step=checkpoint.step,
            checkpoint=one_line(checkpoint.name),
            patience=self.patience,
            run=evaluation.id.partition("-")[0],
            created_at=timestamp(evaluation.milliseconds / 1000),
        )
