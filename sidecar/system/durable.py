"""Write files and folders so that they survive a power failure. No other module does this.

A file is durable once its content and the folder that holds its name are fsynced (`Folder.sync`). Some network
filesystems refuse to fsync a folder, which does not need it there: `Folder.sync` tolerates that. Standard library only,
because worker processes use this module, too.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from typing import IO, BinaryIO, Final

from sidecar.system.confined import Folder

_PART_BYTES: Final = 1024 * 1024


def sync_file(file: IO[bytes]) -> None:
    """Make the content of a file that is open for writing durable."""
    file.flush()
    os.fsync(file.fileno())


def copy_content(source: BinaryIO, target: IO[bytes], progress: Callable[[], None] = lambda: None) -> None:
    """Copy a file into an empty one, without making it durable. Holes stay holes, so a sparse file takes no space.

    `progress`: called after each part. A file that becomes shorter meanwhile is copied as far as it reaches.
    """
    size, position = os.fstat(source.fileno()).st_size, 0
    while position < size:
        position, end = _next_data(source, position, size)
        source.seek(position)
        target.seek(position)
        while position < end:
            part = source.read(min(_PART_BYTES, end - position))
            if not part:
                return
            target.write(part)
            position += len(part)
            progress()
    target.truncate(size)


def _next_data(file: BinaryIO, position: int, size: int) -> tuple[int, int]:
    """Return where the next data from a position on begin and end; (size, size) if only a hole follows."""
    try:
        start = os.lseek(file.fileno(), position, os.SEEK_DATA)
        return start, min(size, os.lseek(file.fileno(), start, os.SEEK_HOLE))
    except OSError as error:
        return (size, size) if error.errno == errno.ENXIO else (position, size)  # this filesystem does not tell


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
