"""Decide by the `Host` header whether a request was meant for this daemon: protection from DNS rebinding.

The attack: a page of `attacker.example` in somebody's browser asks for `http://attacker.example:19108/`, after the
attacker let that name resolve to 127.0.0.1 or to an address of a private network. The browser then takes the answer
for the attacker's own and hands it to the page. It still sends `Host: attacker.example:19108`. So only names that an
attacker can register on the internet are dangerous. IP addresses, names without a dot and names of private networks
are not.
"""

import contextlib
import ipaddress
import re
import socket
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

PRIVATE: Final = (".local", ".localhost", ".internal", ".svc")
"""Ends of names that no public registry hands out.

`.local` has Kubernetes' `cluster.local` in it, `.internal` the names of cloud machines, and `.svc` is the short form of
a Kubernetes service's name.
"""

_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%a-z]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::\d{0,5})?", re.ASCII)


class Hosts:
    """Hold the names that this daemon answers to.

    Args:
        given: names, or globs such as `*.example.com`, from the settings.
    """

    def __init__(self, given: Iterable[str]) -> None:
        self._given = tuple(_plain(name) for name in given)
        self._own = frozenset({_plain(socket.gethostname())})

    def learn_own_names(self) -> bool:
        """Add this machine's full name, such as node-7.example.com, and return whether the resolver answered.

        It may take seconds, since DNS may be asked.
        """
        try:
            found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM, flags=socket.AI_CANONNAME)
        except (OSError, UnicodeError):
            return False
        self._own |= {_plain(canonical) for _, _, _, canonical, _ in found if canonical}
        return True

    def accepts(self, host: str) -> bool:
        """Return whether a request with this `Host` header is answered.

        Raises `ValueError` if the header is neither HOST nor HOST:PORT.
        """
        found = _HOST.fullmatch(host)
        if found is None:
            raise ValueError("Host is neither HOST nor HOST:PORT")
        if found["v6"] is not None:
            ipaddress.IPv6Address(found["v6"])
            return True
        name = _plain(found["name"])
        return (
            "." not in name
            or name.endswith(PRIVATE)
            or _is_ipv4(name)
            or name in self._own
            or any(fnmatchcase(name, pattern) for pattern in self._given)
        )


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_ipv4(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.IPv4Address(name))
    return False
