"""A control group for a daemon and all that it starts, with a limit of processes or of memory. Needs root."""

import contextlib
import os
import time
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")
LIMITS = {"pids": ("pids.max", "pids.max"), "memory": ("memory.limit_in_bytes", "memory.max")}
"""The file of each limit: of the first hierarchy, and of the unified one."""


@contextlib.contextmanager
def limited(**limits):
    """Yield the words before a command that let it run within limits; skip the test where that cannot be had."""
    made = []
    try:
        for kind, limit in limits.items():
            made.append(_make(kind, limit))
        yield ["sh", "-c", "".join(f"echo $$ > {each}/cgroup.procs && " for each in made) + 'exec "$@"', "sh"]
    finally:
        for each in made:
            _remove(each)


def _make(kind, limit):
    old, new = LIMITS[kind]
    parent, name = (ROOT / kind, old) if (ROOT / kind).is_dir() else (ROOT, new)
    folder = parent / f"sidecar-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / name).write_text(str(limit))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"this machine gives no control group with {name}: {error.strerror}")
    return folder


def _remove(folder):
    """Remove a group, which is empty as soon as the kernel has noticed the end of its processes."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.05)
