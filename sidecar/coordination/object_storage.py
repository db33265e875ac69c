"""Keep journal, heartbeats and snapshot in an object store: `storage.Storage` for a state directory that is a URL.

The one primitive for agreement is a conditional write: the server refuses to create an object whose name exists. A
server that ignores the condition would let several daemons decide one plan, so `ObjectStorage.probe` tries it before a
run is joined. A reply may be lost, or be an error after the effect: as on a filesystem, only what is read back counts.
Only the daemon's storage thread and commands call this module. It never waits before a retry: the daemon does.
"""

import contextlib
import errno
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, Protocol

from sidecar.coordination.heartbeats import FOLDER
from sidecar.coordination.run import JOURNAL_FOLDERS, SEGMENTS
from sidecar.coordination.storage import MAX_RECORD_BYTES, Surveyed
from sidecar.errors import RecordError, SettingsError, StorageError
from sidecar.system.object_store import BucketError, StoredObject

_PROBE: Final = ".probe-"
_PROBE_BYTES: Final = 64
_REMEMBERED: Final = (FOLDER, *JOURNAL_FOLDERS, SEGMENTS)
_MOST_ASKED: Final = 3  # of the names that a listing lacks


class Objects(Protocol):
    """Define the requests to an object store, as `system.object_store.ObjectStore` makes them."""

    def beginning(self, key: str, most: int, /) -> tuple[bytes, str] | None:
        """Return the first bytes of an object and its etag; None if it does not exist."""

    def together(
        self, most_of: Mapping[str, int], folders: Iterable[str], /
    ) -> tuple[dict[str, tuple[bytes, str] | None], dict[str, list[StoredObject]]]:
        """Return the beginnings of objects, and the listings of folders, all asked at the same time."""

    def create(self, key: str, data: bytes, /) -> bool:
        """Create an object, unless the name exists."""

    def put(self, key: str, data: bytes, /, *, instead_of: str = "") -> str:
        """Write an object, or only in place of the one with an etag, and return its etag; "" if it is unknown."""

    def delete(self, key: str, /) -> None:
        """Delete an object, if it exists."""

    def listing(self, folder: str = "", /) -> list[StoredObject]:
        """Return the objects below a folder."""


