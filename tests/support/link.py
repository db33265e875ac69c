"""Two network namespaces joined by a link that is as long as wanted: a TUN device in each, and a thread between them.

`tc netem` is not in every kernel; this needs root and /dev/net/tun only.
"""

import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_TUNSETIFF = 0x400454CA  # linux/if_tun.h, as the two flags
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000  # linux/sched.h
_MAX_PACKET = 65536
_GLANCE_SECONDS = 0.1  # how soon the thread notices that it shall end
HOSTS = ("10.77.0.1", "10.77.0.2")


class Link:
    """`namespaces` with `HOSTS` in them; every packet takes `delay` seconds, first in, first out, either way."""

    def __init__(self):
        self.delay = 0.0
        self.parted = False  # packets are lost
        self.namespaces = tuple(f"sidecar-bench-{os.getpid()}-{end}" for end in "ab")
        self._ends = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._forward, name="link")

    def __enter__(self):
        for number, namespace in enumerate(self.namespaces):
            device = f"bench{os.getpid() % 10**7}{'ab'[number]}"
            end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            self._ends.append(end)
            fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", device.encode(), _IFF_TUN | _IFF_NO_PI))
            _ip("netns", "add", namespace)
            _ip("link", "set", device, "netns", namespace)
            _ip("-n", namespace, "address", "add", HOSTS[number], "peer", HOSTS[1 - number], "dev", device)
            _ip("-n", namespace, "link", "set", device, "up")
            _ip("-n", namespace, "link", "set", "lo", "up")
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        for end in self._ends:
            os.close(end)
        for namespace in self.namespaces:
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True)

    def within(self, number):
        """The words before a command that runs it at that end."""
        return ("ip", "netns", "exec", self.namespaces[number])

    def reach(self, number):
        """Connects to an address as seen from that end: a socket stays in the namespace that it was made in."""

        def connect(address):
            with ThreadPoolExecutor(1) as thread, Path("/run/netns", self.namespaces[number]).open() as namespace:
                return thread.submit(_connect_within, namespace.fileno(), address).result()

        return connect

    def _forward(self):
        underway = deque()  # (due, to, packet)
        other = dict(zip(self._ends, reversed(self._ends), strict=True))
        while not self._closed.is_set():
            pause = max(0.0, min(_GLANCE_SECONDS, underway[0][0] - time.monotonic())) if underway else _GLANCE_SECONDS
            for end in select.select(self._ends, [], [], pause)[0]:
                packet = os.read(end, _MAX_PACKET)
                if not self.parted:
                    underway.append((time.monotonic() + self.delay, other[end], packet))
            while underway and underway[0][0] <= time.monotonic():
                _, end, packet = underway.popleft()
                os.write(end, packet)


def _connect_within(namespace, address):
    """In a thread of its own, which ends afterwards: only that thread changes its namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    return socket.create_connection(address, timeout=10)


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)
