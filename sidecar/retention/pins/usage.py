"""Measure how much storage the folder of pins takes, and how many bytes unfinished pins have.

This module reads only sizes and times, and follows no links. It blocks for as long as the storage does. The readable
part of each pin is counted.
"""

import contextlib
import os
import stat
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sidecar.errors import StorageError
from sidecar.retention.pins.names import PIN_RECORD, digest_in_name, is_temporary
from sidecar.system.confined import DEEPEST, Folder, open_folder


class Progress(NamedTuple):
    """Hold the bytes of an unfinished pin, or of one that is being removed, and its last change on storage's clock."""

    size: int
    changed_ns: int


def pins_bytes(pins_dir: Path, but: Container[str] = ()) -> int:
    """Return the bytes in all pins, counting a linked file in full, as if the trainer had deleted its own.

    `but`: names of folders that are not counted.
    """
    return sum(status.st_size for status in _files(pins_dir, but))


def pins_bytes_alone(pins_dir: Path, but: Container[str] = ()) -> int:
    """Return the bytes that would be free without the pins: of copies, and of files that the trainer has deleted."""
    return sum(status.st_size for status in _files(pins_dir, but) if status.st_nlink == 1)


def bytes_copied(pins_dir: Path) -> dict[str, int]:
    """Return the bytes of unfinished pins, by the first 12 digits of the checkpoints' digests."""
    copied: dict[str, int] = {}
    for name, (size, _) in in_the_making(pins_dir).items():
        if (digest := digest_in_name(name)) is not None:
            copied[digest] = max(copied.get(digest, 0), size)
    return copied


def in_the_making(pins_dir: Path) -> Mapping[str, Progress]:
    """Return the folders of pins that are being made or removed, by name."""
    making: dict[str, Progress] = {}
    with _opened(pins_dir) as pins:
        if pins is None:
            return making
        for name in filter(is_temporary, _names(pins)):
            with contextlib.suppress(OSError):
                itself = pins.stat(name)
                if stat.S_ISDIR(itself.st_mode):
                    inside = _inside(name, pins)
                    newest = max(status.st_ctime_ns for status in (itself, *inside))
                    making[name] = Progress(sum(status.st_size for status in filter(_is_file, inside)), newest)
    return making


def _files(pins_dir: Path, but: Container[str]) -> Iterator[os.stat_result]:
    """Yield the metadata of all files in pins, except in the folders named in `but`."""
    with _opened(pins_dir) as pins:
        if pins is None:
            return
        for name in _names(pins):
            if name not in but:
                yield from filter(_is_file, _inside(name, pins))


def _is_file(status: os.stat_result) -> bool:
    return not stat.S_ISDIR(status.st_mode)


def _inside(name: str, folder: Folder, deepest: int = DEEPEST) -> list[os.stat_result]:
    """Return the metadata of all files and folders below a folder that can be read; none if it is not a folder."""
    entries: list[os.stat_result] = []
    with contextlib.suppress(OSError), folder.folder(name) as opened:
        for inner in opened.names():
            if inner == PIN_RECORD:
                continue  # a few bytes that this program wrote itself
            with contextlib.suppress(OSError):
                status = opened.stat(inner)
                entries.append(status)
                if stat.S_ISDIR(status.st_mode) and deepest:
                    entries += _inside(inner, opened, deepest - 1)
    return entries


def _opened(pins_dir: Path) -> contextlib.AbstractContextManager[Folder | None]:
    """Open the folder of pins; None if it does not exist. Raises `StorageError`."""
    try:
        with open_folder(pins_dir.parent) as state:
            return state.folder(pins_dir.name)
    except FileNotFoundError:
        return contextlib.nullcontext()
    except OSError as error:
        raise StorageError(f"cannot read {pins_dir}: {error.strerror}") from error


def _names(pins: Folder) -> list[str]:
    try:
        return pins.names()
    except OSError as error:
        raise StorageError(f"cannot read {pins.path}: {error.strerror}") from error
