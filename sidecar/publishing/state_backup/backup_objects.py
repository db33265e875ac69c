"""Name the objects of a backup of the state, remove one, and say what went wrong with one.

A listing of a bucket is not trusted: an object whose key is not that of a file of a state directory is passed over.
"""

import errno
import re
from pathlib import PurePosixPath
from typing import Final

from sidecar.checkpoints.inspect import FETCHED
from sidecar.coordination.run import JOURNAL_FOLDERS, SEGMENTS
from sidecar.coordination.snapshot_store import PATH as SNAPSHOT
from sidecar.errors import RecordError, SidecarError
from sidecar.system.object_store import BucketError, ObjectStore

BEST_EXPORT: Final = "exports/best.json"
"""The object that names the best export, to which a link leads in a state directory."""

_FILES: Final = ("run.json", "early_stop.json", SNAPSHOT)
_FOLDERS: Final = ("segments", "plans", "outcomes", "evaluations", "comparisons", "sinks", "exports")
_RECORD: Final = re.compile(r"(plans|outcomes)/[0-9]{12}\.json|segments/[0-9]{12}\.jsonl\.gz")
_LONGEST_NAME: Final = 255
_DEEPEST: Final = 10


def is_part(key: str) -> bool:
    """Return whether a key of a listing, which is not trusted, is that of a file of a state directory."""
    parts = PurePosixPath(key).parts
    return (
        "/".join(parts) == key
        and 0 < len(parts) <= _DEEPEST
        and (key in _FILES if len(parts) == 1 else parts[0] in _FOLDERS)
        and (parts[0] not in (*JOURNAL_FOLDERS, SEGMENTS) or _RECORD.fullmatch(key) is not None)
        and parts[:2] != ("exports", "best")
        and all(part.isprintable() for part in parts)
        and not any(part.startswith(".") for part in parts[: -1 if parts[-1] == FETCHED else None])
        and all(len(part.encode(errors="surrogateescape")) <= _LONGEST_NAME for part in parts)
    )


def remove(store: ObjectStore, key: str) -> None:
    """Delete an object; make it empty on a server that cannot delete, which a restore then passes over."""
    try:
        store.delete(key)
    except BucketError as error:
        if error.errno != errno.ENOTSUP:
            raise
        store.put(key, b"")


def why(error: Exception) -> str:
    """Return the sentence of an error."""
    if isinstance(error, BucketError):
        return f"{error.filename}: {error.strerror}"
    return str(error) if isinstance(error, SidecarError | RecordError) else repr(error)
