"""The one HTTP port of a daemon, read only: metrics, health, readiness, status as JSON and as a page for people.

It shows what it is given: the metrics registry and three callables, which are called in request threads and must
therefore only read values that are already made. It never touches storage and never waits for the daemon's loop.
"""

import contextlib
import io
import json
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app

from sidecar.errors import SettingsError
from sidecar.page import page

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_log = structlog.get_logger()

REQUEST_BYTES: Final = 32 * 1024
"""A longer request, headers and body together, is dropped."""

CONNECTIONS: Final = 32
"""How many clients are served at once; the next one is turned away."""

_LAST_PORT: Final = 65535
_TEXT, _JSON, _HTML = "text/plain; charset=utf-8", "application/json", "text/html; charset=utf-8"


class Server:
    """Serves on `host`:`port` from a daemon thread; port 0 takes a free one.

    Args:
        host: address or name to listen on; IPv6 literals with or without brackets.
        port: port to listen on.
        registry: what /metrics shows.
        health: why the daemon is not alive, or None.
        ready: why it is not ready, or None.
        status: what /api/status and the page show, made by `sidecar.observers.report.status_json`.
        request_seconds: a client must send its whole request, and take the answer, within this time each.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        registry: CollectorRegistry,
        health: Callable[[], str | None],
        ready: Callable[[], str | None],
        status: Callable[[], dict[str, Any]],
        request_seconds: float = 10.0,
    ) -> None:
        self._host = host.strip("[]")
        self._port = port
        self._site = _Site(registry, health, ready, status)
        self._request_seconds = request_seconds
        self._listener: _Listener | None = None

    def start(self) -> None:
        """Listen, and return. Raises `SettingsError` if the address cannot be used."""
        if not 0 <= self._port <= _LAST_PORT:  # the resolver would take it modulo 65536
            raise self._refusal(f"a port is 0 to {_LAST_PORT}")
        try:
            # Resolved here, since the family follows from it; a literal asks no name server.
            family, _, _, _, address = socket.getaddrinfo(
                self._host or None, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._listener = _Listener(family, address, self._site, self._request_seconds)
        except OSError as error:
            raise self._refusal(error.strerror or str(error)) from error
        threading.Thread(target=self._listener.serve_forever, name="http", daemon=True).start()

    def _refusal(self, reason: str) -> SettingsError:
        return SettingsError(
            f"cannot serve HTTP on {_netloc(self._host, self._port)}: {reason}; "
            "choose another address with --http HOST:PORT, or port 0 for a free one"
        )

    @property
    def url(self) -> str:
        """Where to look, from this machine: `http://127.0.0.1:19108`. Only while it runs."""
        assert self._listener is not None, "start() comes first"
        return f"http://{_netloc(dialled(self._host), self._listener.server_port)}"

    def close(self) -> None:
        """Stop listening; requests under way end with the process. More than once does no harm."""
        if self._listener is not None:
            self._listener.shutdown()
            self._listener.server_close()
            self._listener = None


def dialled(host: str) -> str:
    """Where this machine itself reaches what listens on `host`, an address without brackets."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - read, not bound


