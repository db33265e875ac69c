"""Which names are safe to answer to."""

import socket

import pytest

from sidecar.publishing.http.hosts import Hosts


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:19108",
        "10.1.2.3",
        "[::1]",
        "[fe80::1%eth0]:19108",
        "localhost:19108",
        "LOCALHOST",
        "daemon-chief:19108",
        "compose_service_1:19108",
        "sidecar-0.sidecar.training.svc:19108",
        "sidecar-0.sidecar.training.svc.cluster.local.:19108",
        "ip-10-0-0-7.ec2.internal",
        "node-7.example.com",
        "NODE-7.Example.com.:80",
        "a.cluster.example.org",
    ],
)
def test_safe_names(host):
    """Addresses, names without a dot, names of private networks, and what the settings list."""
    assert Hosts(["node-7.example.com", "*.cluster.example.org"]).accepts(host)


@pytest.mark.parametrize(
    "host",
    ["attacker.example", "127.0.0.1.attacker.example", "localhost.attacker.example:19108", "1.2.3", "x.svc.evil.com"],
)
def test_names_that_anybody_can_register(host):
    """A name with a dot that nobody listed may be one that leads here for a moment only."""
    assert not Hosts(["node-7.example.com", "*.cluster.example.org"]).accepts(host)


@pytest.mark.parametrize(
    "host", ["a b", "<a>", "a:b", "[::1", "[1.2.3.4]", "[::g]", "user@a", "a/b", "a:1:2", "\u00e4"]
)
def test_no_host(host):
    """A Host header that is neither a name nor an address is refused."""
    with pytest.raises(ValueError, match=r"Host|octets|At least|least|colons|address|hexadecimal|digit"):
        Hosts([]).accepts(host)


def test_own_names():
    """A machine answers to its host name, and to its full name once that is known."""
    hosts = Hosts([], own="node-7", resolve=lambda _: ["Node-7.example.com"])
    assert not hosts.accepts("node-7.example.com")
    assert hosts.learn_own_names()
    assert hosts.accepts("node-7.example.com:19108")
    assert not hosts.accepts("node-8.example.com")


def test_no_name_server():
    """A name server that does not answer changes nothing, and is asked again."""

    def fail(*_, **__):
        raise socket.gaierror

    assert not Hosts([], resolve=fail).learn_own_names()
