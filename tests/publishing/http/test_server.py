"""Serve any number of clients, slow and hostile ones among them, for a bounded effort."""

import contextlib
import http.client
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from publishing.http.conftest import Daemon, answer, connect, started

from sidecar.errors import SettingsError
from sidecar.publishing.http import server as serving


def test_port_in_use(running):
    """A second daemon on the same port is told which port, and what to do."""
    daemon, server = running
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(SettingsError, match=rf"127\.0\.0\.1:{port}\b.*in use.*--http HOST:PORT"):
        daemon.serve(port=port).start()


@pytest.mark.parametrize("address", [("192.0.2.1", 0), ("127.0.0.1", 99999), ("127.0.0.1", -1), ("no such host", 0)])
def test_unusable_address(address):
    """An address that cannot be listened on is a setting to change, not a traceback."""
    with pytest.raises(SettingsError, match=rf"{address[0]}:{address[1]}\b.*--http"):
        Daemon().serve(*address).start()


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6(host):
    """IPv6 literals work with and without brackets."""
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with started(Daemon().serve(host)) as server:
        assert server.url.startswith("http://[::1]:")
        with urllib.request.urlopen(server.url + "/healthz", timeout=60) as response:
            assert response.read() == b"ok\n"


def test_all_interfaces():
    """A wildcard address is shown as one that can be opened here."""
    with started(Daemon().serve("0.0.0.0")) as server:
        assert server.url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(server.url + "/readyz", timeout=60) as response:
            assert response.status == 200


def test_starts_before_a_name_server_answers(monkeypatch):
    """Listening on a literal address waits for no name: the resolver answers after a request was answered."""
    may_answer, really = threading.Event(), socket.getaddrinfo

    def asked(*_):
        raise AssertionError("a name server was asked")

    def slow(host, *arguments, **options):
        assert host == "127.0.0.1" or may_answer.wait(30)
        return really(host, *arguments, **options)

    monkeypatch.setattr(socket, "gethostbyaddr", asked)  # `getfqdn` calls it, too
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with started(Daemon().serve()) as server, urllib.request.urlopen(server.url + "/healthz", timeout=60) as response:
        may_answer.set()
        assert response.status == 200


def test_slow_client_is_dropped():
    """A client that drips its request is cut off after the time for the whole request; others are served meanwhile."""
    with started(Daemon().serve(request_seconds=0.3)) as server, connect(server) as slow:
        before = time.monotonic()
        slow.sendall(b"GET /healthz HTTP/1.1\r\n")
        with urllib.request.urlopen(server.url + "/healthz", timeout=60) as response:
            assert response.status == 200
        stop = threading.Event()

        def drip():
            while not stop.wait(0.05):
                try:
                    slow.sendall(b"x")
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        assert answer(slow) == b""
        assert 0.2 < time.monotonic() - before < 5
        stop.set()
        dripping.join()


def test_long_request_is_dropped(running, capfd):
    """A request that does not end is cut off, quietly."""
    _, server = running
    with connect(server) as client:
        try:
            client.sendall(b"GET /")
            for _ in range(1000):
                client.sendall(b"x" * 4096)
        except OSError:
            pass  # cut off while still sending
        assert answer(client) == b""
    assert capfd.readouterr() == ("", "")


def test_garbage(running, capfd):
    """Bytes that are not HTTP get a refusal and write no line to the log."""
    _, server = running
    with connect(server) as client:
        client.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        assert b"400" in answer(client)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "head", [b"\x16\x03\x01 hello\r\n", b"GET / HTTP/9.9\r\n", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101]
)
def test_refusals_of_the_parser_have_the_policy(running, head):
    """They repeat what the client sent."""
    _, server = running
    with connect(server) as client:
        client.sendall(head + b"\r\n")
        refusal = answer(client)
    assert b"Content-Security-Policy: default-src 'none'" in refusal
    assert b"X-Content-Type-Options: nosniff" in refusal


