"""Define the record of one result of `sidecar check`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Describe one result of a trial. `what` names the subject, such as `journal`."""

    what: str
    ok: bool
    text: str
