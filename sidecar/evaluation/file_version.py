"""Tell whether a file still has the content that it had, without reading it. Imports no framework."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileVersion:
    """The properties of a file that change with its content.

    A file system may count time coarsely: a second change of the same size within one of its ticks, in the same inode,
    is not seen.
    """

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileVersion":
        """Take the properties from what `os.stat` returned."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
