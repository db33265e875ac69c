"""Write the signal to stop training, once a metric has not improved for a number of evaluations, and does not rise.

It is a sink: a fold over the evaluations in the order of the journal, in the daemon of the publishing node. A record in
the state directory names the newest evaluation at which the signal was there. So another node, or this one after a
restart, decides the same. `sidecar.early_stop` reads the signal in the training job.
"""

import contextlib
import math
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from sidecar.coordination.storage import Storage
from sidecar.coordination.totals import number_of
from sidecar.coordination.unique_names import create_and_read
from sidecar.early_stop import FILE, StopSignal, parse_signal
from sidecar.errors import RecordError
from sidecar.evaluation.intervals import student_t
from sidecar.protocol.codec import dumps, loads
from sidecar.protocol.record_limits import SMALL
from sidecar.protocol.records import SCHEMA, shown_step
from sidecar.publishing.sinks.best_so_far import BestSoFar, better_by, value_of
from sidecar.publishing.sinks.sink import Evaluation, Event, SinkUnavailableError
from sidecar.system.clock import timestamp
from sidecar.system.event_log import EventLog
from sidecar.system.plain_text import number, one_line

_SIGNALLED: Final = "sinks/early_stop.signalled.json"  # no sink has a name with a dot

_WINDOW: Final = 3
"""The newest numbers through which the line is laid, as a multiple of the patience."""

_ENOUGH: Final = 2
"""The numbers after which the line itself decides, as a multiple of the patience; before, its interval does."""

_EVIDENCE: Final = 5
"""The patience whose line a smaller one has, too: fewer numbers would not tell a slow rise from noise."""

_LEAST: Final = 3  # numbers through which a line has an error