def test_the_oldest_connection_makes_room():
    """With all places taken, a new client is served, and the one that waited longest is dropped."""
    with started(Daemon().serve(most=(64, 2))) as server:
        first, second = connect(server), connect(server)
        for client in (first, second):
            client.sendall(b"GET /hea")
        with connect(server) as third:
            third.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert answer(third).endswith(b"ok\n")
        with first, second:
            assert answer(first) == b""
            second.sendall(b"lthz HTTP/1.0\r\n\r\n")
            assert answer(second).endswith(b"ok\n")


def test_the_client_with_most_connections_loses_one():
    """The busiest of several addresses makes room: the only connection of another one stays, however old."""
    with started(Daemon().serve("0.0.0.0", most=(3, 32))) as server:
        old = connect(server, "127.0.0.2")
        busy = [connect(server, "127.0.0.3") for _ in range(3)]
        with old, busy[0], busy[1], busy[2]:
            assert answer(busy[0]) == b""
            for client in (old, *busy[1:]):
                client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
                assert answer(client).endswith(b"ok\n")


DRIPPING = """
import socket, sys, time

port, sockets, sources = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
held = [None] * sockets
while True:
    for number in range(sockets):
        try:
            if held[number] is None:
                source = sources[number % len(sources)]
                held[number] = socket.create_connection(("127.0.0.1", port), 5, (source, 0))
            held[number].send(b"G")
        except OSError:
            if held[number] is not None:
                held[number].close()
            held[number] = None
    time.sleep(0.1)
"""
"""Hold so many sockets, each sending a byte every 0.1 s; a dropped one comes back at once."""


@contextmanager
def dripping(server, sockets, sources):
    """Attack it from another process: threads of this one would hold up the honest client, too."""
    arguments = [str(urlsplit(server.url).port), str(sockets), *sources]
    attack = subprocess.Popen([sys.executable, "-c", DRIPPING, *arguments])
    try:
        yield
    finally:
        attack.kill()
        attack.wait()


def asked_twice(url):
    """Return an answer within a second, asking once more if the connection was dropped: as probes and scrapers do."""
    end = time.monotonic() + 1
    try:
        return urllib.request.urlopen(url, timeout=1)
    except (urllib.error.URLError, http.client.RemoteDisconnected, ConnectionError):
        return urllib.request.urlopen(url, timeout=max(0.001, end - time.monotonic()))


@pytest.mark.nightly
@pytest.mark.seconds
@pytest.mark.parametrize(
    ("sockets", "sources"),
    [
        pytest.param(40, ["127.0.0.1"], marks=pytest.mark.nightly),
        (200, [f"127.0.0.{last}" for last in range(1, 9)]),
    ],
)
def test_slow_clients_do_not_take_the_port_away(sockets, sources):
    """While many sockets drip for 10 s, each probe and scrape is answered within a second."""
    with started(Daemon().serve("0.0.0.0")) as server, dripping(server, sockets, sources):
        end = time.monotonic() + 10
        answered = 0
        while time.monotonic() < end:
            for path in ("/healthz", "/readyz", "/metrics"):
                with asked_twice(server.url + path) as response:
                    assert response.status == 200
                answered += 1
            time.sleep(0.02)
        assert answered > 20


def test_who_is_being_answered_keeps_its_place():
    """However many come after it with less than a request, and from the same address."""
    go_on, server = threading.Event(), Daemon().serve(most=(3, 32))
    page = server.views.paths["/api/status"]
    server.views.paths["/"] = lambda request: go_on.wait(20) and page(request)
    with started(server), contextlib.ExitStack() as held:
        first = held.enter_context(connect(server))
        first.sendall(b"GET / HTTP/1.0\r\n\r\n")
        time.sleep(0.2)
        for _ in range(10):
            held.enter_context(connect(server)).sendall(b"G")
        go_on.set()
        assert answer(first).endswith(b"}\n")


