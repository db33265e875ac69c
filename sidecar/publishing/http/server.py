"""Hold the connections of the HTTP port: one thread reads all requests and writes all answers.

A connection costs a descriptor and at most 32 KiB, but no thread. Clients that send nothing, or send slowly, cannot
keep others from the port. If there are too many connections, the oldest one of the client with the most connections is
closed: first those whose request is incomplete, then those that are being answered. An honest client sends its request
at once, long before its connection is the oldest.
"""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from prometheus_client import CollectorRegistry

from sidecar.errors import SettingsError
from sidecar.publishing.evaluation_archive.reader import ArchiveReader
from sidecar.publishing.http.access import Access, AccessFile
from sidecar.publishing.http.hosts import Hosts
from sidecar.publishing.http.views import UNAUTHORIZED, Request, Views
from sidecar.publishing.plain_structlog import structlog
from sidecar.system.addresses import dialled, host_and_port

if TYPE_CHECKING:
    from sidecar.publishing.http.run_pages import Runs

_log = structlog.get_logger()
_T = TypeVar("_T")

REQUEST_BYTES: Final = 32 * 1024
"""The most bytes of a request head. The connection is closed if it is longer."""

CONNECTIONS: Final = 64
"""The most connections at a time. A handful is usual: some scrapers, probes, people."""

PER_CLIENT: Final = 32
"""The most connections of one client: half of all, so that a single client never fills the port."""

_BACKLOG: Final = 1024  # connections that wait in the kernel; if there are more, the client tries again after a second
_LAST_PORT: Final = 65535
_BLOCK_BYTES: Final = 4096
_RECORD_BYTES: Final = 16 * 1024  # the most that TLS sends in one piece
_LINGER_SECONDS: Final = 1.0  # to discard the body of a request: closing at once would reset the connection
_CLOSE_SECONDS: Final = 2.0
_ACCEPT_AGAIN_SECONDS: Final = 0.1  # after a failure
_RESOLVE_AGAIN_SECONDS: Final = 60.0  # after a failure


class Server:
    """Serve on `host`:`port` from a daemon thread; port 0 takes a free one. IPv6 literals may have brackets.

    `names`: names, or globs, under which clients may address the daemon, in addition to names that are always safe.
    `health` and `ready` return why the daemon is not alive or not ready, or None. `status` returns the content of
    /api/status and of the page, made by `publishing.report.status_json`; `archive` answers questions about all
    evaluations, for the curves of the page. In a process that serves several runs, `runs` returns what is known of each
    in place of both. `notice` has checkpoints scanned because of a notice of training; see `Views`. None: nobody may
    ask. `request_seconds`: the time in which a client must send its request, and again to receive the answer. `most`:
    connections that are open at a time, of all clients and of one.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        names: Collection[str] = (),
        registry: CollectorRegistry,
        health: Callable[[], str | None],
        ready: Callable[[], str | None],
        status: Callable[[], dict[str, Any]] = dict,
        archive: ArchiveReader | None = None,
        runs: "Runs | None" = None,
        notice: Callable[[str], str | None] | None = None,
        access: AccessFile | None = None,
        request_seconds: float = 10.0,
        most: tuple[int, int] = (CONNECTIONS, PER_CLIENT),
    ) -> None:
        self._access = access or AccessFile(None)
        self._host = host.strip("[]")
        self._port = port
        self._hosts = Hosts([self._host, *names])
        self.views = Views(self._hosts, registry, health, ready, status, archive, runs, notice)
        self._request_seconds, self._most = request_seconds, most
        self._closed = threading.Event()
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Event, threading.Thread] | None = None
        self._bound = 0

    def start(self) -> None:
        """Start to listen, and return. Raises `SettingsError` if the address cannot be used."""
        if not 0 <= self._port <= _LAST_PORT:  # the resolver would take it modulo 65536
            raise self._refusal(f"a port is 0 to {_LAST_PORT}")
        try:
            listener = _listen(self._host, self._port)
        except OSError as error:
            raise self._refusal(error.strerror or str(error)) from error
        self._bound = listener.getsockname()[1]
        loop, stopped = asyncio.new_event_loop(), asyncio.Event()
        connections = _Connections(self.views, self._access, self._request_seconds, self._most)
        thread = threading.Thread(
            target=_run, args=(loop, connections.serve(listener, stopped)), name="http", daemon=True
        )
        self._running = loop, stopped, thread
        thread.start()
        threading.Thread(target=self._learn_own_names, name="http-names", daemon=True).start()
        threading.Thread(target=self._keep_access_current, name="http-access", daemon=True).start()

    def _learn_own_names(self) -> None:
        """Look up the machine's names until the resolver answers: the daemon may start before the network."""
        while not self._hosts.learn_own_names() and not self._closed.wait(_RESOLVE_AGAIN_SECONDS):
            pass

    def _keep_access_current(self) -> None:
        self._access.keep_current(self._closed)

    def _refusal(self, reason: str) -> SettingsError:
        return SettingsError(
            f"cannot serve HTTP on {host_and_port(self._host, self._port)}: {reason}; "
            "choose another address with --http HOST:PORT, or port 0 for a free one"
        )

    @property
    def url(self) -> str:
        """Return the URL of the server on this machine, such as `http://127.0.0.1:19108`. Only after `start`."""
        assert self._running is not None, "start() comes first"
        return f"{self._access.access.scheme}://{host_and_port(dialled(self._host), self._bound)}"

    def close(self) -> None:
        """Stop listening and close every connection. A second call does nothing."""
        if self._running is None:
            return
        loop, stopped, thread = self._running
        self._running = None
        self._closed.set()
        with contextlib.suppress(RuntimeError):  # its thread has ended already
            loop.call_soon_threadsafe(stopped.set)
        thread.join(_CLOSE_SECONDS)


