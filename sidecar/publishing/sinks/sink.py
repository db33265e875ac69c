"""Define what a sink is: a program that gets what happened in a run, such as Prometheus by remote write, or a hook.

The events are a closed set. They are views of the journal, so a sink that reads the past sees the same events again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from sidecar.coordination.totals import Best
from sidecar.errors import SidecarError
from sidecar.protocol.records import Checkpoint, Result


class SinkUnavailableError(SidecarError):
    """A sink cannot take events now: the same event is delivered again later."""

    retryable = True


class SinkRefusedError(SidecarError):
    """A sink will never take this event: the next one is delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Hold one successful evaluation.

    Args:
        run: Name of the run, as in the labels of the metrics.
        plan: Number of the evaluation in the journal.
        checkpoint: The checkpoint; its `step` is a number also where no step was found.
        result: The numbers.
        milliseconds: Unix time at which the evaluation was completed. Later events have later times.
        id: Identifies the event among those of all runs, whoever delivers it, and however often.
    """

    run: str
    plan: int
    checkpoint: Checkpoint
    result: Result
    milliseconds: int
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Hold a failed attempt at an evaluation (`final` is false), or the end of a checkpoint without a result.

    Args:
        run, plan, milliseconds, id: as in `Evaluation`.
        checkpoint: Name of the checkpoint.
        digest: Its digest.
        step: Its training step, if one is known.
        final: Whether the checkpoint is given up, as far as this task is concerned.
        kind: A `FailureKind` of an attempt; of the end of a checkpoint `failed`, `corrupt` or `vanished`.
        message: Why, for people.
        attempt: Number of the failed attempt; None for the end of a checkpoint.
        node: Node that failed, if one is to blame.
    """

    run: str
    plan: int
    checkpoint: str
    digest: str
    step: int | None
    final: bool
    kind: str
    message: str
    milliseconds: int
    id: str
    attempt: int | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """Hold the end of the run: nothing is left to do, and the settings let the daemons end.

    Args:
        run, milliseconds, id: as in `Evaluation`.
        plan: Number of the newest plan; 0 if there is none.
        reason: Why the run is over, for people.
        failed: Checkpoints that failed for good; the daemons exit with 1 if there are any.
        checkpoints: Number of checkpoints by their end, as in `Totals`: evaluated, failed, skipped, …
        best: Best value of each metric with a direction, by EVAL_SET/METRIC.
    """

    run: str
    plan: int
    reason: str
    failed: int
    checkpoints: Mapping[str, int]
    best: Mapping[str, Best]
    milliseconds: int
    id: str


Event = Evaluation | Failure | RunEnd


class Sink(Protocol):
    """Take the results of a run.

    One thread calls a sink. The daemon of the publishing node does, and after its end that of another node goes on.
    """

    name: str
    """Name of the sink in metrics, in the log and in the state directory: letters, digits and underscores."""

    def write(self, evaluation: Evaluation) -> None:
        """Deliver one evaluation, within the time limit of the sink.

        After a crash the newest evaluation may be delivered a second time, with the same time and numbers.

        Raises:
            SinkUnavailableError: if it should be delivered again later.
            SinkRefusedError: if the sink will never take it.
        """


@runtime_checkable
class EventSink(Protocol):
    """Take other events than evaluations as well, and know the past. A sink that has these members is one.

    Such a sink begins with the events after its first start, and gets the evaluations before it by `resume`.
    """

    @property
    def name(self) -> str:
        """Return the name, as in `Sink`."""

    takes: ClassVar[frozenset[type]]
    """The classes of the events that `write` takes: some of `Evaluation`, `Failure` and `RunEnd`."""

    def write(self, event: Event, /) -> None:
        """Deliver one event, as `Sink.write`. After a crash the newest one may come again, with the same `id`."""

    def resume(self, past: Iterable[Evaluation], /) -> None:
        """Begin anew after these evaluations, oldest first: all that come before the next event.

        It is called when this daemon begins to deliver: at its start, and after another node did.
        """

    def close(self) -> None:
        """Give up the delivery that is under way. Another thread calls this, at the end of the daemon."""
