"""Define the names in the folder of pins: of pins, their records, and unfinished pins. No I/O."""

import hashlib
import re
import secrets
from typing import Final

from sidecar.protocol.records import Checkpoint

PIN_RECORD: Final = ".checkpoint.json"
"""The file in a pin that describes its checkpoint, so that the checkpoint is known even if its files are unreadable."""

TEMPORARY: Final = ".tmp-"
"""The prefix of unfinished pins and of pins that are being removed."""

_UNFINISHED: Final = re.compile(r"\.tmp-([0-9a-f]{12})-")
_PROCESS: Final = secrets.token_hex(4)  # distinguishes this process from others of the same node


def is_pin(name: str) -> bool:
    """Return whether a folder of that name is a pin: `ckpt-5@0123456789ab`."""
    return not name.startswith(".")


def is_temporary(name: str) -> bool:
    """Return whether a folder of that name is an unfinished pin, or one that is being removed."""
    return name.startswith(TEMPORARY)


def digest_in_name(name: str) -> str | None:
    """Return the first 12 digits of the digest in the name of an unfinished pin; None for any other name."""
    match = _UNFINISHED.match(name)
    return match[1] if match else None


def unfinished_name(checkpoint: Checkpoint, owner: str) -> str:
    """Return a new name for an unfinished pin, which shows other nodes its checkpoint and its owner."""
    return f"{TEMPORARY}{checkpoint.digest[:12]}-{_tag(owner)}-{_PROCESS}{secrets.token_hex(4)}"


def removed_name() -> str:
    """Return a new name for a pin that is being removed."""
    return f"{TEMPORARY}{secrets.token_hex(8)}"


def is_owned_by(name: str, owner: str) -> bool:
    """Return whether this node began the unfinished pin of that name, by this process or by an earlier one."""
    return f"-{_tag(owner)}-" in name


def _tag(owner: str) -> str:
    """Return a short hash of an owner's name, which is safe in file names."""
    return hashlib.sha256(owner.encode(errors="surrogateescape")).hexdigest()[:8]