@pytest.mark.seconds
def test_clients_that_do_not_read_do_not_take_the_port_away():
    """A large answer that nobody takes holds a place, which the next client gets."""
    daemon = Daemon()
    daemon.status = {"run": "x" * 8_000_000}
    with started(daemon.serve()) as server:
        greedy = [connect(server) for _ in range(serving.CONNECTIONS + 5)]
        for client in greedy:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # else the kernel takes most of an answer
            with contextlib.suppress(OSError):
                client.sendall(b"GET /api/status HTTP/1.0\r\n\r\n")
        for path in ("/healthz", "/metrics"):
            with urllib.request.urlopen(server.url + path, timeout=240) as response:
                assert response.status == 200
        for client in greedy:
            client.close()


def test_probes_do_not_wait_for_other_answers():
    """While a page is being made, however long that takes, probes are answered."""
    daemon, go_on = Daemon(), threading.Event()
    server = daemon.serve()
    server.views.paths["/"] = lambda _: go_on.wait(20)
    with started(server):
        waiting = [connect(server) for _ in range(5)]
        for client in waiting:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with urllib.request.urlopen(server.url + "/healthz", timeout=60) as response:
            assert response.status == 200
        assert not go_on.is_set()
        go_on.set()
        for client in waiting:
            client.close()


def test_a_body_that_never_comes_is_not_waited_for(running):
    """A request says how long its body is: nobody reads it, so the refusal comes at once."""
    _, server = running
    before = time.monotonic()
    with connect(server) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1" + b"0" * 30 + b"\r\n\r\nx")
        assert b" 405 " in answer(client)
    assert time.monotonic() - before < 5


def test_nothing_says_which_python_serves(running):
    """Neither answers nor refusals name the program below."""
    _, server = running
    for request in (
        b"GET / HTTP/1.0\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET /nowhere HTTP/1.0\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ):
        with connect(server) as client:
            client.sendall(request)
            found = answer(client)
        assert b"\r\nServer: sidecar\r\n" in found
        assert b"Python" not in found


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"HTTP/1.1\r\nHost: daemon-chief:19108", 200),
        (b"HTTP/1.1\r\nHost: 10.0.0.7", 200),
        (b"HTTP/1.1\r\nHost: [::1]:19108", 200),
        (b"HTTP/1.0", 200),  # no browser
        (b"HTTP/1.1\r\nHost:", 200),
        (b"HTTP/1.1\r\nHost: attacker.example", 421),
        (b'HTTP/1.1\r\nHost: "><script>', 400),
        (b"HTTP/1.1\r\nHost: a\r\nHost: attacker.example", 400),
    ],
)
def test_requests_for_another_host_are_refused(running, sent, status):
    """A page that let its own name lead here cannot read the answer; the refusal names the setting."""
    _, server = running
    with connect(server) as client:
        client.sendall(b"GET /metrics " + sent + b"\r\n\r\n")
        found = answer(client)
    assert f" {status} ".encode() in found.split(b"\r\n")[0]
    assert (b"sidecar_example" in found) is (status == 200)
    if status == 421:
        assert b"http_hosts" in found


def test_close():
    """Closing frees the port, and closing again or before the start does no harm."""
    server = Daemon().serve()
    server.close()
    server.start()
    port = int(server.url.rpartition(":")[2])
    server.close()
    server.close()
    with started(Daemon().serve(port=port)):
        pass


def test_a_client_that_comes_at_the_very_end_is_closed():
    """A connection is not forgotten when the server ends in the turn of its loop in which it arrives.

    pytest fails the test where a socket is collected that nobody has closed.
    """
    with contextlib.ExitStack() as clients:

        def arrive_and_close():  # in the thread of the loop, which sees both only afterwards
            clients.enter_context(connect(server))
            closing.start()
            closing.join(0.2)

        server = Daemon().serve(health=arrive_and_close)
        closing = threading.Thread(target=server.close)
        server.start()
        with contextlib.suppress(OSError), connect(server) as client:
            time.sleep(0.1)  # the server waits for the next client by now
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            client.recv(1)
        closing.join()
