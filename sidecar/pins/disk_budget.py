"""Bound how much of the storage pins may take: what the user allows, and never what training needs to go on.

A link takes nothing while the trainer keeps the file, and all of it afterwards; a copy takes it at once.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.errors import NoRoomError, StorageError

_SMALL: Final = 100
"""A pin that takes less than this part of the free bytes is always allowed: however often, it never takes all of them.

Else a small disk with small checkpoints, which lacks `keep_free` from the start, would never see an evaluation.
"""


@dataclass(frozen=True, slots=True)
class DiskBudget:
    """The bounds in bytes. `free`: what is free where the pins are; None: nobody knows, so nothing is kept free."""

    max_bytes: int | None = None  # of all pins, each file counted in full
    keep_free: int = 0
    free: Callable[[], int | None] = lambda: None

    def require(self, size: int, held: Callable[[], int], held_alone: Callable[[], int]) -> None:
        """Raise `NoRoomError` unless a checkpoint of that size may be pinned, too.

        `held`: returns the bytes of all pins; `held_alone`: returns those that removing the pins would free. The
        first pin is made in any case, or nothing would go on.
        """
        if self.max_bytes is not None and 0 < (now := held()) > self.max_bytes - size:
            raise NoRoomError(f"pins hold {now} bytes, {size} more are over the {self.max_bytes} of pin_max_bytes")
        free = self.free()
        if free is None or free >= self.keep_free:
            return
        if (alone := held_alone()) > 0 and (alone + size) * _SMALL > free:
            raise NoRoomError(
                f"{free} bytes are free, less than the {self.keep_free} of keep_free_bytes, "
                f"and pins alone hold {alone} that training deleted"
            )

    def require_copy(self, size: int) -> None:
        """Raise `NoRoomError` unless a copy of that size leaves enough free."""
        free = self.free()
        if free is not None and free - size < self.keep_free and size * _SMALL > free:
            raise NoRoomError(
                f"a copy of {size} bytes would leave less than {self.keep_free} of {free} bytes free (keep_free_bytes)"
            )


def free_bytes(folder: Path) -> int:
    """Return what an ordinary user may still write on the storage of a folder, or of the first above it that exists."""
    for place in (folder, *folder.parents):
        try:
            there = os.statvfs(place)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(f"cannot see how much is free in {place}: {error.strerror}") from error
        return there.f_bavail * there.f_frsize
    raise StorageError(f"{folder} has no place: not even the root of its path is there")
