"""What an error about one entry of shared storage means: this one table says it, for each kind of entry and error.

An error about one file is no verdict about a checkpoint, no word about a node, and no reason to stop looking at the
others. Only `ENOENT` of the file itself says that something is gone; everything else says that this node does not know.
Standard library only; no I/O.
"""

import errno
from enum import StrEnum
from typing import Final


class Entry(StrEnum):
    """The kinds of entries that this program reads, writes and removes."""

    PIN = "pin"  # a folder of `pins`, and the files in it
    CHECKPOINT = "checkpoint"  # a file of the watched directory
    HEARTBEAT = "heartbeat"  # a file of `members`, of any node but this one
    SNAPSHOT = "snapshot"  # a view of the journal: nothing rests on it
    SAVE = "save"  # a file below `evaluations`
    LOG = "log"  # a worker's log, on this machine
    RECORD = "record"  # a plan, an outcome, run.json, the own heartbeat: agreement rests on them


class Meaning(StrEnum):
    """What is concluded from an error about one entry."""

    GONE = "gone"  # it is not there; for a checkpoint this is evidence, not yet a verdict
    RETRY = "retry"  # asked again at once it may answer: a file that another client replaced
    UNKNOWN = "unknown"  # keep what was known of it, report it, go on with the others, ask again in the next scan
    FAILS = "fails"  # the request fails as a whole, and is made again: nothing can be decided without this entry


_RETRY: Final = frozenset({errno.ESTALE, errno.EINTR, errno.EAGAIN})
_GONE: Final = frozenset({errno.ENOENT})


def meaning(entry: Entry, error: OSError, *, again: bool = False) -> Meaning:
    """Return what `error` about an entry of that kind means; `again`: it was asked again already.

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
