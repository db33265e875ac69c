"""Hold the connections of the HTTP port: one thread reads requests and writes answers, whatever clients do.

A client costs a descriptor and at most 32 KiB, never a thread. Clients that send nothing, or drip, cannot take the port
away from others: when places run out, the oldest connection of the busiest client goes, those that have not sent their
request yet before those that are being answered. An honest client sends its request at once, long before it is the
oldest.
"""

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry

from sidecar.errors import SettingsError
from sidecar.observability.http.hosts import Hosts
from sidecar.observability.http.views import Request, Views

_log = structlog.get_logger()

REQUEST_BYTES: Final = 32 * 1024
"""A longer request head is dropped."""

CONNECTIONS: Final = 64
"""How many connections are held. A handful is usual: some scrapers, probes, people."""

PER_CLIENT: Final = 32
"""How many of them one address may have: half, so that a single client never fills the port."""

_BACKLOG: Final = 1024  # waits in the kernel: a client that finds it full tries again after a second
_LAST_PORT: Final = 65535
_LINGER_SECONDS: Final = 1.0  # for a body that nobody reads: closing at once would reset the connection
_CLOSE_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 0.1
_NAMES_SECONDS: Final = 60.0


class Server:
    """Serve on `host`:`port` from a daemon thread; port 0 takes a free one.

    Args:
        host: address or name to listen on; IPv6 literals with or without brackets.
        port: port to listen on.
        names: names, or globs of them, that clients may ask for in addition to those that are safe anyway.
        registry: what /metrics shows.
        health: why the daemon is not alive, or None.
        ready: why it is not ready, or None.
        status: what /api/status and the page show, made by `sidecar.observability.report.status_json`.
        request_seconds: a client must send its whole request, and take the answer, within this time each.
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
        status: Callable[[], dict[str, Any]],
        request_seconds: float = 10.0,
    ) -> None:
        self._host = host.strip("[]")
        self._port = port
        self._hosts = Hosts([self._host, *names])
        self._views = Views(self._hosts, registry, health, ready, status)
        self._request_seconds = request_seconds
        self._closed = threading.Event()
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Event, threading.Thread] | None = None
        self._bound = 0

    def start(self) -> None:
        """Listen, and return. Raises `SettingsError` if the address cannot be used."""
        if not 0 <= self._port <= _LAST_PORT:  # the resolver would take it modulo 65536
            raise self._refusal(f"a port is 0 to {_LAST_PORT}")
        try:
            listener = _listen(self._host, self._port)
        except OSError as error:
            raise self._refusal(error.strerror or str(error)) from error
        self._bound = listener.getsockname()[1]
        loop, stopped = asyncio.new_event_loop(), asyncio.Event()
        connections = _Connections(self._views, self._request_seconds)
        thread = threading.Thread(
            target=_run, args=(loop, connections.serve(listener, stopped)), name="http", daemon=True
        )
        self._running = loop, stopped, thread
        thread.start()
        threading.Thread(target=self._learn_own_names, name="http-names", daemon=True).start()

    def _learn_own_names(self) -> None:
        """Ask again as long as the resolver does not answer, as when a machine starts before its network."""
        while not self._hosts.learn_own_names() and not self._closed.wait(_NAMES_SECONDS):
            pass

    def _refusal(self, reason: str) -> SettingsError:
        return SettingsError(
            f"cannot serve HTTP on {_netloc(self._host, self._port)}: {reason}; "
            "choose another address with --http HOST:PORT, or port 0 for a free one"
        )

    @property
    def url(self) -> str:
        """Return its URL on this machine, such as `http://127.0.0.1:19108`. Only while it runs."""
        assert self._running is not None, "start() comes first"
        return f"http://{_netloc(dialled(self._host), self._bound)}"

    def close(self) -> None:
        """Stop listening and drop every connection. More than once does no harm."""
        if self._running is None:
            return
        loop, stopped, thread = self._running
        self._running = None
        self._closed.set()
        with contextlib.suppress(RuntimeError):  # its thread has ended already
            loop.call_soon_threadsafe(stopped.set)
        thread.join(_CLOSE_SECONDS)


def dialled(host: str) -> str:
    """Return where this machine itself reaches what listens on `host`, an address without brackets."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - read, not bound


