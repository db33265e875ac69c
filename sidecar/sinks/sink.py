"""Define what a sink is: a program that gets every result of a run, such as Prometheus by remote write."""

from dataclasses import dataclass
from typing import Protocol

from sidecar.errors import SidecarError
from sidecar.records import Checkpoint, Result


class SinkUnavailableError(SidecarError):
    """A sink cannot take results now: the same result is delivered again later."""

    retryable = True


class SinkRefusedError(SidecarError):
    """A sink will never take this result: the next one is delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Hold one successful evaluation.

    Args:
        run: Name of the run, as in the labels of the metrics.
        plan: Number of the evaluation in the journal.
        checkpoint: The checkpoint; its `step` is a number also where no step was found.
        result: The numbers.
        milliseconds: Unix time at which the evaluation was completed. Later evaluations have later times.
    """

    run: str
    plan: int
    checkpoint: Checkpoint
    result: Result
    milliseconds: int


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
        ...
