"""Find out whether the files of a checkpoint exist, by name. A listing that lacks a name does not prove absence.

This module reads no contents. Its calls block for as long as the storage does.
"""

import errno
import os
import stat
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from sidecar.checkpoints.files import File
from sidecar.checkpoints.scan import DiscoveredCheckpoint, parent_of
from sidecar.system.confined import open_folder
from sidecar.system.entry_errors import Entry, Meaning, meaning


class Presence(StrEnum):
    """Say whether the files of a checkpoint exist, as far as storage answers."""

    THERE = "there"  # all files are unchanged, or the checkpoint has a pin
    GONE = "gone"  # a file does not exist, or another file has its name
    UNKNOWN = "unknown"  # storage did not answer


class Answer(NamedTuple):
    """Hold the answer of storage. `why` is the reason for `UNKNOWN`."""

    presence: Presence
    why: str = ""


def ask(discovered: DiscoveredCheckpoint, root: Path, pins: Path) -> Answer:
    """Return whether the files of a checkpoint exist, in the checkpoint directory `root` or in the folder `pins`.

    The answer is `THERE` if one of the places has the checkpoint, `GONE` if both lack it, and else `UNKNOWN`.
    """
    answers = [_ask(Entry.PIN, discovered, pins), _ask(Entry.CHECKPOINT, discovered, root)]
    for presence in (Presence.THERE, Presence.UNKNOWN):
        for answer in answers:
            if answer.presence is presence:
                return answer
    return answers[0]


def ask_directory(discovered: DiscoveredCheckpoint, root: Path) -> Answer:
    """Return whether the files of a checkpoint exist in the checkpoint directory `root`, whatever its pins hold."""
    return _ask(Entry.CHECKPOINT, discovered, root)


def _ask(entry: Entry, discovered: DiscoveredCheckpoint, place: Path) -> Answer:
    """Return whether one place has the checkpoint: `Entry.PIN` asks for its pin, `Entry.CHECKPOINT` for its files."""
    again = False
    while True:
        try:
            exists = _is_pinned(discovered, place) if entry is Entry.PIN else _lies_in(discovered, place)
        except OSError as error:
            match meaning(entry, error, again=again):
                case Meaning.RETRY:
                    again = True
                    continue
                case Meaning.GONE:
                    return Answer(Presence.GONE)
            return Answer(Presence.UNKNOWN, f"{error.filename or place}: {error.strerror}")
        return Answer(Presence.THERE if exists else Presence.GONE)


def _is_pinned(discovered: DiscoveredCheckpoint, pins: Path) -> bool:
    """Return whether the checkpoint has a pin in the folder of pins. Raises OSError."""
    with open_folder(pins.parent) as state, state.folder(pins.name) as folder:
        return stat.S_ISDIR(folder.stat(discovered.checkpoint.folder).st_mode)


def _lies_in(discovered: DiscoveredCheckpoint, root: Path) -> bool:
    """Return whether all files are unchanged. The folder is opened first, so that NFS asks its server again."""
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
                return False  # a file or a link replaced the folder
            raise


def _is_as_it_was(file: File, descriptor: int, root: Path) -> bool:
    """Return whether a file has the known size and time. Links within the checkpoint directory are followed."""
    try:
        status = os.stat(file.name, dir_fd=descriptor)
    except OSError as error:
        error.filename = str(root / file.name)
        if error.errno == errno.ENOTDIR and _has_no_folder(file, descriptor):
            return False
        raise
    return stat.S_ISREG(status.st_mode) and (status.st_size, status.st_mtime_ns) == (file.size, file.mtime_ns)


def _has_no_folder(file: File, descriptor: int) -> bool:
    """Return whether something else has replaced a folder on the path of the file."""
    parts = file.name.split("/")[:-1]
    for end in range(1, len(parts) + 1):
        status = os.stat("/".join(parts[:end]), dir_fd=descriptor)
        if not stat.S_ISDIR(status.st_mode):
            return True
    return False
