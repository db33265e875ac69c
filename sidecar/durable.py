"""Write files and folders so that they survive a power failure. No other module does this.

A file is durable once its content and the folder that holds its name are fsynced (`Folder.sync`). Some network
filesystems refuse to fsync a folder, which does not need it there: `Folder.sync` tolerates that. Standard library only,
because worker processes use this module, too.
"""

import contextlib
import os
import stat
from typing import IO

from sidecar.confined import Folder


def sync_file(file: IO[bytes]) -> None:
    """Make the content of a file that is open for writing durable."""
    file.flush()
    os.fsync(file.fileno())


def write_new(folder: Folder, name: str, data: bytes, *, survives_crash: bool = True) -> None:
    """Create a file with durable content. Raises `FileExistsError` if the name is taken.

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
    """Replace the file of a name, or create it. Readers see either the whole old or the whole new content.

    `temporary`: the name of the file until it is whole. `survives_crash`: whether to wait for the disk. Without that
    the file may be empty or torn after a power failure.
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
    """Make all files and folders below a folder durable, without following links.

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
