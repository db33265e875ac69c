"""Find the addresses of this machine, and distinguish public from private addresses. The kernel answers at once."""

import contextlib
import ipaddress
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

IPV4: Final = Path("/proc/net/fib_trie")
IPV6: Final = Path("/proc/net/if_inet6")

_LOCAL: Final = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")


def own_addresses(ipv4: Path = IPV4, ipv6: Path = IPV6) -> tuple[str, ...]:
    """Return all addresses of all interfaces, IPv4 first; none if the kernel does not list them."""
    addresses: dict[str, None] = {}
    with contextlib.suppress(OSError, ValueError):
        addresses |= dict.fromkeys(_LOCAL.findall(ipv4.read_text()))
    with contextlib.suppress(OSError, ValueError):
        # The first field is the address: 32 hexadecimal digits.
        lines = [line.split()[0] for line in ipv6.read_text().splitlines() if line]
        addresses |= dict.fromkeys(str(ipaddress.IPv6Address(int(digits, 16))) for digits in lines)
    return tuple(addresses)


def dialled(host: str) -> str:
    """Return the address by which this machine reaches a server that listens on `host`, without brackets."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - read, not bound


def host_and_port(host: str, port: int) -> str:
    """Return an address in which the port can be told from the host, also from one of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host. An IPv6 address may have brackets; no name is looked up."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def public(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Return the addresses that are routed in the internet."""
    return tuple(address for address in addresses if ipaddress.ip_address(address).is_global)


def first_interface_address() -> str | None:
    """Return the first IPv4 address of an interface that is not loopback, by SIOCGIFADDR of netdevice(7)."""
    import fcntl  # noqa: PLC0415 - Linux only, and only without a default route

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, interface in socket.if_nameindex():
            try:
                # struct ifreq: 16 bytes of name, then a sockaddr_in with the address in its bytes 4 to 8
                request = fcntl.ioctl(probe, 0x8915, interface.encode().ljust(40, b"\0"))
            except OSError:
                continue  # no IPv4 here
            address = socket.inet_ntoa(request[20:24])
            if not address.startswith("127."):
                return address
    return None


def outgoing_address(first_interface: Callable[[], str | None] = first_interface_address) -> str:
    """Return the address from which this host's routes would send, in brackets if IPv6; 127.0.0.1 without any network.

    This never waits and never uses DNS, because connecting a datagram socket only selects a route and sends nothing.
    For a host without a default route, such as a compute node of a cluster, return its first interface's address.
    """
    # These addresses are reserved for documentation. They are never neighbours, so the default route is selected.
    for family, beyond in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((beyond, 9))
                address = ipaddress.ip_address(probe.getsockname()[0])
        except (OSError, ValueError):  # no such route, or no such family
            continue
        if not address.is_unspecified:
            return f"[{address}]" if address.version == 6 else str(address)  # noqa: PLR2004 - the version's name
    return first_interface() or "127.0.0.1"


def public_address(host: str, *, resolve: bool = True) -> str | None:
    """Return the public address of `host`; None if it has none. Names are looked up only with `resolve`."""
    flags = 0 if resolve else socket.AI_NUMERICHOST
    try:
        answers = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM, flags=flags)
    except OSError:  # the name is unknown, so nobody reaches it
        return None
    addresses = (str(answer[4][0]).partition("%")[0] for answer in answers)
    return next((address for address in addresses if ipaddress.ip_address(address).is_global), None)
