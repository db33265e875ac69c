"""Define the record of one result of `sidecar check`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Describe one result of a trial.

    `what` names the subject, such as `journal`. `tried` is false if something was left out, which `text` explains.
    `doubtful`: it works, and is probably not what the user wants.
    """

    what: str
    ok: bool
    text: str
    tried: bool = True
    doubtful: bool = False