def _listen(host: str, port: int) -> socket.socket:
    """Bind without sharing the port, so that a second daemon on the same port fails at its start."""
    # The name is resolved here, because the family follows from the address. A literal needs no name server.
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _run(loop: asyncio.AbstractEventLoop, serving: Any) -> None:
    try:
        loop.run_until_complete(serving)
    except Exception:  # noqa: BLE001 - nothing else would report it
        _log.exception("http_stopped")
    finally:
        loop.close()


class _Stream(Protocol):
    """Receive and send bytes."""

    async def receive(self) -> bytes:
        """Return the next bytes; none at the end."""

    async def send(self, data: bytes) -> None:
        """Send all bytes."""

    async def end(self) -> None:
        """Tell the client that nothing more comes."""


async def _open_stream(connection: socket.socket, access: Access) -> _Stream:
    """Return the stream of a connection, after the handshake if it is one of TLS.

    Raises `OSError` for a client that has not the certificate which is asked of it.
    """
    if access.tls is None:
        return _Plain(connection)
    stream = _Encrypted(connection, access.tls)
    if not access.allows(await stream.shake_hands()):
        raise ConnectionRefusedError("the client's certificate has none of client_allowed_sans")
    return stream


class _Plain:
    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._loop = connection, asyncio.get_running_loop()

    async def receive(self) -> bytes:
        return await self._loop.sock_recv(self._connection, _BLOCK_BYTES)

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._connection, data)

    async def end(self) -> None:
        self._connection.shutdown(socket.SHUT_WR)


