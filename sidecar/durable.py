"""Writes files and folders so that they survive a power failure: the only module that does, for all parts.

A file is durable once its content is fsynced and the folder that holds its name is (`Folder.sync`). Some network
filesystems refuse to fsync a folder and need not: `Folder.sync` tolerates that, so every write works there. Standard
library only, since worker processes write through it, too.
"""

import contextlib
import os
import stat
from typing import IO

from sidecar.confined import Folder


def sync_file(file: IO[bytes]) -> None:
    """Make the content of a file durable that is open for writing."""
    file.flush()
    os.fsync(file.fileno())


def write_new(folder: Folder, name: str, data: bytes, *, survives_crash: bool = True) -> None:
    """Create a file with durable content; raises `FileExistsError` if anything stands under the name.

    A file that could not be written is removed. The caller makes the name durable with `Folder.sync`.
    """
    try:
        with folder.create_file(name) as file:
            file.write(data)
            if survives_crash:
                sync_file(file)
    except FileExistsError:
        raise
    except OSError:
        with contextlib.suppress(OSError):
            folder.unlink(name)
        raise


def replace(folder: Folder, name: str, data: bytes, *, temporary: str, survives_crash: bool = True) -> None:
    """Put data under a name, whatever stood there; readers see all of it, or all of what was there before.

    `temporary` is the name that the file has until it is whole. Without `survives_crash` nothing waits for the disk:
    after a power failure the file may be empty or torn.
    """
    write_new(folder, temporary, data, survives_crash=survives_crash)
    try:
        folder.rename(temporary, name)
    except OSError:
        with contextlib.suppress(OSError):
            folder.unlink(temporary)
        raise
    if survives_crash:
        folder.sync()


def sync_below(folder: Folder) -> None:
    """Make durable all files and folders below a folder; links are left alone.

    The caller makes the names in the folder itself durable with `Folder.sync`.
    """
    for name in folder.names():
        mode = folder.stat(name).st_mode
        if stat.S_ISDIR(mode):
            with folder.folder(name) as inner:
                sync_below(inner)
                inner.sync()
        elif stat.S_ISREG(mode):
            with folder.open_file(name) as file:
                os.fsync(file.fileno())
