"""Define what `sidecar check` reports about each thing that it tried."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Hold the result of one trial."""

    what: str
    ok: bool
    text: str