def has_levelled_off(numbers: Sequence[float], patience: int, min_delta: float) -> bool:
    """Return whether the newest numbers show no improvement of more than `min_delta` in `patience` evaluations.

    `numbers`: those of all evaluations so far, in their order; larger ones are better. A straight line is laid through
    the newest ones by least squares, three times as many as `patience` and at least 15, which tells a slow rise from
    noise where a comparison of two numbers cannot. With at least twice `patience` numbers, and 10, the slope decides,
    and before, the upper end of its 95 % interval. tests/benchmarks/bench_early_stop.py measures how often this is
    wrong. Numbers that are not finite are left out, unless the newest `patience` ones are all of that kind: then
    training has diverged.
    """
    window = numbers[-_WINDOW * max(patience, _EVIDENCE) :]
    points = [(at, number) for at, number in enumerate(window) if math.isfinite(number)]
    if len(points) < 2 or points[-1][0] < len(window) - patience:  # noqa: PLR2004 - a line needs two points
        return True
    slope, error = _line(points)
    if len(window) < _ENOUGH * max(patience, _EVIDENCE):
        if len(points) < _LEAST:
            return False
        slope += student_t(len(points) - 2) * error
    return slope * patience <= min_delta


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return the slope of the line of least squares, and its standard error: 0 for two points."""
    first = points[0][1]
    scale = max(abs(number / 2 - first / 2) for _, number in points) or 1.0  # half of it, or it could overflow
    middle = math.fsum(at for at, _ in points) / len(points)
    heights = [(number / 2 - first / 2) / scale for _, number in points]
    level = math.fsum(heights) / len(points)
    spread = math.fsum((at - middle) ** 2 for at, _ in points)
    pairs = list(zip((at - middle for at, _ in points), (height - level for height in heights), strict=True))
    slope = math.fsum(at * height for at, height in pairs) / spread
    left = math.fsum((height - slope * at) ** 2 for at, height in pairs)
    error = math.sqrt(left / (len(points) - 2) / spread) if len(points) >= _LEAST else 0.0
    return slope * scale * 2, error * scale * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Signalled:
    """Name the newest evaluation of a run at which the signal was there, by its id."""

    id: str
    schema: int = SCHEMA


@dataclass(slots=True, kw_only=True)
class EarlyStop:
    """Give the signal once at least `patience` evaluations in a row were not better, and the metric has levelled off.

    A person withdraws the signal by deleting its file. It is given again after `patience` further evaluations without
    an improvement, counted from the newest one at which the signal was there.
    """

    takes: ClassVar[frozenset[type]] = frozenset({Evaluation})

    storage: Storage  # the run's state directory
    log: EventLog  # the daemon's log
    patience: int  # the number of evaluations without an improvement
    metric: str | None = None  # EVAL_SET/METRIC; None: the first one with a direction that the task lists
    min_delta: float = 0.0  # the least difference that counts as an improvement is more than this
    name: str = "early_stop"
    signalled: bool = False
    """Whether the file holds a signal, as of the newest evaluation. Other threads read this."""
    _best: BestSoFar = field(init=False)
    _noted: int = 0  # the newest plan whose evaluation was compared
    _numbers: deque[float] = field(init=False)  # the newest ones that count; larger ones are better
    _is_due: bool = False  # whether that one gives the signal
    _signalled_at: int = 0  # the number of evaluations since the best one at which the signal was there last
    _recorded: str = ""  # the id of the evaluation at which it was, as storage has it

    def __post_init__(self) -> None:
        self._best = BestSoFar(metric=self.metric, is_better=better_by(self.min_delta))
        self._numbers = deque(maxlen=min(_WINDOW * max(self.patience, _EVIDENCE), sys.maxsize))

    def resume(self, past: Iterable[Evaluation], /) -> None:
        """Compare the evaluations of the past. None of them gives a signal any more."""
        self._best = self._best.renewed()
        self._noted = self._signalled_at = 0
        self._numbers.clear()
        self._recorded = self._read_record()
        for evaluation in past:
            self._note(evaluation, past=True)
            if evaluation.id == self._recorded:
                self._signalled_at = self._best.since
        with contextlib.suppress(SinkUnavailableError):  # the next evaluation reports it
            self._look()

    def write(self, event: Event, /) -> None:
        """Compare an evaluation, and give the signal if it is time.

        Raises `StorageError` if storage does not answer, and `SinkUnavailableError` if another file is in its place.
        """
        assert isinstance(event, Evaluation)  # it takes no other
        if event.plan != self._noted:
            self._note(event)
        self._look()
        if not self.signalled and not self._is_due:
            return
        if event.id != self._recorded:  # before the signal is there, or it could be withdrawn unnoticed
            self.storage.replace(_SIGNALLED, dumps(Signalled(id=event.id)), survives_crash=True)
            self._recorded = event.id
        if not self.signalled:
            self._give(event)
        self._signalled_at = self._best.since

    def close(self) -> None:
        """Do nothing: a request to storage cannot be broken off."""

    def _note(self, evaluation: Evaluation, *, past: bool = False) -> None:
        before, begun, metric = self._best.since, self._best.begun, self._best.metric_compared
        is_better = self._best.note(evaluation)
        self._noted, since = evaluation.plan, self._best.since
        if (self._best.begun, self._best.metric_compared) != (begun, metric):  # data, task or metric changed
            before = self._signalled_at = 0
            self._numbers.clear()
        if since < before:
            self._signalled_at = 0
        if (is_better or since != before) and self._best.metric_compared is not None:
            value = value_of(evaluation, self._best.metric_compared)
            assert value is not None  # else it would not count
            self._numbers.append(number_of(value) if value.goal == "max" else -number_of(value))
        is_late = not past and since != before and since - self._signalled_at >= self.patience
        self._is_due = is_late and has_levelled_off([*self._numbers], self.patience, self.min_delta)

    def _look(self) -> None:
        """Find out whether the signal is there, by the rules of training. Raises as `write`."""
        self.signalled = False
        try:
            if (data := self.storage.read(FILE, SMALL.size)) is not None:
                parse_signal(data)
                self.signalled = True
        except RecordError as error:
            where = f"{FILE} in the run's state directory"
            raise SinkUnavailableError(
                f"{where} is not a signal that training can read, so none can be given: {error}; delete the file"
            ) from error

    def _read_record(self) -> str:
        """Return the id of the newest evaluation at which the signal was there; empty if none is known."""
        try:
            data = self.storage.read(_SIGNALLED, SMALL.size)
            return "" if data is None else loads(Signalled, data).id
        except RecordError:
            return ""

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
