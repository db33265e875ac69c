"""Receivers of webhooks on 127.0.0.1: one that answers as a test says, and hostile ones that write raw bytes."""

import contextlib
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Request:
    """Hold the path, the headers and the body of one request."""

    path: str
    headers: dict
    body: bytes


@dataclass
class Receiver:
    """A server that notes each request, and answers with the next of `answers`, or 204."""

    answers: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    headers: dict = field(default_factory=dict)
    url: str = ""

    def respond(self, handler):
        """Note a request, and answer it."""
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append(Request(handler.path, headers, body))
        code = self.answers.pop(0) if self.answers else 204
        handler.send_response(code)
        for name, value in self.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", "0" if code == 204 else "3")
        handler.end_headers()
        if code != 204:
            handler.wfile.write(b"why")


@contextlib.contextmanager
def receiver():
    """Serve until the end of the block."""
    made = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            made.respond(self)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_port}/hook"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield made
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def raw_server(talk):
    """Serve connections one after the other by `talk(connection, ended)`; yields the URL."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)

        def serve():
            while not ended.is_set():
                with contextlib.suppress(OSError):  # nobody came for a moment, or the other side has had enough
                    connection, _ = listening.accept()
                    with connection:
                        connection.settimeout(0.5)
                        talk(connection, ended)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/hook"
        ended.set()
        thread.join()