def _netloc(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Response(NamedTuple):
    status: str
    headers: list[tuple[str, str]]
    body: bytes


class _Site:
    """The WSGI application: which path answers what."""

    def __init__(
        self,
        registry: CollectorRegistry,
        health: Callable[[], str | None],
        ready: Callable[[], str | None],
        status: Callable[[], dict[str, Any]],
    ) -> None:
        self._metrics = make_wsgi_app(registry)
        self._pages: dict[str, Callable[[], _Response]] = {
            "/": lambda: _response("200 OK", _HTML, page(status())),
            "/api/status": lambda: _response("200 OK", _JSON, json.dumps(status(), indent=2, allow_nan=False) + "\n"),
            "/healthz": lambda: _verdict(health()),
            "/readyz": lambda: _verdict(ready()),
        }

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        try:
            response = self._answer(environ)
        except Exception:  # noqa: BLE001 - one broken view must not take the others away
            _log.exception("http_request_failed", path=environ.get("PATH_INFO"))
            response = _response("500 Internal Server Error", _TEXT, "this answer failed; the daemon's log says why\n")
        start_response(
            response.status,
            [
                *response.headers,
                ("Content-Length", str(len(response.body))),
                ("Cache-Control", "no-store"),
                ("X-Content-Type-Options", "nosniff"),
                ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),
                ("Server", "sidecar"),
            ],
        )
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [response.body]

    def _answer(self, environ: "WSGIEnvironment") -> _Response:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path != "/metrics" and path not in self._pages:
            return _response("404 Not Found", _TEXT, f"see {', '.join(['/metrics', *self._pages])}\n")
        if method not in ("GET", "HEAD"):
            _drain(environ)
            refused = _response("405 Method Not Allowed", _TEXT, "read only: GET or HEAD\n")
            return refused._replace(headers=[*refused.headers, ("Allow", "GET, HEAD")])
        return self._exposition(environ) if path == "/metrics" else self._pages[path]()

    def _exposition(self, environ: "WSGIEnvironment") -> _Response:
        """The client library's own answer, with its choice of format and compression."""
        started: list[Any] = []
        body = b"".join(self._metrics({**environ, "REQUEST_METHOD": "GET"}, lambda *start: started.extend(start)))
        return _Response(started[0], started[1], body)


def _response(status: str, content_type: str, text: str) -> _Response:
    return _Response(status, [("Content-Type", content_type)], text.encode(errors="replace"))


def _verdict(reason: str | None) -> _Response:
    return _response(
        *(("200 OK", _TEXT, "ok\n") if reason is None else ("503 Service Unavailable", _TEXT, f"{reason}\n"))
    )


def _drain(environ: "WSGIEnvironment") -> None:
    """Read the body of a refused request: closing with unread data would reset the connection before the answer."""
    with contextlib.suppress(ValueError, OSError):
        environ["wsgi.input"].read(min(int(environ["CONTENT_LENGTH"]), REQUEST_BYTES))


class _Listener(socketserver.ThreadingMixIn, WSGIServer):
    """A thread per request, up to a bound; none of them keeps the process alive."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_port = False  # newer Pythons default to sharing the port, and a second daemon would go unnoticed
    request_queue_size = CONNECTIONS

    def __init__(self, family: int, address: Any, site: _Site, request_seconds: float) -> None:
        self.address_family = family
        self.request_seconds = request_seconds
        self._places = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(address, _Handler)
        self.set_app(site)

    def server_bind(self) -> None:
        """Bind without the base class's reverse lookup of the host name, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        host, self.server_port = self.socket.getsockname()[:2]
        self.server_name = str(host)
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the request a thread, or turn it away."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one client in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """Keep quiet about clients that went away; the base class prints a traceback."""
        if not isinstance(sys.exception(), OSError):
            _log.exception("http_connection_failed", client=str(client_address[0]))


class _Handler(WSGIRequestHandler):
    """One request per connection, with a bound on its size and its time."""

    server: _Listener

    def setup(self) -> None:
        """Read through the bounds."""
        super().setup()
        self.connection.settimeout(self.server.request_seconds)
        self.rfile = io.BufferedReader(_BoundedRequest(self.connection, self.server.request_seconds))

    def log_message(self, *_: Any) -> None:
        """No access log: a scraper calls every few seconds."""

    def get_stderr(self) -> io.StringIO:
        """Nowhere: the site logs its own failures, what is left here are clients that went away."""
        return io.StringIO()


class _BoundedRequest(io.RawIOBase):
    """What a client sends, as long as it is neither too much nor too slow. A drip of bytes does not renew the time."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        super().__init__()
        self._connection = connection
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._left = REQUEST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(remaining)
        count = self._connection.recv_into(buffer)
        self._connection.settimeout(self._seconds)  # for the answer
        self._left -= count
        if self._left < 0:
            raise ConnectionAbortedError("the request is too long")
        return count