class _Encrypted:
    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        self._plain = _Plain(connection)
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=True)

    async def shake_hands(self) -> Mapping[str, object]:
        """Agree on a key, and return the client's certificate, whose issuer was verified; empty if it sent none."""
        await self._until_done(self._tls.do_handshake)
        return self._tls.getpeercert() or {}

    async def receive(self) -> bytes:
        try:
            return await self._until_done(lambda: self._tls.read(_BLOCK_BYTES))
        except ssl.SSLZeroReturnError:
            return b""

    async def send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[await self._until_done(partial(self._tls.write, left[:_RECORD_BYTES])) :]

    async def end(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):  # the client need not answer
            self._tls.unwrap()
        await self._flush()
        await self._plain.end()

    async def _until_done(self, step: Callable[[], _T]) -> _T:
        """Return the result of a step of TLS, once what it sends is sent and what it needs has come."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self._flush()
                if block := await self._plain.receive():
                    self._received.write(block)
                else:
                    self._received.write_eof()
            except ssl.SSLError:
                await self._flush()  # an alert says why
                raise
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        if data := self._to_send.read():
            await self._plain.send(data)


class _Connections:
    """Hold all connections, the oldest first."""

    def __init__(self, views: Views, access: AccessFile, request_seconds: float, most: tuple[int, int]) -> None:
        self._views, self._access, self._request_seconds = views, access, request_seconds
        self._most, self._most_of_client = most
        self._clients: dict[asyncio.Task[None], str] = {}
        self._answered: set[asyncio.Task[None]] = set()  # the clients whose request is complete
        # Builds slow answers, so that probes do not wait for them. Two threads, since Python runs one at a time.
        self._makers = ThreadPoolExecutor(2, thread_name_prefix="http-answer")
        # Compares passwords, each of which takes 50 ms, so that wrong ones take one core at most.
        self._logins = ThreadPoolExecutor(1, thread_name_prefix="http-login")

    async def serve(self, listener: socket.socket, stopped: asyncio.Event) -> None:
        """Accept connections until `stopped`."""
        accepting = asyncio.create_task(self._accept(listener))
        await stopped.wait()
        ending = [accepting, *self._clients]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        listener.close()
        for threads in (self._makers, self._logins):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await _readable(listener)
            try:
                connection, address = listener.accept()
                connection.setblocking(False)
            except BlockingIOError:  # the client has gone meanwhile
                continue
            except OSError:  # no descriptor is left
                self._drop_oldest()
                await asyncio.sleep(_ACCEPT_AGAIN_SECONDS)
                continue
            client = _client(address[0])
            if sum(other == client for other in self._clients.values()) >= self._most_of_client:
                self._drop_oldest(client)
            elif len(self._clients) >= self._most:
                self._drop_oldest()
            task = loop.create_task(self._serve(connection))
            self._clients[task] = client
            task.add_done_callback(partial(self._close, connection))
            await asyncio.sleep(0)  # a request that has arrived is read before the next connection is accepted

    def _drop_oldest(self, client: str | None = None) -> None:
        """Close the oldest connection of that client, or of the client with the most connections."""
        if client is None and self._clients:
            client = Counter(self._clients.values()).most_common(1)[0][0]
        tasks = [task for task, other in self._clients.items() if other == client]
        if tasks:
            oldest = next((task for task in tasks if task not in self._answered), tasks[0])
            del self._clients[oldest]  # now, because the task ends only after the new connection is counted
            oldest.cancel()

    def _close(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._clients.pop(task, None)
        self._answered.discard(task)
        connection.close()

    async def _serve(self, connection: socket.socket) -> None:
        """Answer one request. The connection is closed when this ends, also by an exception."""
        loop, task, access = asyncio.get_running_loop(), asyncio.current_task(), self._access.access
        assert task is not None
        try:
            async with asyncio.timeout(self._request_seconds):
                stream = await _open_stream(connection, access)
                head = await _read_head(stream)
            if not head:
                return
            self._answered.add(task)
            request = Request(head, access.headers)
            if not await self._is_welcome(request, access):
                answer = request.written(UNAUTHORIZED)
            elif request.is_quick:
                answer = self._views.answer(request)
            else:
                answer = await loop.run_in_executor(self._makers, self._views.answer, request)
            async with asyncio.timeout(self._request_seconds):
                await stream.send(answer)
                await stream.end()
            async with asyncio.timeout(_LINGER_SECONDS):
                while await loop.sock_recv(connection, REQUEST_BYTES):
                    pass
        except (OSError, TimeoutError):  # the client went away, or is too slow
            return
        except Exception:  # noqa: BLE001 - a bug in one connection must not end the server
            _log.exception("http_connection_failed")

    async def _is_welcome(self, request: Request, access: Access) -> bool:
        """Return whether the client may have the answer. A request that cannot be parsed is refused anyway."""
        if not request.parsed or request.is_probe or access.knows(request.authorization):
            return True
        if not request.authorization:
            return False
        return await asyncio.get_running_loop().run_in_executor(self._logins, access.admits, request.authorization)


async def _readable(listener: socket.socket) -> None:
    """Wait for a client. A connection that `loop.sock_accept` has taken would be lost if its task is cancelled then."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listener, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(listener)


async def _read_head(stream: _Stream) -> bytes:
    """Return the request line and the headers, up to the empty line. Return nothing if they are too long or missing."""
    head = bytearray()
    while block := await stream.receive():
        head += block
        if len(head) > REQUEST_BYTES:
            return b""
        recent = head[-len(block) - 3 :]
        if b"\n\n" in recent or b"\n\r\n" in recent:
            break
    return bytes(head)


def _client(address: str) -> str:
    """Return the client to which an address belongs: in IPv6 a network of /64, since one client gets all of it."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if ip.version == 4 or ip.ipv4_mapped is not None:  # noqa: PLR2004 - IPv4
        return str(ip)
    return str(ipaddress.ip_network((ip, 64), strict=False))