def _netloc(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    """Bind exclusively: sharing the port would let a second daemon go unnoticed."""
    # Resolved here, since the family follows from it; a literal asks no name server.
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
    except Exception:  # noqa: BLE001 - nobody else would learn of it
        _log.exception("http_stopped")
    finally:
        loop.close()


class _Connections:
    """Hold all connections, the oldest first."""

    def __init__(self, views: Views, request_seconds: float) -> None:
        self._views = views
        self._request_seconds = request_seconds
        self._clients: dict[asyncio.Task[None], str] = {}
        self._answered: set[asyncio.Task[None]] = set()  # those of them whose request came whole
        # Where answers are made that take a while: probes do not wait for them. Two, since Python runs one at a time.
        self._makers = ThreadPoolExecutor(2, thread_name_prefix="http-answer")

    async def serve(self, listener: socket.socket, stopped: asyncio.Event) -> None:
        """Accept connections until `stopped`."""
        accepting = asyncio.create_task(self._accept(listener))
        await stopped.wait()
        ending = [accepting, *self._clients]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        listener.close()
        self._makers.shutdown(wait=False, cancel_futures=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError:  # no descriptor is left, or the client has gone meanwhile
                self._drop_oldest()
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            client = _client(address[0])
            if sum(each == client for each in self._clients.values()) >= PER_CLIENT:
                self._drop_oldest(client)
            elif len(self._clients) >= CONNECTIONS:
                self._drop_oldest()
            task = loop.create_task(self._serve(connection))
            self._clients[task] = client
            task.add_done_callback(partial(self._close, connection))
            await asyncio.sleep(0)  # a request that came with its connection is read before the next one is accepted

    def _drop_oldest(self, client: str | None = None) -> None:
        """Drop the oldest connection of that client, or of the one that has most."""
        if client is None and self._clients:
            client = Counter(self._clients.values()).most_common(1)[0][0]
        tasks = [task for task, each in self._clients.items() if each == client]
        if tasks:
            oldest = next((task for task in tasks if task not in self._answered), tasks[0])
            del self._clients[oldest]  # now, since it ends only after the next one is counted
            oldest.cancel()

    def _close(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._clients.pop(task, None)
        self._answered.discard(task)
        connection.close()

    async def _serve(self, connection: socket.socket) -> None:
        """Answer one request. The connection is closed once this has ended, however it does."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(self._request_seconds):
                head = await _read_head(connection)
            if not head:
                return
            self._answered.add(task)
            request = Request(head)
            if request.is_quick:
                answer = self._views.answer(request)
            else:
                answer = await loop.run_in_executor(self._makers, self._views.answer, request)
            async with asyncio.timeout(self._request_seconds):
                await loop.sock_sendall(connection, answer)
            connection.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(_LINGER_SECONDS):
                while await loop.sock_recv(connection, REQUEST_BYTES):
                    pass
        except (OSError, TimeoutError):  # a client that went away, or is too slow
            return
        except Exception:  # noqa: BLE001 - one connection must not take the others away
            _log.exception("http_connection_failed")


async def _read_head(connection: socket.socket) -> bytes:
    """Return request line and headers, up to the empty line; empty if they are too long or none came."""
    loop = asyncio.get_running_loop()
    head = bytearray()
    while block := await loop.sock_recv(connection, 4096):
        head += block
        if len(head) > REQUEST_BYTES:
            return b""
        recent = head[-len(block) - 3 :]
        if b"\n\n" in recent or b"\n\r\n" in recent:
            break
    return bytes(head)


def _client(address: str) -> str:
    """Return the client that an address belongs to: IPv6 hands out networks of /64, not single addresses."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if found.version == 4 or found.ipv4_mapped is not None:  # noqa: PLR2004 - IPv4
        return str(found)
    return str(ipaddress.ip_network((found, 64), strict=False))
