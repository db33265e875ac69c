"""Name what lies in the folder of pins: pins, their records, and unfinished pins.

No I/O.
"""

import hashlib
import re
import secrets
from typing import Final

from sidecar.records import Checkpoint

PIN_RECORD: Final = ".checkpoint.json"
"""The file in a pin that describes its checkpoint, so that the checkpoint is known even if its files are unreadable."""

TEMPORARY: Final = ".tmp-"
"""The prefix of unfinished pins and of pins that are being removed."""

_MAKING: Final = re.compile(r"\.tmp-([0-9a-f]{12})-")
_LIFE: Final = secrets.token_hex(4)  # of this process


def is_pin(name: str) -> bool:
    """Return whether a folder of that name is a pin: `ckpt-5@0123456789ab`."""
    return not name.startswith(".")


def is_temporary(name: str) -> bool:
    """Return whether a folder of that name is a pin in the making, or one that is being removed."""
    return name.startswith(TEMPORARY)


def being_made(name: str) -> str | None:
    """Return the first 12 digits of the digest of a pin in the making; None for anything else."""
    match = _MAKING.match(name)
    return match[1] if match else None


def making_name(checkpoint: Checkpoint, owner: str) -> str:
    """Return a new name for a pin in the making; it says to other nodes for which checkpoint it is, and by whom."""
    return f"{TEMPORARY}{checkpoint.digest[:12]}-{_tag(owner)}-{_LIFE}{secrets.token_hex(4)}"


def removing_name() -> str:
    """Return a new name for a pin that is being removed."""
    return f"{TEMPORARY}{secrets.token_hex(8)}"


def is_of(name: str, owner: str) -> bool:
    """Return whether that pin in the making was begun by this owner, in this life or a former one."""
    return f"-{_tag(owner)}-" in name


def _tag(owner: str) -> str:
    return hashlib.sha256(owner.encode(errors="surrogateescape")).hexdigest()[:8]
