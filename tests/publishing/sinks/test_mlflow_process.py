"""Talk to MLflow in a process of its own, and turn each odd answer into one sentence."""

import contextlib
import http.server
import socketserver
import subprocess
import sys
import threading
import time

import pytest
from journals import Journal
from processes import children
from publishing.sinks.conftest import without_variables

from sidecar.coordination.run import open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import StorageError
from sidecar.publishing.sinks import mlflow as module
from sidecar.publishing.sinks.mlflow import MLflow
from sidecar.publishing.sinks.sink import Evaluation, SinkUnavailableError

pytestmark = pytest.mark.seconds

TIMEOUT_SECONDS = 1.0
PATIENCE_SECONDS = 240.0


@pytest.fixture(scope="module")
def answering():
    """A server that answers as its attributes say; it holds the paths of the requests."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            """Note a request, and answer it as the test says."""
            self.server.requests.append((self.path, self.headers["Authorization"]))
            self.server.hold.wait(PATIENCE_SECONDS)
            self.send_response(self.server.code)
            self.send_header("Content-Type", self.server.kind)
            self.send_header("Location", "http://127.0.0.1:1/")
            self.end_headers()
            with contextlib.suppress(OSError):  # who asked may be killed
                self.wfile.write(self.server.body)

        do_POST = do_GET  # noqa: N815 - as http.server asks for it

        def log_message(self, *_):
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.hold = [], threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.hold.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("state")
    open_run(PosixStorage(place), 0.0)
    return place


@pytest.fixture(scope="module")
def sink(answering, place):
    with pytest.MonkeyPatch.context() as patch:
        without_variables(patch, "MLFLOW_")
        patch.setenv("no_proxy", "*")
        patch.setenv("MLFLOW_TRACKING_TOKEN", "t0p-secret")
        uri = f"http://127.0.0.1:{answering.server_port}"
        made = MLflow(uri, PosixStorage(place), place, TIMEOUT_SECONDS, environ={})
        yield made
        made.process.close()


@pytest.fixture
def evaluation():
    closed = Journal().evaluate("ckpt-1", 100)
    return Evaluation(
        run="mnist", plan=1, checkpoint=closed.plan.checkpoint, result=closed.outcome.result, milliseconds=1
    )


@pytest.mark.parametrize(
    ("code", "kind", "body", "shown"),
    [
        (500, "text/html", b"<html>\n<h1>\x1b[31mInternal</h1>" + b"x" * 100_000, "500"),
        (503, "text/plain", b"", "503"),
        (429, "text/plain", b"slowly", "429"),
        (401, "text/plain", b"You are not authenticated", "correct MLFLOW_TRACKING_USERNAME"),
        (403, "application/json", b'{"error_code":"PERMISSION_DENIED","message":"no right"}', "no right; correct"),
        (403, "text/plain", b"Permission denied", "correct MLFLOW_TRACKING_USERNAME"),
        (200, "text/html", b"<html>a login page</html>", "login page"),
        (200, "application/json", b"[1, 2", "[1, 2"),
        (200, "application/json", b"{}", "is not the id of a run"),
        (302, "text/html", b"", "127.0.0.1"),
        (404, "application/json", b'{"error_code":"RESOURCE_DOES_NOT_EXIST","message":"none"}', "none"),
    ],
)
def test_answers_of_servers(answering, sink, evaluation, code, kind, body, shown):
    """Nothing is refused, so that results wait until the server works, or the token is right."""
    answering.code, answering.kind, answering.body = code, kind, body
    answering.hold.set()
    with pytest.raises(SinkUnavailableError) as raised:
        sink.write(evaluation)
    text = str(raised.value)
    assert shown in text
    assert len(text) < 500
    assert text.isprintable()
    assert "t0p-secret" not in text
    assert answering.requests[-1][1] == "Bearer t0p-secret"


def test_a_server_that_never_answers(answering, sink, evaluation):
    """It is asked once, and given up after the time limit."""
    answering.hold.clear()
    asked, began = len(answering.requests), time.monotonic()
    with pytest.raises(SinkUnavailableError, match=r"[Tt]ime"):
        sink.write(evaluation)
    assert time.monotonic() - began < PATIENCE_SECONDS
    assert len(answering.requests) == asked + 1
    answering.hold.set()


def start_process(before=""):
    """Start the process that talks to MLflow, as `LineProcess` does."""
    modules = "from sidecar.publishing.sinks import line_process, mlflow_process"
    words = [sys.executable, "-c", f"{modules}\n{before}\nmlflow_process.main()"]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_the_process_ends_with_the_daemon(answering, monkeypatch):
    """At once, though a request is under way."""
    answering.hold.clear()
    asked = len(answering.requests)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{answering.server_port}")
    with start_process() as process:
        process.stdin.write(b'{"do": "delete_run", "run": "a"}\n')
        process.stdin.flush()
        end = time.monotonic() + PATIENCE_SECONDS
        while len(answering.requests) == asked:
            assert time.monotonic() < end
            time.sleep(0.05)
        process.stdin.close()
        assert process.wait(PATIENCE_SECONDS / 2) == 0
        assert process.stdout.read() == b""
    answering.hold.set()


def test_the_process_ends_without_work():
    """So that its memory is free between two results."""
    with start_process("line_process.IDLE_SECONDS = 0.1") as process:
        assert process.wait(PATIENCE_SECONDS) == 0


def test_a_server_that_answers_a_byte_at_a_time(place, evaluation, monkeypatch):
    """No library ends that, but the process is killed."""
    ended, heads = threading.Event(), [b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"]

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            """Answer the first request, and the second one without an end."""
            self.request.recv(65536)
            self.request.sendall(heads.pop() if heads else b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            with contextlib.suppress(OSError):
                while not heads and not ended.wait(0.2):
                    self.request.sendall(b" ")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_address[1]}"
        before = children()
        sink = MLflow(uri, PosixStorage(place), place, 0.5, environ={"MLFLOW_RUN_ID": "a" * 32})
        with pytest.raises(SinkUnavailableError, match="500"):
            sink.write(evaluation)  # the library is imported now
        monkeypatch.setattr(module, "START_SECONDS", 1.0)
        with pytest.raises(SinkUnavailableError, match="within 3 s"):
            sink.write(evaluation)
        ended.set()
        server.shutdown()
    assert children() == before


def test_a_record_that_is_damaged(sink, place, evaluation):
    """It is named: the daemon does not begin a second run on its own."""
    (place / "sinks").mkdir(exist_ok=True)
    record = place / sink._record(PosixStorage(place).read("run.json").decode().split('"run":"')[1][:32])
    for content in ("", "{", '{"mlflow_run": 5}', "[]"):
        record.write_text(content)
        with pytest.raises(SinkUnavailableError, match=record.name):
            sink.write(evaluation)
    record.unlink()
    record.symlink_to("/etc/passwd")
    with pytest.raises(StorageError):
        sink.write(evaluation)
    record.unlink()
