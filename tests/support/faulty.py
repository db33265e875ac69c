"""A real filesystem, in user space, that shows a folder with the faults that a test asks for.

`Faulty` mounts it, faulty_server.py serves it. Each mount of one folder is one client of a shared storage:
what one of them is refused, or waits for, others read. Rules name files by a part of their path, so one file fails and
all others work. Needs root, /dev/fuse, and libfuse.
"""

import contextlib
import ctypes.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from required import give_up

READS = ("getattr", "open", "read", "readdir", "readlink")
WRITES = ("create", "write", "mkdir", "link", "rename", "unlink", "truncate", "fsync")


def require_fuse():
    """Skip a test where no such filesystem can be had; fail it if TEST_REQUIRES names fuse3."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists() or ctypes.util.find_library("fuse3") is None:
        give_up("fuse3", "a filesystem in user space needs root, /dev/fuse and libfuse3")


class Faulty:
    """Shows `source` at `path`; `with` mounts it and ends it."""

    def __init__(self, source, path):
        self.source, self.path = Path(source), Path(path)
        self._rules = self.path.with_name(f"{self.path.name}.rules")
        self._flushes = self.path.with_name(f"{self.path.name}.flushes")
        self._server = None

    def __enter__(self):
        self.path.mkdir()
        self._say([])
        server = Path(__file__).with_name("faulty_server.py")
        words = [sys.executable, server, self.source, self.path, self._rules, self._flushes]
        self._server = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while not self.path.is_mount():
            assert self._server.poll() is None, "the filesystem's server ended"
            assert time.monotonic() < end, "the filesystem was not mounted"
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self._say([])  # whoever hangs goes on
        subprocess.run(["umount", "--lazy", str(self.path)], check=False)
        self._server.kill()
        self._server.wait(30)

    @contextlib.contextmanager
    def failing(self, part, error, *operations):
        """These operations (default: all that read) on paths with this part raise an error, or never return: "hang".

        A number instead of an error is the seconds by which each is late.
        """
        self._say([{"part": part, "error": error, "operations": operations or READS}])
        try:
            yield
        finally:
            self._say([])

    @contextlib.contextmanager
    def quota(self, limit):
        """Writing more bytes than these is refused with EDQUOT, though `statvfs` says that there is room."""
        self._say([{"part": "", "error": "EDQUOT", "operations": WRITES[:2], "beyond": limit}])
        try:
            yield
        finally:
            self._say([])

    def lose_power(self, *, names):
        """Cut each file to what was flushed when its machine lost power: call this when all that write are killed.

        Args:
            names: Whether names that no flush of their folder made durable are lost, too.
        """
        subprocess.run(["umount", "--lazy", str(self.path)], check=False)
        self._server.kill()
        self._server.wait(30)
        flushed, loose = {}, {}
        for line in self._flushes.read_text().splitlines():
            event = json.loads(line)
            match event["event"]:
                case "made" | "flushed":
                    flushed[event["inode"]] = event.get("bytes", 0)
                case "named":
                    loose.setdefault(event["folder"], set()).add(event["path"])
                case "synced":
                    loose.pop(event["folder"], None)
        for path in [each for each in self.source.rglob("*") if each.is_file() and not each.is_symlink()]:
            found = path.stat()
            durable = flushed.get(found.st_ino, found.st_size)
            if found.st_size > durable:
                os.truncate(path, durable)
        for path in sorted((path for paths in loose.values() for path in paths if names), reverse=True):
            place = Path(f"{self.source}{path}")
            with contextlib.suppress(OSError):
                place.rmdir() if place.is_dir() else place.unlink()

    def _say(self, rules):
        part = self._rules.with_suffix(".part")
        part.write_text(json.dumps(rules))
        part.replace(self._rules)
