"""Decide by the `Host` header whether a request was meant for this daemon, as a protection from DNS rebinding.

The attack: the attacker lets `attacker.example` resolve to 127.0.0.1 or to an address of a private network. A page of
that site in somebody's browser then requests `http://attacker.example:19108/`. The browser takes the daemon's answer
for one of the attacker's site and passes it to the page. But the request has the header
`Host: attacker.example:19108`. So only names that an attacker can register on the internet are dangerous. IP addresses,
names without a dot and names of private networks are not.
"""

import contextlib
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Final

PRIVATE: Final = (".local", ".localhost", ".internal", ".svc")
"""Endings of names that no public registry assigns.

`.local` includes Kubernetes' `cluster.local`, `.internal` the names of cloud machines, and `.svc` is the short form of
the name of a Kubernetes service.
"""

_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%a-z]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::\d{0,5})?", re.ASCII)


class Hosts:
    """Hold the names under which clients may address this daemon.

    `names`: names, or globs such as `*.example.com`, from the settings. `own`: this machine's name. `resolve`: returns
    the canonical names of a name, or raises OSError.
    """

    def __init__(
        self, names: Iterable[str], *, own: str | None = None, resolve: Callable[[str], list[str]] | None = None
    ) -> None:
        self._patterns = tuple(_normalized(name) for name in names)
        self._own, self._resolve = own or socket.gethostname(), resolve or _canonical_names
        self._machine_names = frozenset({_normalized(self._own)})

    def learn_own_names(self) -> bool:
        """Add this machine's full name, such as node-7.example.com, and return whether the resolver answered.

        This may take seconds, because the resolver may ask DNS.
        """
        try:
            found = self._resolve(self._own)
        except (OSError, UnicodeError):
            return False
        self._machine_names |= {_normalized(name) for name in found}
        return True

    def accepts(self, host: str) -> bool:
        """Return whether a request with this `Host` header may be answered.

        Raises `ValueError` if the header is neither HOST nor HOST:PORT.
        """
        match = _HOST.fullmatch(host)
        if match is None:
            raise ValueError("Host is neither HOST nor HOST:PORT")
        if match["v6"] is not None:
            ipaddress.IPv6Address(match["v6"])
            return True
        name = _normalized(match["name"])
        return (
            "." not in name
            or name.endswith(PRIVATE)
            or _is_ipv4(name)
            or name in self._machine_names
            or any(fnmatchcase(name, pattern) for pattern in self._patterns)
        )


def _canonical_names(name: str) -> list[str]:
    addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_CANONNAME)
    return [canonical for _, _, _, canonical, _ in addresses if canonical]


def _normalized(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_ipv4(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.IPv4Address(name))
    return False
