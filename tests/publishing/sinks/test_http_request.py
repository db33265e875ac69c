"""Make one request within a time, whatever the receiver sends."""

import json
import time

import pytest
from receivers import raw_server

from sidecar.publishing.sinks.sink import SinkRefusedError, SinkUnavailableError
from sidecar.publishing.sinks.webhook import Webhook

BODY = json.dumps({"event": "best", "text": "ü"}).encode()

LIMIT_SECONDS = 0.5

MOST_SECONDS = 20.0  # far more than the limit, and far less than what a hostile receiver tries


def post(url, secret=None, seconds=LIMIT_SECONDS):
    Webhook(url, secret, seconds).send(BODY, "run-7-best")


def silent(_, ended):
    ended.wait(MOST_SECONDS)


def one_byte_a_moment(connection, ended):
    for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 10_000:
        if ended.wait(0.05):
            return
        connection.sendall(bytes([byte]))


def one_header_a_moment(connection, ended):
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while not ended.wait(0.05):
        connection.sendall(b"X-A: b\r\n")


def endless_continue(connection, ended):
    while not ended.is_set():
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


def header_bomb(connection, ended):
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while not ended.is_set():
        connection.sendall(b"X-A: " + b"b" * 60_000 + b"\r\n")


def long_line(connection, ended):
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-A: ")
    while not ended.is_set():
        connection.sendall(b"b" * 60_000)


def not_http(connection, _):
    connection.sendall(bytes(range(256)) * 40)


def closes(connection, _):
    connection.recv(1)


def wrong_status(connection, _):
    connection.sendall(b"HTTP/1.1 \xff\xfe\r\n\r\n")


def slow_error(connection, ended):
    connection.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 1000000\r\n\r\n")
    while not ended.wait(0.05):
        connection.sendall(b"x")


HOSTILE = [
    *(silent, one_byte_a_moment, one_header_a_moment, endless_continue, header_bomb, long_line),
    *(not_http, closes, wrong_status, slow_error),
]


@pytest.mark.parametrize("talk", HOSTILE, ids=lambda talk: talk.__name__)
def test_a_hostile_receiver(talk):
    """One limit holds for the whole exchange, however the receiver stretches it; the reason is short and printable."""
    with raw_server(talk) as url:
        began = time.monotonic()
        with pytest.raises(SinkUnavailableError) as caught:
            post(url)
        assert time.monotonic() - began < MOST_SECONDS / 2
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


def test_a_large_answer_is_not_read():
    """Neither one that takes the event, nor one that refuses it."""
    sent = []

    def talk(connection, ended):
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 400 No\r\nContent-Length: 100000000\r\n\r\n")
        while not ended.is_set() and len(sent) < 1600:
            connection.sendall(b"x" * 65536)
            sent.append(65536)

    with raw_server(talk) as url, pytest.raises(SinkRefusedError):
        post(url, None, MOST_SECONDS)
    assert sum(sent) < 50_000_000


def test_an_exchange_can_be_broken_off():
    """By another thread, at the end of the daemon."""
    import threading

    hook, failed = None, []
    with raw_server(silent) as url:
        hook = Webhook(url, None, MOST_SECONDS)

        def send():
            try:
                hook.send(BODY, "id")
            except SinkUnavailableError as error:
                failed.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        end = time.monotonic() + MOST_SECONDS
        while thread.is_alive() and time.monotonic() < end:
            hook.close()
            thread.join(0.05)
        assert failed


def test_a_certificate_that_nobody_signed_is_refused(tmp_path):
    """A receiver must prove who it is. The sentence says how to make its authority known."""
    import ssl
    import subprocess

    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-days", "1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    got = []

    def talk(connection, _):
        connection.settimeout(MOST_SECONDS)
        with context.wrap_socket(connection, server_side=True) as secure:
            got.append(secure.recv(1 << 16))

    with raw_server(talk) as url, pytest.raises(SinkUnavailableError, match=r"self-signed.*SSL_CERT_FILE"):
        post(url.replace("http:", "https:"), None, MOST_SECONDS)
    assert got == []
