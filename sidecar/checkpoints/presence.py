"""Find out whether the files of a checkpoint exist, by name. A listing that lacks a name proves nothing.

No contents are read. The calls block for as long as the storage does.
"""

import errno
import os
import stat
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from sidecar.checkpoints.files import File
from sidecar.checkpoints.scan import DiscoveredCheckpoint, parent_of
from sidecar.confined import open_folder
from sidecar.entry_errors import Entry, Meaning, meaning


class Presence(StrEnum):
    """Say whether the files of a checkpoint exist, as far as storage answers."""

    THERE = "there"  # all of them are as they were, or a pin of it stands
    GONE = "gone"  # one of them is not there, or another file is there under its name
    UNKNOWN = "unknown"  # storage did not say


class Answer(NamedTuple):
    """Hold the answer of storage. `why` gives the reason for `UNKNOWN`."""

    presence: Presence
    why: str = ""


def ask(discovered: DiscoveredCheckpoint, root: Path, pins: Path) -> Answer:
    """Ask for the files of a checkpoint, where training wrote them and in the pins.

    The answer is `GONE` if both places lack it, `THERE` if one of them has it, and else `UNKNOWN`.
    """
    answers = [_ask(Entry.PIN, discovered, pins), _ask(Entry.CHECKPOINT, discovered, root)]
    for presence in (Presence.THERE, Presence.UNKNOWN):
        for answer in answers:
            if answer.presence is presence:
                return answer
    return answers[0]


def _ask(entry: Entry, discovered: DiscoveredCheckpoint, place: Path) -> Answer:
    again = False
    while True:
        try:
            is_there = _is_pinned(discovered, place) if entry is Entry.PIN else _lies_in(discovered, place)
        except OSError as error:
            match meaning(entry, error, again=again):
                case Meaning.RETRY:
                    again = True
                    continue
                case Meaning.GONE:
                    return Answer(Presence.GONE)
            return Answer(Presence.UNKNOWN, f"{error.filename or place}: {error.strerror}")
        return Answer(Presence.THERE if is_there else Presence.GONE)


def _is_pinned(discovered: DiscoveredCheckpoint, pins: Path) -> bool:
    with open_folder(pins.parent) as state, state.folder(pins.name) as folder:
        return stat.S_ISDIR(folder.stat(discovered.checkpoint.folder).st_mode)


def _lies_in(discovered: DiscoveredCheckpoint, root: Path) -> bool:
    """Return whether all files are unchanged. The folder is opened first, because NFS then asks its server again."""
    below = parent_of(discovered.checkpoint.name)
    with open_folder(root) as folder:
        if not discovered.files:
            return discovered.checkpoint.pin is None
        if not below:
            return all(_is_as_it_was(file, folder.descriptor, root) for file in discovered.files)
        try:
            with folder.folder(below) as inner:
                return all(_is_as_it_was(file, inner.descriptor, inner.path) for file in discovered.files)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                return False  # a file or a link is there instead
            raise


def _is_as_it_was(file: File, descriptor: int, root: Path) -> bool:
    """Return whether a file has the known size and time. Links within the checkpoint directory are followed."""
    try:
        there = os.stat(file.name, dir_fd=descriptor)
    except OSError as error:
        error.filename = str(root / file.name)
        if error.errno == errno.ENOTDIR and _has_no_folder(file, descriptor):
            return False
        raise
    return stat.S_ISREG(there.st_mode) and (there.st_size, there.st_mtime_ns) == (file.size, file.mtime_ns)


def _has_no_folder(file: File, descriptor: int) -> bool:
    """Return whether something else has replaced a folder on the path of the file."""
    parts = file.name.split("/")[:-1]
    for end in range(1, len(parts) + 1):
        there = os.stat("/".join(parts[:end]), dir_fd=descriptor)
        if not stat.S_ISDIR(there.st_mode):
            return True
    return False
