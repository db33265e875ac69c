"""Which addresses this machine has, as the kernel tells them."""

import ipaddress
import socket

import psutil
import pytest

from sidecar.system.addresses import first_interface_address, outgoing_address, own_addresses, public, public_address

FIB_TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.0.0.0/24 2 0 2
        |-- 10.0.0.0
           /24 link UNICAST
        |-- 10.0.0.7
           /32 host LOCAL
        |-- 10.0.0.255
           /32 link BROADCAST
     |-- 8.8.4.4
        /32 host LOCAL
Local:
        |-- 10.0.0.7
           /32 host LOCAL
"""
IF_INET6 = """fe8000000000000000fc00fffe000001 04 40 20 80     eth0
26064700000000000000000000001111 04 40 00 82     eth0
00000000000000000000000000000001 01 80 10 80       lo
"""


def test_addresses_are_read(tmp_path):
    """Each once, of both families; public are those that the internet routes."""
    (tmp_path / "4").write_text(FIB_TRIE)
    (tmp_path / "6").write_text(IF_INET6)
    found = own_addresses(tmp_path / "4", tmp_path / "6")
    assert found == ("10.0.0.7", "8.8.4.4", "fe80::fc:ff:fe00:1", "2606:4700::1111", "::1")
    assert public(found) == ("8.8.4.4", "2606:4700::1111")


def test_a_kernel_that_tells_none(tmp_path):
    """Nothing is known then, and nothing fails."""
    (tmp_path / "6").write_text("nonsense\n")
    assert own_addresses(tmp_path / "4", tmp_path / "6") == ()


def test_this_machine():
    """As psutil lists them by another way."""
    listed = {
        each.address.partition("%")[0]
        for all_ in psutil.net_if_addrs().values()
        for each in all_
        if each.family in (2, 10)
    }
    assert set(own_addresses()) >= listed


def test_the_own_address_needs_no_network():
    """It is an address in any case, found without asking anybody."""
    ipaddress.ip_address(outgoing_address().strip("[]"))


def test_without_a_default_route_an_interface_answers(monkeypatch):
    """Compute nodes without a way out still have an address on their own network; without any, loopback is left."""

    class NoRoute:
        def __init__(self, *_):
            raise OSError("Network is unreachable")

    monkeypatch.setattr("socket.socket", NoRoute)
    assert outgoing_address(lambda: "192.168.7.7") == "192.168.7.7"
    assert outgoing_address(lambda: None) == "127.0.0.1"


def test_an_interface_address_is_one(monkeypatch):
    """The kernel's answer is read from the right bytes: loopback is found, and skipped."""
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo")])
    assert first_interface_address() is None
    monkeypatch.undo()
    found = first_interface_address()
    assert found is None or not ipaddress.ip_address(found).is_loopback


@pytest.mark.parametrize(
    ("host", "public"),
    [
        ("10.0.0.9", None),
        ("127.0.0.1", None),
        ("100.64.3.4", None),  # a carrier's or a VPN's
        ("[fd00::1]", None),
        ("[fe80::1]", None),
        ("8.8.8.8", "8.8.8.8"),
        ("[2606:4700::1111]", "2606:4700::1111"),
        ("localhost", None),
        ("no-such-host.invalid", None),
    ],
)
def test_public_addresses_are_told_from_private_ones(host, public):
    """An address is public if anybody on the internet could dial it."""
    assert public_address(host) == public
    if "host" not in host:
        assert public_address(host, resolve=False) == public


def test_names_are_looked_up_only_where_waiting_is_allowed(monkeypatch):
    """The daemon asks no resolver at its start; `check` does."""
    asked = []

    def resolver(host, *_, flags=0, **__):
        asked.append(host)
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror("a name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.1.2.3", 0)), (2, 1, 6, "", ("9.9.9.9", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    assert public_address("train-7", resolve=False) is None
    assert public_address("train-7") == "9.9.9.9"
    assert asked == ["train-7", "train-7"]
