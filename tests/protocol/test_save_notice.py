"""Training tells the daemon of a save: it waits for a bounded time, and no answer of any kind is an error to it."""

import contextlib
import logging
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

from sidecar import notify

SECONDS = 0.3


@pytest.fixture
def answer():
    """Answer one connection with these bytes, one at a time, and return the URL and what was asked."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked, ended = [], threading.Event()

    def serve(data, pause):
        connection, _ = listener.accept()
        with closing(connection), contextlib.suppress(ConnectionError):  # who asked may have had enough
            asked.append(connection.recv(65536).decode())
            for each in data:
                if ended.wait(pause):
                    return
                connection.sendall(bytes([each]))

    def start(data, pause=0.0):
        threads.append(threading.Thread(target=serve, args=(data, pause)))
        threads[-1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}", asked

    threads = []
    yield start
    ended.set()
    for thread in threads:
        thread.join()
    listener.close()


def test_a_notice_names_the_checkpoint_and_has_no_body(answer, tmp_path, monkeypatch):
    """A relative path is one of this process; a run of several has a path of its own in the URL."""
    url, asked = answer(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
    monkeypatch.chdir(tmp_path)
    assert notify("step 5", f"{url}/behind/")
    head, _, body = asked[0].partition("\r\n\r\n")
    place = f"{tmp_path}/step%205"
    assert head.startswith(f"POST /behind/notify?path={place} HTTP/1.1\r\n")
    assert (body, "Content-Length: 0" in head) == ("", True)


@pytest.mark.parametrize(
    ("data", "pause", "said"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 9\r\n\r\nit is off", 0.0, "403 it is off"),
        (b"HTTP/1.1 409 Conflict\r\nContent-Length: 900000\r\n\r\n" + b"y" * 5000, 0.0, "409 " + "y" * 100),
        (b"HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n", 0.0, "307"),
        (b"SSH-2.0\r\n", 0.0, "SSH-2.0"),
        (b"", 0.0, "closed connection"),
        (b"HTTP/1.1 202 Accepted\r\nX: " + b"x" * 1000, 0.05, "no answer in 0.3 s"),
    ],
    ids=["refused", "long", "redirected", "not http", "nothing", "byte by byte"],
)
def test_any_answer_is_a_line_in_the_log(answer, caplog, data, pause, said):
    """Also a server that never comes to an end takes no more time than was given."""
    url, _ = answer(data, pause)
    since = time.monotonic()
    with caplog.at_level(logging.WARNING, "sidecar"):
        assert not notify("/ckpts/1", url.replace("//", "//ann:secret@"), timeout_seconds=SECONDS)
    assert time.monotonic() - since < SECONDS + 2
    assert said in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "node-7:19108", "http://", "http://[", "http://a:b:c", "ftp://a", "", "http://\0/"]
)
@pytest.mark.parametrize("path", ["/ckpts/1", "s3://bucket/run", "odd \udcff\n"], ids=["path", "url", "odd"])
def test_no_url_and_no_path_is_an_error(url, path):
    """A mistake costs a scan's time, and never a training step."""
    assert not notify(path, url, timeout_seconds=SECONDS)


def test_it_imports_nothing_but_the_standard_library():
    """Training has imported what it needs, and gets nothing else."""
    code = "import sys, sidecar; sidecar.notify('x', 'http://127.0.0.1:1'); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=240).stdout
    assert not {"numpy", "pydantic", "structlog", "typer", "prometheus_client"} & set(found.split())
