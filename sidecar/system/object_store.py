"""List, read and write objects below a URL through obstore, with a bound for each request, and errors with a remedy.

`checkpoints.bucket_mirror` reads checkpoints with it, `coordination.object_storage` keeps the state in it, and
`publishing.state_backup` a copy. obstore is imported when a store is opened, and never in a process that forks, because
its threads do not exist in the child. An error never shows what the server or obstore said, which may hold keys: only
the status, and the code that the server gave.
"""

import asyncio
import contextlib
import errno
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sized
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, NamedTuple, TypeVar

from sidecar.errors import SettingsError
from sidecar.system.clock import Clock, SystemClock

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Store

T = TypeVar("T")

Credentials = Literal["environment", "machine", "none"]

MOST_OBJECTS: Final = 500_000
"""The most objects below one URL: 5,000 checkpoints of 100 shards."""

_MOST_NAME_BYTES: Final = 128 << 20  # of all names and etags in one listing: 256 for each object
_ANSWER_BYTES: Final = 128 << 20  # of memory that an answer may take, and 1 KiB more for each object of a listing
_OBJECT_BYTES: Final = 1 << 10
_CHUNK_OBJECTS: Final = 100  # so that a short page that comes again is noticed soon
_LOOK_SECONDS: Final = 0.01  # between two looks at the memory while an answer comes
_PAGES_LOOK_SECONDS: Final = 0.25  # between two looks at the objects of a listing
_PART_BYTES: Final = 16 << 20
_PARTS: Final = 4  # that are fetched at the same time
_AT_ONCE: Final = 64  # small objects that are read at the same time
_CHUNK_BYTES: Final = 1 << 20
_CLIENT_THREADS: Final = "tokio"
_RETRIES: Final = 2
_FIRST_PAUSE_SECONDS: Final = 1.0
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_NAME: Final = re.compile(r'Path "([^"]{1,200})')
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound")
_NOT_UNDERSTOOD: Final = re.compile(
    r"Got invalid|Invalid last modified|year -?\d+ is out of range|following redirect"
    r"|non-partial response|Content-Range|CONTENT_RANGE|Requested \d+\.\.\d+, got"
)
_REFUSED: Final = (401, 403)
_CHECK: Final = "check bucket_endpoint and network"
_REMEDIES: Final = {
    **dict.fromkeys(
        ("ExpiredToken", "TokenRefreshRequired"), "the credentials have expired: start again with new ones"
    ),
    "RequestTimeTooSkewed": "the clock of this machine is wrong: set it",
}
"""The remedy for a refusal, by the code of the server, if no right is missing."""

_REPLACED: Final = 412

_SOURCES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "s3": (
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"),
    ),
    "gs": (("GOOGLE_APPLICATION_CREDENTIALS",), ("GOOGLE_SERVICE_ACCOUNT",), ("GOOGLE_SERVICE_ACCOUNT_KEY",)),
    "az": (
        ("AZURE_STORAGE_ACCOUNT_KEY",),
        ("AZURE_STORAGE_SAS_KEY",),
        ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET"),
        ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE"),
    ),
}
"""The variables from which obstore takes credentials without asking the metadata address of the machine."""

_ENDPOINTS: Final = {"s3": "AWS_ENDPOINT_URL", "az": "AZURE_STORAGE_ENDPOINT"}

_RIGHTS: Final = {
    "s3": ("s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"),
    "gs": ("storage.objects.list", "storage.objects.get", "storage.objects.create", "storage.objects.delete"),
    "az": (*["Storage Blob Data Reader"] * 2, *["Storage Blob Data Contributor"] * 2),
}
"""The rights for listing, reading, writing and deleting."""


class BucketError(OSError):
    """Report a request to an object store that failed. Its `errno` says what that means, as for a file."""


class StoredObject(NamedTuple):
    """Describe one object of a listing. `modified_ns`: nanoseconds since 1970, by the store's clock."""

    key: str
    size: int
    modified_ns: int
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreRules:
    """Hold the settings of requests: the names are those of the settings."""

    bucket_endpoint: str | None = None
    bucket_credentials: Credentials = "environment"
    bucket_timeout_seconds: float = 30.0


