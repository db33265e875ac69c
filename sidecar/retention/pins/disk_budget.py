"""Limit the part of the storage that pins may take: no more than the user allows, and never space that training needs.

A link takes no space while the trainer retains the file, and the file's space afterwards. A copy takes it at once.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.errors import NoRoomError, StorageError

_SMALL_PART: Final = 100
"""A pin of less than a hundredth of the free bytes is always allowed. Such pins never fill the disk.

Without this rule, a small disk that has less than `keep_free` bytes from the start would never get an evaluation.
"""


@dataclass(frozen=True, slots=True)
class DiskBudget:
    """Hold the limits in bytes. `free`: returns the free bytes where the pins are, or None if that is unknown."""

    max_bytes: int | None = None  # for all pins, each file counted in full
    keep_free: int = 0
    free: Callable[[], int | None] = lambda: None

    def require(self, size: int, held: Callable[[], int], held_alone: Callable[[], int]) -> None:
        """Raise `NoRoomError` unless a checkpoint of that size may be pinned, too.

        `held`: returns the bytes of all pins. `held_alone`: returns the bytes that removing the pins would free. The
        first pin is always allowed, or no evaluation could ever run.
        """
        if self.max_bytes is not None and 0 < (now := held()) > self.max_bytes - size:
            raise NoRoomError(f"pins hold {now} bytes, and {size} more exceed pin_max_bytes = {self.max_bytes}")
        free = self.free()
        if free is None or free >= self.keep_free:
            return
        if (alone := held_alone()) > 0 and (alone + size) * _SMALL_PART > free:
            raise NoRoomError(
                f"{free} bytes are free, less than keep_free_bytes = {self.keep_free}, "
                f"and removing pins would free {alone} bytes"
            )

    def require_copy(self, size: int) -> None:
        """Raise `NoRoomError` unless a copy of that size leaves enough free."""
        free = self.free()
        if free is not None and free - size < self.keep_free and size * _SMALL_PART > free:
            raise NoRoomError(
                f"a copy of {size} bytes would leave less than {self.keep_free} of {free} bytes free (keep_free_bytes)"
            )


def free_bytes(folder: Path) -> int:
    """Return the bytes that an ordinary user may still write on the storage of a folder, which may not exist yet."""
    for place in (folder, *folder.parents):
        try:
            storage = os.statvfs(place)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(f"cannot measure the free space in {place}: {error.strerror}") from error
        return storage.f_bavail * storage.f_frsize
    raise StorageError(f"the free space of {folder} cannot be measured: not even the root of its path exists")
