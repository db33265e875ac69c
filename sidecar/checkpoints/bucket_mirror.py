"""Show the objects below a URL as stubs in a local folder, and read an object where its stub is opened.

The stub of an object is a file without content that has the object's size and time. So the code that finds, compares,
inspects and pins checkpoints is the same for a bucket and for a directory. Content comes in blocks of 256 KiB, which
are kept for a while, because readers of formats ask for a hundred small pieces next to each other. `files.open_file`
opens a stub by its source, and `retention.pins.link_or_copy` fetches a whole object.
"""

import atexit
import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, cast

from sidecar.errors import IncompleteError
from sidecar.system.bucket_folder import FOLDERS, BucketFolder, ObjectFile
from sidecar.system.bucket_url import split_url
from sidecar.system.clock import Clock, SystemClock
from sidecar.system.object_store import BucketError, ObjectStore, ObjectStoreRules, StoredObject

_BLOCK_BYTES: Final = 256 * 1024
_MOST_BLOCKS: Final = 8  # 2 MiB
_MOST_AT_ONCE: Final = 8 * _BLOCK_BYTES  # a larger piece is read without being kept
_DUE: Final = 0.9  # of the time between two listings: a scan a moment early must not wait for the next scan
_DEEPEST: Final = 16
_MOST_ASKED: Final = 100  # of the objects that a listing lacks: those of one checkpoint
_NAMED: Final = 3  # names without a stub that are reported


@dataclass(slots=True, kw_only=True)
class BucketMirror:
    """Hold the stubs of a URL in `folder`, and read what they stand for. `seconds`: the time between two listings."""

    folder: BucketFolder
    store: ObjectStore
    seconds: float = 10.0
    clock: Clock = field(default_factory=SystemClock)
    _objects: dict[str, StoredObject] = field(default_factory=dict)  # those with a stub, by key
    _ignored: dict[str, str] = field(default_factory=dict)  # by key: why there is no stub
    _listed_at: float = float("-inf")
    _blocks: "OrderedDict[tuple[StoredObject, int], bytes]" = field(default_factory=OrderedDict)
    _read_at: float = float("-inf")  # when a block was read, or was there already
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self, *, at_once: bool = False) -> None:
        """List the objects and bring the stubs up to date, if that is due or `at_once`. Raises `BucketError`."""
        now = self.clock.now()
        if not at_once and now < self._listed_at + _DUE * self.seconds:
            return
        self._forget_blocks(now)
        listed = {found.key: found for found in self.store.listing()}
        self._reject_short(listed)
        for key in _folders(listed):  # as consoles of buckets make them, to show a folder
            del listed[key]
        self._ignored = {}
        for key in self._objects.keys() - listed.keys():
            self._remove(key)
        for key, found in listed.items():
            if self._objects.get(key) != found:
                self._show(found)
        self._listed_at = now

    def _reject_short(self, listed: Collection[str]) -> None:
        """Raise `BucketError` if objects that the listing lacks are there.

        A login page of a network, which answers everything, reads like an empty listing; so does an error that comes
        with status 200; and a listing whose next page is not named ends early. Such a listing lacks its last names.
        """
        missing = sorted(self._objects.keys() - listed)[-_MOST_ASKED:]
        try:
            found, _ = self.store.together(dict.fromkeys(missing, 1), ()) if missing else ({}, {})
        except BucketError as error:
            if error.errno != errno.EACCES:  # an object that nobody may read is no checkpoint
                raise
            return
        if any(found.values()):
            what = "the listing lacks objects that are there: check bucket_endpoint and network"
            raise BucketError(errno.EIO, what, self.folder.url)

    def open(self, path: Path, descriptor: int) -> BinaryIO:
        """Return a file that reads the object of the stub at `path`, which is open as `descriptor`."""
        key = str(path.relative_to(self.folder))
        listed, status = self._objects.get(key), os.fstat(descriptor)
        if listed is None or (status.st_size, status.st_mtime_ns) != (listed.size, listed.modified_ns):
            os.close(descriptor)
            raise IncompleteError(f"{key} is being replaced")
        fetch = partial(self.store.fetch, listed.key, listed.etag, listed.size)
        return cast("BinaryIO", ObjectFile(descriptor, partial(self.read, listed), fetch))

    def digest(self, paths: Iterable[Path]) -> str:
        """Return the digest of a checkpoint by the names, sizes and etags of its objects. It ends in `:etag`."""
        digest = hashlib.sha256()
        for key in sorted(str(path.relative_to(self.folder)) for path in paths):
            if (found := self._objects.get(key)) is None:
                raise IncompleteError(f"{key} is being replaced")
            digest.update(
                f"{key}\0{found.size}\0{found.etag or found.modified_ns}\0".encode("utf-8", "surrogateescape")
            )
        return f"{digest.hexdigest()}:etag"

    def waiting(self) -> Iterable[tuple[str, str]]:
        """Return (key, reason) of the first objects that have no stub, and how many others there are."""
        named = list(self._ignored.items())[:_NAMED]
        if len(self._ignored) > len(named):
            named.append(("…", f"{len(self._ignored) - len(named)} more names cannot be those of files"))
        return named

    def read(self, listed: StoredObject, start: int, end: int) -> bytes:
        """Return a part of an object, in blocks that are kept for a while. Raises `BucketError`."""
        if end - start > _MOST_AT_ONCE:
            return self._read(listed, start, end)
        self._read_at = self.clock.now()
        first, last = start // _BLOCK_BYTES, -(-end // _BLOCK_BYTES)
        known = {number: block for number in range(first, last) if (block := self._block(listed, number)) is not None}
        missing = [number for number in range(first, last) if number not in known]
        if missing:
            begin = missing[0] * _BLOCK_BYTES
            content = self._read(listed, begin, min((missing[-1] + 1) * _BLOCK_BYTES, listed.size))
            for number in range(missing[0], missing[-1] + 1):
                at = number * _BLOCK_BYTES - begin
                known[number] = self._keep(listed, number, content[at : at + _BLOCK_BYTES])
        return b"".join(known[number] for number in range(first, last))[start - first * _BLOCK_BYTES :][: end - start]

    def _read(self, listed: StoredObject, start: int, end: int) -> bytes:
        return self.store.read(listed.key, listed.etag, start, end) if end > start else b""

    def _block(self, listed: StoredObject, number: int) -> bytes | None:
        with self._lock:
            block = self._blocks.get((listed, number))
            if block is not None:
                self._blocks.move_to_end((listed, number))
        return block

    def _keep(self, listed: StoredObject, number: int, block: bytes) -> bytes:
        with self._lock:
            self._blocks[listed, number] = block
            while len(self._blocks) > _MOST_BLOCKS:
                self._blocks.popitem(last=False)
        return block

    def _forget_blocks(self, now: float) -> None:
        """Free the memory of the blocks if nobody has read one for as long as between two listings."""
        if now >= self._read_at + self.seconds:
            with self._lock:
                self._blocks.clear()

    def _remove(self, key: str) -> None:
        """Remove the stub of an object, and the folders above it that are empty now: they would be listed for ever."""
        path = self.folder / key
        path.unlink(missing_ok=True)
        del self._objects[key]
        for parent in path.parents:
            try:
                if parent == self.folder:
                    return
                parent.rmdir()
            except OSError:
                return

    def _show(self, found: StoredObject) -> None:
        """Make or replace the stub of an object. A key that cannot be the name of a file gets none."""
        if (why := _why_no_name(found.key)) is None:
            path = self.folder / found.key
            new = path.parent / f".new-{hashlib.sha256(path.name.encode()).hexdigest()[:16]}"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with new.open("xb") as stub:
                    os.ftruncate(stub.fileno(), found.size)
                    os.utime(stub.fileno(), ns=(found.modified_ns, found.modified_ns))
                new.rename(path)
            except (OSError, OverflowError) as error:  # a size may have 64 bits
                why = f"it cannot be shown as a file: {getattr(error, 'strerror', error)}"
                with contextlib.suppress(OSError):
                    new.unlink()
        if why is None:
            self._objects[found.key] = found
        else:
            self._ignored[found.key[:100]] = why
            self._objects.pop(found.key, None)


