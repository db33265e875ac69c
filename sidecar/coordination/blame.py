"""Read from a failed outcome which class the failure has, and which nodes are to blame. Pure."""

from collections.abc import Iterable

from sidecar.protocol.records import Outcome
from sidecar.protocol.states import FAILURE_CLASSES, FailureClass


def blame(outcome: Outcome) -> FailureClass:
    """Return the class of a failure: GROUP if single nodes are to blame, or if this release does not know its kind."""
    return FailureClass.GROUP if outcome.odd else FAILURE_CLASSES.get(outcome.kind or "", FailureClass.GROUP)


def blamed(failures: Iterable[Outcome], failure_class: FailureClass) -> int:
    """Return how many failures are of a class."""
    return sum(blame(outcome) == failure_class for outcome in failures)


def losers(outcome: Outcome) -> tuple[str, ...]:
    """Return the places without which the next attempt may do better: nodes, or machines of a cluster."""
    return outcome.odd or (() if outcome.node is None else (outcome.node,))
