"""Decide what an error about one entry of shared storage means, for each kind of entry and error.

An error about one file is not a verdict about a checkpoint or a node, and no reason to stop reading other entries.
Only `ENOENT` for the file itself means that the entry is gone; after any other error its state is unknown.
Standard library only; no I/O.
"""

import errno
from enum import StrEnum
from typing import Final


class Entry(StrEnum):
    """Name the kinds of entries that this program reads, writes and removes."""

    PIN = "pin"  # a folder of `pins`, and the files in it
    CHECKPOINT = "checkpoint"  # a file of the watched directory
    HEARTBEAT = "heartbeat"  # a file in `members`, of any other node
    SNAPSHOT = "snapshot"  # a view of the journal: no decision depends on it
    SAVE = "save"  # a file below `evaluations`
    LOG = "log"  # a worker's log, on this machine
    RECORD = "record"  # a plan, an outcome, run.json, this node's heartbeat: agreement depends on them


class Meaning(StrEnum):
    """Name the conclusions that an error about one entry allows."""

    GONE = "gone"  # it is not there; for a checkpoint this is evidence, not yet a verdict
    RETRY = "retry"  # an immediate retry may succeed: another client replaced the file
    UNKNOWN = "unknown"  # keep the last reading, report it, go on with other entries, retry in the next scan
    FAILS = "fails"  # the whole request fails and is retried: nothing can be decided without this entry


_RETRY: Final = frozenset({errno.ESTALE, errno.EINTR, errno.EAGAIN})
_GONE: Final = frozenset({errno.ENOENT})


def meaning(entry: Entry, error: OSError, *, again: bool = False) -> Meaning:
    """Return what `error` about an entry of that kind means; `again` says that this already was the retry.

    >>> meaning(Entry.PIN, PermissionError(errno.EACCES, "Permission denied"))
    <Meaning.UNKNOWN: 'unknown'>
    >>> meaning(Entry.PIN, FileNotFoundError(errno.ENOENT, "No such file or directory"))
    <Meaning.GONE: 'gone'>
    """
    if error.errno in _GONE:
        return Meaning.GONE
    if error.errno in _RETRY and not again:
        return Meaning.RETRY
    return Meaning.FAILS if entry is Entry.RECORD else Meaning.UNKNOWN
