"""Give a cause and a remedy for each kind of failure."""

from sidecar.protocol.states import FailureKind
from sidecar.publishing.failures import ADVICE


def test_every_kind_of_failure_has_advice():
    """A cause and a remedy; a kind of a newer release has none, and is shown all the same."""
    assert set(ADVICE) == set(FailureKind)
    assert all(advice.cause.endswith(".") and advice.remedy.endswith(".") for advice in ADVICE.values())
