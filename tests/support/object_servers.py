"""A server of S3's protocol in a thread that misbehaves as a test asks it to, and counts its requests."""

import contextlib
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

MODIFIED = "2026-01-02T03:04:05.000Z"


class ObjectServer:
    """Serves `objects` (key: content) of the bucket `b`. `answer`: called before each answer; may give another one."""

    def __init__(self, objects=None, answer=lambda _path, _query: None):
        self.objects = {} if objects is None else objects
        self.answer = answer
        self.requests = []
        self.written = {}  # when objects were put, as a listing says it
        self._lock = threading.Lock()
        self._sizes = []  # of bodies: requests of several threads append to it at once
        self.latency_seconds = 0.0

    @property
    def sent(self):
        """Bytes of all bodies."""
        return sum(self._sizes)

    def etag(self, key):
        """Return the etag of an object, which follows from its content."""
        return f'"{abs(hash(self.objects[key])):x}"'

    def __enter__(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                server.serve(self)

            def do_PUT(self):
                server.serve(self)

            def do_POST(self):
                server.serve(self)

            def log_message(self, *_):
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "reader",
            "AWS_SECRET_ACCESS_KEY": "a-secret-nobody-may-see",
            "AWS_REGION": "us-east-1",
        }
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve(self, handler):
        """Answer one request."""
        url = urlsplit(handler.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.requests.append((url.path, query, dict(handler.headers)))
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        time.sleep(self.latency_seconds)
        answer = self.answer(url.path, query)
        if answer is None and handler.command == "GET":
            answer = self.usual(url.path, query, handler.headers)
        elif answer is None:
            answer = self.write(handler.command, url.path, handler.headers, body)
        status, headers, body = answer
        self._sizes.append(len(body))
        with contextlib.suppress(OSError):
            handler.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(body)

    def write(self, method, path, headers, body):
        """Put an object if its conditions hold; delete nothing. Return status, headers and body."""
        if method != "PUT":
            return 501, {}, b"<Error><Code>NotImplemented</Code></Error>"
        key = path.removeprefix("/b/")
        with self._lock:
            is_there = key in self.objects
            stale = headers.get("If-Match") not in (None, self.etag(key) if is_there else None)
            if stale or (is_there and headers.get("If-None-Match") == "*"):
                return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
            self.objects[key] = body
            self.written[key] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        return 200, {"ETag": self.etag(key)}, b""

    def usual(self, path, query, headers):
        """Return status, headers and body as a server that works."""
        if "list-type" in query:
            return 200, {"Content-Type": "application/xml"}, self.listing(query)
        key = path.removeprefix("/b/")
        if key not in self.objects:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        etag, content = self.etag(key), self.objects[key]
        if headers.get("If-Match") not in (None, etag):
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        if "Range" not in headers:
            return 200, {"ETag": etag, "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT"}, content
        first, last = headers["Range"].removeprefix("bytes=").split("-")
        start, end = int(first), min(int(last) + 1, len(content))
        said = {"ETag": etag, "Content-Range": f"bytes {start}-{end - 1}/{len(content)}"}
        said["Last-Modified"] = "Fri, 02 Jan 2026 03:04:05 GMT"
        return 206, said, content[start:end]

    def listing(self, query):
        """Return all objects below the prefix that was asked for."""
        keys = [key for key in self.objects if key.startswith(query.get("prefix", ""))]
        return page((key, len(self.objects[key]), self.etag(key), self.written.get(key, MODIFIED)) for key in keys)


def page(entries, following=""):
    """Return one page of a listing; `following`: the token of the next one. An entry may have a time."""
    contents = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>{when[0] if when else MODIFIED}</LastModified>"
        f"<ETag>{escape(etag)}</ETag><Size>{size}</Size></Contents>"
        for key, size, etag, *when in entries
    )
    more = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
    text = f"<ListBucketResult><IsTruncated>{str(bool(more)).lower()}</IsTruncated>{more}{contents}</ListBucketResult>"
    return f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()