def _folders(listed: Collection[str]) -> set[str]:
    """Return the keys that have other keys below them. Deeper ones than those of files do not count.

    The folders above a key of 1,024 bytes take 250 kB as texts, so only those that are keys are kept.
    """
    found = {""}.intersection(listed)
    for key in listed:
        at = -1
        for _ in range(_DEEPEST):
            at = key.find("/", at + 1)
            if at < 0:
                break
            if (parent := key[:at]) in listed:
                found.add(parent)
    return found


def mirror_of(folder: BucketFolder, rules: ObjectStoreRules, seconds: float, clock: Clock) -> BucketMirror:
    """Create the folder of a URL, and return what supplies it. Nothing is sent yet.

    The folder below which the state of buckets lies by default is created, too, and is private: others could read
    there what needs credentials in the bucket. One that exists keeps its rights.

    Raises `SettingsError` if there are no credentials, or obstore is not installed.
    """
    scheme, bucket, prefix = split_url(folder.url)
    store = ObjectStore(scheme=scheme, bucket=bucket, prefix=prefix, rules=rules, clock=clock)
    store.open()
    _make(folder)
    with contextlib.suppress(OSError):  # what needs the folder says why it cannot be made
        folder.state_dir.expanduser().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return BucketMirror(folder=folder, store=store, seconds=seconds, clock=clock)


def _why_no_name(key: str) -> str | None:
    """Return why a key cannot be the name of a file in a folder; None if it can."""
    parts = key.split("/")
    if len(parts) > _DEEPEST:
        return f"it has more than {_DEEPEST} folders"
    if any(part in ("", ".", "..") for part in parts) or not key.isprintable():
        return "it is not the name of a file"
    return None


def _make(folder: BucketFolder) -> None:
    """Create the folder of the stubs until this process ends, and remove those of processes that were killed."""
    for other in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*"):
        if (lock := _locked(other)) is not None:
            shutil.rmtree(other, ignore_errors=True)
            os.close(lock)
    folder.mkdir(mode=0o700)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # held until the process ends
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _locked(folder: Path) -> int | None:
    """Return the descriptor of a folder whose process has ended; None if that lives, or is another user's."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
