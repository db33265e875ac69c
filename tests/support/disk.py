"""A small disk of its own that can be made to hang, to fill up and to refuse writing: a file, mounted. Needs root."""

import contextlib
import shutil
import subprocess
from pathlib import Path

from sidecar.retention.pins.disk_budget import DiskBudget

MEGABYTES = 64


class WatchedBudget(DiskBudget):
    """A budget without limits that calls a function before each file is copied."""

    __slots__ = ("_before",)

    def __init__(self, before):
        super().__init__()
        object.__setattr__(self, "_before", before)

    def require_copy(self, _):
        """Call the function; its error is that of the copy."""
        self._before()


class Disk:
    """An ext4 filesystem at `path`; `with` mounts it and ends it."""

    def __init__(self, folder):
        self.path = Path(folder)
        self._image = self.path.with_suffix(".img")

    def __enter__(self):
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(MEGABYTES << 20)
        _run("mkfs.ext4", "-q", "-m", "0", "-N", "1024", self._image)  # so few that all are soon taken
        _run("mount", "-o", "loop", self._image, self.path)
        return self

    def __exit__(self, *_):
        _run("umount", "--lazy", self.path)  # a process may be about to leave it

    @contextlib.contextmanager
    def frozen(self):
        """Writers wait until this ends; reading goes on."""
        _run("fsfreeze", "--freeze", self.path)
        try:
            yield
        finally:
            _run("fsfreeze", "--unfreeze", self.path)

    @contextlib.contextmanager
    def read_only(self):
        """Nobody can write; whoever has a file open for it must close that first."""
        _run("mount", "-o", "remount,ro", self.path)
        try:
            yield
        finally:
            _run("mount", "-o", "remount,rw", self.path)

    @contextlib.contextmanager
    def full(self, *, names=False):
        """Not a byte is left and, if asked for, no file may be created."""
        ballast, empty = self.path / "ballast", self.path / "names"
        empty.mkdir()
        ballast.touch()
        if names:
            with contextlib.suppress(OSError):
                for number in range(1 << 20):
                    (empty / str(number)).touch()
        with ballast.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"\0" * size)
        try:
            yield
        finally:
            ballast.unlink()
            shutil.rmtree(empty)


def _run(*words):
    subprocess.run([str(word) for word in words], check=True, capture_output=True)
