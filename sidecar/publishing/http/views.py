"""Build the answer to one request, by its path. Bytes in, bytes out: there are no sockets here.

The views call the metrics registry and three callables, which must only read values that exist already. They never
touch storage and never wait for the daemon's loop.
"""

import io
import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from prometheus_client import CollectorRegistry, make_wsgi_app

from sidecar.publishing.evaluation_archive.reader import ArchiveReader
from sidecar.publishing.http.hosts import Hosts
from sidecar.publishing.http.response import TEXT, Response, response, unless_known
from sidecar.publishing.plain_structlog import structlog

if TYPE_CHECKING:
    from sidecar.publishing.http.run_pages import Runs, View

_log = structlog.get_logger()

_PROBES: Final = ("/healthz", "/readyz")
_PAGE: Final = (
    "/",
    "/evaluations",
    "/evaluation",
    "/api/status",
    "/api/curves",
    "/api/curve",
    "/api/evaluations",
    "/api/evaluation",
    "/comparison",
    "/api/comparison",
)
"""The paths that `page_views` answers, in addition to its files."""

_NOTIFY: Final = "/notify"
"""The one path of which something follows: a scan."""

_LONGEST_PATH: Final = 4096

_LIST: Final = ("/", "/api/status")
"""The paths of the list of several runs. Those of each run begin with `_RUN`."""

_RUN: Final = "/runs/"

_API_1: Final = "/api/v1/"
"""The same answers as below /api/, with the promise of docs/reference/http.md. A change of it is another version."""

_LOG_SECONDS: Final = 60.0
"""The time in which a path is logged once, however many requests of it fail."""

_FILES: Final = ("/static/", "/favicon.ico")

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The policy for browsers: an answer may load our own files, and nothing that it contains itself."""


class Request(BaseHTTPRequestHandler):
    """Parse one request head in memory, with the parser of the standard library.

    `head`: the request line and the headers, with the empty line that ends them. `added`: headers of the answer, in
    addition to the usual ones or in their place.
    """

    default_request_version = "HTTP/1.0"  # so that a refusal always has a status line
    error_content_type = TEXT
    error_message_format = "%(message)s\n"

    def __init__(self, head: bytes, added: Mapping[str, str] = MappingProxyType({})) -> None:
        self._added = added
        self.rfile = io.BytesIO(head)
        self.wfile = self._output = io.BytesIO()
        self.client_address = ("", 0)
        self.raw_requestline = self.rfile.readline()
        self.command, self.requestline, self.request_version = "", "", ""
        self.parsed = self.parse_request()

    @property
    def place(self) -> str:
        """Return the path of the request, without the query and without the version of the API."""
        return unquote(self.path.partition("?")[0], errors="replace").replace(_API_1, "/api/", 1)

    @property
    def query(self) -> str:
        """Return the part of the request's path after the question mark."""
        return self.path.partition("?")[2]

    @property
    def is_quick(self) -> bool:
        """Return whether the answer takes no time to build: that of a probe, or a refusal."""
        return not self.parsed or self.place in _PROBES

    @property
    def is_probe(self) -> bool:
        """Return whether this asks only whether the daemon is alive or ready, which probes do without a password."""
        return self.parsed and self.place in _PROBES

    @property
    def authorization(self) -> str:
        """Return the header with user and password; empty if there is none, or more than one."""
        found = self.headers.get_all("Authorization", []) if self.parsed else []
        return found[0] if len(found) == 1 else ""

    @property
    def output(self) -> bytes:
        """Return the bytes written so far: for a request that could not be parsed, the refusal."""
        return self._output.getvalue()

    def written(self, response: Response) -> bytes:
        """Return the bytes of the whole answer."""
        self.send_response(response.status)
        for name, value in response.headers:
            self.send_header(name, value)
        self.send_header("Content-Type", response.content_type)
        if response.status != HTTPStatus.NOT_MODIFIED:  # there it would be the length of the whole answer
            self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Connection", "close")
        if "Cache-Control" not in dict(response.headers):
            self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)
        return self.output

    def end_headers(self) -> None:
        """Add what every answer has, also a refusal that the parser of the standard library writes."""
        usual = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": CONTENT_SECURITY_POLICY}
        for name, value in (usual | dict(self._added)).items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        """Return the name of the program for the header `Server`, without the version of Python."""
        return "sidecar"

    def log_message(self, *_: Any) -> None:
        """Write no access log: a scraper calls every few seconds."""


