"""Read which addresses this machine has. Linux tells them in /proc/net, without waiting and without asking DNS."""

import contextlib
import ipaddress
import re
from pathlib import Path
from typing import Final

IPV4: Final = Path("/proc/net/fib_trie")
IPV6: Final = Path("/proc/net/if_inet6")

_LOCAL: Final = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")


def own_addresses(ipv4: Path = IPV4, ipv6: Path = IPV6) -> tuple[str, ...]:
    """Return all addresses of all interfaces, IPv4 first; none where the kernel does not tell them."""
    found: dict[str, None] = {}
    with contextlib.suppress(OSError, ValueError):
        found |= dict.fromkeys(_LOCAL.findall(ipv4.read_text()))
    with contextlib.suppress(OSError, ValueError):
        # The first field is the address: 32 hexadecimal digits.
        lines = [line.split()[0] for line in ipv6.read_text().splitlines() if line]
        found |= dict.fromkeys(str(ipaddress.IPv6Address(int(each, 16))) for each in lines)
    return tuple(found)


def public(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Return those that are routed in the internet."""
    return tuple(each for each in addresses if ipaddress.ip_address(each).is_global)