def credential_source(scheme: str, rules: ObjectStoreRules, environ: Mapping[str, str] = os.environ) -> str:
    """Return where credentials come from, without a value of them. Raises `SettingsError` if there are none."""
    if rules.bucket_credentials == "none":
        return "none: requests are anonymous"
    for names in _SOURCES[scheme]:
        if all(environ.get(name) for name in names):
            return " and ".join(names)
    if rules.bucket_credentials == "machine":
        return "the metadata address of this machine"
    ways = ", or ".join(" and ".join(names) for names in _SOURCES[scheme])
    raise SettingsError(
        f"there are no credentials for {scheme}:// in the environment: set {ways}; or set bucket_credentials to "
        "machine, which asks the metadata address of this machine, or to none for a public bucket"
    )


@dataclass(slots=True, kw_only=True)
class ObjectStore:
    """Read the objects below a prefix of a bucket.

    After a failure that may pass, no request is made for a while, so that a busy server is not asked in vain: 1 s at
    first, then ever longer, `longest_pause_seconds` at most.
    """

    scheme: str
    bucket: str
    prefix: str
    rules: ObjectStoreRules = ObjectStoreRules()
    clock: Clock = field(default_factory=SystemClock)
    longest_pause_seconds: float = 60.0
    listing_seconds: float = 120.0  # of a whole listing
    empty_seconds: float = 30.0  # of a listing in which no object comes, and
    empty_cpu_seconds: float = 2.0  # of obstore's threads in that time: some 5,000 pages
    # Memory that the answer to the upload of a file may take, and files that are uploaded, of each 60 MiB at a time
    upload_bytes: int = 1 << 30
    requests: int = 0  # that were made so far, without those of obstore for pages after the first
    _store: "Store | None" = None
    _failures: int = 0
    _pause_until: float = float("-inf")
    _paused_for: str = ""

    def listing(self, folder: str = "") -> list[StoredObject]:
        """Return all objects in a folder and below it; "" is the prefix itself.

        Raises `BucketError`, also if there are too many, or their listing has no end, repeats an object or takes too
        much memory.
        """
        return self._request(0, partial(self._list, folder))

    def read(self, key: str, etag: str, start: int, end: int) -> bytes:
        """Return a part of an object that still has the etag. Raises `BucketError`."""

        async def read() -> bytes:
            return b"".join([chunk async for chunk in self._chunks(key, etag, start, end)])

        return self._request(1, read)

    def fetch(self, key: str, etag: str, size: int, into: BinaryIO) -> None:
        """Write an object that still has the etag into an open file, some parts at a time. Raises `BucketError`."""
        parts = iter(range(0, size, _PART_BYTES))

        async def fetch_parts() -> None:
            for start in parts:
                at = start
                async for chunk in self._chunks(key, etag, start, min(start + _PART_BYTES, size)):
                    at += os.pwrite(into.fileno(), chunk, at)

        async def fetch() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(_PARTS):
                    group.create_task(fetch_parts())

        self._request(1, fetch)

    def content(self, key: str, limit: int) -> bytes | None:
        """Return an object; None if it does not exist. Raises `BucketError`, also if it has more bytes than `limit`."""
        found = self.beginning(key, limit + 1)
        if found is not None and len(found[0]) > limit:
            raise BucketError(errno.EFBIG, f"it has more than {limit} bytes", self._url(key))
        return None if found is None else found[0]

    def beginning(self, key: str, most: int) -> tuple[bytes, str] | None:
        """Return the first `most` bytes of an object, and its etag; None if it does not exist. Raises `BucketError`.

        No more is read, whatever the server says of its size.
        """
        return self._request(1, partial(self._beginning, key, most))

    def together(
        self, most_of: Mapping[str, int], folders: Iterable[str]
    ) -> tuple[dict[str, tuple[bytes, str] | None], dict[str, list[StoredObject]]]:
        """Return what `beginning` returns for each key, and `listing` for each folder, all asked at the same time.

        `most_of`: by key, the most bytes to read. Raises `BucketError` if one request fails.
        """

        async def ask() -> tuple[dict[str, tuple[bytes, str] | None], dict[str, list[StoredObject]]]:
            gate = asyncio.Semaphore(_AT_ONCE)

            async def listed(folder: str) -> list[StoredObject]:
                try:
                    return await self._list(folder)
                except Exception as error:  # noqa: BLE001 - as in `_request`; another right is missing
                    raise self._explained(error, 0) from None

            async def behind_gate(request: Coroutine[Any, Any, T]) -> T:
                async with gate:
                    return await request

            async with asyncio.TaskGroup() as group:
                lists = {folder: group.create_task(listed(folder)) for folder in folders}
                found = {
                    key: group.create_task(behind_gate(self._beginning(key, most))) for key, most in most_of.items()
                }
            answers = {key: task.result() for key, task in found.items()}
            return answers, {folder: task.result() for folder, task in lists.items()}

        return self._request(1, ask)

    def exists(self, key: str) -> bool:
        """Return whether an object exists. Raises `BucketError`."""
        import obstore  # noqa: PLC0415 - as in `_list`

        async def head() -> bool:
            try:
                await self._ask(obstore.head_async(self.open(), key))
            except FileNotFoundError:
                return False
            return True

        return self._request(1, head)

    def create(self, key: str, data: bytes) -> bool:
        """Create an object, and return whether that was done: False if there is one. Raises `BucketError`.

        After a lost reply the request is repeated, so False may mean that this call created it: read it to learn that.
        """
        import obstore  # noqa: PLC0415 - as in `_list`
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415 - as in `_list`

        async def put() -> bool:
            try:
                await self._ask(obstore.put_async(self.open(), key, data, mode="create"))
            except AlreadyExistsError:
                return False
            return True

        return self._request(2, put)

    def put(self, key: str, data: bytes | Path, *, instead_of: str = "") -> str:
        """Write an object in place of the one that may exist, whole or not at all, and return its etag.

        Raises `BucketError`, `OSError`.

        `instead_of`: an etag; an object with another one stays, and is an error with the errno `ESTALE`. Some servers
        ignore it.
        """
        import obstore  # noqa: PLC0415 - as in `_list`

        mode: Any = {"e_tag": instead_of} if instead_of else "overwrite"

        async def put() -> str:
            most = self.upload_bytes if isinstance(data, Path) else _ANSWER_BYTES  # other uploads take memory meanwhile
            answer = await self._ask(obstore.put_async(self.open(), key, data, mode=mode), most)
            return _quoted(answer["e_tag"])

        return self._request(2, put)

    def delete(self, key: str) -> None:
        """Delete an object, if it exists. Raises `BucketError`."""
        import obstore  # noqa: PLC0415 - as in `_list`

        async def delete() -> None:
            with contextlib.suppress(FileNotFoundError):
                await self._ask(obstore.delete_async(self.open(), key))

        self._request(3, delete)

    async def _beginning(self, key: str, most: int) -> tuple[bytes, str] | None:
        import obstore  # noqa: PLC0415 - as in `_list`

        async with asyncio.timeout(self.rules.bucket_timeout_seconds * (_RETRIES + 1)):
            try:
                answer = await self._ask(obstore.get_async(self.open(), key))
            except FileNotFoundError as error:
                if any(code in str(error) for code in _NO_BUCKET):
                    raise
                return None
            data = bytearray()
            async for chunk in answer.stream(min_chunk_size=min(most, _CHUNK_BYTES)):
                data += memoryview(chunk)[: most - len(data)]
                if len(data) == most:
                    break
            return bytes(data), _quoted(answer.meta["e_tag"])

    async def _list(self, folder: str) -> list[StoredObject]:
        import obstore  # noqa: PLC0415 - only where checkpoints lie in a bucket

        found, name_bytes = dict[str, StoredObject](), 0
        self.requests += 1
        async with asyncio.timeout(self.listing_seconds), self._bounded_memory(found), self._bounded_pages(found):
            async for chunk in obstore.list(self.open(), folder or None, chunk_size=_CHUNK_OBJECTS):
                for entry in chunk:
                    key, etag = entry["path"], entry["e_tag"]
                    name_bytes += len(key) + len(etag or "")
                    modified_ns = max(0, int(entry["last_modified"].timestamp() * 1000) * 1_000_000)
                    one = StoredObject(key, entry["size"], modified_ns, _quoted(etag))
                    if found.get(key) == one:  # "a" and "a/", which obstore calls "a", too, differ
                        raise BucketError(errno.EIO, f"the listing repeats an object: {_CHECK}", self._url(""))
                    found[key] = one
                if len(found) > MOST_OBJECTS or name_bytes > _MOST_NAME_BYTES:
                    text = f"there are more than {MOST_OBJECTS} objects: name a folder in it that holds one run"
                    raise BucketError(errno.E2BIG, text, self._url(""))
        return list(found.values())

    async def _ask(self, request: Awaitable[T], most_bytes: int = _ANSWER_BYTES) -> T:
        """Return the answer to a request; the body of an object comes later."""
        self.requests += 1
        async with self._bounded_memory((), most_bytes):
            return await request

    @contextlib.asynccontextmanager
    async def _bounded_memory(self, found: Sized, most_bytes: int = _ANSWER_BYTES) -> AsyncIterator[None]:
        """Raise `BucketError` as soon as this process has grown by more than an answer with these objects may take.

        obstore holds the whole body of a listing's page and of an error, however long that is, and has no limit for it.
        """
        most = _resident_bytes() + most_bytes

        async def watch() -> None:
            while _resident_bytes() < most + len(found) * _OBJECT_BYTES:  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(_LOOK_SECONDS)
            raise BucketError(errno.EMSGSIZE, f"the answer takes too much memory: {_CHECK}", self._url(""))

        async with _beside(watch()):
            yield

    @contextlib.asynccontextmanager
    async def _bounded_pages(self, found: Sized) -> AsyncIterator[None]:
        """Raise `BucketError` if a listing goes on without an object.

        obstore asks for page after page by itself until one has an object, and does not tell their number. So time and
        CPU of its threads are bounded.
        """

        async def watch() -> None:
            count, began, cpu, now = -1, 0.0, 0.0, asyncio.get_running_loop().time
            while True:
                if len(found) != count:
                    count, began, cpu = len(found), now(), _client_cpu_seconds()
                await asyncio.sleep(_PAGES_LOOK_SECONDS)
                is_long = now() - began >= self.empty_seconds
                if len(found) == count and (is_long or _client_cpu_seconds() - cpu >= self.empty_cpu_seconds):
                    text = f"the listing goes on, page after page, and brings no object: {_CHECK}"
                    raise BucketError(errno.EIO, text, self._url(""))

        async with _beside(watch()):
            yield

    async def _chunks(self, key: str, etag: str, start: int, end: int) -> AsyncIterator[bytes]:
        """Yield the bytes of an object from `start` to `end`. The etag is compared here, too: some servers do not."""
        import obstore  # noqa: PLC0415 - only where checkpoints lie in a bucket

        async with asyncio.timeout(self.rules.bucket_timeout_seconds * (_RETRIES + 1)):
            options: Any = {"range": (start, end)} | ({"if_match": etag} if etag else {})
            answer = await self._ask(obstore.get_async(self.open(), key, options=options))
            if etag and _quoted(answer.meta["e_tag"]) != etag:
                raise BucketError(errno.ESTALE, "the object was replaced", self._url(key))
            left = end - start
            async for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
                left -= len(chunk)
                if left < 0:
                    break
                yield bytes(chunk)
            if left:
                raise BucketError(errno.EIO, "the server sent another number of bytes", self._url(key))

    def _request(self, action: int, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Carry out a request, unless an earlier failure asks for a pause. `action`: which of `_RIGHTS` it needs."""
        now = self.clock.now()
        if now < self._pause_until:
            raise BucketError(errno.ETIMEDOUT, self._paused_for, self._url(""))
        self.open()
        try:
            result = asyncio.run(request())
        except Exception as error:  # noqa: BLE001 - obstore has its own tree of errors
            failure = self._explained(_first(error), action)
            if failure.errno == errno.ETIMEDOUT:
                pause = min(self.longest_pause_seconds, _FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures, 10))
                self._failures += 1
                self._pause_until, self._paused_for = now + pause, str(failure.strerror)
            raise failure from None
        self._failures = 0
        return result

    def _explained(self, error: BaseException, action: int) -> BucketError:  # noqa: PLR0911 - one for each kind
        """Return the error to raise for one of obstore's, by its kind."""
        if isinstance(error, BucketError):
            return error
        text = str(error)
        status = int(match[1]) if (match := _STATUS.search(text)) else 0
        code = f" ({match[1]})" if (match := _CODE.search(text)) else ""
        kind, where = type(error).__name__, self._url("")
        if kind == "InvalidPathError":
            name = match[1] if (match := _NAME.search(text)) else "…"
            what = f"the object {name!a} has a name that is not a path: delete it, or use another folder"
            return BucketError(errno.EINVAL, what, where)
        if isinstance(error, FileNotFoundError) or status == 404:  # noqa: PLR2004 - not found
            what = "there is no such bucket: check its name, and bucket_endpoint"
            what = "the object is gone" if action and code[2:-1] not in _NO_BUCKET else what
            return BucketError(errno.ENOENT, what + code, where)
        if kind == "PreconditionError" or status == _REPLACED:
            return BucketError(errno.ESTALE, "the object was replaced", where)
        remedy = _REMEDIES.get(code[2:-1])
        if remedy or kind in ("PermissionDeniedError", "UnauthenticatedError") or status in _REFUSED:
            remedy = remedy or f"allow {_RIGHTS[self.scheme][action]} for {where}"
            return BucketError(errno.EACCES, f"the server refused it{code}: {remedy}", where)
        if 300 <= status < 400 and kind != "NotModifiedError":  # noqa: PLR2004 - a redirection, to the region
            return BucketError(errno.EREMOTE, f"the bucket is elsewhere{code}: set AWS_REGION to its region", where)
        if status == 501:  # noqa: PLR2004 - not implemented
            return BucketError(errno.ENOTSUP, f"the server cannot do that{code}", where)
        if isinstance(error, TimeoutError) or not status:
            silent = "the server does not answer: check bucket_endpoint and network"
            odd = "the server's answer is not that of an object store: check bucket_endpoint"
            return BucketError(errno.ETIMEDOUT, odd if _NOT_UNDERSTOOD.search(text) else silent, where)
        return BucketError(errno.ETIMEDOUT, f"the server answered {status}{code}", where)

    def _url(self, key: str) -> str:
        return "/".join(part for part in (f"{self.scheme}://{self.bucket}", self.prefix, key) if part)

    def open(self) -> "Store":
        """Return the store, which is opened at the first use: nothing is sent by that. Raises `SettingsError`."""
        if self._store is None:
            self._store = self._open()
        return self._store

    def _open(self) -> "Store":
        credential_source(self.scheme, self.rules)
        try:
            from obstore import store  # noqa: PLC0415 - as above
        except ImportError as error:
            raise SettingsError(f"{self._url('')} needs obstore: pip install obstore, for this interpreter") from error
        endpoint = self.rules.bucket_endpoint or os.environ.get(_ENDPOINTS.get(self.scheme, ""), "")
        config: dict[str, Any] = {"skip_signature": True} if self.rules.bucket_credentials == "none" else {}
        if endpoint:
            config["base_url" if self.scheme == "gs" else "endpoint"] = endpoint
        if self.scheme == "s3" and not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
            config["region"] = "us-east-1"
        seconds = self.rules.bucket_timeout_seconds
        options: Any = {
            "timeout": timedelta(seconds=seconds),
            "connect_timeout": timedelta(seconds=min(5.0, seconds)),
            "allow_http": endpoint.startswith("http://"),
        }
        retries: Any = {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=seconds)}
        kinds: dict[str, Callable[..., Store]] = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}
        try:
            return kinds[self.scheme](
                self.bucket, prefix=self.prefix or None, config=config, client_options=options, retry_config=retries
            )
        except Exception as error:  # noqa: BLE001 - obstore names a variable that it cannot use; its text may hold the value
            raise SettingsError(
                f"{self._url('')}: its credentials or its endpoint cannot be used ({type(error).__name__}); check "
                f"the variables that begin with {'AWS_, GOOGLE_ or AZURE_'}"
            ) from None


@contextlib.asynccontextmanager
async def _beside(watch: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a watch beside a request: the error that it raises ends the request."""
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch)
            yield
            watching.cancel()
    except ExceptionGroup as error:
        raise _first(error) from None


def _client_cpu_seconds() -> float:
    """Return the CPU time that the threads of obstore have used in this process."""
    ticks = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended
            name, _, fields = (task / "stat").read_text().partition("(")[2].rpartition(") ")
            if name.startswith(_CLIENT_THREADS):
                ticks += sum(map(int, fields.split()[11:13]))  # proc(5): utime and stime
    return ticks / os.sysconf("SC_CLK_TCK")


def _resident_bytes() -> int:
    """Return the memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _quoted(etag: str | None) -> str:
    """Return an etag in quotes, as answers and conditions have it, and the listings of Azure do not; empty if None.

    A proxy that could compress an answer calls its etag weak, which the listing of the same object does not.
    """
    return "" if etag is None else '"' + etag.removeprefix("W/").strip('"') + '"'


def _first(error: BaseException) -> BaseException:
    """Return the first error of a group, which the tasks that were cancelled then follow."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