UNAUTHORIZED: Final = response(HTTPStatus.UNAUTHORIZED, "user and password, please\n")._replace(
    headers=(("WWW-Authenticate", 'Basic realm="sidecar", charset="UTF-8"'),)
)
"""The answer to a request without a user and password that the settings know."""


class Views:
    """Answer requests by path."""

    def __init__(
        self,
        hosts: Hosts,  # decides which `Host` headers are answered
        registry: CollectorRegistry,  # the metrics that /metrics shows
        health: Callable[[], str | None],  # returns why the daemon is not alive, or None
        ready: Callable[[], str | None],  # returns why the daemon is not ready, or None
        status: Callable[[], dict[str, Any]],  # returns the content of /api/status and of the page
        archive: ArchiveReader | None,  # answers questions about all evaluations; None: of several runs
        runs: "Runs | None" = None,  # returns what is known of each run, if this process serves several
        # Has the checkpoints scanned, because training saved one at a path; returns why not. None: nobody may ask
        notice: Callable[[str], str | None] | None = None,
    ) -> None:
        self._hosts = hosts
        self._exporter = make_wsgi_app(registry)
        self._status, self._archive, self._runs, self._notice = status, archive, runs, notice
        self._logged_again_at: dict[str, float] = {}
        self.paths: dict[str, Callable[[Request], Response]] = {
            "/metrics": self._metrics,
            **{path: partial(self._of_page, path) for path in (_PAGE if runs is None else _LIST)},
            _NOTIFY: self._notified,
            "/healthz": lambda _: _verdict(health()),
            "/readyz": lambda _: _verdict(ready()),
        }

    @cached_property
    def _view_of_page(self) -> "Callable[[str], View | None]":
        """Import the page when somebody looks at it: half a megabyte. Return the function that finds a view of it."""
        if self._archive is None:
            from sidecar.publishing.http.run_pages import RunPages  # noqa: PLC0415

            return RunPages(self._runs or tuple).view
        from sidecar.publishing.http.page_views import PageViews  # noqa: PLC0415

        return PageViews(self._status, self._archive).views.get

    def answer(self, request: Request) -> bytes:
        """Return the whole answer; empty if there is no request line."""
        if not request.parsed:
            return request.output
        try:
            found = self._answer(request)
        except Exception:  # noqa: BLE001 - a bug in one view must not end the server
            self._log_failure(request.place)
            found = response(HTTPStatus.INTERNAL_SERVER_ERROR, "this answer failed; the daemon's log says why\n")
        return request.written(found)

    def _log_failure(self, place: str) -> None:
        """Log the exception of a request, for each path once in `_LOG_SECONDS`: clients repeat themselves."""
        path = place if place in self.paths else _FILES[0]
        now = time.monotonic()
        if now >= self._logged_again_at.get(path, now):
            self._logged_again_at[path] = now + _LOG_SECONDS
            _log.exception("http_request_failed", path=place)

    def _answer(self, request: Request) -> Response:
        if (refused := self._misdirected(request)) is not None:
            return refused
        view = self.paths.get(request.place) or self._file(request.place) or self._of_run(request.place)
        if view is None:
            return response(HTTPStatus.NOT_FOUND, f"see {', '.join(self.paths)}\n")
        methods = ("POST",) if request.place == _NOTIFY else ("GET", "HEAD")
        if request.command not in methods:
            refused = response(HTTPStatus.METHOD_NOT_ALLOWED, f"{' or '.join(methods)} only\n")
            return refused._replace(headers=(("Allow", ", ".join(methods)),))
        return unless_known(view(request), ",".join(request.headers.get_all("If-None-Match", [])))

    def _notified(self, request: Request) -> Response:
        """Have the checkpoints scanned. No page may ask for that, and browsers say that they ask for one."""
        if self._notice is None:
            return response(HTTPStatus.FORBIDDEN, "notices are off: write http_notices = true into sidecar.toml\n")
        if request.headers.get("Origin") is not None or request.headers.get("Sec-Fetch-Site") is not None:
            return response(HTTPStatus.FORBIDDEN, "a notice cannot come from a page in a browser\n")
        name, _, path = request.query.partition("=")
        if name not in ("", "path") or len(path) > _LONGEST_PATH:
            return response(HTTPStatus.BAD_REQUEST, f"?path=PATH, of {_LONGEST_PATH} characters at most\n")
        why_not = self._notice(unquote(path, errors="replace"))
        if why_not is not None:
            return response(HTTPStatus.CONFLICT, f"{why_not}\n")
        return response(HTTPStatus.ACCEPTED, "a scan follows\n")

    def _of_page(self, path: str, request: Request) -> Response:
        view = self._view_of_page(path)
        assert view is not None
        return view(request)

    def _of_run(self, place: str) -> "View | None":
        """Return a view of the page of one run among several; None if there is none at this path."""
        return self._view_of_page(place) if self._runs is not None and place.startswith(_RUN) else None

    def _file(self, place: str) -> Callable[[Request], Response] | None:
        """Return a view that answers with a file of the page; None if there is none at this path."""
        if not place.startswith(_FILES):
            return None
        from sidecar.publishing.http.page_views import static_file  # noqa: PLC0415 - as for the page

        file = static_file(place)
        return None if file is None else lambda _: file

    def _misdirected(self, request: Request) -> Response | None:
        """Refuse a request for another host. Browsers always name a host; old clients may not."""
        hosts = request.headers.get_all("Host", [])
        if len(hosts) > 1:
            return response(HTTPStatus.BAD_REQUEST, "more than one Host header\n")
        host = hosts[0].strip() if hosts else ""
        try:
            if not host or self._hosts.accepts(host):
                return None
        except ValueError:
            return response(HTTPStatus.BAD_REQUEST, "the Host header is neither HOST nor HOST:PORT\n")
        text = (
            f"{host} is not known as a name of this daemon; if it is one, list it in http_hosts (SIDECAR_HTTP_HOSTS)\n"
        )
        return response(HTTPStatus.MISDIRECTED_REQUEST, text)

    def _metrics(self, request: Request) -> Response:
        """Return the answer of prometheus-client, which chooses the format and the compression."""
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": request.place,
            "QUERY_STRING": request.query,
            "HTTP_ACCEPT": ",".join(request.headers.get_all("Accept", [])),
            "HTTP_ACCEPT_ENCODING": "gzip" if _takes_gzip(request.headers.get_all("Accept-Encoding", [])) else "",
        }
        started: dict[str, str] = {}

        def ask() -> bytes:
            return b"".join(self._exporter(environ, lambda _, headers: started.update(headers)))

        try:
            body = ask()
        except (TypeError, ValueError):  # prometheus-client takes any version in Accept for numbers
            environ["HTTP_ACCEPT"] = ""
            body = ask()
        content_type = started.pop("Content-Type")
        headers = (*started.items(), ("Vary", "Accept, Accept-Encoding"))
        return Response(HTTPStatus.OK, content_type, body, headers)


def _verdict(reason: str | None) -> Response:
    if reason is None:
        return response(HTTPStatus.OK, "ok\n")
    return response(HTTPStatus.SERVICE_UNAVAILABLE, f"{reason}\n")


def _takes_gzip(headers: list[str]) -> bool:
    """Return whether Accept-Encoding lists gzip with a quality above 0: RFC 9110, section 12.5.3."""
    for coding in ",".join(headers).lower().split(","):
        name, *parameters = (part.strip() for part in coding.split(";"))
        if name in ("gzip", "x-gzip"):
            return not any(part.replace(" ", "").strip("0") in ("q=", "q=0.", "q=.") for part in parameters)
    return False