class ObjectStorage:
    """Store records as objects below a URL. `on_answer` is called whenever the store has answered a request.

    An object is whole or absent, and visible to all once its write was answered. So nothing is to be made durable, and
    no unfinished write is left.
    """

    def __init__(self, objects: Objects, url: str, on_answer: Callable[[], None] = lambda: None) -> None:
        self._objects, self._url, self._on_answer = objects, url, on_answer
        self._surveyed: dict[str, dict[str, tuple[str, bytes]]] = {}  # by folder and path: etag and content
        self._listed: dict[str, set[str]] = {}  # names by folder, for those in `_REMEMBERED`

    def create(self, path: str, data: bytes) -> None:
        """Create an object, unless the name exists: the server decides."""
        with self._explained("create", path, len(data)):
            self._objects.create(path, data)

    def read(self, path: str, limit: int | None = None) -> bytes | None:
        """Read an object, and not more of it than was asked for, whatever its server sends."""
        with self._explained("read", path):
            found = self._objects.beginning(path, (MAX_RECORD_BYTES if limit is None else limit) + 1)
        if found is None:
            return None
        if limit is None:
            self._reject_long(path, len(found[0]))
        self._note(path, found[1], found[0])
        return found[0]

    def replace(self, path: str, data: bytes, *, survives_crash: bool = False, instead_of: bytes | None = None) -> None:
        """Write an object in one request. With `instead_of` the server compares the etag of what was read."""
        del survives_crash  # every write does
        with self._explained("write", path, len(data)):
            if instead_of is None:
                self._note(path, self._objects.put(path, data), data)
                return
            found = self._objects.beginning(path, len(instead_of))  # it may have been read with a limit
            if found is not None and found[0] == instead_of:
                self._put_instead_of(path, data, found[1])

    def rename(self, path: str, name: str) -> bool:
        """Write the object under the other name, and delete it: no store has a request that does both."""
        found, folder = self.read(path), path.rpartition("/")[0]
        if found is None:
            return False
        self.replace(f"{folder}/{name}" if folder else name, found)
        self.remove(path)
        return True

    def sync(self, folder: str) -> None:
        """Do nothing: what is visible is durable."""

    def names(self, folder: str) -> list[str]:
        """List the objects in the folder, and the folders in it."""
        with self._explained("list", folder):
            return sorted({name.partition("/")[0] for name in self._below(folder)})

    def modified(self, folder: str, names: Collection[str] | None = None) -> Mapping[str, float]:
        """Return the times of the listing, which have a resolution of a second on some servers."""
        with self._explained("list", folder):
            below = {name: found.modified_ns / 1e9 for name, found in self._below(folder).items() if "/" not in name}
        return {name: at for name, at in below.items() if names is None or name in names}

    def survey(self, folder: str) -> Mapping[str, Surveyed]:
        """List the folder. An object whose etag was known when it was last read or written has the same content."""
        with self._explained("list", folder):
            below = {name: found for name, found in self._below(folder).items() if "/" not in name}
        known = self._surveyed.get(folder, {})
        self._surveyed[folder] = known = {
            name: known[name] for name, found in below.items() if name in known and found.etag == known[name][0] != ""
        }
        return {
            name: Surveyed(found.modified_ns / 1e9, known[name][1] if name in known else None)
            for name, found in below.items()
        }

    def remove(self, path: str, *, holding: bytes | None = None) -> None:
        """Delete an object."""
        with self._explained("remove", path):
            if holding is not None:
                found = self._objects.beginning(path, len(holding))
                if found is None or found[0] != holding:
                    return
            self._objects.delete(path)
            folder, _, name = path.rpartition("/")
            self._listed.get(folder, set()).discard(name)

    def sweep(self, folder: str, before: float) -> None:
        """Do nothing: there are no unfinished writes."""

    def probe(self) -> bool:
        """Try what agreement needs, with an object that is deleted again; return whether stale etags are refused, too.

        Raises `SettingsError` if the store ignores conditions or does not show what was written, or `StorageError`.
        """
        name = f"{_PROBE}{secrets.token_hex(8)}"
        with self._explained("try", name):
            try:
                for content in (b"first", b"second"):
                    self._objects.create(name, content)
                found = self._objects.beginning(name, _PROBE_BYTES)
                if found is None:
                    raise SettingsError(f"{self._url} does not show an object that was just written: {_REMEDY}")
                if found[0] != b"first":
                    raise SettingsError(
                        f"{self._url} overwrote an object that existed: its server ignores the condition of a write "
                        f"(If-None-Match), so several daemons would decide the same plan; {_REMEDY}"
                    )
                self._objects.put(name, b"third")
                self._put_instead_of(name, b"fourth", found[1])
                return (self._objects.beginning(name, _PROBE_BYTES) or found)[0] == b"third"
            finally:
                with contextlib.suppress(BucketError):
                    self._objects.delete(name)

    def _note(self, path: str, etag: str, content: bytes) -> None:
        """Remember the content of an object in a folder that is surveyed."""
        folder, _, name = path.rpartition("/")
        if folder in self._surveyed:
            self._surveyed[folder][name] = etag, content

    def _put_instead_of(self, path: str, data: bytes, etag: str) -> None:
        """Write an object unless another one than that of the etag is there."""
        try:
            self._objects.put(path, data, instead_of=etag)
        except BucketError as error:
            if error.errno not in (errno.ESTALE, errno.ENOENT):
                raise

    def _below(self, folder: str) -> dict[str, StoredObject]:
        """Return the objects below a folder, by their names from there on. A name that leaves it is skipped.

        A listing that ends early, such as one whose next page is not named, lacks its last names. So the last ones that
        were there before, and are missing, are asked for. Raises `BucketError` if one of them is there.
        """
        start = f"{folder}/"
        below = {
            found.key[len(start) :]: found
            for found in self._objects.listing(folder)
            if found.key.startswith(start) and found.key != start
        }
        if folder in _REMEMBERED:
            for name in sorted(self._listed.get(folder, set()) - below.keys())[-_MOST_ASKED:]:
                if self._objects.beginning(f"{start}{name}", 1) is not None:
                    raise BucketError(errno.EIO, "the listing lacks objects that are there: check bucket_endpoint")
            self._listed[folder] = set(below)
        return below

    @contextlib.contextmanager
    def _explained(self, verb: str, path: str, size: int = 0) -> Iterator[None]:
        """Check a path and the size of a record, and turn an error of the store into one sentence with its remedy."""
        if any(part in ("", ".", "..") or "\0" in part for part in path.split("/")):
            raise RecordError(f"{path!r} is not a path inside {self._url}: expected names with / between them")
        self._reject_long(path, size)
        try:
            yield
            self._on_answer()
        except BucketError as error:
            raise StorageError(f"cannot {verb} {self._url}/{path}: {error.strerror}") from error

    def _reject_long(self, path: str, size: int) -> None:
        if size > MAX_RECORD_BYTES:
            raise RecordError(f"{path} is longer than the {MAX_RECORD_BYTES} bytes that a record may have")


_REMEDY: Final = (
    "let state_dir be a bucket's folder on a store with conditional writes, or a folder on a filesystem that all nodes "
    "share"
)
