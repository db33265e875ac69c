"""Let a local folder stand for the objects below a URL, so that all code that takes a path can stay as it is.

A `BucketFolder` holds a stub for each object: an empty file with the object's size. `checkpoints.bucket_mirror` makes
the stubs and supplies the content. A `BucketState` holds what a node needs of its own next to the records of a run,
which lie below its URL. No I/O, and no library of any object store.
"""

import hashlib
import io
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, Self

from sidecar.system.bucket_url import split_url

if TYPE_CHECKING:
    from sidecar.system.object_store import ObjectStore

_PROCESS: Final = secrets.token_hex(8)  # nobody else can create the folders of this process before it does

FOLDERS: Final = f"sidecar-bucket-{os.getuid()}-"
"""The prefix of the folders in the system's temporary directory that hold the stubs of one process."""


class Source(Protocol):
    """Supply what the stubs in a `BucketFolder` stand for. Each call may ask the object store and raise OSError."""

    def refresh(self, *, at_once: bool = False) -> None:
        """Bring the stubs up to date if that is due, or `at_once`."""
        ...

    def open(self, path: Path, descriptor: int) -> BinaryIO:
        """Return a file that reads the object of the stub at `path`, which is open as `descriptor`."""
        ...

    def digest(self, paths: Iterable[Path]) -> str:
        """Return the digest of a checkpoint by the etags of its objects."""
        ...

    def waiting(self) -> Iterable[tuple[str, str]]:
        """Return (key, reason) of objects that have no stub."""
        ...


class ObjectFile(io.FileIO):
    """Read an object as a file. Position, size and time are those of its stub, which is open as `descriptor`.

    `content` returns the bytes of the object from one position to another. `fetch` writes the whole object into a file.
    """

    def __init__(
        self, descriptor: int, content: Callable[[int, int], bytes], fetch: Callable[[BinaryIO], None]
    ) -> None:
        super().__init__(descriptor, "rb")
        self._content = content
        self._size = os.fstat(descriptor).st_size
        self.fetch = fetch

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes of the object. Raises OSError."""
        at = self.tell()
        left = max(0, self._size - at)
        content = self._content(at, at + (left if size is None or size < 0 else min(size, left)))
        self.seek(at + len(content))
        return content


class BucketFolder(PosixPath):
    """Represent the local folder of a URL, or a path in it. `source` is set on paths from a folder that has one."""

    url: str
    source: Source

    @classmethod
    def of(cls, url: str) -> Self:
        """Return the folder of this process for a URL, which is not created. Raises `ValueError` for another URL."""
        scheme, bucket, prefix = split_url(re.sub(":/(?!/)", "://", url, count=1))  # `Path` makes one slash of two
        name = f"{FOLDERS}{_PROCESS}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
        folder = cls(tempfile.gettempdir(), name)
        folder.url = f"{scheme}://{bucket}/{prefix}".rstrip("/")
        return folder

    @property
    def state_dir(self) -> Path:
        """Return the folder that holds the state by default, which cannot lie in a bucket. `~` is not expanded yet."""
        return _of_this_user(hashlib.sha256(self.url.encode()).hexdigest()[:12])

    def __truediv__(self, key: str | os.PathLike[str]) -> Self:
        return self._with_source(super().__truediv__(key), f"{self.url}/{os.fspath(key)}".rstrip("/"))

    @property
    def parent(self) -> Self:
        """Return the folder above, with the same source."""
        return self._with_source(super().parent, self.url.rpartition("/")[0])

    def _with_source(self, path: Self, url: str) -> Self:
        path.url = url
        if hasattr(self, "source"):
            path.source = self.source
        return path


class BucketState(PosixPath):
    """Represent a state directory in a bucket, or the folder of a run in it.

    The path is that of a local folder, for the pins and the saves of this node. `url` is where the records lie, and
    empty for a path that was not made by `/`. `objects` makes the requests for what is larger than a record;
    `commands.state_storage` sets it when it opens the storage of the records.
    """

    url: str = ""
    objects: "ObjectStore | None" = None

    @classmethod
    def of(cls, url: str) -> Self:
        """Return the folder of this user for a URL, which is not created. Raises `ValueError` for another URL."""
        scheme, bucket, prefix = split_url(re.sub(":/(?!/)", "://", url, count=1))  # as in `BucketFolder.of`
        url = f"{scheme}://{bucket}/{prefix}".rstrip("/")
        folder = cls(_of_this_user(f"state-{hashlib.sha256(url.encode()).hexdigest()[:12]}").expanduser().absolute())
        folder.url = url
        return folder

    def __truediv__(self, key: str | os.PathLike[str]) -> Self:
        path = super().__truediv__(key)
        path.url = self.url and f"{self.url}/{os.fspath(key)}"
        path.objects = self.objects
        return path


def place_of(path: Path) -> str:
    """Return a directory as people write it: the URL of a bucket's folder, or the path."""
    return path.url if isinstance(path, BucketFolder | BucketState) else str(path)


def _of_this_user(name: str) -> Path:
    """Return the path of a folder for state of this user. `~` is not expanded yet."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state", "sidecar", name)
