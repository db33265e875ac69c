"""Build the answer to one request, by its path. Bytes in, bytes out: there are no sockets here.

The views call the metrics registry and three callables, which must only read values that exist already. They never
touch storage and never wait for the daemon's loop.
"""

import io
import json
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app

from sidecar.observability.http.hosts import Hosts
from sidecar.observability.status_page import page

_log = structlog.get_logger()

_TEXT, _JSON, _HTML = "text/plain; charset=utf-8", "application/json", "text/html; charset=utf-8"
_PROBES: Final = ("/healthz", "/readyz")


class _Response(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Request(BaseHTTPRequestHandler):
    """Parse one request head in memory, with the parser of the standard library.

    Args:
        head: The request line and the headers, with the empty line that ends them.
    """

    default_request_version = "HTTP/1.0"  # so that a refusal always has a status line
    error_content_type = _TEXT
    error_message_format = "%(message)s\n"

    def __init__(self, head: bytes) -> None:
        self.rfile = io.BytesIO(head)
        self.wfile = self._output = io.BytesIO()
        self.client_address = ("", 0)
        self.raw_requestline = self.rfile.readline()
        self.command, self.requestline, self.request_version = "", "", ""
        self.parsed = self.parse_request()

    @property
    def place(self) -> str:
        """Return the path of the request, without the query."""
        return unquote(self.path.partition("?")[0], errors="replace")

    @property
    def is_quick(self) -> bool:
        """Return whether the answer takes no time to build: that of a probe, or a refusal."""
        return not self.parsed or self.place in _PROBES

    @property
    def output(self) -> bytes:
        """Return the bytes written so far: for a request that could not be parsed, the refusal."""
        return self._output.getvalue()

    def written(self, response: _Response) -> bytes:
        """Return the bytes of the whole answer."""
        self.send_response(response.status)
        for name, value in response.headers:
            self.send_header(name, value)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Connection", "close")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)
        return self.output

    def version_string(self) -> str:
        """Return the name of the program for the header `Server`, without the version of Python."""
        return "sidecar"

    def log_message(self, *_: Any) -> None:
        """Write no access log: a scraper calls every few seconds."""


class Views:
    """Answer requests by path.

    Args:
        hosts: Decides which `Host` headers are answered.
        registry: The metrics that /metrics shows.
        health: Returns why the daemon is not alive, or None.
        ready: Returns why the daemon is not ready, or None.
        status: Returns the content of /api/status and of the page.
    """

    def __init__(
        self,
        hosts: Hosts,
        registry: CollectorRegistry,
        health: Callable[[], str | None],
        ready: Callable[[], str | None],
        status: Callable[[], dict[str, Any]],
    ) -> None:
        self._hosts = hosts
        self._exporter = make_wsgi_app(registry)
        self._views: dict[str, Callable[[Request], _Response]] = {
            "/metrics": self._metrics,
            "/": lambda _: _response(HTTPStatus.OK, page(status()), _HTML),
            "/api/status": lambda _: _response(
                HTTPStatus.OK, json.dumps(status(), indent=2, allow_nan=False) + "\n", _JSON
            ),
            "/healthz": lambda _: _verdict(health()),
            "/readyz": lambda _: _verdict(ready()),
        }

    def answer(self, request: Request) -> bytes:
        """Return the whole answer; empty if there is no request line."""
        if not request.parsed:
            return request.output
        try:
            response = self._response(request)
        except Exception:  # noqa: BLE001 - a bug in one view must not end the server
            _log.exception("http_request_failed", path=request.place)
            response = _response(HTTPStatus.INTERNAL_SERVER_ERROR, "this answer failed; the daemon's log says why\n")
        return request.written(response)

    def _response(self, request: Request) -> _Response:
        if (refused := self._misdirected(request)) is not None:
            return refused
        view = self._views.get(request.place)
        if view is None:
            return _response(HTTPStatus.NOT_FOUND, f"see {', '.join(self._views)}\n")
        if request.command not in ("GET", "HEAD"):
            refused = _response(HTTPStatus.METHOD_NOT_ALLOWED, "read only: GET or HEAD\n")
            return refused._replace(headers=(("Allow", "GET, HEAD"),))
        return view(request)

    def _misdirected(self, request: Request) -> _Response | None:
        """Refuse a request for another host. Browsers always name a host; old clients may not."""
        hosts = request.headers.get_all("Host", [])
        if len(hosts) > 1:
            return _response(HTTPStatus.BAD_REQUEST, "more than one Host header\n")
        host = hosts[0].strip() if hosts else ""
        try:
            if not host or self._hosts.accepts(host):
                return None
        except ValueError:
            return _response(HTTPStatus.BAD_REQUEST, "the Host header is neither HOST nor HOST:PORT\n")
        text = (
            f"{host} is not known as a name of this daemon; if it is one, list it in http_hosts (SIDECAR_HTTP_HOSTS)\n"
        )
        return _response(HTTPStatus.MISDIRECTED_REQUEST, text)

    def _metrics(self, request: Request) -> _Response:
        """Return the answer of prometheus-client, which chooses the format and the compression."""
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": request.place,
            "QUERY_STRING": request.path.partition("?")[2],
            "HTTP_ACCEPT": ",".join(request.headers.get_all("Accept", [])),
            "HTTP_ACCEPT_ENCODING": "gzip" if _takes_gzip(request.headers.get_all("Accept-Encoding", [])) else "",
        }
        started: dict[str, str] = {}
        body = b"".join(self._exporter(environ, lambda _, headers: started.update(headers)))
        content_type = started.pop("Content-Type")
        headers = (*started.items(), ("Vary", "Accept, Accept-Encoding"))
        return _Response(HTTPStatus.OK, content_type, body, headers)


def _response(status: HTTPStatus, text: str, content_type: str = _TEXT) -> _Response:
    return _Response(status, content_type, text.encode(errors="replace"))


def _verdict(reason: str | None) -> _Response:
    if reason is None:
        return _response(HTTPStatus.OK, "ok\n")
    return _response(HTTPStatus.SERVICE_UNAVAILABLE, f"{reason}\n")


def _takes_gzip(headers: list[str]) -> bool:
    """Return whether Accept-Encoding lists gzip with a quality above 0: RFC 9110, section 12.5.3."""
    for coding in ",".join(headers).lower().split(","):
        name, *parameters = (part.strip() for part in coding.split(";"))
        if name in ("gzip", "x-gzip"):
            return not any(part.replace(" ", "").strip("0") in ("q=", "q=0.", "q=.") for part in parameters)
    return False
