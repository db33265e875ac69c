"""Ports are ours alone for a worker's whole life."""

import socket

import pytest

from sidecar.daemon.workers.ports import Ports
from sidecar.errors import SettingsError

FIRST, LAST = 23990, 23993


@pytest.fixture
def ports():
    """Makes ranges whose ports are given back at the end."""
    held = []

    class Watched(Ports):
        def reserve(self):
            held.append(super().reserve())
            return held[-1]

    yield Watched
    for port in held:
        port.close()


def bind(number, *, reuse, host="127.0.0.1", listen=True):
    with socket.socket() as stranger:
        if reuse:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        stranger.bind((host, number))
        if listen:
            stranger.listen()


def test_strangers_and_other_daemons_are_refused(ports):
    """Neither a stranger nor a second daemon with the same range gets a reserved port."""
    one, other = ports(FIRST, LAST).reserve(), ports(FIRST, LAST).reserve()
    assert (one.number, other.number) == (FIRST, FIRST + 1)
    for host in ("", "127.0.0.1"):
        with pytest.raises(OSError, match="in use"):
            bind(one.number, reuse=False, host=host)


def test_a_worker_can_serve_on_it(ports):
    """With SO_REUSEPORT, as TensorFlow does with TF_GRPC_REUSE_PORT=1, and again after a worker died."""
    port = ports(FIRST, LAST).reserve()
    bind(port.number, reuse=True)
    bind(port.number, reuse=True, host="")


def test_round_robin(ports):
    """A port that was given back is taken again only after all others."""
    made = ports(FIRST, LAST)
    first = made.reserve()
    first.close()
    assert [made.reserve().number for _ in range(4)] == [FIRST + 1, FIRST + 2, LAST, FIRST]


def test_taken_ports_are_passed_over(ports):
    """A port that a stranger listens on is skipped; when none is left, the setting to widen is named."""
    with socket.socket() as stranger:
        stranger.bind(("", FIRST))
        stranger.listen()
        made = ports(FIRST, FIRST + 1)
        assert made.reserve().number == FIRST + 1
        with pytest.raises(SettingsError, match=rf"\b{FIRST}\b.*\b{FIRST + 1}\b.*--port-range"):
            made.reserve()
