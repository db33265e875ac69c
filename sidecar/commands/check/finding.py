"""What `sidecar check` tells of each thing it tried."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried."""

    what: str
    ok: bool
    text: str
